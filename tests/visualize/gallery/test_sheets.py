from __future__ import annotations

import re
import zlib

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import ConfigError
from visualize.colours import pca_views
from visualize.gallery.sheets import blocks_sheet, contact_sheet, models_sheet, plain_sheet, strip_sheet, write_sheets


def test_cells_are_placed_in_their_column_and_keep_the_photographs_shape(tmp_path):
    photo = np.full((40, 80, 3), 255, np.uint8)
    red, green = (np.full((2, 2, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 255, 0)))
    contact_sheet([[photo, red, green], [photo, None, red]], ["image", "a", "b"], tmp_path / "s.png", cell=100)
    sheet = np.asarray(Image.open(tmp_path / "s.png"))
    assert sheet.shape[1] == 12 + 3 * 100 + 2 * 6 + 12
    reds, greens = ((sheet == colour).all(-1) for colour in ((255, 0, 0), (0, 255, 0)))
    assert reds.sum() == 2 * 100 * 50
    assert greens.sum() == 100 * 50
    assert np.nonzero(greens)[1].min() == 12 + 2 * 106
    assert np.nonzero(reds[: sheet.shape[0] // 2 + 20])[1].min() == 12 + 106


def test_headings_and_rows_must_match(tmp_path):
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        contact_sheet([[np.zeros((2, 2, 3), np.uint8)]], ["a", "b"], tmp_path / "s.png")


def test_sheets_of_a_scene_are_written_and_repeatable(make_scene, tmp_path, hostile):
    scene = make_scene(names=(hostile, "skipless"))
    photos, names = [image.path for image in scene.images], [model.name for model in scene.models]
    colours = pca_views([model.store for model in scene.models], [image.id for image in scene.images]).aligned
    for turn in "ab":
        blocks_sheet(photos, colours[0], tmp_path / f"blocks-{turn}.png", title=hostile)
        models_sheet(photos, names, colours, 2, tmp_path / f"models-{turn}.pdf")
        strip_sheet(photos, names, colours, (2, 3), tmp_path / f"strip-{turn}.png", width=420)
    for name in ("blocks-%s.png", "models-%s.pdf", "strip-%s.png"):
        assert (tmp_path / (name % "a")).read_bytes() == (tmp_path / (name % "b")).read_bytes()
    assert Image.open(tmp_path / "strip-a.png").width <= 420
    assert Image.open(tmp_path / "blocks-a.png").width == 24 + 4 * 112 + 3 * 6


def test_a_pdf_has_its_labels_as_text_and_its_pictures_without_loss(tmp_path):
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (100, 100, 3), np.uint8)
    for kind in ("png", "pdf"):
        contact_sheet([[photo, photo]], ["image", "skip $x$"], tmp_path / f"s.{kind}", title="Block 2", cell=100)
    data = (tmp_path / "s.pdf").read_bytes()
    streams = re.findall(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", data, re.S)
    assert b"/FontFile2" in data
    assert any(word in zlib.decompress(one) for one in streams for word in (b"Tj", b"TJ")), "text, not shapes"
    assert b"DCTDecode" not in data, "JPEG would blur the squares"
    width, height = Image.open(tmp_path / "s.png").size
    (found,) = re.findall(rb"/Subtype /Image.*?>>", data, re.S)
    assert (rb"/Width %d" % width) in found
    assert (rb"/Height %d" % height) in found


def test_sheets_of_chosen_images(make_scene, tmp_path):
    scene = make_scene()
    photos = {image.id: image.path for image in scene.images}
    ids = list(photos)
    colours = pca_views([model.store for model in scene.models], ids).aligned
    made = write_sheets(photos, ["a", "b"], colours, 2, tmp_path, (ids[2], ids[0]))
    assert {path.name for path in made} == {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {path.name for path in made} == {"strip.png", "sheet-block2-plain.png"} | {
        f"sheet-{what}.{kind}" for what in ("block2", "model0", "model1") for kind in ("png", "pdf")
    }
    few = write_sheets(photos, ["a", "b"], colours, 2, tmp_path / "few", (ids[2], ids[0]), formats=())
    assert {path.name for path in few} == {path.name for path in (tmp_path / "few").iterdir()}
    assert {path.name: path.read_bytes() for path in few} == {
        name: (tmp_path / name).read_bytes() for name in ("strip.png", "sheet-block2-plain.png")
    }
    two, plain = (Image.open(tmp_path / f"sheet-block2{kind}.png").height for kind in ("", "-plain"))
    write_sheets(photos, ["a", "b"], colours, 2, tmp_path)
    assert Image.open(tmp_path / "sheet-block2.png").height > 1.3 * two, "all three, unless chosen"
    assert Image.open(tmp_path / "sheet-block2-plain.png").height == plain + 80 + 6
    with pytest.raises(ConfigError, match="no image 'astronout' is shown"):
        write_sheets(photos, ["a", "b"], colours, 2, tmp_path, ("astronout",))


def test_a_plain_sheet_has_every_token_as_a_square_and_no_photograph(make_scene, tmp_path):
    scene = make_scene()
    ids, photos = [image.id for image in scene.images], [image.path for image in scene.images]
    colours = pca_views([model.store for model in scene.models], ids).aligned
    few = [{2: [np.asarray(one) & 0xC0 | 0x20 for one in own[2]]} for own in colours]  # 64 colours: none is changed
    del few[1][2]
    for photo in photos:
        photo.unlink()  # it needs none
    plain_sheet(3, ["skip", "skipless"], few, 2, tmp_path / "plain.png")
    with Image.open(tmp_path / "plain.png") as opened:
        assert opened.mode == "P"
        sheet = np.asarray(opened.convert("RGB"))
    assert sheet.shape[1] == 12 + 80 + 6 + 80 + 12  # 8 tokens of 10 pixels
    for row in range(3):
        top = sheet.shape[0] - 12 - (3 - row) * 80 - (2 - row) * 6
        cell, empty = (sheet[top : top + 80, left : left + 80] for left in (12, 12 + 86))
        np.testing.assert_array_equal(cell, few[0][2][row].repeat(10, axis=0).repeat(10, axis=1))
        assert len(np.unique(empty.reshape(-1, 3), axis=0)) == 1
    plain_sheet(1, ["a"], [{}], 9, tmp_path / "none.png")  # a block that no model has
    assert (tmp_path / "none.png").is_file()


def test_a_plain_sheet_can_be_committed_whatever_it_shows(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (6, 40, 28, 28, 3), np.uint8)  # nothing compresses worse
    names = [f"skipless-initialised-soap {number}" for number in range(6)]
    plain_sheet(40, names, [{11: list(own)} for own in noise], 11, tmp_path / "plain.png")
    assert 100_000 < (tmp_path / "plain.png").stat().st_size < 250_000


def test_the_strip_shows_each_model_at_its_own_block(tmp_path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (60, 60)).save(photo)
    colours = [{1: [np.full((2, 2, 3), 40, np.uint8)], 2: [np.full((2, 2, 3), 200, np.uint8)]}] * 2
    strip_sheet([photo], ["a", "b"], colours, (1, 2), tmp_path / "strip.png", height=30)
    pixels = np.asarray(Image.open(tmp_path / "strip.png"))
    assert [pixels[row, -5, 0] for row in (36 + 15, 72 + 15)] == [40, 200]
