"""What evaluations do, reckoned: every kind of stage of a study of all of them, and networks that are not ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from dinoskip.config import RawConfig
from dinoskip.models import VitConfig, save_weights
from dinoskip.models.build import from_config
from dinoskip.models.flops import vit_flops
from dinoskip.pipeline.estimate import Cost, Speed, costs
from dinoskip.pipeline.study import build_nodes, load_study, study_of
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.work import Network, count_images, network_of, seen

TASKS = Path(__file__).parents[2] / "configs" / "tasks.yaml"
SPEED = Speed(1e11, 2)


@cache
def of_tasks(*overrides: str) -> dict[str, Cost]:
    """The costs of a study that has every task, of one variant, by stage or name."""
    study, variants = load_study(TASKS, overrides)
    made = costs(study, variants, build_nodes(study, variants))
    own = {cost.stage: cost for cost in made if "calibrated" not in cost.variant}
    return own | {cost.node: cost for cost in made}


def test_every_stage_takes_time() -> None:
    for name, cost in of_tasks().items():
        assert cost.seconds(SPEED) > (0.1 if cost.stage in {"weights", "calibrate", "knn"} else 0.15), name


@pytest.mark.parametrize(
    ("stage", "images"),
    [
        ("video", 4 * 8),
        ("correspondence", 48),
        ("linear", 180 * 10 + 60),
        ("normals", 90 * 4 + 30),
        ("depth", 150 * 8 + 2 * 30),
        ("gallery", 8 * 2),
    ],
)
def test_images_that_stages_pass_themselves(stage: str, images: int) -> None:
    assert of_tasks()[stage].images == images


def test_a_probe_by_iterations_takes_as_long_as_they_do() -> None:
    few, many = (
        of_tasks("evaluate.probe.live=true", f"evaluate.probe.iterations={count}", "evaluate.probe.epochs=null")[
            "probe"
        ]
        for count in (100, 300)
    )
    batch = 16
    assert many.images - few.images == 200 * batch
    assert many.fits / few.fits == pytest.approx(3, rel=0.1), "scoring is the same"


def test_operations_of_a_pass_are_those_of_the_network() -> None:
    network = VitConfig(name="vit_mini_patch8", depth=6, img_size=64)
    assert of_tasks()["video"].flop == 32 * vit_flops(network, 96)
    assert of_tasks()["correspondence"].flop == 48 * vit_flops(network, 128)
    assert of_tasks()["linear"].flop == 1860 * vit_flops(network, 64)


@pytest.mark.parametrize(
    ("stage", "setting", "times"),
    [
        ("video", "evaluate.video.memory=14", 2.0),
        ("retrieve", "evaluate.retrieve.memory=8192", 2.0),
        ("linear", "evaluate.linear.learning_rates=[1.0]", 1 / 3),
        ("depth", "evaluate.depth.bins=128", 2.0),
        ("normals", "evaluate.normals.learning_rates=[1e-3]", 0.5),
        ("knn", "data.scenes.limit=45", 45 / 180 * 45 / 60),
    ],
)
def test_products_of_heads_and_neighbours_grow_with_their_settings(stage: str, setting: str, times: float) -> None:
    assert of_tasks(setting)[stage].fits == pytest.approx(times * of_tasks()[stage].fits)


def test_networks_by_what_a_name_or_a_header_tells(tmp_path: Path) -> None:
    config = VitConfig(name="vit_tiny_patch8", depth=3, img_size=32)
    save_weights(tmp_path / "w.safetensors", from_config(config).state_dict(), config, {})

    def of(backbone: str) -> Network:
        return network_of(Variant("x", None, None, backbone=backbone))

    assert of(f"weights:{tmp_path / 'w.safetensors'}") == Network(192, 8, 3)
    assert of("timm:vit_base_patch16_224") == Network(768, 16, 12)
    assert of("timm:vit_tiny_patch16_224,pretrained=false,depth=5,pos_embed=dino") == Network(192, 16, 5)
    for unknown in (
        "timm:resnet18",
        "timm:no_such_model",
        "timm:vit_tiny_patch16_224,depth=-1",
        "weights:absent.safetensors",
        "hf:a/b",
    ):
        assert of(unknown) == Network(384, 16, 12)


def test_images_of_a_folder_are_counted_where_they_are(tmp_path: Path) -> None:
    from tests.helpers.labelled import make_classes

    make_classes(tmp_path / "train", each=4)
    make_classes(tmp_path / "val", each=2)
    tree = {
        "name": "s",
        "data": {"here": {"kind": "folder", "root": str(tmp_path)}, "away": {"kind": "folder", "root": "/none"}},
        "variants": {"model": [{"backbone": "timm:vit_tiny_patch16_224"}]},
    }
    study, _ = study_of(RawConfig(tree))
    assert [count_images(study, "here", split, "classes") for split in ("train", "val")] == [12, 6]
    assert count_images(study, "away", "val", "classes") == 50_000
    with Image.open(next((tmp_path / "val").rglob("*.png"))) as image:
        assert seen(study.data["here"]) == ((image.height, image.width), 3)
    assert seen(study.data["away"]) == ((375, 500), 21)
