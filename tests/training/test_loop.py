"""Whole runs in this process: what they write, resuming, refusing, the finite guard."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from dinoskip.data import ImageFolder
from dinoskip.data.train_loader import TrainLoader
from dinoskip.errors import ConfigError, DataError, Interrupted, NonFiniteError, OutputInUse, Preempted, WeightsError
from dinoskip.io.files import read_json, verify_manifest
from dinoskip.models import load_backbone
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.distributed import World
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import PretrainJob, checkpoint, pretrain
from dinoskip.training.dino import build_networks
from tests.helpers.tiny import SIDE_FILES, STEPS, make_images, tensor_hashes, tiny_job


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder.open(make_images(tmp_path_factory.mktemp("data") / "images"))


@pytest.fixture(scope="module")
def straight(images: ImageFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run never disturbed."""
    return pretrain(tiny_job(), images, tmp_path_factory.mktemp("straight") / "run", device="cpu")


def comparable(run_dir: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run_dir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in {"images_per_s", "data_wait"}} for row in rows]


def test_a_run_leaves_what_the_format_promises(straight: Path) -> None:
    run = straight.parent.parent
    assert straight == run / "checkpoints" / f"step-{STEPS:08d}"
    assert {p.name for p in straight.iterdir()} == SIDE_FILES | {"state.json", "MANIFEST.json"}
    assert verify_manifest(straight) == []
    assert {p.name for p in run.iterdir()} == {"config.json", "env.json", "metrics.jsonl", "status.json", "checkpoints"}
    state = read_json(straight / "state.json")
    assert (state["step"], state["epoch"], state["steps_per_epoch"], state["seed"]) == (STEPS, 2, 6, 1)
    status = read_json(run / "status.json")
    assert (status["state"], status["step"], status["steps"], status["error"]) == ("done", STEPS, STEPS, None)
    assert read_json(run / "env.json")["matmul_gflops"] > 0
    rows = comparable(run)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["epoch"] for row in rows] == [1] * 6 + [2] * 6
    assert rows[0]["lr"] == 0.0
    assert all(0 < row["teacher_entropy"] < 3.5 and row["grad_norm"] > 0 for row in rows)
    assert all(0 < row["loss"] < 12 for row in rows)
    assert {"wd", "momentum", "teacher_temp", "collapse"} <= rows[0].keys()


def test_training_changes_every_parameter_and_the_teacher_follows(straight: Path, images: ImageFolder) -> None:
    first = straight.with_name("step-00000008")
    before, after = tensor_hashes(first), tensor_hashes(straight)
    same = [name for name in after if name in before and before[name] == after[name]]
    assert same == ["head.safetensors:student.last_g", "head.safetensors:teacher.last_g"]
    job = tiny_job()
    start = build_networks(job, job.pretrain, torch.device("cpu"))[1].backbone.state_dict()
    teacher = load_backbone(f"run:{straight.parent.parent}").model.state_dict()
    assert all(0 < (teacher[name] - start[name]).abs().max() < 0.5 for name in start)


def test_a_second_run_and_another_log_rhythm_give_the_same_bits(
    straight: Path, images: ImageFolder, tmp_path: Path
) -> None:
    torch.manual_seed(123)
    again = pretrain(tiny_job(log_every=5, checkpoint_every_steps=None), images, tmp_path / "again", device="cpu")
    assert tensor_hashes(again) == tensor_hashes(straight)
    assert torch.initial_seed() == 123, "the caller's generator is left as it was"
    assert [row["step"] for row in comparable(tmp_path / "again")] == [5, 10, 12]


def test_a_finished_run_is_returned_untouched(straight: Path, images: ImageFolder) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.iterdir()}
    assert pretrain(tiny_job(), images, straight.parent.parent, device="cpu") == straight
    assert before == {p: p.stat().st_mtime_ns for p in straight.iterdir()}


