"""Recognition of the contents of a folder by evidence: its photographs, its label maps, and the reader of its labels.

Names come first, then content; a question (an error that names two readings) is last. A layout needs two independent
marks. Two layouts that take other photographs than each other are a mixture, which is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from dinoskip.data.listing import passed_over, require_folder
from dinoskip.data.recognise import generic
from dinoskip.data.recognise.content import content_of_file
from dinoskip.data.recognise.exports import RULES
from dinoskip.data.recognise.label_maps import STRAY, MapsFound, find_label_maps
from dinoskip.data.recognise.published import PUBLISHED, PublishedLayout
from dinoskip.data.recognise.reading import FolderReading, Layout
from dinoskip.data.recognise.tree import FolderTree, join, lies_in, stem_of
from dinoskip.data.recognise.words import names_labels, unread_container
from dinoskip.errors import DataError
from dinoskip.io.images import read_mask
from dinoskip.runtime.console import log

__all__ = ["FolderReading", "Layout", "published_in", "recognise"]

_OF_COCO = re.compile(r"(images/)?(train|val|test|unlabeled)20\d\d/")
_TELLING = 5  # images that must have been looked at before their looks are said: drawings are among any few
EVERYTHING = "or take every image as a photograph: everything=true of kind images, --everything of a command"


def recognise(root: Path) -> FolderReading:
    """Read a folder: its photographs, the layout with the kind that reads its labels, and what is left out.

    Names of photographs are in the order of :func:`dinoskip.data.listing.list_images`, so that a folder of photographs
    alone is read as it is listed. Raises :class:`DataError` for a folder that is missing or holds no image, for a
    mixture of two data sets or of photographs and label maps that nothing tells apart but their looks, and for a
    folder of label maps alone.
    """
    require_folder(root, "a folder of images")
    tree = FolderTree.read(root)
    if not tree.images:
        raise DataError(f"{root}: {_without_images(tree)}")
    found = _maps_of(root, tree.images)
    layouts = _layouts(tree, found)
    first = layouts[0]
    listed = set(first.photographs) - first.unlisted
    for other in layouts[1:]:
        if not set(other.photographs) - other.unlisted <= listed:
            raise _mixture(root, first, other)
    taken = set(first.photographs)
    rest = [name for name in tree.images if name not in taken]
    known = found.names | first.labels
    maps = {name for name in rest if name in known or _is_label_of(first, name)}
    others = [name for name in rest if name not in maps]
    _refuse_mixed(root, first, others, found)
    if not maps:  # a few pictures beside a set of pictures are pictures, too: it is read as it is listed
        first, others = replace(first, photographs=tree.images), []
    also = [one.name for one in layouts[1:] if one.name != first.name and one.kind not in {None, first.kind}]
    return FolderReading(
        root, first, len(maps), len(others), passed_over(tree.others), _notes(first, found), tuple(dict.fromkeys(also))
    )


def _without_images(tree: FolderTree) -> str:
    found = passed_over(tree.others)
    for advice in filter(None, map(unread_container, tree.others)):
        return f"no images here, but {found}: {advice}"
    return f"no images here{f', but {found}' if found else ''}"


@lru_cache(maxsize=8)
def _maps_of(root: Path, names: tuple[str, ...]) -> MapsFound:
    return find_label_maps(names, lambda name: content_of_file(root / name))


def _layouts(tree: FolderTree, found: MapsFound) -> list[Layout]:
    """All layouts that have two marks, by the order of their rules; plain images where there is none."""
    layouts: list[Layout] = []
    claimed: list[str] = []

    def add(layout: Layout | None) -> None:
        if layout is not None and layout.photographs:
            layouts.append(_in_order(tree, layout))
            claimed.append(layout.place)

    exports = {rule: [made for base in tree.bases if (made := rule(tree, base)) is not None] for rule in RULES}
    of_tools = [made for several in exports.values() for made in several]
    masks_of_tools = any(one.name == "CVAT masks" and not _readable_masks(tree, one) for one in of_tools)
    for base in tree.bases:
        if not any(lies_in(base, place) for place in claimed):
            published = published_in(tree, base)
            if published is not None and not (published.kind == "voc" and masks_of_tools):
                add(_of_published(tree, base, published, found))
    for layout in generic.coco(tree, found.names):
        add(layout)
    for layout in of_tools:
        add(replace(layout, photographs=tuple(name for name in layout.photographs if name not in found.names)))
    for base in tree.bases:
        add(generic.lists(tree, base, found.names))
    if not layouts:
        add(generic.pairs(tree, found))
    listed = set(layouts[0].photographs) - layouts[0].unlisted if layouts else set()
    for base in tree.bases:
        made = generic.class_folders(tree, base, found)
        if made is not None and not set(made.photographs) <= listed:  # cities of Cityscapes are no classes
            add(made)
    return layouts or [generic.all_photographs(tree, found)]


def _in_order(tree: FolderTree, layout: Layout) -> Layout:
    names = set(layout.photographs)
    return replace(layout, photographs=tuple(name for name in tree.images if name in names))


def _readable_masks(tree: FolderTree, layout: Layout) -> bool:
    """Whether label maps of VOC's folder are numbers, not colours."""
    first = next(tree.below(join(layout.place, "SegmentationClass")), None)
    if first is None:
        return True
    try:
        read_mask(tree.root / first)
    except DataError:
        return False
    return True


