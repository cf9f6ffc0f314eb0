"""Position taken out of the features that are cut for several objects and for saliency."""

from __future__ import annotations

import json
from pathlib import Path

from dinoskip_dense.objects import ObjectsConfig
from dinoskip_dense.saliency import SaliencyConfig
from tests.eval.tokencut.test_evaluation import Boxes
from tests.eval.tokencut.test_positions import dataset, store_of
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of

__all__ = ["dataset"]


def test_several_objects_and_saliency_are_freed_too(dataset: Boxes, tmp_path: Path) -> None:
    square = store_of(dataset, tmp_path / "square", "square", 48)
    objects = evaluation_of("objects")
    as_is, freed = (
        objects(square, dataset, tmp_path / rule, ObjectsConfig.model_validate({"positions": rule}), {})
        for rule in ("keep", "mean")
    )
    assert freed[0].protocol == "maskcut tau=0.15 eps=1e-05 rounds=3, positions mean, no CRF"
    assert as_is[0].protocol == "maskcut tau=0.15 eps=1e-05 rounds=3, no CRF"
    share = json.loads((tmp_path / "mean" / "positions.json").read_text())["1"]["6x6"]
    assert share["images"] == 5
    assert not (tmp_path / "keep" / "positions.json").exists()
    assert contents(tmp_path / "keep")["boxes.json"] != contents(tmp_path / "mean")["boxes.json"]
    assert SaliencyConfig(positions="rasa").label == "tokencut tau=0.2 eps=1e-05, positions rasa"