def test_a_rerun_of_a_finished_run_says_so(
    straight: Path, images: ImageFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="dinoskip"):
        pretrain(tiny_job(), images, straight.parent.parent, device="cpu")
    assert f"is finished: {STEPS} steps are done" in caplog.text
    assert "goes on after" not in caplog.text


def test_fewer_epochs_than_a_run_has_had_are_refused(straight: Path, images: ImageFolder, tmp_path: Path) -> None:
    run = shutil.copytree(straight.parent.parent, tmp_path / "run")
    before = (run / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"the run is at step 12, and \d epochs end at step 6 \(give it as many"):
        pretrain(tiny_job(epochs=1, warmup_epochs=0), images, run, device="cpu", allow=("pretrain",))
    assert (run / "config.json").read_bytes() == before
    assert read_json(run / "status.json")["state"] == "done"


def test_a_run_of_more_steps_than_its_settings_ask_for_is_finished(
    straight: Path, images: ImageFolder, tmp_path: Path
) -> None:
    run = shutil.copytree(straight.parent.parent, tmp_path / "run")
    final = pretrain(tiny_job(batch_size=16), images, run, device="cpu", allow=("pretrain.batch_size",))
    assert final == run / "checkpoints" / f"step-{STEPS:08d}"
    assert final.is_dir()


def test_the_status_names_the_damaged_checkpoint_and_the_one_taken(
    straight: Path, images: ImageFolder, tmp_path: Path
) -> None:
    run = shutil.copytree(straight.parent.parent, tmp_path / "run")
    path = run / "checkpoints" / f"step-{STEPS:08d}" / "teacher.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    pretrain(tiny_job(), images, run, device="cpu")
    status = read_json(run / "status.json")
    assert status["resumed_from"] == "step-00000008"
    assert status["damaged_checkpoints"].keys() == {f"step-{STEPS:08d}"}
    assert "teacher.safetensors" in status["damaged_checkpoints"][f"step-{STEPS:08d}"]
    assert tensor_hashes(path.parent) == tensor_hashes(straight)


