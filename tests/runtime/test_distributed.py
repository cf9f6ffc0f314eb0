"""Ranks from the variables of torchrun and srun; meeting, agreeing, and not waiting for ever."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.errors import ConfigError, DataError, Interrupted, Preempted
from dinoskip.runtime import distributed
from dinoskip.runtime.distributed import World, agree, first_host, gather, group_without_timeout, world
from dinoskip.runtime.heartbeat import Heartbeat
from dinoskip.runtime.joining import HIGH, LOW, PORTS, Meeting
from tests.helpers.launch import rank_environments
from tests.helpers.ranks import on_ranks

SRUN = {
    "SLURM_JOB_ID": "7123", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_STEP_NODELIST": "gpu[03-04]",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("SLURM_") or name in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}:
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node7", "node7"),
        ("node7,node8", "node7"),
        ("gpu[01-04,07],big1", "gpu01"),
        ("gpu[007]", "gpu007"),
        ("r[2-3]n[10-12,20]-ib,r9n1", "r2n10-ib"),
        ("a.b.example.org", "a.b.example.org"),
    ],
)
def test_first_host_of_a_node_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


@given(st.integers(0, 999), st.integers(1, 5), st.lists(st.integers(0, 999), max_size=3), st.integers(1, 4))
def test_first_host_of_any_bracket(low: int, length: int, others: list[int], width: int) -> None:
    parts = [f"{low:0{width}}-{low + length}", *(f"{other:0{width}}" for other in others)]
    assert first_host(f"n[{','.join(parts)}],z[1-2]") == f"n{low:0{width}}"


@pytest.mark.parametrize("nodelist", ["", "gpu[01-04", "gpu[a-b]", ",gpu1", "gpu]1["])
def test_a_node_list_that_is_none_is_said(nodelist: str) -> None:
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        first_host(nodelist)


def test_srun_gives_ranks_and_a_meeting_point_that_is_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, **SRUN)
    *ranks, meeting = distributed._ranks()
    assert ranks == [5, 8, 1]
    assert meeting.host == "gpu03"
    assert len(meeting.ports) == PORTS
    assert all(LOW <= port < HIGH for port in meeting.ports)
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert distributed._ranks()[3] == meeting
    set_all(monkeypatch, MASTER_ADDR="10.0.0.1", MASTER_PORT="29400")
    assert distributed._ranks() == (0, 8, 1, Meeting("10.0.0.1", (29400,)))


@pytest.mark.parametrize("step", [None, "4294967291", "4294967290"])
def test_a_batch_script_or_an_interactive_shell_is_one_process(
    step: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, **SRUN | {"SLURM_PROCID": "0"})
    monkeypatch.delenv("SLURM_STEP_ID")
    if step:
        monkeypatch.setenv("SLURM_STEP_ID", step)
    assert distributed._ranks() == (0, 1, 0, Meeting())


def test_torchrun_inside_a_slurm_job_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = rank_environments(2)[1]
    set_all(monkeypatch, **SRUN, **variables)
    there = Meeting("127.0.0.1", (int(variables["MASTER_PORT"]),))
    assert distributed._ranks() == (1, 2, 1, there)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert distributed._ranks() == (1, 2, 1, Meeting(there.host, there.ports, agent=True))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: must be less than WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x: is not a number"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0: is not a number of 1 or more"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set for 2 ranks"),
        (SRUN | {"SLURM_PROCID": "8"}, "SLURM_PROCID=8: there are only 8 tasks"),
        (SRUN | {"SLURM_STEP_NODELIST": "gpu["}, "is not a list of hosts"),
    ],
)
def test_contradictory_variables_are_one_clear_line(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, **variables)
    with pytest.raises(ConfigError) as caught, world("cpu"):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("seen", "local_rank", "launcher", "gpu"),
    [(8, 3, "srun", 3), (1, 3, "srun", 0), (8, 3, "torchrun", 3), (1, 0, "torchrun", 0)],
)
def test_each_process_has_its_gpu(
    seen: int, local_rank: int, launcher: str, gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    if launcher == "torchrun":
        monkeypatch.setenv("RANK", "0")
    assert distributed._gpu_of(local_rank) == gpu


@pytest.mark.parametrize(("seen", "launcher"), [(2, "srun"), (1, "torchrun"), (2, "torchrun")])
def test_more_processes_than_gpus_are_refused(seen: int, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    if launcher == "torchrun":
        monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match=f"process 3 of this machine has no GPU: {seen} are visible"):
        distributed._gpu_of(2)


def test_a_rank_alone_gives_up_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "JOIN", timedelta(seconds=1))
    env = rank_environments(2)
    for one in env:
        set_all(monkeypatch, **one)
        with pytest.raises(ConfigError, match=f"rank {one['RANK']} of 2 met no others at 127.0.0.1:"), world("cpu"):
            pass
    assert not dist.is_initialized()


# --- real ranks ---------------------------------------------------------------------------------------


def meet(here: World, folder: str, ranks: list[dict[str, str]]) -> None:
    """Each process (started alone) takes one rank's variables, by who comes first."""
    for i, variables in enumerate(ranks):
        try:
            os.mkdir(f"{folder}/rank{i}")
        except FileExistsError:
            continue
        os.environ.update(variables)
        break
    with pytest.raises(Preempted), world("cpu") as joined:  # noqa: PT012
        assert joined.size == 2
        with world("cpu") as again:
            assert again == joined
        assert gather(joined.rank) == [0, 1]
        if joined.is_main:
            time.sleep(0.5)
            Path(folder, "last words").touch()
        raise Preempted("both")
    assert Path(folder, "last words").exists()
    assert not dist.is_initialized()


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_ranks_meet_by_either_launcher_and_leave_together(launcher: str, tmp_path: Path) -> None:
    ranks = rank_environments(2)
    if launcher == "srun":
        port = ranks[0]["MASTER_PORT"]
        own = {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
        ranks = [SRUN | own | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "MASTER_PORT": port} for i in range(2)]
    on_ranks(2, tmp_path, meet, str(tmp_path), ranks, join=False)


