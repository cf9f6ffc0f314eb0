"""Published numbers beside ours: of a planted network, with a planted table, on composed scenes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.data import ScenesConfig
from dinoskip.errors import ConfigError
from dinoskip.pipeline.look.reproduce import INSIDE, NO_DATA, NOT_COMPARABLE, OUTSIDE, reproduce
from eval.published import NETWORKS, NUMBERS, PublicNetwork, PublicNumber, network_of

SPEC = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"
PLANTED = PublicNetwork("planted", 2, ("planted:.*",))
VOC = {"kind": "voc", "year": 2012}
CUTS = PublicNumber(
    "planted", "tokencut", "CorLoc", 50.0, VOC, 6, "here", 1.0, "none", {"tau": 0.2}, "tokencut tau=0.2"
)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ScenesConfig(images=6, size=64).generate(tmp_path_factory.mktemp("data") / "scenes")


def test_every_network_has_numbers_and_every_number_its_source() -> None:
    assert {number.network for number in NUMBERS} == {network.name for network in NETWORKS}
    assert all(number.source and number.differences and number.n > 0 for number in NUMBERS)
    keys = {(one.network, one.task, one.metric, one.data_name, one.protocol, one.source) for one in NUMBERS}
    assert len(keys) == len(NUMBERS)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("timm:vit_small_patch16_224.dino", "DINO ViT-S/16"),
        ("dino:weights/dino_deitsmall8_pretrain.pth", "DINO ViT-S/8"),
        ("hub:facebookresearch/dinov2:main:dinov2_vitg14", "DINOv2 ViT-g/14"),
        ("hf:facebook/dinov3-vits16plus-pretrain-lvd1689m", "DINOv3 ViT-S+/16"),
        ("timm:vit_small_patch16_224.dino,pretrained=false", None),
        ("timm:vit_small_patch16_224", None),
    ],
)
def test_specs_name_their_network(spec: str, name: str | None) -> None:
    found = network_of(spec)
    assert (None if found is None else found.name) == name


def test_ours_stands_beside_what_is_published(scenes: Path, tmp_path: Path) -> None:
    table = [
        CUTS,
        replace(CUTS, n=5011),
        replace(CUTS, data={"kind": "coco20k"}),
        replace(CUTS, network="another"),
        replace(CUTS, band=None, differences="other sizes"),
    ]
    found = reproduce(SPEC, [scenes], tmp_path, name="planted", networks=[PLANTED], numbers=table, device="cpu")
    assert [one.verdict for one in found[1:]] == [NOT_COMPARABLE, NO_DATA, NOT_COMPARABLE]
    ours = found[0].row
    assert ours is not None
    assert (ours.block, ours.facet, ours.n) == ("2", "key", 6)
    known = [replace(CUTS, value=ours.value + 0.9), replace(CUTS, value=ours.value - 1.1)]
    again = reproduce(SPEC, [scenes], tmp_path, name="planted", networks=[PLANTED], numbers=known, device="cpu")
    assert [one.verdict for one in again] == [INSIDE, OUTSIDE]
    assert [one.row for one in again] == [ours, ours]


def test_a_network_without_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--as"):
        reproduce(SPEC, [], tmp_path)


def test_the_command_lists_numbers_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", SPEC, "--as", "DINO ViT-S/16", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["verdict"] for one in listed} == {NO_DATA}
    assert {(one["task"], one["data"], one["published"]) for one in listed} >= {("tokencut", "voc2007", 68.8)}
    assert main(["reproduce", SPEC, "--as", "DINO ViT-S/16"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    place = head.index("tolerance")
    of_voc = next(line for line in lines if line.startswith("tokencut") and "voc2007" in line)
    assert of_voc[place:].split()[:2] == ["±", "0.5"]
    assert main(["reproduce", "somebody.pth"]) == 2
