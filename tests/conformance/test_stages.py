"""Every stage is a pure function of its key: the same study in another folder gives the same bytes."""

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.files import MANIFEST, read_manifest
from dinoskip.pipeline.nodes import STAGES

STUDY = """
name: pure
data: {scenes: {kind: scenes, images: 8, size: 64, val_fraction: 0.5}}
model: {name: vit_tiny_patch16, depth: 1, img_size: 32, skip: false, init: {name: skipless}}
pretrain:
  dataset: scenes
  epochs: 1
  warmup_epochs: 0
  batch_size: 2
  out_dim: 16
  hidden_dim: 16
  bottleneck_dim: 8
  warmup_teacher_temp_epochs: 0
  crops: {global_size: 32, local_size: 16, num_local: 1}
evaluate:
  datasets: [scenes]
  discover: [scenes]
  knn: [scenes]
  probe: {size: 64, epochs: 1, learning_rates: [1e-3]}
  knn_k: [2]
  knn_size: 64
analyze: {model: vit_tiny_patch16, depth: 2, img_size: 64, photos: 1}
gallery: {first: 2}
"""


def hashes(folder: Path) -> dict[str, str]:
    """Output hash of every node of a finished study."""
    config = folder / "pure.yaml"
    folder.mkdir()
    config.write_text(STUDY)
    assert main(["run", str(config), f"output={folder}", "-q"]) == 0
    manifests = [read_manifest(path.parent) for path in folder.rglob(MANIFEST)]
    return {one["info"]["node"]: one["hash"] for one in manifests if "node" in one["info"]}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("pure")
    return hashes(folder / "one"), hashes(folder / "another place")


@pytest.mark.parametrize("stage", list(STAGES))
def test_same_bytes_elsewhere(twice: tuple[dict[str, str], dict[str, str]], stage: str) -> None:
    one, two = ({node: value for node, value in found.items() if node.split("/")[0] == stage} for found in twice)
    assert one
    assert one == two
