from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from dinoskip.errors import WeightsError
from dinoskip.io.files import load_tensors, save_tensors, verify_manifest, write_manifest
from dinoskip.optim import build_optimizer
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import PretrainJob, checkpoint
from dinoskip.training.dino import DINO
from tests.helpers.tiny import tensor_hashes, tiny_job

JOB = tiny_job(freeze_last_layer=0)
INFO = {"epoch": 1, "epochs": 2, "steps_per_epoch": 6, "seed": 1, "init": "trunc_normal", "optimizer": "adamw"}


State = tuple[DINO, torch.optim.Optimizer]


def _trained(updates: int, job: PretrainJob = JOB) -> State:
    """Networks and optimizer after some updates with made-up gradients; the last layer's first comes at the second."""
    objective = DINO(job, job.pretrain, 6, torch.device("cpu"))
    student = objective.student
    optimizer = build_optimizer(student, job.optimizer)
    for update in range(updates):
        for name, p in student.named_parameters():
            p.grad = None if name.startswith("head.last") and not update else torch.full_like(p, 0.1 + update)
        optimizer.step()
        objective.buffers["center"].add_(1.0)
    return objective, optimizer


def _save(run: Path, step: int, keep: tuple[int, ...] = (), state: State | None = None) -> Path:
    content = checkpoint.collect(*(state or _trained(0)))
    return checkpoint.save(run, content, JOB.model, {**INFO, "step": step}, keep)


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_what_is_loaded_is_what_was_saved(updates: int, tmp_path: Path) -> None:
    state = _trained(updates)
    saved = _save(tmp_path, 7, state=state)
    other = _trained(0)
    assert checkpoint.load(saved, *other) == 7
    assert tensor_hashes(_save(tmp_path / "again", 7, state=other)) == tensor_hashes(saved)
    ours, theirs = state[0].networks["student"], other[0].networks["student"]
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        a.grad = b.grad = torch.ones_like(a)
        assert torch.equal(a, b), name
    state[1].step()
    other[1].step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_optimizer_state_is_stored_by_name_and_only_where_there_is_some(tmp_path: Path) -> None:
    entries = load_tensors(_save(tmp_path, 1, state=_trained(1)) / "optimizer.safetensors")
    assert {"backbone.pos_embed.exp_avg", "head.mlp.0.weight.exp_avg_sq", "backbone.cls_token.step"} <= set(entries)
    assert not [name for name in entries if "last_v" in name]


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = _save(tmp_path / "a", 3), _save(tmp_path / "b", 3)
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


