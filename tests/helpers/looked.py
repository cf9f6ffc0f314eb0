"""A folder of a synthetic kind, as ``dinoskip look`` sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dinoskip.data.sets import KINDS
from dinoskip.data.sets.kind import Synthetic
from dinoskip.pipeline.look.study import labels_of, study_tree
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.settings.config import RawConfig

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"


def labels_and_stages(kind: str, sizes: Mapping[str, int], tmp_path: Path) -> tuple[dict[str, Any], set[str]]:
    """The splits that have each label of a new folder of the kind, and the stages of a look at it."""
    composed = KINDS[kind](**sizes)
    assert isinstance(composed, Synthetic)
    labels = labels_of(composed.generate(tmp_path / "data"))
    study, variants = study_of(RawConfig(study_tree([VIT], labels, tmp_path / "out")))
    return dict(labels.found), {node.stage for node in build_nodes(study, variants)}
