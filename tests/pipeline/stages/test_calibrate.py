"""A study whose initialisation is measured on images: what begins with it, and what a change of an image runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.io.files import MANIFEST, load_tensors, read_json, sha256_file, verify_manifest
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from tests.helpers.study import ANALYZE, SVG
from tests.helpers.tiny import make_images

STUDY = """
name: tiny
data: {scenes: {kind: scenes, images: 16, size: 64, val_fraction: 0.5}, photos: {kind: images, root: PHOTOS}}
model: {name: vit_tiny_patch16, depth: 2, img_size: 32}
variants:
  model:
    - {label: skip}
    - {label: own, skip: false, init: {name: calibrated, count: 4}}
    - {label: other, skip: false, init: {name: calibrated, count: 4, images: photos}, reparametrise: {k1: 2, c2: 4}}
pretrain:
  dataset: scenes
  epochs: 1
  warmup_epochs: 0
  batch_size: 4
  out_dim: 32
  hidden_dim: 32
  bottleneck_dim: 16
  momentum_teacher: 1.0
  warmup_teacher_temp_epochs: 0
  crops: {global_size: 32, local_size: 16, num_local: 1}
evaluate: {epochs: [0, 1]}
gallery: {first: 2, sheet_formats: []}
"""
STUDY += ANALYZE + SVG


def study(folder: Path) -> Path:
    """The teacher is left as it is at the start."""
    config = folder / "study.yaml"
    config.write_text(STUDY.replace("PHOTOS", f"'{folder / 'photos'}'") + f"output: {folder / 'runs'}\n")
    return config


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    make_images(folder / "photos", 6)
    config = study(folder)
    assert main(["run", str(config), "-q"]) == 0
    return config


def output(done: Path, node: str, name: str) -> Path:
    return next((done.parent / "runs" / "tiny" / "stages" / node).glob(f"*/{name}"))


def test_everything_begins_with_the_measured_weights(done: Path) -> None:
    for manifest in (done.parent / "runs" / "tiny").rglob(MANIFEST):
        assert verify_manifest(manifest.parent) == []
    files = set()
    for name in ("own-adamw", "other-adamw"):
        start = output(done, f"calibrate/{name}", "weights.safetensors")
        assert sha256_file(output(done, f"weights/{name}/ep0", "weights.safetensors")) == sha256_file(start)
        first, teacher = (
            load_tensors(path) for path in (start, output(done, f"weights/{name}/ep1", "weights.safetensors"))
        )
        assert all((tensor == teacher[key]).all() for key, tensor in first.items())
        files.add(sha256_file(start))
    assert len(files) == 2
    assert float(first["blocks.0.norm1.weight"][0]) == 0.5
    assert not (done.parent / "runs" / "tiny" / "stages" / "calibrate" / "skip-adamw").exists()


def test_the_report_shows_what_calibration_changed(done: Path) -> None:
    told = read_json(output(done, "calibrate/own-adamw", "calibration.json"))
    page = (done.parent / "runs" / "tiny" / "report" / "index.html").read_text()
    assert ": calibrated on images" in page
    assert "CLS cosine between images, without" in page
    assert f"on {told['images']} images beside those measured" in page


def test_another_image_runs_what_begins_with_it(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(done), "--json"]) == 0
    assert {step["state"] for step in json.loads(capsys.readouterr().out)} == {"cached"}
    one, last = (sorted((done.parent / "photos").iterdir())[index] for index in (0, -1))
    content = one.read_bytes()
    one.write_bytes(last.read_bytes())
    try:
        loaded, variants = load_study(done)
        steps = Runner(loaded.directory, build_nodes(loaded, variants), STAGES).plan()
    finally:
        one.write_bytes(content)
    changed = {step.node.id for step in steps if step.state != "cached"}
    assert {step.node.id for step in steps if step.state == "run"} == {"calibrate/other-adamw"}
    assert changed == {
        "calibrate/other-adamw", "pretrain/other-adamw", "weights/other-adamw/ep0", "weights/other-adamw/ep1",
        "report",
    }  # fmt: skip


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    make_images(tmp_path / "photos", 2)
    with pytest.raises(ConfigError, match=r"model.init.images: 'photo' is not one of the data sets"):
        load_study(study(tmp_path), ["variants.model.2.init.images=photo"])
