"""A study spread by submitit, here and on a pretended SLURM, and by Dask: the bytes that one process makes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.io.files import read_json, write_text
from dinoskip.pipeline.cluster import ClusterWorkers, memory_of, minutes, share_of_memory, slurm_parameters
from dinoskip.pipeline.executor import ForeignWorkers
from dinoskip.training.launch import ClusterConfig, folder_of
from tests.helpers.slurm import RunningSlurm
from tests.pipeline.test_workers import hashes, run

PATIENCE = 900.0  # seconds for what other processes do, which on a busy machine takes minutes
DOCS = Path(__file__).parents[2] / "docs/cluster.md"
SMALL = """
name: small
data: {scenes: {kind: scenes, images: 8, size: 64, val_fraction: 0.5}}
model: {name: vit_tiny_patch16, depth: 1, img_size: 32}
variants: {model: [{skip: true}, {skip: false, init: {name: skipless}}]}
pretrain:
  {dataset: scenes, epochs: 1, warmup_epochs: 0, batch_size: 4, out_dim: 32, hidden_dim: 32, bottleneck_dim: 16,
   warmup_teacher_temp_epochs: 0, crops: {global_size: 32, local_size: 16, num_local: 1}}
evaluate:
  probe: {datasets: [scenes], size: 32, epochs: 1, learning_rates: [1e-2], pixels: false}
  knn: {datasets: [scenes], k: [3], size: 32}