def test_a_run_whose_folder_is_replaced_under_it_ends_with_exit_5(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real, calls = tmp_path / "run", TrainLoader.views, []

    def removing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            shutil.rmtree(run)
        return real(*args)

    monkeypatch.setattr(TrainLoader, "views", removing)
    with pytest.raises(OutputInUse, match="not the directory that this run locked"):
        pretrain(tiny_job(), images, run, device="cpu")
    assert not list(run.glob("checkpoints/step-*"))


@pytest.mark.parametrize(
    ("number", "error", "state"),
    [(signal.SIGTERM, Preempted, "preempted"),
     pytest.param(signal.SIGINT, Interrupted, "interrupted", marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_signal_stops_at_the_step_and_the_run_resumes_bit_for_bit(
    number: int, error: type, state: str, straight: Path, images: ImageFolder, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, handlers, real, calls = tmp_path / "run", [signal.getsignal(n) for n in (2, 12, 15)], TrainLoader.views, []

    def signalled(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), number)
        return real(*args)

    monkeypatch.setattr(TrainLoader, "views", signalled)
    with pytest.raises(error, match="after step 5"):
        pretrain(tiny_job(), images, run, device="cpu")
    assert handlers == [signal.getsignal(n) for n in (2, 12, 15)]
    assert read_json(run / "status.json")["state"] == state
    assert checkpoint.newest(run).path == run / "checkpoints" / "step-00000005"
    assert tensor_hashes(pretrain(tiny_job(), images, run, device="cpu")) == tensor_hashes(straight)
    assert comparable(run) == comparable(straight.parent.parent)
    assert list(checkpoint.list_checkpoints(run)) == list(checkpoint.list_checkpoints(straight.parent.parent))


def test_a_second_ctrl_c_stops_at_once(images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = TrainLoader.views, []

    def twice(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(TrainLoader, "views", twice)
    with pytest.raises(Interrupted, match="at once"):
        pretrain(tiny_job(checkpoint_every_steps=2), images, tmp_path / "run", device="cpu")
    assert read_json(tmp_path / "run" / "status.json")["state"] == "interrupted"
    assert checkpoint.newest(tmp_path / "run").path == tmp_path / "run" / "checkpoints" / "step-00000002"


def _poison(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """Make the pixels of some calls non-finite."""
    real, calls = TrainLoader.views, []

    def poisoned(*args: Any) -> Any:
        views = real(*args)
        if len(calls) in steps:
            views[1][0, 0, 0, 0] = float("inf")
        calls.append(1)
        return views

    monkeypatch.setattr(TrainLoader, "views", poisoned)


def test_a_nonfinite_step_touches_nothing_and_training_goes_on(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    _poison(monkeypatch, range(6, 8))
    final = pretrain(tiny_job(checkpoint_every_steps=1, keep_epochs=(1,)), images, run, device="cpu")
    faults = read_metrics(run / "nonfinite.jsonl")
    assert [row["step"] for row in faults] == [7, 8]
    assert all(len(set(row["ids"])) == 8 and set(row["ids"]) <= set(images.ids) for row in faults)
    assert [row["step"] for row in comparable(run)] == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12]
    assert final.name == f"step-{STEPS:08d}"


def test_too_many_nonfinite_steps_end_the_run_and_are_never_saved(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, job = tmp_path / "run", tiny_job(checkpoint_every_steps=1, keep_epochs=(1,), max_nonfinite=3)
    _poison(monkeypatch, range(6, 99))
    with pytest.raises(NonFiniteError, match="3 non-finite steps in a row, the last is step 9"):
        pretrain(job, images, run, device="cpu")
    status = read_json(run / "status.json")
    assert status["state"] == "failed"
    assert "non-finite" in status["error"]
    kept = {path.name: tensor_hashes(path) for path in list_checkpoints(run).values()}
    assert set(kept) == {"step-00000006", "step-00000007", "step-00000008"}
    assert kept["step-00000006"] == kept["step-00000008"], "parameters, optimizer, EMA and centre are as before"
    _poison(monkeypatch, range(99))
    with pytest.raises(NonFiniteError):
        pretrain(job, images, run, device="cpu")
    assert [row["step"] for row in read_metrics(run / "nonfinite.jsonl")] == [7, 8, 9], "a restart does not count anew"


def test_another_configuration_or_other_data_is_refused_key_by_key(
    straight: Path, images: ImageFolder, tmp_path: Path
) -> None:
    run = straight.parent.parent
    with pytest.raises(ConfigError) as failure:
        pretrain(tiny_job(seed=2, epochs=3), images, run, device="cpu")
    assert "seed: 1 → 2" in failure.value.problems[0]
    assert "pretrain.epochs: 2 → 3" in failure.value.problems[1]
    with pytest.raises(ConfigError) as failure:  # many changes: three of them, and how many more
        pretrain(tiny_job(seed=2, epochs=3, momentum_teacher=0.5, out_dim=33, hidden_dim=8), images, run, device="cpu")
    assert len(failure.value.problems) == 5
    assert failure.value.problems[3].endswith("config.json: and 2 more")
    other = ImageFolder.open(make_images(tmp_path / "other", 47))
    with pytest.raises(ConfigError, match=r"data.fingerprint: .* → "):
        pretrain(tiny_job(), other, run, device="cpu")
    assert read_json(run / "status.json")["state"] == "done"
    pretrain(tiny_job(log_every=3, checkpoint_every_minutes=1.0), images, run, device="cpu")
    assert read_json(run / "config.json")["pretrain"]["log_every"] == 3


def test_a_directory_of_something_else_is_not_taken(images: ImageFolder, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(OutputInUse, match=r"thesis\.tex"):
        pretrain(tiny_job(), images, tmp_path, device="cpu")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="not a directory"):
        pretrain(tiny_job(), images, tmp_path / "thesis.tex", device="cpu")


def test_fewer_images_than_a_batch_and_crops_that_do_not_fit_are_refused(images: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than one batch of 64") as refusal:
        pretrain(tiny_job(batch_size=64), images, tmp_path / "run", device="cpu")
    assert refusal.value.hint == "more images, or pretrain.batch_size=48 or less"
    small = tiny_job(epochs=1, warmup_epochs=0, batch_size=24)
    done = pretrain(small, images, tmp_path / "run", device="cpu")
    assert done.name == "step-00000002", "what never began may be corrected"
    assert read_json(tmp_path / "run" / "config.json")["pretrain"]["batch_size"] == 24
    with pytest.raises(ValueError, match=r"pretrain.crops.local_size: 20 is not a multiple of the patch size 16"):
        tiny_job(crops={"global_size": 32, "local_size": 20})


def test_checkpoints_of_kept_epochs_are_found_by_epoch(images: ImageFolder, tmp_path: Path) -> None:
    job = tiny_job(epochs=4, warmup_epochs=0, keep_epochs=(1,), checkpoint_every_steps=5, skip=False)
    final = pretrain(job, images, tmp_path / "run", device="cpu")
    names = [p.name for p in list_checkpoints(tmp_path / "run").values()]
    assert names == ["step-00000024", "step-00000020", "step-00000006"]
    assert checkpoint.of_epoch(tmp_path / "run", 1).name == "step-00000006"
    assert checkpoint.of_epoch(tmp_path / "run", 4) == final
    with pytest.raises(WeightsError, match="no checkpoint of epoch 2"):
        checkpoint.of_epoch(tmp_path / "run", 2)


def test_the_job_survives_json(tmp_path: Path) -> None:
    job = tiny_job()
    assert PretrainJob.model_validate(json.loads(json.dumps(job.model_dump(mode="json")))) == job


def test_skipless_students_have_no_drop_path() -> None:
    def modules(job: PretrainJob) -> list[torch.nn.Module]:
        return [*build_networks(job, job.pretrain, torch.device("cpu"))[0].modules()]

    skip = [m for m in modules(tiny_job()) if type(m).__name__ == "DropPath"]
    none = modules(tiny_job(skip=False))
    assert [m.drop_prob for m in skip][-1] == pytest.approx(0.3)
    assert not [m for m in none if type(m).__name__ == "DropPath" and m.drop_prob]


class Measure:
    """An observer that finds every epoch better than the one before."""

    score = "score"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, network: torch.nn.Module, here: World) -> dict[str, float]:
        self.calls += 1
        return {"score": float(self.calls)}


def test_an_epoch_that_ends_in_a_nonfinite_step_is_measured_all_the_same(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _poison(monkeypatch, range(5, 12, 6))  # steps 6 and 12: the last of both epochs
    pretrain(tiny_job(online_every=1), images, tmp_path / "run", device="cpu", observer=Measure())
    rows = comparable(tmp_path / "run")
    assert [(row["step"], row["epoch"], row["score"]) for row in rows if "score" in row] == [(6, 1, 1.0), (12, 2, 2.0)]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    pretrain(tiny_job(online_every=1), images, tmp_path / "run", device="cpu", observer=Measure())
    assert comparable(tmp_path / "run") == rows, "a session that goes on reads rows without a loss"


def test_the_share_of_bad_images_is_of_the_whole_set_not_of_what_a_rank_has_seen(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second rank has found images that this one was not given in the first epoch."""
    others = {"other.png": "torn", "more.png": "torn"}
    monkeypatch.setattr("dinoskip.training.loop.gather", lambda own: [own, others] if isinstance(own, dict) else [own])
    with pytest.raises(DataError, match=r"2 of 48 images cannot be read .* more than 1%: more.png, other.png"):
        pretrain(tiny_job(), images, tmp_path / "strict", device="cpu")
    monkeypatch.setattr("dinoskip.data.loader.BAD_SHARE", 0.1)
    pretrain(tiny_job(), images, tmp_path / "run", device="cpu")
    assert read_json(tmp_path / "run" / "bad_images.json") == others
