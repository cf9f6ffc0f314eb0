"""``dinoskip cuts``: one photograph cut in every way by one pass."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.models import Backbone

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (70, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_one_pass_gives_every_way(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, passes = Backbone.layers, []

    def counted(self: Backbone, *args: object, **more: object) -> object:
        passes.append(args)
        return original(self, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Backbone, "layers", counted)
    command = ["cuts", VIT, str(photo), "--out", str(tmp_path / "cuts.png"), "--facet", "key,out", "--tau", "0.2,0.9"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(passes) == 1
    assert [(one["facet"], one["centred"], one["tau"]) for one in found["cuts"]] == [
        (facet, centred, tau) for facet in ("key", "out") for centred in (False, True) for tau in (0.2, 0.9)
    ]
    for one in found["cuts"]:
        x1, y1, x2, y2 = one["box"]
        assert (0 <= x1 < x2 <= 90 and 0 <= y1 < y2 <= 70) if one["is_cut"] else one["box"] == [-1] * 4
    with Image.open(found["figure"]) as figure:
        assert figure.width > 3 * 200, "the photograph and two tau"
    assert main(command) == 0
    assert "cuts.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tau", "0.2,x"], "no list of numbers"),
        (["--tau", "1.5"], "from 0 to below 1"),
        (["--block", "3"], "has blocks 1..2"),
        (["--facet", "kye"], "did you mean key"),
    ],
)
def test_what_cannot_be_is_one_line(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(["cuts", VIT, str(photo), "--out", str(tmp_path / "c.png"), *more]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]  # after what was taken of the folder
    assert message in line


def test_position_taken_out_is_shown_beside_centred(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rng = tmp_path / "set", np.random.default_rng(1)
    folder.mkdir()
    sizes = ((70, 90), (66, 84), (70, 40))  # of the photograph's grid of 5 x 6 are two
    for number, size in enumerate(sizes):
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    command = ["cuts", VIT, str(photo), "--out", str(tmp_path / "c.png"), "--facet", "key", "--tau", "0.2", "--json"]
    assert main([*command, "--images", str(folder), "--positions", "mean,mean_kept,rasa,insid3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["centred"], one["positions"]) for one in found["cuts"]] == [
        (False, "keep"), (True, "keep"), *((False, way) for way in ("mean", "mean_kept", "rasa", "insid3")),
    ]  # fmt: skip
    assert found["images"] == 3
    by_way = {one["positions"]: one["cosine"] for one in found["cuts"] if not one["centred"]}
    assert len(set(by_way.values())) == 5, "each way leaves other features"
    assert main([*command, "--images", str(folder)]) == 0
    assert [one["positions"] for one in json.loads(capsys.readouterr().out)["cuts"]] == ["keep", "keep", "mean"]
    assert main([*command, "--positions", "insid3"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--positions", "mean"], 2, "--images DIR"),
        (["--positions", "means"], 2, "did you mean mean"),
        (["--images", "SMALL"], 3, "no other image has the photograph's grid of 5 x 6 tokens"),
    ],
)
def test_means_need_images_of_the_grid(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, message: str
) -> None:
    (tmp_path / "small").mkdir()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "small" / "a.png")
    more = [str(tmp_path / "small") if part == "SMALL" else part for part in more]
    assert main(["cuts", VIT, str(photo), "--out", str(tmp_path / "c.png"), "--facet", "key", *more]) == code
    line = capsys.readouterr().err.strip().splitlines()[-1]  # after what was taken of the folder
    assert message in line
