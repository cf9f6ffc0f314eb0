"""Videos of moving objects: the same bytes from the same configuration, exact masks, the layout of DAVIS."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.check import check
from dinoskip_video.labels import VIDEO
from dinoskip_video.sets.scenes_video import ScenesVideoConfig, draw_video
from tests.helpers.signatures import composed_and_judged

CONFIG = ScenesVideoConfig(videos=3, frames=6, size=72, max_objects=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CONFIG.generate(tmp_path_factory.mktemp("videos"))


def test_layout_is_davis(folder: Path) -> None:
    dataset = CONFIG.open_sequences(folder, "val", None)
    assert [len(one) for one in dataset.sequences] == [6, 6, 6]
    (row,) = check(CONFIG, folder, sample=None)
    assert row.ok
    assert (row.dataset, row.found) == ("scenes_video", 18)
    assert CONFIG.open_images(folder, "val").ids[0] == "video_0000/00000.jpg"


@pytest.mark.parametrize("number", range(3))
def test_objects_are_all_seen_at_first_and_move(number: int) -> None:
    frames = draw_video(CONFIG, number)
    first, last = frames[0][1], frames[-1][1]
    assert set(np.unique(first)) == set(range(number + 2))  # one object in the first video, two, three
    assert all((first == label).mean() > 0.01 for label in range(1, number + 2))
    assert (first != last).mean() > 0.02
    for (_, before), (_, after) in itertools.pairwise(frames):
        for label in range(1, number + 2):
            one, two = (np.argwhere(owner == label) for owner in (before, after))
            if min(len(one), len(two)) > 0.9 * len(one):  # not passing behind another
                assert np.linalg.norm(one.mean(0) - two.mean(0)) < 0.12 * CONFIG.size


def test_files_hold_what_is_drawn(folder: Path) -> None:
    sequence = CONFIG.open_sequences(folder, "val", None).sequences[0]
    image, owner = draw_video(CONFIG, 0)[3]
    assert (sequence.label(3) == owner).all()
    decoded = np.asarray(Image.open(sequence.frames[3])).astype(int)
    assert np.abs(decoded - image).mean() < 6  # JPEG


def test_a_limit_is_of_videos(folder: Path) -> None:
    limited = CONFIG.model_copy(update={"limit": 2})
    assert len(open_labels(VIDEO, CONFIG, "val", folder).sequences) == 3
    some = open_labels(VIDEO, limited, "val", folder)
    assert len(some.sequences) == 2
    assert len(some) == len(some.target_files) == 12
    assert limited.generate(folder.parent) == folder


def test_labels_mean_what_the_settings_say(tmp_path: Path) -> None:
    assert not composed_and_judged(tmp_path / "set", kind="scenes_video", videos=2, frames=4)
