"""Pairs whose keypoints are in other pixels, of another image or in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.meaning import label_verdicts
from dinoskip_video.keypoints import KeypointPair
from dinoskip_video.labels import CORRESPONDENCE
from dinoskip_video.sets.scenes_pairs import ScenesPairsConfig
from tests.helpers.signatures import stopping

CONFIG = ScenesPairsConfig(classes=4, objects=2, views=3, size=64, seed=0)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_labels(CORRESPONDENCE, CONFIG, "test", CONFIG.generate(tmp_path_factory.mktemp("pairs")))


def both(pair: KeypointPair, change: Callable[[Any], Any]) -> KeypointPair:
    return replace(pair, source_points=change(pair.source_points), target_points=change(pair.target_points))


def found(pairs: Any, change: Callable[[KeypointPair], KeypointPair]) -> list[tuple[str, str]]:
    given = replace(pairs, pairs=tuple(map(change, pairs.pairs)))
    return stopping(label_verdicts("set", CONFIG, "correspondence", [given]))


def test_right_pairs_are_not_doubted(pairs: Any) -> None:
    assert len(pairs.pairs) == 48
    assert found(pairs, lambda pair: pair) == []


def test_points_in_shares_are_refused(pairs: Any) -> None:
    state = found(pairs, lambda pair: both(pair, lambda points: points / 64))
    assert state == [("refused", "keypoints-in-shares")]


def test_points_outside_their_objects_are_doubtful(pairs: Any) -> None:
    state = found(pairs, lambda pair: both(pair, lambda points: 64 - points / 4))
    assert state == [("doubtful", "keypoints-outside")]


def test_points_of_the_source_in_both_images_are_doubtful(pairs: Any) -> None:
    state = found(pairs, lambda pair: replace(pair, target_points=pair.source_points))
    assert ("doubtful", "keypoints-copied") in state


def test_points_in_another_order_are_doubtful(pairs: Any) -> None:
    rng = np.random.default_rng(0)
    state = found(pairs, lambda pair: replace(pair, target_points=rng.permutation(pair.target_points)))
    assert state == [("doubtful", "keypoints-shuffled")]
