"""Ranks of different settings or of different jobs never train together: each is refused in one line, before a step."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from dinoskip.io.files import read_json
from dinoskip.runtime import joining
from dinoskip.runtime.console import read_metrics
from dinoskip.training import PretrainJob
from tests.helpers.launch import Child, children, rank_environments
from tests.helpers.tiny import tiny_job

JOB = tiny_job(skip=False, epochs=1, warmup_epochs=0)


def with_setting(place: str, value: Any) -> PretrainJob:
    tree = JOB.model_dump(mode="json")
    *sections, key = place.split(".")
    part = tree
    for section in sections:
        part = part[section]
    part[key] = value
    return PretrainJob.model_validate(tree)


def told(log: str) -> str:
    """The one error of a rank that has left by itself."""
    (line,) = [line for line in log.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        ("optimizer.lr", 0.2, "optimizer.lr: 0.02 → 0.2"),
        pytest.param("seed", 2, "seed: 1 → 2", marks=pytest.mark.slow),
        pytest.param("model.skip", True, "model.skip: False → True", marks=pytest.mark.slow),
        ("pretrain.epochs", 3, "pretrain.epochs: 1 → 3"),
    ],
)
def test_ranks_of_different_settings_end_before_the_first_step(
    place: str, value: Any, line: str, images: Path, tmp_path: Path
) -> None:
    jobs, run_dir = [JOB, with_setting(place, value)], tmp_path / "run"
    pair = [Child(job, images, run_dir, env=env) for job, env in zip(jobs, rank_environments(2), strict=True)]
    with children(*pair):
        lines = [told(child.ends(2, "rank 1 on ", f"has other settings than rank 0: {line}")) for child in pair]
    assert lines[0] == lines[1]
    assert not run_dir.exists()


def other_code() -> None:
    """Rank 1 runs other code."""
    if os.environ["RANK"] == "1":
        joining.code_version = lambda: "9.9.9"


@pytest.mark.slow
def test_ranks_of_different_code_end_before_the_first_step(images: Path, tmp_path: Path) -> None:
    pair = [Child(JOB, images, tmp_path / "run", env=env, prepare=other_code) for env in rank_environments(2)]
    with children(*pair):
        for child in pair:
            child.ends(2, "rank 1 on ", "code: ", " → 9.9.9")


def finished(run_dir: Path, seed: int) -> None:
    assert read_json(run_dir / "status.json")["state"] == "done"
    assert read_json(run_dir / "config.json")["seed"] == seed
    assert len(read_metrics(run_dir / "metrics.jsonl")) == 6


def test_three_jobs_at_one_port_are_one_that_trains_and_two_that_are_refused(images: Path, tmp_path: Path) -> None:
    """Ports by hand: nobody can choose another. All begin at once, so any of them may be the one."""
    environments = rank_environments(2)
    jobs = [tiny_job(seed=seed, skip=False, epochs=1, warmup_epochs=0) for seed in (1, 2, 3)]
    made = [Child(job, images, tmp_path / f"run{job.seed}", env=env) for job in jobs for env in environments]
    codes, logs = [], []
    with children(*made):
        for child in made:
            codes.append(child.wait())
            logs.append(child.log)
    pairs = [(codes[i], codes[i + 1]) for i in (0, 2, 4)]
    assert sorted(pairs) == [(0, 0), (2, 2), (2, 2)], logs
    for number, pair in enumerate(pairs):
        if pair == (0, 0):
            finished(tmp_path / f"run{number + 1}", number + 1)
            continue
        assert not (tmp_path / f"run{number + 1}").exists()
        for log in logs[2 * number : 2 * number + 2]:
            assert f"its own job is output {tmp_path}/run{number + 1}, 2 ranks" in told(log)
            assert "is another job: " in told(log)


def srun(job: int, step: int) -> list[dict[str, str]]:
    common = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step), "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
              "SLURM_STEP_NODELIST": "127.0.0.1"}  # fmt: skip
    return [common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]


def one_port_first() -> None:
    """All jobs first try the same port."""
    drawn = joining.ports_of

    def ports_of(token: str) -> tuple[int, ...]:
        return (int(os.environ["TAKEN"]), *drawn(token))

    from dinoskip.runtime import distributed

    distributed.ports_of = ports_of


def test_where_the_port_is_ours_to_choose_jobs_that_collide_all_train(images: Path, tmp_path: Path) -> None:
    port = rank_environments(2)[0]["MASTER_PORT"]
    made = [
        Child(tiny_job(seed=seed, skip=False, epochs=1, warmup_epochs=0), images, tmp_path / f"run{seed}",
              env=env | {"TAKEN": port}, prepare=one_port_first)
        for seed, (job, step) in enumerate([(1001, 0), (1000, 1)], start=1) for env in srun(job, step)
    ]  # fmt: skip
    with children(*made):
        for child in made:
            child.ends(0)
    for seed in (1, 2):
        finished(tmp_path / f"run{seed}", seed)


# --- the handshake alone, in threads -------------------------------------------------------------------


def members(*changes: dict[str, Any]) -> list[joining.RankIdentity]:
    """Ranks of one job, each with its changes."""
    usual: dict[str, Any] = {"job": "a", "output": "/o", "code": "1", "settings": {"x": 1}, "host": "h", "pid": 1}
    return [joining.RankIdentity(**(usual | {"rank": rank, "size": 2} | change)) for rank, change in enumerate(changes)]


def meet(ranks: list[joining.RankIdentity], seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the error of each rank, empty where it has joined.

    Each rank is treated as a program of its own: as the first entry of all.
    """
    monkeypatch.setattr(joining, "_JOINED", iter([1] * len(ranks)))
    variables = rank_environments(2)[0]
    place = joining.Meeting("127.0.0.1", (int(variables["MASTER_PORT"]),))
    said: list[str] = ["unfinished"] * len(ranks)
    stores = []

    def one(number: int) -> None:
        try:
            stores.append(joining.join(place, ranks[number], seconds))
            said[number] = ""
        except joining.ConfigError as error:
            said[number] = str(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return said


def test_a_process_of_another_job_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said = meet(members({}, {}, {"rank": 1, "job": "b"}, {"rank": 1, "output": "/p"}), 60, monkeypatch)
    assert said[:2] == ["", ""]
    for text in said[2:]:
        assert "is another job: a, output /o, 2 ranks; rank 0 on h (process 1)" in text
        assert "\n" not in text


def test_a_rank_that_comes_twice_is_let_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = meet(members({}, {"pid": 5}, {"rank": 1, "pid": 6}), 60, monkeypatch)
    assert said[0] == ""
    assert sorted(text[:6] for text in said[1:]) == ["", "rank 1"]


def test_all_ranks_are_told_of_the_one_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = meet(members({"size": 3}, {"size": 3}, {"size": 3, "settings": {"x": 2, "y": 0}}), 60, monkeypatch)
    assert set(said) == {said[0]}
    assert "rank 2 on h (process 1) has other settings than rank 0: x: 1 → 2, y: absent → 0" in said[0]


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = meet(members({"size": 4}, {"size": 4}), 1, monkeypatch)
    assert "rank 2, 3 has not come" in said[0]
    assert said[1] == said[0]


def test_waiting_for_ranks_is_silent(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Torch wrote two lines a second: 600 where a rank came five minutes late."""
    said = meet(members({"size": 3}, {"size": 3}), 5, monkeypatch)
    assert "rank 2 has not come" in said[0]
    assert capfd.readouterr().err.count("waitForInput") <= 6, "of the ends of waits: of rank 0 one, of rank 1 two"


def test_a_program_that_accepts_connections_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "KNOCK", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = joining.Meeting("127.0.0.1", (silent.getsockname()[1],))
        main, other = members({}, {})
        with pytest.raises(joining.ConfigError, match="is another program"):
            joining.join(place, main, 60)
        with pytest.raises(joining.ConfigError, match="rank 1 of 2 met no others"):
            joining.join(place, other, 1)


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({}, ""),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "f00"}, "torchrun f00"),
        ({"RANK": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "SLURM job 7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "SLURM job 7.1"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "2"}, "SLURM job 7.1, restart 2"),
        ({"DINOSKIP_JOB": "mine", "SLURM_JOB_ID": "7"}, "job mine"),
    ],
)
def test_a_job_is_named_by_its_launcher(variables: dict[str, str], token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "DINOSKIP_JOB")) or name == "RANK":
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert joining.job_token() == token


def test_jobs_whose_numbers_add_up_alike_have_ports_of_their_own() -> None:
    """Job and step added were one port for 1001.0, 1000.1 and 999.2."""
    firsts = {joining.ports_of(f"SLURM job {job}.{step}")[0] for job, step in ((1001, 0), (1000, 1), (999, 2))}
    assert len(firsts) == 3
