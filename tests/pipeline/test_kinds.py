"""Kinds of data sets beside VOC and folders, as a study takes them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import CocoJsonConfig, MasksConfig
from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.pipeline.stages.external import annotations_hash, images_hash, targets_hash
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.commands import dinoskip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three images with masks in train and val, and a COCO file that lies beside the images' folder."""
    for split in ("train", "val"):
        for number in range(3):
            for kind, array in (("images", np.zeros((48, 48, 3), np.uint8)), ("masks", np.ones((48, 48), np.uint8))):
                (tmp_path / "set" / kind / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(tmp_path / "set" / kind / split / f"{number}.png")
    (tmp_path / "set" / "classes.txt").write_text("off\non\n")
    content = {
        "images": [{"id": 1, "file_name": "train/0.png"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}],
        "categories": [{"id": 1, "name": "dog"}],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return tmp_path


def test_hashes_follow_masks_classes_and_the_subset(root: Path) -> None:
    config = MasksConfig(root=str(root / "set"))

    def hashes() -> tuple[str, str]:
        return images_hash(config, "segmentation", "train"), targets_hash(config, "segmentation", "train")

    images, targets = hashes()
    part = config.model_copy(update={"subset": 2})
    assert targets_hash(part, "segmentation", "train") != targets
    assert targets_hash(part, "segmentation", "val") == targets_hash(config, "segmentation", "val")
    (root / "set" / "classes.txt").write_text("off\nlit\n")
    assert hashes()[0] == images
    assert hashes()[1] != targets
    (root / "set" / "classes.txt").write_text("off\non\n")
    Image.fromarray(np.zeros((48, 48), np.uint8)).save(root / "set" / "masks" / "train" / "1.png")
    assert hashes()[0] == images
    assert hashes()[1] != targets
    annotations_hash(config, "val")  # there are none


@pytest.mark.parametrize("absolute", [True, False])
def test_a_json_may_lie_anywhere(root: Path, absolute: bool) -> None:
    path = root / "boxes.json"
    annotations = str(path) if absolute else "../../boxes.json"
    config = CocoJsonConfig(root=str(root / "set" / "images"), annotations=annotations)
    before = targets_hash(config, "detection", "trainval")
    assert images_hash(config, "detection", "trainval") == images_hash(config, "pretraining", "trainval")
    path.write_text(path.read_text().replace("5, 5", "6, 5"))
    assert targets_hash(config, "detection", "trainval") != before


def test_a_study_of_several_kinds(root: Path) -> None:
    text = f"""
name: kinds
data:
  mine: {{kind: masks, root: {root / "set"}, subset: 2}}
  boxes: {{kind: coco_json, root: {root / "set" / "images"}, annotations: ../../boxes.json}}
variants: {{model: [{{backbone: "weights:none.safetensors"}}]}}
evaluate: {{probe: {{datasets: [mine]}}, tokencut: {{datasets: [boxes]}}}}
gallery: {{dataset: boxes}}
"""
    (root / "study.yaml").write_text(text)
    nodes = {node.id.rpartition("/")[2]: node for node in build_nodes(*load_study(root / "study.yaml"))}
    assert nodes["mine-train-segmentation-out-final-square-224"].plain["dataset"]["subset"] == 2
    assert "root" not in nodes["mine"].plain["dataset"]
    for name in ("mine", "boxes", "gallery"):
        external = nodes[name].external
        assert external is not None
        assert all(external().values())


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    config = VitConfig(name="vit_tiny_patch16", depth=1, img_size=48)
    model = create_model("vit_tiny_patch16", depth=1, img_size=48)
    save_weights(tmp_path / "tiny.safetensors", model.state_dict(), config, {})
    return f"weights:{tmp_path / 'tiny.safetensors'}"


def measured(*arguments: str) -> list[dict[str, Any]]:
    """Rows of a command, the trivial baselines left out."""
    done = dinoskip(*arguments, "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return [row for row in json.loads(done.stdout) if row["block"]]


@pytest.mark.slow
def test_frozen_evaluation_of_own_masks_and_boxes(root: Path, tiny: str) -> None:
    mask = np.ones((48, 48), np.uint8)
    mask[:, :24] = 0
    Image.fromarray(mask).save(root / "set" / "masks" / "val" / "0.png")
    settings = ["evaluate.probe.size=48", "evaluate.probe.epochs=1", "evaluate.probe.learning_rates=[1e-3]"]
    where = ["--kind", "masks", "--data", str(root / "set"), "--out", str(root / "probe")]
    rows = measured("eval", "probe", tiny, *where, *settings, "data.subset=2")
    assert {(row["dataset"], row["split"], row["n"], row["classes"]) for row in rows} == {("set", "val", 3, 2)}
    assert all(row["protocol"].endswith("fitted on train, 2 of 3 by seed 0") for row in rows)
    (details,) = (root / "probe").rglob("probes.json")
    assert len(json.loads(details.read_text())["train"]["ids"]) == 2
    where = ["--kind", "coco_json", "--data", str(root / "set" / "images"), "--out", str(root / "cut")]
    rows = measured("eval", "tokencut", tiny, *where, "data.annotations=../../boxes.json")
    assert {(row["dataset"], row["split"], row["n"]) for row in rows} == {("boxes", "boxes", 1)}
