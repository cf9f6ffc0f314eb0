"""What depth and normals share; the whole is tested with each of them."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from dinoskip.errors import DataError
from eval.surfaces import baseline_images, split_images


def test_rules_are_made_of_images_spread_evenly() -> None:
    assert baseline_images(3) == [0, 1, 2]
    many = baseline_images(5000)
    assert (len(many), many[0], many[-1]) == (1000, 0, 4999)
    assert {b - a for a, b in pairwise(many)} <= {5, 6}


def test_a_split_without_images_is_named() -> None:
    splits = (("train", tuple("abcd")), ("val", ()))
    sets = [SimpleNamespace(name="rooms", split=split, ids=ids) for split, ids in splits]
    with pytest.raises(DataError, match="rooms: no image in val"):
        split_images(*sets, 0.5, 0)
    fitted, held = split_images(sets[0], sets[0], 0.25, 0)
    assert (len(fitted), len(held)) == (3, 1)
