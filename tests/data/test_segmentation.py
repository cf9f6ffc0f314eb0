from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dinoskip.data.segmentation import SegmentationDataset, draw
from dinoskip.errors import DataError
from dinoskip.io.images import read_image


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=6), unique=True, min_size=2, max_size=12), st.integers(0, 2**32), st.randoms())
def test_a_draw_depends_on_ids_and_seed_alone(ids: list[str], seed: int, rng: random.Random) -> None:
    mixed = rng.sample(ids, len(ids))
    previous: set[str] = set()
    for count in range(1, len(ids) + 1):
        chosen = draw(ids, count, seed)
        assert list(chosen) == sorted(set(chosen))
        assert len(chosen) == count
        assert {ids[i] for i in chosen} == {mixed[i] for i in draw(mixed, count, seed)}
        assert previous < {ids[i] for i in chosen}
        previous = {ids[i] for i in chosen}


def test_a_draw_is_known_and_uniform() -> None:
    ids = [f"ADE_train_{number:08}" for number in range(1, 201)]
    assert draw(ids, 4, 0) == draw(ids, 4, 0) != draw(ids, 4, 1)
    counts = np.zeros(200)
    for seed in range(300):
        counts[list(draw(ids, 50, seed))] += 1
    assert counts.sum() == 300 * 50
    # binomial with mean 75 and standard deviation 7.5; the largest of 200 lies within 5 of them
    assert np.abs(counts - 75).max() < 5 * 7.5


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("of_stored", [True, False])
def test_labels_say_which_pixels_they_are_for(tmp_path: Path, orientation: int, of_stored: bool) -> None:
    """A photograph that EXIF turns, its red part labelled: in the stored pixels, or after it was turned."""
    stored = np.zeros((24, 40, 3), np.uint8)
    stored[3:9, 5:20, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    upright = read_image(tmp_path / "a.png")
    if not of_stored and orientation < 5:
        return  # of the same size, labels are taken to be those of the stored pixels
    Image.fromarray(((stored if of_stored else upright)[..., 0] > 0).astype(np.uint8)).save(tmp_path / "mask.png")
    dataset = SegmentationDataset(
        "x", "val", ("a",), (tmp_path / "a.png",), (tmp_path / "mask.png",), class_names=("no", "red")
    )
    assert (dataset.label(0) == (upright[..., 0] > 0)).all()
    Image.fromarray(np.zeros((24, 41), np.uint8)).save(tmp_path / "mask.png")
    with pytest.raises(DataError, match=r"mask.png: mask is 41×24 pixels, its image a.png 40×24"):
        dataset.label(0)
