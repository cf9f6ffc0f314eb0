"""``dinoskip.evaluate``: rows of any backbone on any labelled folder, from Python."""

from pathlib import Path

import numpy as np
import pytest
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
