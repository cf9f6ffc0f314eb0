"""Whether label files mean what the settings of their data set say: rules on counts, most by known wrong numberings.

A kind of data set declares its own rules (``signatures``), as a label of a plug-in does; those of our labels are judged
for every kind. Thresholds are those measured on 200 VOC, 30 ADE20K and 21 COCO-Stuff masks where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dinoskip.data.colours import VOID_NAMES
from dinoskip.data.label_values import LabelValues
from dinoskip.data.segmentation import IGNORE, ILLEGAL
from dinoskip.data.turns import BOX_CHANGES, TURN_NAMES, TURNS
from dinoskip.data.verdicts import DataVerdict, State

_SHOWN = 12  # names of a list
_MUCH_VOID = 0.3  # mean share of 255: the 99th percentile of fives is .15 of VOC, .08 of ADE20K, .11 of COCO-Stuff
_FEW = 5  # files below which a share says little
_THICK = 0.7  # share of files whose 255 lies far from its rim: VOC's void is a rim, but for one file in 25
# Images below which one class alone may be chance: of two equally frequent ones it is once in 500 sets. Outlines of
# COCO follow their photographs in 20,000 of 20,000 draws of ten, of other photographs in one of 10,000; of five .04 %
# of right ones seem not to.
_SOME = 10
_MAJORITY, _MANY = 0.95, 20  # the 99th percentile of twenties is .82 of VOC, .21 of COCO-Stuff


@dataclass(frozen=True)
class Finding:
    """Finding of a rule: the name of its check, the consequence, the counts, and the remedy."""

    check: str
    state: State
    text: str
    remedy: str = ""


Signature = Callable[[LabelValues], Finding | None]
"""A rule: what it finds in the counts of a data set's labels, None where all is well."""


def judge(values: LabelValues, name: str, signatures: Sequence[Signature] = ()) -> list[DataVerdict]:
    """Return what is to be said of the labels of the data set ``name``; ``signatures`` are the rules of its kind.

    Of what is refused the first alone, as the others follow from it.
    """
    rules = (*_FIRST, *signatures, *OF_LABELS.get(values.label, ()))
    found = [finding for finding in (rule(values) for rule in rules) if finding is not None]
    refused = [one for one in found if one.state == "refused"]
    of = f"{name} {' and '.join(part for part in values.splits if part)}".rstrip()
    sampled = "" if values.read == values.total else f" (of {values.read:,} of {values.total:,} files)"
    return [
        DataVerdict(one.check, name, one.state, f"{of}: {one.text}{sampled}", one.remedy, by="data")
        for one in (refused[:1] or found)
    ]


