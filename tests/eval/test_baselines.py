"""Rules that look at no image, against counting."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult
from dinoskip.results.statistics import score
from eval.baselines import centre_box, classification_baselines, full_image, majority_areas
from eval.discovery import is_hit
from eval.metrics import ConfusionMatrix
from eval.rows import hits_row, miou_row

LIKE = EvalResult(
    "m", 1.0, "task", "7", "set", "val", 4, "net", "skipless", "soap", 12, 300, "key", "final", "p", "r", 3, 5, "w", "v"
)


def test_rows_say_nothing_of_the_model() -> None:
    majority, _ = classification_baselines(np.array([1, 1, 0]), np.array([1, 1, 1, 0]), 4, LIKE)
    row = majority.row
    assert majority.values is not None
    assert majority.values.tolist() == [1, 1, 1, 0]
    assert (row.model, row.metric, row.value) == ("baseline: majority class", "m", 75.0)
    assert (row.dataset, row.split, row.n, row.classes, row.seed, row.version) == ("set", "val", 4, 3, 5, "v")
    empty = ("block", "facet", "norm", "weights", "initialisation", "optimizer", "protocol", "resolution")
    assert {getattr(row, name) for name in empty} == {""}
    assert (row.depth, row.epoch) == (0, UNKNOWN_EPOCH)
    assert row.is_baseline
    assert not LIKE.is_baseline


def test_chance_is_one_of_the_classes() -> None:
    chance = classification_baselines(np.array([0]), np.array([0]), 8, LIKE)[1].row
    assert (chance.model, chance.value, chance.interval) == ("baseline: chance", 12.5, "")


def test_boxes() -> None:
    assert full_image(30, 50) == (0, 0, 50, 30)
    assert centre_box(30, 50) == (12.5, 7.5, 37.5, 22.5)
    assert is_hit(centre_box(40, 40), [[10, 10, 30, 30]])
    assert is_hit(full_image(10, 10), [[0, 0, 10, 5]])  # half the image
    assert not is_hit(centre_box(10, 10), [[0, 0, 10, 10]])  # a quarter of it
    one = hits_row(LIKE.baseline("full image", 0.0), [True, False, True, True])
    assert (one.row.model, one.row.value) == ("baseline: full image", 75.0)
    assert (one.row.low, one.row.high) == pytest.approx((19.41, 99.37), abs=0.01)  # Clopper and Pearson
    assert one.values is not None
    assert one.values.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_majority_class_equals_predicting_it_everywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, val = ([rng.choice([0, 1, 2, 2, 255], (9, 7)) for _ in range(count)] for count in (4, 5))
    pixels = [np.stack([np.bincount(x.ravel(), minlength=256)[:3] for x in maps]) for maps in (train, val)]
    commonest = int(np.bincount(np.concatenate(train).ravel())[:3].argmax())
    total, areas = ConfusionMatrix(3), majority_areas(*pixels)
    for label, found in zip(val, areas, strict=True):
        matrix = ConfusionMatrix(3)
        matrix.update(np.full_like(label, commonest), label)
        assert (matrix.areas == found).all()
        total.update(np.full_like(label, commonest), label)
    one = miou_row(LIKE, majority_areas(*pixels))
    row = one.row
    assert one.values is not None
    assert 100 * score(one.values) == pytest.approx(row.value)
    assert row.value == 100 * total.scores().miou
    assert row.low is not None
    assert row.low <= row.value <= row.high