def published_in(tree: FolderTree, base: str) -> PublishedLayout | None:
    """The first layout of the table of which all parts lie in a folder."""
    found = next((one for one in PUBLISHED if all(tree.has(base, part) for part in one.in_parts)), None)
    if found is not None and found.kind == "voc" and not tree.images_in.get(join(base, found.inner, "JPEGImages")):
        return None  # videos have folders in JPEGImages
    return found


def _of_published(tree: FolderTree, base: str, one: PublishedLayout, found: MapsFound) -> Layout:
    place = join(base, one.inner)
    folders = [join(place, folder) for folder in one.photographs]
    inside = [
        name for name in tree.images
        if (any(lies_in(name, folder) for folder in folders) if folders else lies_in(name, base))
    ]  # fmt: skip
    labels = frozenset(name for name in inside if one.not_images(stem_of(name)))
    photos = [name for name in inside if name not in found.names and name not in labels]
    listed = generic.lists(tree, base, found.names) if one.kind == "nyu" else None
    if listed is not None:
        photos, labels = list(listed.photographs), listed.labels
    of_coco = one.name.startswith("COCO") and not folders  # whose root people share with other sets
    apart = [] if not of_coco else [name for name in photos if not _OF_COCO.match(name[len(base) :].lstrip("/"))]
    if one.kind == "voc":  # those of both years
        photos = [n for n in tree.images if lies_in(n, base) and "JPEGImages" in n.split("/")[:-1]]
    settings = None if one.kind is None else {"kind": one.kind, **dict(one.settings)}
    shown = ", ".join(one.photographs)
    return Layout(
        one.name, base, settings, tuple(photos), shown, one.in_parts, one.advice,
        labels=labels, unlisted=frozenset(apart),
    )  # fmt: skip


def _is_label_of(layout: Layout, name: str) -> bool:
    """Whether an image that a layout does not take is named as a label map, or its folder as one of those."""
    return generic.in_label_folder(name, layout.place) or names_labels(stem_of(name).rpartition("_")[2])


def _mixture(root: Path, one: Layout, other: Layout) -> DataError:
    readings = [f"as {layout.phrase} ({', '.join(layout.marks)})" for layout in (one, other)]
    only = [set(a.photographs) - set(b.photographs) for a, b in ((one, other), (other, one))]
    return _two_readings(root, readings, [sorted(names) for names in only])


def _two_readings(root: Path, readings: Sequence[str], names: Sequence[Sequence[str]]) -> DataError:
    """The error of a folder that can be read in two ways; ``names`` are the images of each way alone."""
    folders = [generic.common_folder(part) for part in names]
    apart = all(folders) and not lies_in(folders[0], folders[1]) and not lies_in(folders[1], folders[0])
    give = (
        f"give the folder of one of them, {root / folders[0]} or {root / folders[1]}"
        if apart
        else "take one of them out"
    )
    return DataError(f"{root}: is a mixture, it can be read {' or '.join(readings)}", f"{give}, {EVERYTHING}")


def _refuse_mixed(root: Path, first: Layout, others: Sequence[str], found: MapsFound) -> None:
    """:class:`DataError` for photographs beside a layout, for folders of maps without names, for maps alone."""
    if found.all_maps and not found.groups and (names_labels(root.name) or _all_named(first.photographs)):
        raise DataError(
            f"{root}: holds label maps, by names and by content, and no photographs ({first.photographs[0]})",
            f"give the folder of the images, {EVERYTHING}",
        )
    alone = [folder for folder in found.alone if any(name.rpartition("/")[0] == folder for name in first.photographs)]
    if alone:
        looks = [name for name in first.photographs if name.rpartition("/")[0] in alone]
        photos = sorted(set(first.photographs) - set(looks))
        where = ", ".join(folder or "this folder" for folder in alone[:3])
        maps = f"as {len(photos):,} photographs and {len(looks):,} label maps (by content, of {where})"
        raise _two_readings(root, [maps, f"as {len(first.photographs):,} photographs"], [photos, looks])
    if len(others) > max(1, STRAY * len(first.photographs)):
        more = f"as images, with {len(others):,} photographs elsewhere, such as {others[0]}"
        raise _two_readings(root, [f"as {first.phrase}", more], [first.photographs, others])


def _all_named(names: Sequence[str]) -> bool:
    return all(any(map(names_labels, name.split("/")[:-1])) for name in names)


def _notes(first: Layout, found: MapsFound) -> tuple[str, ...]:
    notes = [first.advice] if first.advice else []
    stray = [name for name in found.stray if name in set(first.photographs)]
    if stray and found.looked_at >= _TELLING:
        notes.append(f"{len(stray)} of {found.looked_at} images looked at look like a label map, such as {stray[0]}")
    if found.all_maps and found.looked_at >= _TELLING:
        notes.append(f"all {found.looked_at} images looked at look like label maps or drawings")
    return tuple(notes)


def say(root: Path, line: str, *, noteworthy: bool) -> None:
    """Log in one line what was taken of a folder and what was left, as a warning where something was left out.

    Once in a process, whatever the path to the folder: a command opens its images several times.
    """
    if next(_once(root.resolve(), line), False):
        (log.warning if noteworthy else log.info)("%s: %s", root, line)


@lru_cache(maxsize=1 << 10)
def _once(folder: Path, line: str) -> Iterator[bool]:
    """Yield True, the first time that it is asked for a line of a folder."""
    return iter((True,))