def listed(names: Sequence[str]) -> str:
    """Names one after the other, the first twelve of many."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# --- every label ---------------------------------------------------------------------------------------


def _unreadable(values: LabelValues) -> Finding | None:
    if not values.unreadable:
        return None
    files = "annotations of images" if values.label == "detection" else "label files"
    what = f"{values.unreadable} of {values.read} {files} cannot be read, such as {values.first_unreadable}"
    remedy = "mend them, or leave them out: skip_broken=true"
    if values.label in {"segmentation", "video"}:
        remedy = f"a mask has the number of each pixel's class in a grey or palette PNG; {remedy}"
    return Finding("unreadable-labels", "refused", what, remedy)


def _misfits(values: LabelValues) -> Finding | None:
    if not values.misfits:
        return None
    text = f"{values.misfits} of {values.read} masks are not as large as their images: {values.first_misfit}"
    remedy = "save each mask at the size of its image, without interpolation"
    if values.swapped == values.misfits and values.label == "segmentation":
        remedy = "if they were turned by 90 degrees: mask_turn=6 or mask_turn=8"
    return Finding("mask-sizes", "refused", text, remedy)


_FIRST: tuple[Signature, ...] = (_unreadable, _misfits)


# --- labels and their photographs -------------------------------------------------------------------------

# Files that a turn needs, and how much better labels must then follow: by masks and by boxes, which have edges of other
# things along them. The best level must be that of labels that follow at all, in small sets more (docs/datasets.md).
# Of single right images with outlines, of COCO, 1.4 % seem turned; of threes none at this margin.
_TURNED = {
    "boxes": ((10, 0.05), (5, 0.1)),
    "jumps": ((10, 0.04), (5, 0.08)),
    "masks": ((3, 0.04), (1, 0.08)),
    "outlines": ((5, 0.04), (3, 0.08)),
}
_STRAYS, _STRAY_SHARE = 3, 0.04  # files that are turned by themselves; of right ones none in 380, or one in 100 boxes
_SURE = 3  # masks from which on a turn is refused; of fewer it is doubtful
_FOLLOWS = 0.62  # mean rank of edges on borders of masks: of their photographs .74 to .78, of others about .55
_OF_PUBLISHED = "of published sets .74 to .78"
# What labels of right sets have, and from so many files on the level under which labels are of others. Of jumps two
# indoor maps have .65 and .68, composed rooms .91, and .56 beside other rooms. Of boxes, where colours count, of 500
# draws of ten right ones (VOC, COCO, scenes) the least have .73, of twenty .77; of others the most .74 and .73.
_FOLLOWING: Mapping[str, tuple[str, tuple[tuple[int, float], ...]]] = MappingProxyType(
    {
        "masks": (_OF_PUBLISHED, ((_FEW, _FOLLOWS),)),
        "outlines": (_OF_PUBLISHED, ((_SOME, _FOLLOWS),)),
        "jumps": ("of right maps .65 and more", ((_SOME, 0.6),)),
        "boxes": ("of published sets .84 and more", ((20, 0.72), (_SOME, 0.7))),
    }
)
_FLOORS = ((10, 0.6), (1, 0.65))  # least such level by files; .5 is chance, which few files exceed more easily


def turned(values: LabelValues) -> Finding | None:
    """Masks or boxes that follow their photographs better if they are mirrored or rotated."""
    turns, what = values.turns, _borders(values)
    best = max(TURNS, key=lambda turn: -turns.gain(turn) if turns.files[turn - 1] else -1.0)
    count = turns.files[best - 1]
    margin = next((needed for least, needed in _TURNED[turns.by] if count >= least), None)
    change = turns.best_change()
    if change is not None and turns.change_gain(change) > -turns.gain(best):
        return None  # what is wrong with them is no turn
    if margin is None or turns.gain(best) >= -margin:
        return _some_turned(values)
    if turns.level(best) < next(floor for least, floor in _FLOORS if count >= least):
        return None  # they follow in no turn
    if turns.by == "boxes" and count >= _SOME and turns.level(best) < _SETS_FOLLOW["boxes"]:
        return None
    text = (
        f"{what} of {count} images follow the edges of their photographs better {TURN_NAMES[best - 1]} "
        f"({turns.level(best):.2f} against {turns.levels[0] / turns.files[0]:.2f} as they are, .5 is chance)"
    )
    if values.label != "segmentation":
        return Finding("turned-labels", "doubtful", text, "see by what they were turned")
    state: State = "refused" if count >= _SURE else "doubtful"
    return Finding("turned-labels", state, text, f"mask_turn={best} reads them so")


def _borders(values: LabelValues) -> str:
    """Name what has the borders that are compared."""
    return f"jumps of {values.label}" if values.turns.by == "jumps" else values.turns.by


# Mean level under which a set does not seem to follow its photographs at all, so that single files that follow better
# in some turn do so by chance. Of boxes colours are part of it: of VOC .85, COCO .91, of others .6 to .7.
_SETS_FOLLOW: Mapping[str, float] = MappingProxyType(
    {"masks": _FOLLOWS, "outlines": _FOLLOWS, "jumps": 0.0, "boxes": 0.75}
)


def _some_turned(values: LabelValues) -> Finding | None:
    """A part of the files that is turned, as mirrored copies with the labels of the originals are."""
    turns = values.turns
    best = max(TURNS, key=lambda turn: turns.strays[turn - 1])
    count, files = turns.strays[best - 1], turns.files[0]
    if count < max(_STRAYS, _STRAY_SHARE * files):
        return None
    if turns.level(1) < _SETS_FOLLOW[turns.by]:
        if unlike_photographs(values) is not None:
            return None
        text = (
            f"{_borders(values)} follow the edges of their photographs poorly as they are ({turns.level(1):.2f} in "
            f"{files} images), and those of {count} better {TURN_NAMES[best - 1]}, such as "
            f"{turns.first_strays[best - 1]}"
        )
        return Finding("some-turned", "doubtful", text, f"see whether the {_borders(values)} are those of these images")
    text = (
        f"{_borders(values)} of {count} of {files} images follow the edges of their photographs far better "
        f"{TURN_NAMES[best - 1]}, such as {turns.first_strays[best - 1]}"
    )
    return Finding("some-turned", "doubtful", text, "see whether these photographs were turned without their labels")


def unlike_photographs(values: LabelValues) -> Finding | None:
    """Labels that follow their photographs in no turn: of other photographs, or very coarse."""
    turns, what = values.turns, _borders(values)
    count, (right, floors) = turns.files[0], _FOLLOWING[turns.by]
    if turns.level(1) >= next((floor for least, floor in floors if count >= least), 0.0) or not count:
        return None
    if turns.best_change() is not None:
        return None  # they do if all are changed in the same way
    if turns.by == "boxes" and any(turns.level(turn) >= _SETS_FOLLOW["boxes"] for turn in TURNS):
        return None  # they do if they are turned
    text = (
        f"borders of {what} do not follow the edges of their photographs ({turns.level(1):.2f} in {count} images, "
        f"{'other photographs have .53 to .70' if turns.by == 'boxes' else '.5 is chance'}, {right})"
    )
    return Finding("unlike-photographs", "doubtful", text, f"see whether the {what} are those of these images")


# Level under which one file by itself seems to be of another photograph: of right masks .5 % of VOC, none of 50 of
# ADE20K and COCO-Stuff and 1.7 % of scenes have less, of masks of other photographs 51 to 80 %.
_LOST = 0.56
_FEWEST_LOST, _LOST_SHARE, _OTHERS_FOLLOW = 4, 0.1, 0.68  # the middle of the others: coarse masks have less


def _some_unlike(values: LabelValues) -> Finding | None:
    """A part of the masks that is of other photographs, where the others follow theirs well."""
    turns = values.turns
    levels = np.array(turns.each)
    lost = levels < _LOST
    if turns.by != "masks" or lost.sum() < max(_FEWEST_LOST, _LOST_SHARE * len(levels)) or turns.level(1) < _FOLLOWS:
        return None
    if np.median(levels[~lost]) < _OTHERS_FOLLOW:
        return None
    text = (
        f"masks of {lost.sum()} of {turns.files[0]} images do not follow the edges of their photographs, such as "
        f"{turns.names[int(np.argmin(levels))]} ({levels.min():.2f}, .5 is chance), while the others do "
        f"({np.median(levels[~lost]):.2f})"
    )
    return Finding("some-unlike", "doubtful", text, "see whether these masks are those of their images")


def _boxes_in_shares(values: LabelValues) -> Finding | None:
    """Boxes in shares of the sides of images where pixels are meant: each lies in the first pixel."""
    if not values.boxes or values.unit_boxes < values.boxes:
        return None
    text = f"all {values.boxes} boxes lie in the first pixel of their images, as shares of the sides do"
    return Finding("boxes-in-shares", "refused", text, "write them in pixels, or as texts of YOLO for kind yolo")


_NO_AREA = 0.05  # of the boxes: COCO has a few of no height among 800,000


def _without_area(values: LabelValues) -> Finding | None:
    """Boxes of no pixel, as where sizes were lost: no task can find them."""
    if not values.boxes or values.flat_boxes <= max(1, _NO_AREA * values.boxes):
        return None
    text = f"{values.flat_boxes} of {values.boxes} boxes have a side of less than a pixel"
    state: State = "refused" if values.flat_boxes == values.boxes else "doubtful"
    return Finding("boxes-without-area", state, text, "see whether their widths and heights were written")


def _changed_boxes(values: LabelValues) -> Finding | None:
    """Boxes that follow their photographs better if all are enlarged, shrunk or moved in the same way."""
    turns, change = values.turns, values.turns.best_change()
    if change is None or turns.change_gain(change) <= -min(turns.gain(t) for t in TURNS if turns.files[t - 1]):
        return None
    files = turns.change_files[change]
    text = (
        f"boxes of {files} images follow the edges of their photographs better {BOX_CHANGES[change].text} "
        f"(by {turns.change_gain(change):.2f} of {turns.level(1):.2f})"
    )
    return Finding("changed-boxes", "doubtful", text, BOX_CHANGES[change].remedy)


def _never_drawn(values: LabelValues) -> Finding | None:
    """Classes that no box has, where every image was looked at."""
    missing = [name for name, count in zip(values.names, values.objects, strict=False) if not count]
    if values.read < values.total or values.unreadable or not values.boxes or not missing:
        return None
    text = f"no box has {len(missing)} of the {len(values.names)} classes: {listed(missing)}"
    return Finding("never-seen", "said", text)


# --- masks ---------------------------------------------------------------------------------------------


def _binary(values: LabelValues) -> Finding | None:
    """Masks of 0 and 255, where 255 is ignored: the object would not be scored."""
    if values.numbers[IGNORE] != IGNORE or IGNORE not in values.values or not set(values.values) <= {0, IGNORE}:
        return None
    text = "every mask holds 0 and 255 alone, and 255 is not scored, so no object is"
    return Finding(
        "masks-0-255", "refused", text, "kind masks reads them: values=[0,255] names the value of each class"
    )


def object_as_void(values: LabelValues) -> Finding | None:
    """A class that never occurs, and 255 in regions as thick as objects are: not of sets with unlabelled areas."""
    if values.with_rim < _FEW or values.thick <= _THICK * values.with_rim or set(values.values) <= {0, IGNORE}:
        return None
    share = f"in {values.thick} of {values.with_rim} masks most of 255, which is not scored, lies deep inside regions"
    if not values.never_seen:
        return Finding("thick-void", "said", f"{share}: unlabelled areas, not the rims of objects")
    text = f"{share}, as objects do, and no mask has the class {listed(values.never_seen)}"
    return Finding("thick-void", "doubtful", text, "values=[...] of kind masks names the value of each class")


def _foreign(values: LabelValues) -> Finding | None:
    if not values.foreign:
        return None
    text = (
        f"{values.foreign} of {values.read} masks hold a value that is none of the {len(values.names)} classes: "
        f"{values.first_foreign}"
    )
    return Finding("foreign-values", "refused", text, _reading_of(values))


def _reading_of(values: LabelValues) -> str:
    """The setting that could read what occurs."""
    occurring, count = values.values, len(values.names)
    if len(occurring) == count and occurring != tuple(range(count)):
        return f"if these are the classes: values=[{','.join(map(str, occurring))}] of kind masks"
    if max(value for value in occurring if value != IGNORE) == count and values.numbers[0] == 0:
        return "if 0 is no class of the list: first_value=1 of kind masks; else add its name to the list"
    return "list every class that occurs, or say the value of each: values=[...] of kind masks"


def _void(values: LabelValues) -> Finding | None:
    whole = values.read - values.unreadable
    if values.numbers[IGNORE] != IGNORE or whole < _FEW or values.void / whole <= _MUCH_VOID:
        return None
    share = values.void / whole
    text = f"{100 * share:.0f} % of the pixels are 255, which is not scored; of published sets at most 15 %"
    return Finding("void-share", "doubtful", text, "see whether the background was saved as 255")


def _one_class(values: LabelValues) -> Finding | None:
    if values.read < _FEW or len(values.classes) != 1 or len(values.names) < 2:
        return None
    missing = listed(values.never_seen)
    text = f"every labelled pixel is of one class, {values.names[values.classes[0]]}; never seen: {missing}"
    return Finding("one-class", "doubtful", text, "see whether the masks hold the numbers of the list")


def _never_seen(values: LabelValues) -> Finding | None:
    missing = values.never_seen
    if not missing or (values.read >= _FEW and len(values.classes) == 1):
        return None
    text = f"no mask has {len(missing)} of the {len(values.names)} classes: {listed(missing)}"
    return Finding("never-seen", "said", text)


def _majority(values: LabelValues) -> Finding | None:
    counts: dict[int, int] = {}
    for value, pixels in enumerate(values.pixels):
        if values.numbers[value] not in {IGNORE, ILLEGAL}:
            counts[values.numbers[value]] = counts.get(values.numbers[value], 0) + pixels
    total = sum(counts.values())
    if values.read < _MANY or not total or len(values.classes) < 2 or max(counts.values()) <= _MAJORITY * total:
        return None
    number = max(counts, key=lambda one: counts[one])
    return Finding(
        "majority", "said", f"{100 * counts[number] / total:.1f} % of the labelled pixels are {values.names[number]}"
    )


_COUNTED, _KINDS, _IN_ORDER = 10, 3, 0.95  # files with objects, numbers of them, share of files numbered in order


def _numbers_of_objects(values: LabelValues) -> Finding | None:
    """Masks whose values count the objects of each image from 1 on, and name no class.

    Of classes all of 1 to k are in a mask for one or two k at most, as a tumour is only where its organ is. Of 200
    masks of VOC none has 1 to k for a k of two or more, of 48 of ADE20K and COCO-Stuff none for any.
    """
    lengths = [k for k, files in enumerate(values.in_order) if files]
    in_order, several = sum(values.in_order), sum(values.in_order[2:])
    if several < _COUNTED or in_order < _IN_ORDER * values.with_objects or len(lengths) < _KINDS:
        return None
    unseen = bool(values.names) and values.names[-1] in values.never_seen  # of classes that lie in each other none is
    if lengths[-1] < (_KINDS if unseen else _KINDS + 1) or _is_interpolated(values):
        return None
    text = (
        f"the values of {in_order} of {values.with_objects} masks are just 1 to k, with k from {lengths[0]} to "
        f"{lengths[-1]}, as where they number the objects of each image"
    )
    return Finding("object-numbers", "doubtful", text, "see whether a value names the same class in all masks")


_SURROUNDED = 0.9  # of the masks: of right ones hardly any background is inside the object


def _swapped(values: LabelValues) -> Finding | None:
    """Masks of one object whose background lies inside it: 0 and 1 are swapped."""
    count = values.with_background
    if len(values.names) != 2 or count < _FEW or values.enclosed < _SURROUNDED * count:
        return None
    text = (
        f"in {values.enclosed} of {count} masks the background does not touch the rim of the image, and the object "
        "surrounds it"
    )
    return Finding("object-surrounds", "doubtful", text, "if the two are swapped: values=[1,0] of kind masks")


# Of right masks at most 5 % of border pixels are so in any file (VOC, ADE20K, COCO-Stuff, also resized to the nearest
# pixel), of interpolated ones 45 to 67 %.
_GRADED = 0.15


def _graded(values: LabelValues) -> float:
    """Share of pixels along borders whose value lies between those on both sides.

    Values that are nowhere wide, as a class that is drawn along borders, do not count.
    """
    graded = sum(few for few, solid in zip(values.graded, values.solid, strict=True) if few <= solid)
    return graded / max(values.border, 1)


def _is_interpolated(values: LabelValues) -> bool:
    return values.read - values.unreadable >= 3 and _graded(values) > _GRADED


def _interpolated(values: LabelValues) -> Finding | None:
    """Masks that were resized with interpolation: classes along borders that lie between those on both sides."""
    if not _is_interpolated(values):
        return None
    share = 100 * _graded(values)
    text = (
        f"on {share:.0f} % of the pixels along borders the value is between those on both sides, as where masks were "
        "resized with interpolation: classes that nobody drew"
    )
    return Finding("interpolated", "doubtful", text, "resize masks to the nearest pixel")


# --- the others ----------------------------------------------------------------------------------------


def _one_class_of_images(values: LabelValues) -> Finding | None:
    if len(values.values) != 1 or values.read < _SOME:
        return None
    name = values.names[values.values[0]]
    return Finding(
        "one-class", "doubtful", f"every image is of one class, {name}: any network has 100 %", "name others"
    )


def _unlabelled_class(values: LabelValues) -> Finding | None:
    """A folder of images without a label among those of classes."""
    found = [name for name in values.names if name.lower() in VOID_NAMES]
    if not found:
        return None
    return Finding(
        "unlabelled-class", "doubtful", f"{found[0]} is one of the classes", "move that folder out of the set"
    )


_COPIED, _FEWEST_COPIES = 0.01, 2  # of the images: ImageNet has some pictures in two classes


def _in_two_classes(values: LabelValues) -> Finding | None:
    """Images that lie in two classes of one split, so that one of their labels is wrong."""
    if not values.copies:
        return None
    text = f"{values.copies} of {values.compared_files} images lie in another class, too, such as {values.first_copy}"
    if values.copies < max(_FEWEST_COPIES, _COPIED * values.compared_files):
        return Finding("in-two-classes", "said", text)
    return Finding("in-two-classes", "doubtful", text, "remove them from one of the two")


OF_LABELS: Mapping[str, tuple[Signature, ...]] = MappingProxyType(
    {
        "segmentation": (
            _binary,
            _foreign,
            turned,
            unlike_photographs,
            _some_unlike,
            _void,
            _one_class,
            _numbers_of_objects,
            _swapped,
            _interpolated,
            _never_seen,
            _majority,
        ),
        "classes": (_one_class_of_images, _unlabelled_class, _in_two_classes),
        "detection": (_boxes_in_shares, _without_area, _changed_boxes, turned, unlike_photographs, _never_drawn),
    }
)
"""The rules of our own labels, which are judged after those of the kind."""
