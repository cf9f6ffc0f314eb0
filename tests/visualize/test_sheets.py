from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from visualize.colours import pca_colours
from visualize.sheets import blocks_sheet, contact_sheet, models_sheet, strip_sheet


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
    colours = pca_colours([model.store for model in scene.models], [image.id for image in scene.images])
    for turn in "ab":
        blocks_sheet(photos, colours[0], tmp_path / f"blocks-{turn}.png", title=hostile)
        models_sheet(photos, names, colours, 2, tmp_path / f"models-{turn}.pdf")
        strip_sheet(photos, names, colours, 2, tmp_path / f"strip-{turn}.png", width=420)
    for name in ("blocks-%s.png", "models-%s.pdf", "strip-%s.png"):
        assert (tmp_path / (name % "a")).read_bytes() == (tmp_path / (name % "b")).read_bytes()
    assert Image.open(tmp_path / "strip-a.png").width <= 420
    assert Image.open(tmp_path / "blocks-a.png").width == 24 + 4 * 112 + 3 * 6
