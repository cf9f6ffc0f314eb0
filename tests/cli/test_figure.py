"""``dinoskip figure``: from a gallery, from feature stores, and what it refuses before it reads anything."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.features import FeatureStore
from dinoskip.pipeline.look.figure import FigureWishes, figure_content, places_of
from tests.helpers.study import PLAIN
from tests.helpers.tiny import make_images
from visualize.gallery.written import read_gallery

NET = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=48"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, a look at them, the same in one file, and a store of native images."""
    root = tmp_path_factory.mktemp("figures")
    make_images(root / "photos", 3)
    made = ["--data", str(root / "photos"), "--device", "cpu", "-q"]
    small = ["gallery.size=48", *PLAIN]
    assert main(["look", NET, *made, "--out", str(root / "look"), *small]) == 0
    assert main(["gallery", NET, *made, "--out", str(root / "single"), "--single-file", *small]) == 0
    assert main(["features", "export", NET, *made, "--out", str(root / "store"), "--mode", "native"]) == 0
    return root


def test_pictures_are_the_gallerys(place: Path) -> None:
    content = figure_content([str(place / "look")], FigureWishes(images=2))
    (page,) = read_gallery(next((place / "look/stages/gallery").iterdir()))
    assert (content.images, content.blocks) == (page.images[:2], [1, 2])
    assert [len(group.columns) for group in content.groups] == [1, 2]
    for number, row in enumerate(content.rows):
        for block, cell in zip(content.blocks, row[1:], strict=True):
            shown = page.map("pca", 0, number, block)
            assert cell is not None
            assert shown is not None
            np.testing.assert_array_equal(cell.pixels, shown[..., :3])
            assert cell.pixels.shape == (3, 3, 3)


def test_a_gallery_in_one_file_gives_the_same(place: Path) -> None:
    beside, inside = (
        figure_content([str(place / name)], FigureWishes(layer="foreground")) for name in ("look", "single")
    )
    for one, other in zip(chain(*beside.rows), chain(*inside.rows), strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.pixels, other.pixels)


def test_files_of_a_figure(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "figure",
        str(place / "look"),
        "--layer",
        "tokencut",
        "--blocks",
        "1-2",
        "--out",
        str(tmp_path / "f.pdf"),
    ]
    assert main([*command, "--width-mm", "80", "--dpi", "100", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["blocks"] == [1, 2]
    assert len(result["images"]) == 3, "all there are"
    assert result["latex"] == r"\includegraphics[width=80mm]{f.pdf}"
    assert result["latex"] in (tmp_path / "f.tex").read_text()
    assert Image.open(tmp_path / "f.png").size[0] == round(80 / 25.4 * 100)
    assert main([*command, "-q"]) == 0, "it may replace its own"
    (tmp_path / "f.png").write_bytes(b"another's")
    assert main(command) == 2
    assert "f.png" in capsys.readouterr().err


@pytest.mark.parametrize("layer", ["pca", "foreground", "tokencut"])
def test_stores_side_by_side(layer: str, place: Path) -> None:
    store = str(place / "store")
    wishes = FigureWishes(layer=layer, images=2, blocks=[2], data=place / "photos")
    content = figure_content([f"a={store}", f"b={store}"], wishes)
    assert (content.models, content.blocks) == (["a", "b"], [2])
    assert content.images == list(FeatureStore.open(store).ids[:2])
    for row in content.rows:
        photo, first, second = row
        assert photo is not None
        assert first is not None
        assert second is not None
        # 40 x 48 pixels in 3 x 3 patches of 16: what overhangs is cut off
        assert photo.pixels.shape[0] / photo.pixels.shape[1] == pytest.approx(5 / 6, abs=0.01)
        assert first.pixels.shape[0] / first.pixels.shape[1] == pytest.approx(5 / 6, abs=0.01)
        np.testing.assert_allclose(first.pixels, second.pixels, atol=1, err_msg="one network: one picture")


@pytest.mark.parametrize(
    ("more", "code", "part"),
    [
        (["--layer", "probe"], 2, "no such pictures"),
        (["--blocks", "3"], 2, "--blocks 3: there are 1, 2"),
        (["--images", "nothing.png"], 2, "--images"),
        (["--models", "other"], 2, "--models other"),
        (["--font", "Helvetika Neu"], 2, "--font Helvetika Neu"),
        (["--width-mm", "5"], 2, "--width-mm 5"),
        (["--tau", "1"], 2, "--tau 1"),
    ],
)
def test_what_is_refused(
    more: list[str], code: int, part: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", str(place / "look"), "--out", str(tmp_path / "f"), *more]) == code
    assert part in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sources_that_are_none(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", str(place / "photos"), "--out", str(tmp_path / "f")]) == 3
    assert main(["figure", str(place / "lok"), "--out", str(tmp_path / "f")]) == 2
    assert "did you mean look?" in capsys.readouterr().err
    assert main(["figure", str(place / "look"), str(place / "store"), "--out", str(tmp_path / "f")]) == 2
    assert main(["figure", str(place / "store"), "--layer", "tokencut", "--out", str(tmp_path / "f")]) == 2
    assert "--data" in capsys.readouterr().err


def test_names_of_networks_may_have_commas() -> None:
    there = ["pretrained, with skips", "pretrained, skipless", "a"]
    assert places_of(["a", "pretrained", " skipless"], there) == [2, 1]
    assert places_of((), there) == [0, 1, 2]
    with pytest.raises(ConfigError, match="--models pretrained"):
        places_of(["pretrained"], there)
