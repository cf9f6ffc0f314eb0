"""``dinoskip.evaluate``: rows of any backbone on any labelled folder, from Python."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import dinoskip
from dinoskip.data import ScenesConfig
from dinoskip.errors import ConfigError, DataError

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"


def test_rows_for_a_table(tmp_path: Path) -> None:
    scenes = ScenesConfig(images=12, size=64).generate(tmp_path / "scenes")
    small = {"evaluate.probe.size": 64, "evaluate.probe.epochs": 1}
    rows = dinoskip.evaluate(VIT, scenes, ["probe"], out=tmp_path / "out", blocks=[2], settings=small)
    models = [row for row in rows if not row["model"].startswith("baseline")]
    assert {(row["task"], row["block"], row["model"]) for row in models} == {("probe", "2", "vit_tiny_patch16_224")}
    assert len({tuple(row) for row in rows}) == 1  # the same columns everywhere
    assert dinoskip.evaluate([VIT], scenes, ["probe"], out=tmp_path / "out", blocks=[2], settings=small) == rows


def test_a_path_is_a_spec_and_rows_say_how_images_came_in(tmp_path: Path) -> None:
    scenes, file = ScenesConfig(images=4, size=64).generate(tmp_path / "scenes"), tmp_path / "w.pth"
    torch.save(timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64, num_classes=0).state_dict(), file)
    found = {}
    for spec in (file, f"{file},mean=0.5,std=0.5,pos_embed=timm"):
        rows = dinoskip.evaluate(spec, scenes, ["knn"], out=tmp_path / "out", settings={"evaluate.knn.k": [1]})
        [found[str(spec)]] = {(row["normalisation"], row["positions"]) for row in rows if row["weights"]}
    assert list(found.values()) == [
        ("0.485 0.456 0.406 / 0.229 0.224 0.225", "dino"),
        ("0.5 0.5 0.5 / 0.5 0.5 0.5", "timm"),
    ]


def test_nothing_to_measure(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((70, 90, 3), dtype=np.uint8)).save(tmp_path / "1.png")
    with pytest.raises(ConfigError, match="has no labels for probe, tokencut, knn"):
        dinoskip.evaluate(VIT, tmp_path)
    with pytest.raises(ConfigError, match="dance is none of probe"):
        dinoskip.evaluate(VIT, tmp_path, ["dance"])
    with pytest.raises(DataError, match="is not a folder"):
        dinoskip.evaluate(VIT, tmp_path / "none")


def test_its_names_cost_nothing_until_they_are_used() -> None:
    assert {"evaluate", "load_backbone"} <= set(dir(dinoskip))
    with pytest.raises(AttributeError):
        dinoskip.no_such_name  # noqa: B018
