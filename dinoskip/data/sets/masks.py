"""Kind ``masks``: a folder of one's own with images, mask PNGs of the same names and a list of classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dinoskip.data.class_lists import ListedClasses, is_background, listed_classes, may_be_heading
from dinoskip.data.colours import find_colours, read_colours
from dinoskip.data.folders import ImageFolder
from dinoskip.data.label_values import LabelValues
from dinoskip.data.listing import name_key
from dinoskip.data.segmentation import IGNORE, ClassMap, class_map
from dinoskip.data.sets.kind import CheckedSplit, TrainSubset
from dinoskip.data.sets.pairs import PairedMasks, PairFolders, found_names, pair
from dinoskip.data.sets.signatures import Finding, object_as_void
from dinoskip.data.splits import split_path
from dinoskip.errors import ConfigError, DataError, guard
from dinoskip.io.files import read_regular
from dinoskip.settings.config import Distinct

MAX_LABELS = 16 << 20  # bytes of a JSON of labels


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names of a list, one a line, as :func:`dinoskip.data.class_lists.listed_classes` reads them.

    Raises :class:`DataError` if it is missing, empty, repeating or too long, or has a line that is no class.
    """
    return _different(path).names


def _different(path: Path) -> ListedClasses:
    listed = listed_classes(path)
    if not listed.names or len(set(listed.names)) != len(listed.names) or len(listed.names) > 255:
        raise DataError(f"{path}: expected 1 to 255 different class names, one a line")
    return listed


def read_listed_labels(path: Path) -> ClassMap:
    """Return the classes of a JSON as Mapillary's config: ``labels``, whose place in the list is the value in masks.

    Those with ``evaluate: false`` are not scored. Names are ``readable`` if these are different, else ``name``. Raises
    :class:`DataError` for a file of another form.
    """
    with guard(path, "list of labels"):
        labels = json.loads(read_regular(path, MAX_LABELS))["labels"]
        scored = [label.get("evaluate", True) is True for label in labels]
        given = [[str(label.get(key, "")) for label in labels] for key in ("readable", "name")]
        names = next((each for each in given if len({*each, ""}) == len(each) + 1), None)
        if names is None or not 0 < len(names) <= IGNORE or not any(scored):
            raise ValueError(f"expected 1 to {IGNORE} labels with different names")
    table = class_map((), ignored=(IGNORE,)).table
    table[: len(names)] = np.where(scored, np.cumsum(scored) - 1, IGNORE)
    return ClassMap(tuple(name for name, kept in zip(names, scored, strict=True) if kept), table)


def _reading_of(numbers: Sequence[int]) -> str:
    """The setting that reads masks of these values."""
    if tuple(numbers) == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"first_value={numbers[0]}"
    return f"values=[{','.join(map(str, numbers))}]"


_ENOUGH, _MOST_PIXELS = 5, 0.5  # masks, and their share that what is left of images mostly has


def background_unlisted(values: LabelValues) -> Finding | None:
    """A list that may lack the background, which its first class is then read for, all others one too high.

    Where the last class occurs, its value is none of the list, which is refused. A first class that is everywhere, as a
    road may be, looks the same: it is doubtful only where the last class of the list is in no mask either.
    """
    names, whole = values.names, values.read - values.unreadable
    if whole < _ENOUGH or values.numbers[0] != 0 or len(values.classes) < 2 or values.files[0] < whole:
        return None
    share = values.pixels[0] / max(sum(values.pixels), 1)
    if share <= _MOST_PIXELS or any(map(is_background, names)):
        return None
    text = f"value 0, read as {names[0]}, is in every mask and has {100 * share:.0f} % of the pixels"
    remedy = "if 0 is the background: first_value=1"
    if values.never_seen != names[-1:] or values.read < values.total:
        return Finding("background-unlisted", "said", f"{text} ({remedy})")
    return Finding("background-unlisted", "doubtful", f"{text}, and no mask has {names[-1]}, the last class", remedy)


def background_elsewhere(values: LabelValues) -> Finding | None:
    """A list that names the background behind other classes, of masks whose value 0 is the background."""
    names, whole = values.names, values.read - values.unreadable
    place = next((at for at, name in enumerate(names) if name.strip().lower() in _BACKGROUND), 0)
    if whole < _ENOUGH or not place or values.numbers[0] != 0 or values.files[0] < whole:
        return None
    share, named = (values.pixels[at] / max(sum(values.pixels), 1) for at in (0, values.numbers.index(place)))
    if share <= _MOST_PIXELS or named >= share:
        return None
    text = (
        f"value 0, read as {names[0]}, is in every mask and has {100 * share:.0f} % of the pixels, while "
        f"{names[place]} is class {place} of the list"
    )
    return Finding("background-elsewhere", "doubtful", text, "if 0 is the background: name it first in the list")


