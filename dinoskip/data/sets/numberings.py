"""Rules on published numberings of label files: how those of ADE20K, COCO-Stuff, Cityscapes and VOC are mistaken."""

from __future__ import annotations

from collections.abc import Callable

from dinoskip.data.label_values import LabelValues
from dinoskip.data.segmentation import IGNORE, ILLEGAL
from dinoskip.data.sets.signatures import Finding, listed
from dinoskip.data.verdicts import State

_FEW = 5  # files below which a share says little
_AGREEING = 0.9  # of files: 196 of 196 of VOC agree, none under a shifted or permuted numbering


def ade20k_reduced(values: LabelValues) -> Finding | None:
    """ADE20K's masks less one, with 255 or 254 in the place of 0, which SceneParse150's files do not hold."""
    held = set(values.values)
    if values.numbers[0] != IGNORE or not held:  # the settings say that they are reduced
        if held and 150 in held:
            text = "value 150 occurs, so the masks are the published ones"
            return Finding("ade20k-numbering", "refused", text, "numbering=published")
        return None
    if held & {254, IGNORE}:
        which = " and ".join(str(value) for value in (254, IGNORE) if value in held)
        text = f"{which} occurs, which SceneParse150's masks do not hold: they are reduced by one already"
        return Finding("ade20k-numbering", "refused", text, "numbering=reduced reads them")
    if 0 not in held and values.read >= _FEW:
        text = f"0 (other) occurs in none of {values.read} masks, in the published ones in nearly all"
        return Finding("ade20k-numbering", "doubtful", text, "if 0 is wall: numbering=reduced")
    return None


_UPPER = frozenset({"sky", "ceiling", "chandelier", "light"})
_LOWER = frozenset({"floor", "road", "grass", "sidewalk", "earth", "rug", "sea", "water", "field", "sand", "river"})
_SHIFTS = (-2, -1, 1, 2)
_ENOUGH = 10  # files: of tens of right ones none is called shifted, of shifted ones all are


def ade20k_shifted(values: LabelValues) -> Finding | None:
    """Class numbers that are some too low or too high: what they call sky must lie above what they call floor."""
    if values.with_heights < _ENOUGH:
        return None

    def sign(value: int, shift: int) -> int:
        number = values.numbers[value] + shift
        if values.numbers[value] == IGNORE or not 0 <= number < len(values.names):
            return 0
        return (values.names[number] in _UPPER) - (values.names[number] in _LOWER)

    best = best_shift(values, sign, 0.02)
    if best == 0:
        return None
    text = f"skies and floors lie where they do in photographs if every class number is raised by {best}"
    remedy = "numbering=reduced ignores 255; see whether the masks were reduced by one and other kept as 0"
    return Finding("ade20k-shifted", "doubtful", text, remedy)


def best_shift(values: LabelValues, sign: Callable[[int, int], int], margin: float) -> int:
    """By how much class numbers must be raised for what they name to lie where it does in photographs; mostly 0.

    ``sign(value, shift)``: 1 for what lies above the middle, such as sky, -1 for what lies below, else 0, of what the
    value names with its number raised. ``margin``, times the root of the number of files, is what a shift must be
    better by.
    """

    def score(shift: int) -> float:
        return sum(values.heights[value] * sign(value, shift) for value in values.values)

    best = max(_SHIFTS, key=score)
    return best if score(best) > score(0) + margin * values.with_heights**0.5 else 0


STUFF_GAPS = frozenset({11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90})
"""Values of COCO-Stuff's pixel maps that no image holds: its unused ids less one (street sign, hat, ...)."""
_STUFF_LAST, _TRAIN_LAST = 181, 170  # the last value of pixel maps, and of the 171 classes in order


def coco_stuff_numbering(values: LabelValues) -> Finding | None:
    """Pixel maps of COCO-Stuff in ids from 1, or in the 171 labels in order, where the settings say another."""
    held, gaps_of_ids = set(values.values), {value + 1 for value in STUFF_GAPS}
    if values.numbers[_STUFF_LAST + 1] != ILLEGAL:  # the settings say ids
        odd = sorted(held & gaps_of_ids)
        text = f"{listed([str(value) for value in odd])} occur, which are no ids"
        return Finding("coco-stuff-numbering", "refused", text, "numbering=published") if odd else None
    if values.numbers[_STUFF_LAST] == ILLEGAL:  # the settings say the 171 in order, all of which occur
        return None
    if odd := sorted(value for value in held if value in STUFF_GAPS or _STUFF_LAST < value < IGNORE):
        ordered = max(held - {IGNORE}) <= _TRAIN_LAST and (IGNORE in held or bool(held & gaps_of_ids))
        setting = "train_ids" if ordered else "ids"
        text = f"{listed([str(value) for value in odd])} occur, which the published maps (id less 1) do not hold"
        return Finding("coco-stuff-numbering", "refused", text, f"numbering={setting} reads them")
    if IGNORE not in held and values.read >= 10:  # 255 is in 21 of 21 maps
        text = f"255 (unlabelled) occurs in none of {values.read} masks, in the published ones in nearly all"
        return Finding("coco-stuff-numbering", "doubtful", text, "if 0 is unlabelled: numbering=ids")
    return None


def cityscapes_numbering(values: LabelValues) -> Finding | None:
    """Masks named labelIds that hold the 19 train ids: vegetation, sky and cars have ids above 18."""
    held = set(values.values)
    ids = values.numbers[0] == IGNORE
    if ids and IGNORE in held and max(held - {IGNORE}, default=0) <= 18:
        text = "the masks named labelIds hold 0 to 18 and 255 alone, which are train ids"
        return Finding("cityscapes-numbering", "refused", text, "name them _gtFine_labelTrainIds.png")
    if not ids and values.foreign and max(held - {IGNORE}, default=0) <= 33:
        text = f"the masks named labelTrainIds hold labelIds: {values.first_foreign}"
        return Finding("cityscapes-numbering", "refused", text, "name them _gtFine_labelIds.png")
    return None


def voc_numbering(values: LabelValues) -> Finding | None:
    """Masks of the VOC layout with classes that the same images' boxes do not name, or without a background."""
    differing = values.compared - values.agreeing
    if differing > 1:  # one may be a slip
        text = (
            f"{differing} of {values.compared} masks hold classes that the boxes of their images do not name: "
            f"{values.first_differing}"
        )
        state: State = "doubtful" if values.agreeing >= _AGREEING * values.compared else "refused"
        remedy = "classes.txt in the folder names the classes in the order of their values"
        return Finding("voc-numbering", state, text, remedy)
    if values.read >= _FEW and 0 not in values.values and values.values and not values.foreign:
        text = "0 (background) occurs in no mask"
        return Finding("voc-numbering", "doubtful", text, "see whether the masks were saved without it, one lower")
    return None