"""


def test_times_and_memory_as_sbatch_takes_them() -> None:
    given = ("30", "1:30", "2:00:00", "1-0", "2-00:00:01", "1-12:30")
    assert [minutes(text) for text in given] == [30, 2, 120, 1440, 2881, 2190]
    assert [memory_of(ClusterConfig(mem=text)) for text in ("200G", "4000", "0", "all")] == [
        200 * 10**9,
        4 * 10**9,
        None,
        None,
    ]
    assert share_of_memory(ClusterConfig(mem="200G", gpus_per_node=8)) == "25000M"


def test_trainings_ask_for_all_gpus_and_other_nodes_for_one() -> None:
    cluster = ClusterConfig(nodes=2, gpus_per_node=8, mem="400G", jobs=5, sbatch=("--exclusive", "--licenses=a:1"))
    whole, one = (slurm_parameters(cluster, "mine", trains=trains) for trains in (True, False))
    assert [(given["nodes"], given["ntasks_per_node"], given["gpus_per_node"]) for given in (whole, one)] == [
        (2, 8, 8), (1, 1, 1),
    ]  # fmt: skip
    assert (one["mem"], whole["mem"], one["array_parallelism"]) == ("50000M", "400G", 5)
    assert whole["additional_parameters"] == {"requeue": True, "exclusive": True, "licenses": "a:1"}
    assert one["additional_parameters"] == {"requeue": True, "licenses": "a:1"}
    with pytest.raises(ConfigError, match="-C big"):
        slurm_parameters(ClusterConfig(sbatch=("-C big",)), "mine", trains=True)


def test_without_submitit_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"dinoskip\[slurm\]"):
        ClusterWorkers(tmp_path / "study", ClusterConfig(), "study")


@pytest.mark.slow  # processes that import everything
def test_submitit_on_this_machine_makes_what_one_process_makes(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    run(tmp_path / "alone")
    cluster = ClusterConfig(gpus_per_node=0, jobs=2, time="10")
    happened = run(tmp_path / "spread", ClusterWorkers(tmp_path / "spread", cluster, "spread", kind="local"))
    assert set(happened.values()) == {"done"}
    assert hashes(tmp_path / "spread") == hashes(tmp_path / "alone")


@pytest.mark.slow  # processes that import everything
def test_dask_as_the_docs_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    (shown,) = re.findall(r"```python\n(# engines\.py.*?)```", DOCS.read_text(), re.S)
    write_text(tmp_path / "engines.py", shown)
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "alone")
    happened = run(tmp_path / "spread", ForeignWorkers("engines:workers", 2))
    assert set(happened.values()) == {"done"}
    assert hashes(tmp_path / "spread") == hashes(tmp_path / "alone")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningSlurm:
    pytest.importorskip("submitit")
    made = RunningSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return made


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write_text(tmp_path / "small.yaml", SMALL)
    write_text(tmp_path / "cluster.yaml", "{gpus_per_node: 0, jobs: 3, time: '30', nodes: 2}")
    return tmp_path / "small.yaml"


def rows(folder: Path) -> dict[str, bytes]:
    return {path.parents[1].relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("rows.json")}


def test_a_dry_run_of_a_spread_study_makes_nothing(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", str(study), f"output={tmp_path / 'runs'}", "--cluster", str(tmp_path / "cluster.yaml")]
    assert main([*words, "--spread", "--dry-run"]) == 0
    assert "never run" in capsys.readouterr().out
    assert not (tmp_path / "runs/small/stages").exists()


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow  # a study twice, and processes that import everything
def test_a_study_spread_over_slurm_has_the_rows_of_one_process(
    study: Path, slurm: RunningSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainings have two ranks, so the other run has them, too: their sums round as those of two."""
    spread = [
        "submit",
        str(study),
        f"output={tmp_path / 'spread'}",
        "--cluster",
        str(tmp_path / "cluster.yaml"),
        "--spread",
    ]
    assert main([*spread, "--dry-run"]) == 0
    assert "never run" in capsys.readouterr().out
    assert slurm.jobs() == {}
    assert main(spread) == 0
    until = time.monotonic() + PATIENCE
    while set(slurm.jobs().values()) != {"COMPLETED"}:  # a job's result comes before its end
        assert time.monotonic() < until, slurm.jobs()
        time.sleep(0.1)
    assert any("%" in array for array in slurm.arrays()), "some jobs are members of an array"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dinoskip"]
    alone = ["run", str(study), f"output={tmp_path / 'alone'}", "--device", "cpu"]
    assert subprocess.run([*command, *alone], check=False).returncode == 0
    assert rows(tmp_path / "spread") == rows(tmp_path / "alone")
    assert (tmp_path / "spread/small/report/index.html").is_file()


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow  # processes that import everything
def test_a_leader_that_was_killed_finds_its_jobs_again(study: Path, slurm: RunningSlurm, tmp_path: Path) -> None:
    words = [str(study), f"output={tmp_path / 'runs'}", "--until", "pretrain"]
    words = ["submit", *words, "--cluster", str(tmp_path / "cluster.yaml"), "--spread"]
    noted = folder_of(tmp_path / "runs/small") / "jobs/jobs.json"
    leader = subprocess.Popen([sys.executable, "-m", "dinoskip", *words])
    until = time.monotonic() + PATIENCE
    while not (noted.is_file() and any(name.startswith("pretrain/") for name in read_json(noted))):
        assert time.monotonic() < until
        time.sleep(0.1)
    leader.kill()
    leader.wait()
    before = len(slurm.jobs())
    assert main(words) == 0
    assert len(slurm.jobs()) == before, "both trainings were in the queue or done"


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow  # processes that import everything
def test_sigterm_to_a_leader_in_the_background_stops_all_jobs(
    study: Path, slurm: RunningSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        str(study),
        f"output={tmp_path / 'runs'}",
        "pretrain.epochs=4000",
        "pretrain.checkpoint_every_steps=5",  # else the first checkpoint comes after minutes
        "--cluster",
        str(tmp_path / "cluster.yaml"),
    ]
    assert main(["submit", *words, "--spread", "--detach"]) == 0
    process = int(re.findall(r"process (\d+)", capsys.readouterr().out)[0])
    until = time.monotonic() + PATIENCE
    while not list((tmp_path / "runs/small/stages/pretrain").rglob("step-*")):
        assert time.monotonic() < until
        time.sleep(0.2)
    os.kill(process, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    while {"PENDING", "RUNNING"} & set(slurm.jobs().values()):
        assert time.monotonic() < until
        time.sleep(0.2)
    said = (folder_of(tmp_path / "runs/small") / "leader.log").read_text()
    assert "stopped by a signal" in said
