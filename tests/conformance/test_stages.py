"""Every stage is a pure function of its key: the same study in another folder gives the same bytes."""

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import MANIFEST, read_manifest
from dinoskip.pipeline.study import STAGES
from tests.helpers.labelled import make_classes
from tests.helpers.study import SUPERVISED, TINY

SMALLER = (
    "data.scenes.images=8",
    "model.depth=1",
    "variants.model=[{skip: false, init: {name: calibrated, count: 4}}]",
    "pretrain.batch_size=2",
    "evaluate.multiscale=null",
    "gallery.first=2",
    "evaluate.probe.pixels=true",
)
ROOMS = "data.rooms={kind: rooms, images: 4, size: 32, val_fraction: 0.5}"
PLUGINS: dict[str, tuple[str, ...]] = {
    "analyze": ("analyze={model: vit_tiny_patch16, depth: 1, img_size: 32, photos: 1}",),
    "depth": (
        ROOMS,
        "evaluate.depth={datasets: [rooms], iterations: 2, batch_size: 2, crop: [32, 32], bins: 4, upsample: 1}",
    ),
    "normals": (ROOMS, "evaluate.normals={datasets: [rooms], epochs: 1, batch_size: 2}"),
    "saliency": ("evaluate.saliency={datasets: [scenes], split: val}",),
    "objects": ("evaluate.objects={datasets: [scenes], split: val, size: 32}",),
    "cluster": ("evaluate.cluster={datasets: [scenes], size: 32, seeds: 1}",),
    "detection": ("evaluate.detection={datasets: [scenes], short_side: 64, long_side: 64, epochs: 1, channels: 8}",),
    "linear": (
        "evaluate.linear={datasets: [scenes], size: 32, epochs: 1, batch_size: 4, last: [1], learning_rates: [1.0]}",
    ),
    "video": (
        "data.videos={kind: scenes_video, videos: 2, frames: 4, size: 48}",
        "evaluate.video={datasets: [videos], short_side: 48, memory: 2}",
    ),
    "correspondence": (
        "data.pairs={kind: scenes_pairs, classes: 2, objects: 1, views: 2, size: 64}",
        "evaluate.correspondence={datasets: [pairs], size: 48, alphas: [0.1]}",
    ),
}
"""Settings with which a plug-in's stage runs, where it is installed."""
INSTALLED = [setting for stage, settings in PLUGINS.items() if stage in STAGES for setting in settings]


SWEEP = """
online: {knn: {dataset: scenes, size: 32, k: [1], held_out: true, train_images: 4, val_images: 2}}
sweep: {lr: [1e-3, 1e-2], pretrain: {epochs: 1}}
"""


def hashes(folder: Path) -> dict[str, str]:
    """Output hash of every node of two finished studies, one pretrained and one supervised."""
    config = folder / "tiny.yaml"
    folder.mkdir()
    config.write_text(TINY + SWEEP)
    assert main(["run", str(config), f"output={folder}", *SMALLER, *INSTALLED, "-q"]) == 0
    labelled, root = folder / "labelled.yaml", folder / "shapes"
    make_classes(root / "train", 2)
    make_classes(root / "val", 1, seed=1)
    labelled.write_text(SUPERVISED)
    alone = [
        "variants.model=[{skip: true}]",
        "evaluate.knn.datasets=[]",
        f"data.shapes.root={root}",
        f"output={folder}",
    ]
    assert main(["run", str(labelled), *alone, "--until", "accuracy", "-q"]) == 0
    manifests = [read_manifest(path.parent) for path in folder.rglob(MANIFEST)]
    return {manifest.info["node"]: manifest.hash for manifest in manifests if "node" in manifest.info}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("pure")
    return hashes(folder / "one"), hashes(folder / "another place")


@pytest.mark.parametrize("stage", list(STAGES))
def test_same_bytes_elsewhere(twice: tuple[dict[str, str], dict[str, str]], stage: str) -> None:
    one, two = ({node: value for node, value in found.items() if node.split("/")[0] == stage} for found in twice)
    assert one
    assert one == two
