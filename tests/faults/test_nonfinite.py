"""Gradients that are not finite from some step on."""

from __future__ import annotations

from pathlib import Path

from dinoskip.io.files import load_tensors, read_json
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.specs import list_checkpoints
from tests.helpers.launch import run
from tests.helpers.tiny import make_images, tensor_hashes, tiny_job


def test_nan_never_checkpointed(tmp_path: Path) -> None:
    images, run_dir = make_images(tmp_path / "images"), tmp_path / "run"
    job = tiny_job(checkpoint_every_steps=2, keep_epochs=(1,), max_nonfinite=4)
    code, log = run(job, images, run_dir, failpoint="step.gradients:nan@8")
    assert code == 4, log
    assert "4 non-finite steps in a row, the last is step 11" in log
    assert read_json(run_dir / "status.json")["state"] == "failed"
    assert list(list_checkpoints(run_dir)) == [10, 8, 6], "the last two, and the kept epoch"
    newest, _, kept = list_checkpoints(run_dir).values()
    for path in (newest, kept):
        assert all(t.isfinite().all() for file in path.glob("*.safetensors") for t in load_tensors(file).values())
    assert tensor_hashes(newest) == tensor_hashes(list_checkpoints(run_dir)[8]), "nothing was updated since"
    code, log = run(job, images, run_dir, failpoint="step.gradients:nan@1")
    assert code == 4, "started again by a script it ends again, at once, and does not loop"
    assert [row["step"] for row in read_metrics(run_dir / "nonfinite.jsonl")] == [8, 9, 10, 11]
