"""Pairs with known correspondence: the same bytes from the same configuration, points on the object, SPair's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.check import check
from dinoskip_video.labels import CORRESPONDENCE
from dinoskip_video.sets.scenes_pairs import ScenesPairsConfig, draw_views

CONFIG = ScenesPairsConfig(classes=6, objects=1, views=2, size=128, points=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CONFIG.generate(tmp_path_factory.mktemp("pairs"))


def test_layout_is_spair(folder: Path) -> None:
    dataset = CONFIG.open_keypoints(folder, "test", None)
    assert len(dataset.pairs) == 12
    assert len(dataset) == len(CONFIG.open_images(folder, "test")) == 12
    assert len(dataset.class_names) == 6
    (row,) = check(CONFIG, folder)
    assert row.ok
    assert row.found == 12
    entry = json.loads(dataset.target_files[0].read_text())
    assert entry["src_imsize"] == [128, 128, 3]
    assert dataset.pairs[0].source == dataset.pairs[1].target


@pytest.mark.parametrize("label", [0, 3, 4, 5])
def test_points_show_the_same_place_of_the_object(label: int) -> None:
    """Around corresponding points the views look alike, up to light; around shuffled ones they do not."""
    one, two = draw_views(CONFIG, label, 0)

    def looks(image: np.ndarray, points: np.ndarray) -> np.ndarray:
        soft = np.stack([gaussian_filter(image[..., c].astype(float), 2) for c in range(3)], -1)
        return soft[points[:, 1], points[:, 0]]

    first, second = looks(one.image, one.points), looks(two.image, two.points)
    first, second = (x - x.mean(0) for x in (first, second))
    alike = np.corrcoef(first.ravel(), second.ravel())[0, 1]
    shuffled = np.corrcoef(first.ravel(), np.roll(second, 2, 0).ravel())[0, 1]
    assert alike > 0.75
    assert alike > shuffled + 0.2


def test_points_lie_apart_and_inside_the_box() -> None:
    for label in range(6):
        for view in draw_views(CONFIG, label, 3):
            x1, y1, x2, y2 = view.box
            assert ((view.points >= (x1, y1)) & (view.points < (x2, y2))).all()
            distance = np.linalg.norm(view.points[:, None] - view.points[None], axis=-1)
            assert distance[~np.eye(len(distance), dtype=bool)].min() > 2


def test_a_limit_is_of_pairs(folder: Path) -> None:
    some = open_labels(CORRESPONDENCE, CONFIG.model_copy(update={"limit": 5}), "test", folder)
    assert len(some.pairs) == 5
    assert len(open_labels(CORRESPONDENCE, CONFIG, "test", folder).pairs) == 12
