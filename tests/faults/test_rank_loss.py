"""A rank that dies or hangs: the others name it, its host, step and last action in one line, within the bound."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dinoskip.io.files import read_json, verify_manifest
from dinoskip.settings.specs import list_checkpoints
from tests.faults.test_preempt import slow_steps
from tests.helpers.launch import Child, children, rank_environments
from tests.helpers.tiny import count_rows, tiny_job

BOUND, PATIENCE = 3.0, 4.0


@contextmanager
def pair(
    images: Path, run_dir: Path, rows: int, *, every: int | None, prepare: Callable[[], None] = slow_steps
) -> Iterator[list[Child]]:
    """Two ranks that have logged ``rows`` steps of many."""
    job = tiny_job(skip=False, checkpoint_every_steps=every, epochs=50, rank_timeout=BOUND)
    started = [Child(job, images, run_dir, env=env, prepare=prepare) for env in rank_environments(2)]
    with children(*started):
        started[0].wait_for(lambda: count_rows(run_dir) >= rows)
        yield started


def line_of(rank: int) -> re.Pattern[str]:
    """The one line that names a rank."""
    host = re.escape(socket.gethostname())
    return re.compile(
        rf"^error: rank {rank} on {host} \(process \d+\), last at step \d+: [^;\n]+; [^\n]+$", re.MULTILINE
    )


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_hangs_is_named_within_the_bound(rank: int, images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 4, every=2) as started:
        hanging, other = started[rank], started[1 - rank]
        hanging.signal(signal.SIGSTOP)
        log = other.ends(75, f"no sign of life for {BOUND:g} s", "the same command goes on from step")
        assert len(line_of(rank).findall(log)) == 1, log
        hanging.end()
    if rank == 1:
        status = read_json(run_dir / "status.json")
        assert status["state"] == "preempted"
        assert f"rank {rank} on " in status["error"]
        assert not (run_dir / ".lock").exists()
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_dies_is_named(rank: int, images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 4, every=2) as started:
        started[rank].signal(signal.SIGKILL)
        log = started[1 - rank].ends(75, "it has ended", "the same command goes on from step")
        assert len(line_of(rank).findall(log)) == 1, log
        assert started[rank].wait() == -signal.SIGKILL


@pytest.mark.slow
def test_without_a_checkpoint_there_is_nothing_to_go_on_from(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 1, every=None) as started:
        started[1].signal(signal.SIGKILL)
        log = started[0].ends(1, "there is no checkpoint yet: the same command begins again")
        assert "Traceback" not in log
        assert started[1].wait() == -signal.SIGKILL
    assert read_json(run_dir / "status.json")["state"] == "failed"


def fail_on_rank_1() -> None:
    """An error of one rank's own, at its sixth step."""
    import os

    from dinoskip.errors import DataError
    from dinoskip.training import objective

    set_rates, steps = objective.set_rates, []

    def failing(*args: object) -> None:
        steps.append(1)
        time.sleep(0.15)
        if os.environ["RANK"] == "1" and len(steps) == 6:
            raise DataError("image 3.png: torn")
        set_rates(*args)  # type: ignore[arg-type]

    objective.set_rates = failing


@pytest.mark.slow
def test_what_a_rank_ended_with_is_what_the_others_say(images: Path, tmp_path: Path) -> None:
    with pair(images, tmp_path / "run", 4, every=2, prepare=fail_on_rank_1) as started:
        started[1].ends(3, "image 3.png: torn")
        log = started[0].ends(1, "rank 1 on ", "ended: image 3.png: torn")
        assert "Traceback" not in log


def hang_at_step_6(rank: int) -> None:
    """The main thread alone stops, for an hour; the thread that gives signs of life goes on."""
    import os

    from dinoskip.training import objective

    set_rates, steps = objective.set_rates, []

    def hanging(*args: object) -> None:
        steps.append(1)
        time.sleep(0.15)
        if os.environ["RANK"] == str(rank) and len(steps) == 6:
            time.sleep(3600)
        set_rates(*args)  # type: ignore[arg-type]

    objective.set_rates = hanging


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_whose_main_thread_alone_hangs_is_named_and_ends(rank: int, images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 4, every=2, prepare=partial(hang_at_step_6, rank)) as started:
        log = started[0].ends(75, f"rank {rank} on ", "last at step 5: ", "no progress for", "goes on from step 4")
        assert len(line_of(rank).findall(log)) == 1, log
        assert "the same command goes on from step" in started[1].ends(75, f"rank {rank} on ")
    assert read_json(run_dir / "status.json")["state"] == "preempted"
    assert not (run_dir / ".lock").exists()