@pytest.mark.parametrize("file", ["teacher.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_the_newest_intact_checkpoint_wins(
    file: str, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, damaged = _save(tmp_path, 1), _save(tmp_path, 2)
    content = (damaged / file).read_bytes()
    if harm == "flip":
        (damaged / file).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif harm == "truncate":
        (damaged / file).write_bytes(content[:-1])
    else:
        (damaged / file).unlink()
    newest = checkpoint.newest(tmp_path)
    assert newest.path == good
    assert newest.damaged.keys() == {"step-00000002"}
    assert file in newest.damaged["step-00000002"]
    assert "step-00000002" in caplog.text
    assert file in caplog.text


def test_none_yet_and_none_intact_are_told_apart(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path).path is None
    (_save(tmp_path, 1) / "MANIFEST.json").unlink()
    with pytest.raises(WeightsError, match=r"none of its 1 checkpoints is intact \(checkpoints/step-\d+/"):
        checkpoint.newest(tmp_path)


def test_retention_keeps_chosen_steps_and_two_that_verify(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        path = _save(tmp_path, step, keep=(2,))
        if step == 4:
            (path / "student.safetensors").write_bytes(b"damaged")
    assert [p.name[-1] for p in list_checkpoints(tmp_path).values()] == ["5", "3", "2"]
    assert all(verify_manifest(p) == [] for p in list_checkpoints(tmp_path).values())
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (_save(tmp_path, 1) / "student.safetensors").write_bytes(b"damaged")
    assert verify_manifest(_save(tmp_path, 1)) == []
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_state_of_unknown_parameters_is_refused(tmp_path: Path) -> None:
    saved = _save(tmp_path, 1, state=_trained(1))
    path = saved / "optimizer.safetensors"
    save_tensors(path, {f"old_{name}": tensor for name, tensor in load_tensors(path).items()})
    with pytest.raises(WeightsError, match="fit no parameter, such as old_"):
        checkpoint.load(saved, *_trained(0))


def test_state_of_other_optimizer_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    def job(limit: int) -> PretrainJob:
        return PretrainJob.model_validate(
            {**tiny_job().model_dump(), "optimizer": {"name": "soap", "max_precond_dim": limit}}
        )

    saved = _save(tmp_path, 1, state=_trained(1, job(100)))
    with pytest.raises(WeightsError, match=r"optimizer.safetensors: backbone\..*was it saved with other settings"):
        checkpoint.load(saved, *_trained(0, job(10000)))


@pytest.mark.parametrize("kind", [torch.int32, torch.float16, torch.bool, "nan"])
@pytest.mark.parametrize("file", ["student", "head", "optimizer"])
def test_state_of_another_dtype_or_not_finite_is_refused_by_name(
    file: str, kind: torch.dtype | str, tmp_path: Path
) -> None:
    """They were cast, and NaN in an optimizer's moments went into the next step."""
    saved = _save(tmp_path, 1, state=_trained(1))
    path = saved / f"{file}.safetensors"
    with safe_open(path, "pt") as opened:
        header = opened.metadata()
    tensors = load_tensors(path)
    name = next(name for name in tensors if "mlp" in name and not name.endswith("step"))
    if isinstance(kind, torch.dtype):
        tensors[name] = tensors[name].to(kind)
    else:
        tensors[name].view(-1)[0] = torch.nan
    save_tensors(path, tensors, header)
    wanted = (
        f"{re.escape(name.removeprefix('student.'))} is {kind}, not torch.float32"
        if isinstance(kind, torch.dtype)
        else "not finite"
    )
    with pytest.raises(WeightsError, match=wanted):
        checkpoint.load(saved, *_trained(0))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    content = checkpoint.collect(*_trained(1))
    saved = checkpoint.save(tmp_path, content, JOB.model, {**INFO, "step": 1}, (), run="this run")
    assert checkpoint.load(saved, *_trained(0), "this run") == 1
    with pytest.raises(WeightsError, match="step-00000001: a checkpoint of another run"):
        checkpoint.load(saved, *_trained(0), "that run")
    assert checkpoint.load(_save(tmp_path / "old", 2), *_trained(0), "this run") == 2, "of an earlier version"


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    saved = _save(tmp_path, 1)
    with pytest.raises(WeightsError, match="head"):
        checkpoint.load(saved, *_trained(0, tiny_job(out_dim=16)))


def test_leftovers_of_killed_runs_are_swept_and_nothing_else(tmp_path: Path) -> None:
    kept = _save(tmp_path, 1)
    (kept.with_name(".tmp-step-00000002-99") / "deep").mkdir(parents=True)
    (tmp_path / ".tmp-config.json.abc").write_text("")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "notes.txt"]
    assert [p for p in (tmp_path / "checkpoints").iterdir()] == [kept]
    assert verify_manifest(kept) == []


def _fake(run: Path, step: int) -> Path:
    """A checkpoint of a few bytes with a manifest."""
    path = run / "checkpoints" / checkpoint.name_of(step)
    path.mkdir(parents=True)
    (path / "state.json").write_text(str(step))
    write_manifest(path, {"step": step})
    return path


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["none", "harm", "pin", "best", "resume"]), st.integers(0, 30)),
        min_size=1,
        max_size=12,
    )
)
def test_retention_never_removes_the_best_the_pinned_the_source_or_the_last_two_that_verify(
    history: list[tuple[str, int]],
) -> None:
    """After every save something happens to one of the checkpoints that are there; then the next is saved."""
    with tempfile.TemporaryDirectory() as name:
        run, kept, pins, intact = Path(name), set[int](), set[int](), []
        for step, (event, which) in enumerate(history, 1):
            written = _fake(run, step)
            intact.append(step)
            there = set(list_checkpoints(run))
            checkpoint.retain(run, written, kept)
            left = set(list_checkpoints(run))
            assert left == there & (kept | pins | {step} | set(intact[-2:]))
            intact = [number for number in intact if number in left]
            chosen = sorted(left)[which % len(left)]
            if event == "harm":
                (run / "checkpoints" / checkpoint.name_of(chosen) / "state.json").write_text("damaged")
                intact = [number for number in intact if number != chosen]
            elif event == "pin":
                (run / "checkpoints" / f"{checkpoint.name_of(chosen)}.pin").touch()
                pins.add(chosen)
            elif event in {"best", "resume"}:
                kept.add(chosen)
        assert all(verify_manifest(run / "checkpoints" / checkpoint.name_of(number)) == [] for number in intact)


def test_pruning_leaves_the_kept_and_the_pinned(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _fake(tmp_path, step)
    (tmp_path / "checkpoints" / "step-00000002.pin").touch()
    (tmp_path / "checkpoints" / "step-.pin").touch()
    checkpoint.prune(tmp_path, {4})
    assert list(list_checkpoints(tmp_path)) == [4, 2]


@pytest.fixture
def immutable(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a directory immutable; made mutable again afterwards, so that pytest can remove it."""
    probe, locked = tmp_path / "probe", []
    probe.mkdir()
    if subprocess.run(["chattr", "+i", str(probe)], capture_output=True, check=False).returncode:
        pytest.skip("needs chattr: root, on a file system that has the attribute")
    subprocess.run(["chattr", "-i", str(probe)], check=True)
    probe.rmdir()

    def lock(path: Path) -> None:
        subprocess.run(["chattr", "+i", str(path)], check=True)
        locked.append(path)

    yield lock
    for path in locked:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, immutable: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    immutable(_save(tmp_path, 1))
    leftover = tmp_path / ".tmp-leftover"
    leftover.write_text("")
    immutable(leftover)
    for step in (2, 3, 4):
        _save(tmp_path, step)
    checkpoint.sweep(tmp_path)
    assert [p.name[-1] for p in list_checkpoints(tmp_path).values()] == ["4", "3", "1"]
    assert "step-00000001: an old checkpoint that cannot be removed: Operation not permitted" in caplog.text