_BACKGROUND = frozenset({"background", "bg", "_background_"})  # others, such as other, may be classes among many


def heading(values: LabelValues) -> Finding | None:
    """A first class that may be the name of the list's column, with a last class that no mask has."""
    names = values.names
    if len(names) < 3 or not may_be_heading(names[0]) or names[-1] not in values.never_seen:
        return None
    text = f"the first class is called {names[0]}, as columns of names are, and no mask has {names[-1]}, the last class"
    return Finding("list-heading", "doubtful", text, "if it is no class: remove the first line of the list")


class MasksConfig(TrainSubset, PairedMasks):
    """A folder of images and one of mask PNGs of the same names, with a list of classes. Paths are relative to root.

    ``{split}`` in a path stands for the split. Line i of ``classes`` (from 0) names value ``first_value + i``, or has
    a class and its colour (:mod:`dinoskip.data.colours`); a JSON lists classes as Mapillary's config does. Names of
    masks may have an ending after the image's, and other formats without loss are read where there are no PNGs.
    """

    signatures = (object_as_void, heading, background_unlisted, background_elsewhere)
    kind: Literal["masks"] = "masks"
    root: str = Field(description="folder that the paths below are relative to")
    images: str = Field("images/{split}", description="folder of images; {split} stands for the split")
    masks: str = Field("masks/{split}", description="folder of mask PNGs; {split} stands for the split")
    classes: str = Field("classes.txt", description="file with a class name a line")
    mask_ending: str | None = Field(
        None, description="what names of masks have after the image's name, such as _mask; null: as they are found"
    )
    first_value: int = Field(0, ge=0, le=254, description="mask value of the first class")
    values: Distinct[Annotated[int, Field(ge=0, le=255)]] = Field(
        (), description="mask value of each class, such as [0, 255]; empty: first_value and the next ones"
    )

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split, with a mask or not; masks that lie beside them are none."""
        folders = self._folders(root, split)
        if folders.images != folders.masks:
            return ImageFolder.open(folders.images)
        pairs = pair(self.pair_folders(root, split))
        names = [path.relative_to(folders.images).as_posix() for path in (*pairs.images, *pairs.lone_images)]
        return ImageFolder(folders.images, tuple(sorted(names, key=name_key)))

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of a split, and how masks in them are named."""
        return found_names(self._folders(root, split), self.mask_ending)

    def _folders(self, root: Path, split: str) -> PairFolders:
        return PairFolders(split_path(root, self.images, split), split_path(root, self.masks, split))

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        """Read the list of classes: 255 and values below ``first_value`` are ignored; errors as :func:`read_classes`.

        Without the file, a list of colours is taken that a tool left (:mod:`dinoskip.data.colours`). With ``values``
        class i is ``values[i]``, and 255 is ignored unless it is one. Raises :class:`DataError` for more than fit below
        255, and :class:`ConfigError` unless there is a value for each class.
        """
        path, first = root / self.classes, self.first_value
        if path.suffix == ".json":
            return read_listed_labels(path)
        colours = read_colours(path) if path.is_file() else find_colours(root)
        if colours is not None:
            return colours
        names, numbers = _different(path)
        meant = self.values or tuple(range(first, first + len(names)))
        if numbers and numbers != meant and len(meant) == len(names):
            raise DataError(
                f"{path}: numbers its classes {numbers[0]} to {numbers[-1]}, but they are read as {meant[0]} to "
                f"{meant[-1]}",
                f"if these are the values in masks: {_reading_of(numbers)}; else list the names alone",
            )
        if self.values:
            return self._of_values(names, path)
        if first + len(names) > 255:
            raise DataError(f"{path}: {len(names)} classes from value {first} on do not fit below 255")
        return class_map(names, first, (*range(first), 255))

    def _of_values(self, names: tuple[str, ...], path: Path) -> ClassMap:
        if len(self.values) != len(names):
            raise ConfigError(
                f"values: {len(self.values)} values for the {len(names)} classes of {path}", "name one for each class"
            )
        table = class_map((), ignored=(IGNORE,)).table
        table[list(self.values)] = range(len(names))
        return ClassMap(names, table)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Train and val; without ``{split}`` in the paths, everything once."""
        splits = ("train", "val") if "{split}" in self.images + self.masks else ("all",)
        return [CheckedSplit("segmentation", split) for split in splits]