def hang_in_the_backward_pass() -> None:
    """Rank 1 takes no part in the exchange of gradients from its sixth step on."""
    import os

    from dinoskip.training import dino

    update, steps = dino.dino_loss, []

    def hanging(*args: object) -> object:
        steps.append(1)
        if os.environ["RANK"] == "1" and len(steps) == 6:
            time.sleep(3600)
        return update(*args)  # type: ignore[arg-type]

    dino.dino_loss = hanging  # type: ignore[assignment]


@pytest.mark.slow
def test_a_hang_while_the_other_waits_for_the_gradients(images: Path, tmp_path: Path) -> None:
    with pair(images, tmp_path / "run", 4, every=2, prepare=hang_in_the_backward_pass) as started:
        started[0].ends(75, "rank 1 on ", "last at step 6: forward pass; no progress for")
        started[1].ends(75, "rank 1 on ")


def hang_forever(*_: object) -> None:
    """Never return, in place of a rank's work."""
    time.sleep(3600)


def hang_in_the_first_step() -> None:
    import os

    from dinoskip.training import objective

    if os.environ["RANK"] == "1":
        objective.set_rates = hang_forever


def hang_while_saving() -> None:
    """Rank 0, which alone writes, hangs in the second checkpoint."""
    from dinoskip.training import checkpoint

    save, times = checkpoint.save, []

    def hanging(*args: object) -> object:
        times.append(1)
        return hang_forever() if len(times) == 2 else save(*args)  # type: ignore[arg-type]

    checkpoint.save = hanging  # type: ignore[assignment]


def hang_while_preparing() -> None:
    """Rank 1 never has its networks: it hangs before the first action of the training loop."""
    import os

    from dinoskip.training import pretraining

    if os.environ["RANK"] == "1":
        pretraining.first_weights = hang_forever  # type: ignore[assignment]


@pytest.mark.slow  # one hang is named by default, above
@pytest.mark.parametrize(
    ("prepare", "rank", "code", "action"),
    [
        pytest.param(hang_in_the_first_step, 1, 1, "beginning the first step", marks=pytest.mark.slow),
        (hang_while_saving, 0, 75, "saving a checkpoint"),
        pytest.param(hang_while_preparing, 1, 1, "preparing networks and images", marks=pytest.mark.slow),
    ],
)
def test_a_hang_where_things_take_long_ends_with_stacks(
    prepare: Callable[[], None], rank: int, code: int, action: str, images: Path, tmp_path: Path
) -> None:
    """``rank_patience`` bounds what ``rank_timeout`` does not."""
    job = tiny_job(skip=False, checkpoint_every_steps=1, epochs=2, rank_timeout=BOUND, rank_patience=PATIENCE)
    pair = [Child(job, images, tmp_path / "run", env=env, prepare=prepare) for env in rank_environments(2)]
    with children(*pair):
        logs = [child.ends(code, f"error: rank {rank} on ", "no progress for") for child in pair]
    for log in logs:
        assert len(line_of(rank).findall(log)) == 1, log
        assert re.search(f"last at step [0-2]: {action}", log), log
    assert "in hang_forever" in logs[rank], "the stack of the thread that hangs"


def save_for_long() -> None:
    """A checkpoint that takes twice the bound."""
    from dinoskip.training import checkpoint

    save, times = checkpoint.save, []

    def slow(*args: object) -> object:
        times.append(1)
        time.sleep(2 * BOUND if len(times) == 2 else 0)
        return save(*args)  # type: ignore[arg-type]

    slow_steps()
    checkpoint.save = slow  # type: ignore[assignment]


@pytest.mark.slow
def test_a_long_save_is_no_hang(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 8, every=2, prepare=save_for_long) as started:
        started[0].signal(signal.SIGTERM)
        for child in started:
            child.ends(75, "stopped after step")


@pytest.mark.slow
def test_a_pause_shorter_than_the_bound_is_survived(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pair(images, run_dir, 2, every=2) as started:
        started[1].signal(signal.SIGSTOP)
        time.sleep(BOUND / 2)
        started[1].signal(signal.SIGCONT)
        rows = count_rows(run_dir)
        started[0].wait_for(lambda: count_rows(run_dir) >= rows + 3)
        started[0].signal(signal.SIGTERM)
        for child in started:
            child.ends(75, "stopped after step")