def hurry(here: World, ranks: list[dict[str, str]], folder: str) -> None:
    """One rank is told to leave at once; it does not wait for the other, which comes much later."""
    os.environ.update(ranks[here.rank])
    began = time.monotonic()
    with pytest.raises(Interrupted), world("cpu"):  # noqa: PT012
        gather(0)
        if here.is_main:
            while not Path(folder, "left").exists() and time.monotonic() < began + 60:
                time.sleep(0.05)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Interrupted("at once") from None
    Path(folder, "left").touch()
    assert time.monotonic() < began + 50


def test_a_rank_that_is_interrupted_at_once_waits_for_nobody(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, hurry, rank_environments(2), str(tmp_path), join=False)


def differ(here: World) -> None:
    assert agree(5, "the images") == 5
    with pytest.raises(DataError, match="the images: rank 1 sees 1, rank 0 sees 0"):
        agree(here.rank, "the images")


def test_ranks_that_see_different_images_all_say_so(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, differ)


def receive(here: World) -> None:
    group = group_without_timeout(here)
    if here.is_main:
        for value in ({"n": 1}, {"n": 2}, None):
            group.send(value)
    else:
        assert list(group.received()) == [{"n": 1}, {"n": 2}]
    assert group.gather(here.rank) == [0, 1, 2]
    assert group.on_main(lambda: "of rank 0") == "of rank 0"


def test_what_rank_0_sends_reaches_all_and_ends(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, receive)


def die(here: World, joined: Path) -> None:
    if here.rank == 1:
        while not joined.exists():  # else the other may still be connecting to this one
            time.sleep(0.01)
        os._exit(0)
    joined.touch()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    assert time.monotonic() - began < 30
    os._exit(0)


def test_a_dead_rank_is_an_error_for_the_others_not_a_wait(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, die, tmp_path / "joined")


@pytest.mark.parametrize("error", [None, DataError("on one rank"), KeyboardInterrupt()])
def test_a_rank_with_an_error_of_its_own_does_not_wait_for_nccl_to_say_farewell(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's end of a group is a collective: the other ranks, in one of their own, would never answer."""
    ended: list[bool] = []
    set_all(monkeypatch, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
    monkeypatch.setattr(distributed, "choose_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(distributed, "_gpu_of", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    store = dist.HashStore()
    for rank in range(2):
        store.set(
            f"heartbeat/{rank}", json.dumps({"progress": 0, "interval": 1.0, "action": "start", "patience": 99.0})
        )
    monkeypatch.setattr(distributed, "_join", lambda *_: Heartbeat(0, 2, store, 5.0))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(True))
    if error is None:
        with world("cuda"):
            pass
    else:
        with pytest.raises(type(error)), world("cuda"):
            raise error
    assert ended == ([True] if error is None else [])


def test_readers_are_as_asked_or_this_ranks_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "available_cores", lambda: 64)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    processor, card = (World(0, 1, torch.device(name)) for name in ("cpu", "cuda"))
    assert [processor.readers(asked) for asked in (0, 3)] == [0, 3]
    assert [card.readers(asked) for asked in (0, 3)] == [16, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert card.readers(0) == 7
