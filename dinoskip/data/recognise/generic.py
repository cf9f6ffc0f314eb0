"""Layouts without a publisher: COCO's JSONs, lists of pairs, folders of pairs, class folders, photographs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from dinoskip.data.recognise.coco_files import CocoFile, coco_files, coco_name, coco_settings, with_split
from dinoskip.data.recognise.content import content_of_file
from dinoskip.data.recognise.label_maps import MOSTLY, SAMPLE, MapGroup, MapsFound, spread
from dinoskip.data.recognise.reading import Layout
from dinoskip.data.recognise.tree import FolderTree, join, lies_in, stem_of
from dinoskip.data.recognise.words import name_both, names_images, names_labels, split_of

_LINES = 20  # of a list, evenly spread
_MOST = 0.9  # of these lines name two files that are there
_BEGIN = ("", "sync", "train", "official_splits/test", "test")
"""Folders that the names of a list are relative to, below its own: those of NYU's as they are unpacked."""
CLASSES_FILE = "classes.txt"
COLOUR_LISTS = ("labelmap.txt", "label_colors.txt", "class_dict.csv")
"""Names under which tools store lists of classes and their colours."""
MASK_ENDINGS = (
    "", "_mask", "-mask", "_masks", "_seg", "_segmentation", "_label", "_labels", "_gt", "_GT", "_L", "_annotation",
    "_matte", "_m",
)  # fmt: skip
"""Endings of names of masks after the image's name; a mask of the image's own name comes first."""
MASK_EXTENSIONS = (".png", ".tif", ".tiff", ".bmp", ".gif")
"""Of masks in formats without loss; PNG comes first."""
_LOSSLESS = frozenset(MASK_EXTENSIONS)


def coco(tree: FolderTree, maps: Collection[str]) -> list[Layout]:
    """JSONs with images, annotations and categories whose images are there, a layout for each data set of them.

    ``maps`` are not among the photographs.
    """
    sets: dict[str, list[CocoFile]] = {}
    for one in sorted(coco_files(tree), key=lambda one: len(one.root)):
        root = next((root for root in sets if lies_in(one.root, root)), one.root)
        sets.setdefault(root, []).append(one)
    return [made for files in sets.values() if (made := _coco_set(tree, files, maps)) is not None]


def _coco_set(tree: FolderTree, files: list[CocoFile], maps: Collection[str]) -> Layout | None:
    made = coco_settings(files)
    if made is None:
        return None
    settings, root, also = made
    folders = {one.images for one in files}
    place = common_folder([*(f"{folder}/" for folder in folders), *(one.json for one in files)])
    below = [name for name in tree.images if name not in maps and lies_in(name, place)]
    named = {name for name in below if any(lies_in(name, folder) for folder in folders)}
    photos = tuple(name for name in below if name in named or not in_label_folder(name, place))  # unlabelled ones too
    if not photos:
        return None
    shown = ", ".join(sorted(folder for folder in folders if folder))
    marks = (files[0].json, "images that it names")
    advice = f"boxes could also be those of {', '.join(also)}" if also else ""
    unlisted = frozenset(photos) - named
    return Layout(coco_name(files), place, settings, photos, shown, marks, advice, root=root, unlisted=unlisted)


def in_label_folder(name: str, place: str) -> bool:
    """Whether a folder between a data set's and the image is named as one of labels, as ``panoptic_val2017``."""
    return any(map(names_labels, name[len(place) :].split("/")[:-1]))


def common_folder(names: Sequence[str]) -> str:
    """The deepest folder in which all these files lie; '' is the root."""
    folders = [name.rpartition("/")[0].split("/") for name in names]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(part for part in shared if part)


def lists(tree: FolderTree, base: str, maps: Collection[str]) -> Layout | None:
    """A text or table whose lines are a picture and its labels, both of them images that are there."""
    photos: set[str] = set()
    labels: set[str] = set()
    used = []
    for name in tree.names_in(base):
        if not name.lower().endswith((".txt", ".csv", ".lst")):
            continue
        pairs = list(_pairs_of(tree, base, tree.text(join(base, name), 8 << 20)))
        if pairs:
            used.append(name)
            photos.update(image for image, _ in pairs)
            labels.update(label for _, label in pairs)
    if not used or photos & labels:
        return None
    looked = [label in maps or content_of_file(tree.root / label).is_map for label in spread(sorted(labels), SAMPLE)]
    if sum(looked) < MOSTLY * len(looked):
        return None
    advice = "for depth name the lists nyu_train.txt and nyu_test.txt (kind nyu)"
    return Layout(
        "lists of pairs", base, None, tuple(name for name in tree.images if name in photos),
        ", ".join(used[:3]), ("two paths a line", "images that they name"), advice, labels=frozenset(labels),
    )  # fmt: skip


def _pairs_of(tree: FolderTree, base: str, text: str) -> list[tuple[str, str]]:
    """The pairs that a list names; () if most of its lines are none. A first line may name columns."""
    lines = [line for line in text.splitlines() if line.strip()]
    there = [_both(tree, base, line) is not None for line in spread(lines, _LINES)]
    if not there or sum(there) < _MOST * min(len(there), max(1, len(lines) - 1)):
        return []
    return [pair for line in lines if (pair := _both(tree, base, line)) is not None]


def _both(tree: FolderTree, base: str, line: str) -> tuple[str, str] | None:
    words = re.split(r"[,;\s]+", line.strip())
    for begin in _BEGIN:
        named = [join(base, begin, word.lstrip("/\\").replace("\\", "/")) for word in words[:2]]
        if len(named) == 2 and set(named) <= tree.image_names and named[0] != named[1]:
            return named[0], named[1]
    return None


