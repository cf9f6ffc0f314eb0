"""The labels of this package: videos whose objects are labelled in every frame, and pairs of images with keypoints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dinoskip.data.label_values import LabelValues
from dinoskip.data.sets.labels import Count, Label
from dinoskip.data.sets.signatures import Finding, turned, unlike_photographs
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


# A right point lies in the box of its object. Of composed pairs all do, of boxes and points in other pixels few; no
# published pair was at hand, so that a fifth may be outside.
_OUTSIDE = 0.2
_SOME = 5  # pairs below which a share of them says little
# How much of the places of points a map from the other image must explain: of composed pairs all, of points in another
# order 0 on average. Real objects differ in shape and pose, so that little is asked.
_EXPLAINED = 0.1
_CHANCE = 10  # pairs from which on the mean of another order is below that


def _of_others(values: LabelValues) -> Finding | None:
    """Points that lie outside the boxes of their objects: in pixels of another size, or of other images."""
    boxed, inside = values.summed("boxed"), values.summed("inside")
    if values.read < _SOME or not boxed or inside >= (1 - _OUTSIDE) * boxed:
        return None
    text = f"{boxed - inside:.0f} of {boxed:.0f} keypoints of target images lie outside the boxes of their objects"
    remedy = "see whether points and boxes are in the same pixels, x before y"
    return Finding("keypoints-outside", "doubtful", text, remedy)


def _in_shares(values: LabelValues) -> Finding | None:
    points = values.summed("points")
    if not points or values.summed("first") < points:
        return None
    text = f"all {points:.0f} keypoints lie in the first pixel of their images, as shares of the sides do"
    return Finding("keypoints-in-shares", "refused", text, "write them in pixels")


def _copied(values: LabelValues) -> Finding | None:
    """Pairs whose two images have the same points, as where one image's were written for both."""
    copied = values.summed("copied")
    if not copied:
        return None
    text = f"in {copied:.0f} of {values.read} pairs both images have the same keypoints"
    return Finding("keypoints-copied", "doubtful", text, "see whether those of one image were written for both")


def _shuffled(values: LabelValues) -> Finding | None:
    """Points whose order in one image says nothing about the other."""
    fitted, explained = values.summed("fitted"), values.summed("explained")
    if fitted < _CHANCE or explained >= _EXPLAINED * fitted:
        return None
    text = f"in {fitted:.0f} pairs the places of keypoints in one image say nothing of those in the other"
    return Finding("keypoints-shuffled", "doubtful", text, "see whether points of both images are in the same order")


VIDEO = Label(
    "video", "videos", "videos", "open_sequences", _frames,
    lambda opened: [video.name for video in opened.sequences], unit="frames", seen_by=(("val",), ("test",)),
    read_of=_frames_of_videos, signatures=(turned, unlike_photographs), order=30,
)  # fmt: skip
CORRESPONDENCE = Label(
    "correspondence", "pairs with keypoints", "pairs", "open_keypoints", _pairs,
    lambda opened: [pair.id for pair in opened.pairs], lambda opened: len(opened.pairs), unit="pairs",
    seen_by=(("test",), ("val",)), signatures=(_in_shares, _copied, _of_others, _shuffled), order=40,
)  # fmt: skip
