"""Estimated work of evaluations: every kind of stage of a study of all of them, and networks that are not ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from ruamel.yaml import YAML

from dinoskip.data import ScenesConfig
from dinoskip.models import VitConfig, save_weights
from dinoskip.models.build import from_config
from dinoskip.pipeline.estimate.costs import Cost, costs
from dinoskip.pipeline.estimate.work import StudyImages, network_of, windows_of
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.variants import Variant
from dinoskip.settings.config import RawConfig, apply_overrides
from dinoskip.settings.flops import vit_flops
from dinoskip.settings.networks import Network, known_network
from eval.probe.crops import scaled_size
from eval.probe.windows import window_starts

STUDY = """
name: work
data: {scenes: {kind: scenes, images: 240, size: 128}}
model: {name: vit_mini_patch8, depth: 6, img_size: 64}
variants: {model: [{label: skip, skip: true}, {label: calibrated, skip: false, init: {name: calibrated}}]}
pretrain: {objective: patch_contrast, dataset: scenes, crop_size: 64, epochs: 6, warmup_epochs: 0.4, batch_size: 16}
evaluate:
  probe: {datasets: [scenes], size: 64, protocol: fast, epochs: 10}
  tokencut: {datasets: [scenes], split: val}
  knn: {datasets: [scenes], size: 64}
gallery: {first: 8, size: 128}
"""


@cache
def of_tasks(*overrides: str) -> dict[str, Cost]:
    """The costs of the study, of its variant with skips, by stage or name."""
    tree = RawConfig(YAML(typ="safe").load(STUDY))
    study, variants = study_of(apply_overrides(tree, list(overrides)))
    made = costs(StudyImages(study), study, variants, build_nodes(study, variants))
    own = {cost.stage: cost for cost in made if "calibrated" not in cost.variant}
    return own | {cost.node: cost for cost in made}


def test_a_probe_by_iterations_takes_as_long_as_they_do() -> None:
    few, many = (
        of_tasks("evaluate.probe.live=true", f"evaluate.probe.iterations={count}", "evaluate.probe.epochs=null")[
            "probe"
        ]
        for count in (100, 300)
    )
    batch = 16
    assert many.images - few.images == 200 * batch
    assert many.work - few.work == 200 * batch * vit_flops(VitConfig(name="vit_mini_patch8", depth=6, img_size=64), 64)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others may use the processor
@given(st.tuples(st.integers(40, 900), st.integers(40, 900)).filter(lambda at: max(at) <= 4 * min(at)), st.data())
def test_windows_are_counted_as_the_probe_lays_them(sides: tuple[int, int], data: st.DataObject) -> None:
    size = data.draw(st.integers(16, 700))
    stride = data.draw(st.integers(max(1, size // 3), size))
    height, width = scaled_size(*sides, size)
    laid = len(window_starts(height, size, stride)) * len(window_starts(width, size, stride))
    assert windows_of(sides, size, stride) == laid


def test_scoring_by_windows_passes_each_of_them() -> None:
    live = ("evaluate.probe.live=true", "evaluate.probe.iterations=1", "evaluate.probe.epochs=null")
    whole, windows = (of_tasks(*live, *more)["probe"].images for more in ((), ("evaluate.probe.stride=32",)))
    assert whole == windows  # scenes are squares: one window each
    assert windows_of((64, 128), 64, 32) == 3


def test_work_grows_with_images_passed_and_features_read() -> None:
    few, all_of_them = of_tasks("data.scenes.limit=30"), of_tasks()
    assert few["knn"].work == pytest.approx(all_of_them["knn"].work * 60 / 240)
    tokens, width = 8**2, 128
    assert all_of_them["probe"].work == (180 + 60) * tokens * width * 6
    assert all_of_them["report"].work == all_of_them["gallery"].work == 1


def test_networks_by_what_a_name_or_a_header_tells(tmp_path: Path) -> None:
    config = VitConfig(name="vit_tiny_patch8", depth=3, img_size=32)
    save_weights(tmp_path / "w.safetensors", from_config(config).state_dict(), config, {})

    def of(backbone: str) -> Network:
        return network_of(Variant("x", backbone=backbone, shape=known_network(backbone)))

    assert of(f"weights:{tmp_path / 'w.safetensors'}") == Network(192, 8, 3)
    assert of("timm:vit_base_patch16_224") == Network(768, 16, 12)
    assert of("timm:vit_tiny_patch16_224,pretrained=false,depth=5,pos_embed=dino") == Network(192, 16, 5)
    levels = of("timm:resnet18")
    assert (levels.patch, levels.depth, levels.tokens(224, 224)) == (32, 5, 49)
    assert levels.flops(49) == pytest.approx(2 * 1.82e9, rel=0.01)  # 1.82 G multiply-adds, as is published
    for unknown in (
        "timm:no_such_model",
        "timm:vit_tiny_patch16_224,depth=-1",
        "weights:absent.safetensors",
        "hf:a/b",
    ):
        assert of(unknown) == Network(384, 16, 12)


def test_images_are_counted_where_they_are(tmp_path: Path) -> None:
    from tests.helpers.labelled import make_classes

    make_classes(tmp_path / "train", each=4)
    make_classes(tmp_path / "val", each=2)
    voc = ScenesConfig(images=12, size=64, val_fraction=0.25).generate(tmp_path / "voc")
    tree = {
        "name": "s",
        "data": {
            "here": {"kind": "folder", "root": str(tmp_path)},
            "voc": {"kind": "voc", "root": str(voc)},
            "few": {"kind": "voc", "root": str(voc), "limit": 2},
            "away": {"kind": "folder", "root": "/none"},
        },
        "variants": {"model": [{"backbone": "timm:vit_tiny_patch16_224"}]},
    }
    study, _ = study_of(RawConfig(tree))
    images = StudyImages(study, assume=True)
    assert [images.count("here", split, "classes") for split in ("train", "val")] == [12, 6]
    assert [images.count("voc", split, "segmentation") for split in ("train", "val")] == [9, 3]
    assert [images.count("few", "train", use) for use in ("segmentation", "pretraining")] == [2, 9]
    assert images.assumed == set()
    assert images.count("away", "val", "classes") == 50_000
    assert images.assumed == {"away"}
    with Image.open(next((tmp_path / "val").rglob("*.png"))) as image:
        assert images.sides("here", "val", "classes") == (image.height, image.width)
    assert images.sides("away", "val", "classes") == (375, 500)
    assert (images.classes("here"), images.classes("away")) == (3, 1000)
