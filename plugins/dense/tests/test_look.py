"""``dinoskip look`` sees the plug-in's labels in a folder, and measures what they are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.data.sets import KINDS
from dinoskip.data.sets.kind import Synthetic
from dinoskip.pipeline.look.study import labels_of, study_tree
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.settings.config import RawConfig

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"


@pytest.mark.parametrize(
    ("kind", "sizes", "label", "splits"),
    [
        ("rooms", {"images": 6, "size": 64}, "depth", ("train", "test")),
    ],
)
def test_every_kind_of_label_is_seen_and_measured(
    kind: str, sizes: dict[str, int], label: str, splits: tuple[str, ...], tmp_path: Path
) -> None:
    composed = KINDS[kind](**sizes)
    assert isinstance(composed, Synthetic)
    labels = labels_of(composed.generate(tmp_path / "data"))
    assert labels.found == {label: splits}
    study, variants = study_of(RawConfig(study_tree([VIT], labels, tmp_path / "out")))
    assert label in {node.stage for node in build_nodes(study, variants)}