def pairs(tree: FolderTree, found: MapsFound) -> Layout | None:
    """Photographs and label maps of the same names, in two folders or with two endings."""
    groups = [group for group in found.groups if group.images]
    if not groups:
        return None
    maps = found.names
    place = common_folder([name for group in groups for name in (*group.names, *group.partners)])
    photos = tuple(name for name in tree.images if name not in maps and lies_in(name, place))
    first = groups[0]
    shown = ", ".join(sorted(one for one in first.images if first.role[0] >= 0 and not names_labels(one)))
    settings, root, advice = _mask_settings(tree, first)
    called = sorted({group.name for group in groups})
    marks = (f"names as in {', '.join(called[:4])}", first.why)
    return Layout("images with label maps", place, settings, photos, shown, marks, advice, root=root)


def _mask_settings(tree: FolderTree, group: MapGroup) -> tuple[dict[str, Any] | None, str, str]:
    """Settings of kind ``masks`` for two folders, the root, and if it does not read them, how it would."""
    advice = "to read the label maps: kind masks, with PNGs of the same names and classes.txt, a class name a line"
    at, masks = group.role
    endings = {f".{name.lower().rpartition('.')[2]}" for name in group.names}
    if not group.images or len(endings) > 1 or not endings <= _LOSSLESS:
        return None, "", advice
    if at < 0:
        return _beside_settings(tree, group, advice)
    images = min(group.images)
    one = min(group.names).split("/")
    root = "/".join(one[:at])
    above = split_of(one[at - 1]) if at else None
    below = {name.split("/")[at + 1] for name in group.names if name.count("/") > at + 1}
    if below and all(split_of(name) for name in below):
        templates = f"{images}/{{split}}", f"{masks}/{{split}}"
    elif above:
        root = "/".join(one[: at - 1])
        templates = f"{{split}}/{images}", f"{{split}}/{masks}"
    else:
        templates = images, masks
    if not _names_classes(tree, root):
        return None, root, advice
    usual = {"images": "images/{split}", "masks": "masks/{split}"}
    given = dict(zip(usual, templates, strict=True))
    return {"kind": "masks", **({} if given == usual else given)}, root, ""


def _names_classes(tree: FolderTree, root: str) -> bool:
    return any(tree.has(root, name) for name in (CLASSES_FILE, *COLOUR_LISTS))


def _beside_settings(tree: FolderTree, group: MapGroup, advice: str) -> tuple[dict[str, Any] | None, str, str]:
    """Settings of kind ``masks`` for label maps beside their images, such as ``1_mask.png`` beside ``1.jpg``."""
    ending = stem_of(group.name)
    folders = {name.rpartition("/")[0] for name in group.names}
    templates = {with_split(folder) for folder in folders}
    if len(templates) > 1 or "*" in ending or (not ending and not group.name.endswith(".png")):
        return None, "", advice
    template = templates.pop()
    root = template.partition("{split}")[0].rstrip("/") if "{split}" in template else template
    inside = template[len(root) :].lstrip("/") or "."
    while root and not _names_classes(tree, root):
        root, _, last = root.rpartition("/")
        inside = last if inside == "." else f"{last}/{inside}"
    if not _names_classes(tree, root):
        return None, root, advice
    given = {} if ending in MASK_ENDINGS else {"mask_ending": ending}
    return {"kind": "masks", "images": inside, "masks": inside, **given}, root, ""


def class_folders(tree: FolderTree, base: str, found: MapsFound) -> Layout | None:
    """Splits with a folder for each class: every picture in one, two classes or more, no folder of label maps."""
    splits: dict[str, str] = {}
    for inner in sorted(tree.folders.get(base, ()), key=lambda name: name[-1].isdigit()):  # val before val2
        if (split := split_of(inner)) and not inner[-2:].isdigit():  # of COCO's years another layout
            splits.setdefault(split, inner)
    unlabelled = [inner for inner in tree.folders.get(base, ()) if inner.lower().startswith("unlabel")]
    photos = [name for inner in unlabelled for name in tree.below(join(base, inner))]
    classes: set[str] = set()
    for split, inner in splits.items():
        place = join(base, inner)
        if tree.images_in.get(place):
            if split != "test":
                return None
            photos += tree.below(place)  # its classes are not published
            continue
        mine = [name for name in tree.folders.get(place, ()) if tree.has_images(join(place, name))]
        classes.update(mine)
        photos += tree.below(place)
    if len(classes) < 2 or found.names & set(photos) or any(lies_in(f, base) for f in found.alone):
        return None
    if name_both(classes):
        return None
    if all(map(_is_role, classes)):
        return None
    readable = {"train", "val"} <= splits.keys()
    advice = "" if readable else "for k-NN by classes there must be train and val"
    shown = ", ".join(sorted(join(base, inner) for inner in splits.values()))
    return Layout(
        "class folders", base, {"kind": "folder"} if readable else None, tuple(photos), shown,
        (f"{len(classes)} folders of classes", "no label maps"), advice,
    )  # fmt: skip


def _is_role(name: str) -> bool:
    return names_images(name) or names_labels(name) or split_of(name) is not None


def all_photographs(tree: FolderTree, found: MapsFound) -> Layout:
    """All images but label maps."""
    maps = found.names
    return Layout("images", "", None, tuple(name for name in tree.images if name not in maps))
