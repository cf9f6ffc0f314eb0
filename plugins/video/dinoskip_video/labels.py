"""The labels of this package: videos whose objects are labelled in every frame, and pairs of images with keypoints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dinoskip.data.sets.labels import Count, Label
from dinoskip.data.sets.signatures import turned, unlike_photographs
from dinoskip.io.images import read_image
from dinoskip_video.keypoints import KeypointDataset
from dinoskip_video.sequences import SequenceDataset


def _frames(opened: SequenceDataset) -> Count:
    def read(index: int) -> None:
        read_image(opened.path(index))
        opened.label(index)

    return {}, read


def _frames_of_videos(opened: SequenceDataset) -> list[Sequence[int]]:
    ends = [0]
    for video in opened.sequences:
        ends.append(ends[-1] + len(video))
    return [range(*bounds) for bounds in itertools.pairwise(ends)]


def _pairs(opened: KeypointDataset) -> Count:
    counts = dict.fromkeys(opened.class_names, 0)

    def read(index: int) -> None:
        pair = opened.pairs[index]
        for image in (pair.source, pair.target):
            read_image(opened.path(image))
        counts[pair.category] += 1

    return counts, read


VIDEO = Label(
    "video", "videos", "videos", "open_sequences", _frames,
    lambda opened: [video.name for video in opened.sequences], unit="frames", seen_by=(("val",), ("test",)),
    read_of=_frames_of_videos, signatures=(turned, unlike_photographs), order=30,
)  # fmt: skip
CORRESPONDENCE = Label(
    "correspondence", "pairs with keypoints", "pairs", "open_keypoints", _pairs,
    lambda opened: [pair.id for pair in opened.pairs], lambda opened: len(opened.pairs), unit="pairs",
    seen_by=(("test",), ("val",)), order=40,
)  # fmt: skip
