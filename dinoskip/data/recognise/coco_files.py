"""JSONs in COCO's format, by what is in them: which splits they are of, and in which folder their images lie."""

from __future__ import annotations

import mmap
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dinoskip.data.recognise.tree import FolderTree, join, lies_in
from dinoskip.data.recognise.words import SPLITS
from dinoskip.errors import DataError
from dinoskip.io.files import open_regular

MOST_FILES = 200
"""JSONs that are looked into; formats with a JSON an image have more, and are not COCO's."""
_NAMES = 8  # of images, looked for among the files
_KEYS = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_COCO_URL = re.compile(rb'"coco_url"\s*:\s*"((?:[^"\\]|\\.)*)"')  # LVIS has no file_name
_BOX = re.compile(rb'"bbox"\s*:\s*\[|"segmentation"\s*:\s*[\[{]')  # tools that draw polygons may leave boxes out
_KEYPOINTS = re.compile(rb'"keypoints"\s*:\s*\[\s*[-\d]')
_EMPTY = re.compile(rb'"annotations"\s*:\s*\[\s*\]')
_SEGMENTS = re.compile(rb'"segments_info"\s*:')
_SPLIT = re.compile(
    r"(?<![a-z])("
    + "|".join(sorted({n for names in SPLITS.values() for n in names}, key=len, reverse=True))
    + r")(?![a-z])",
    re.IGNORECASE,
)
_USUAL = ("annotations/instances_{split}2017.json", "{split}2017")


@dataclass(frozen=True)
class CocoFile:
    """A JSON in COCO's format; ``images`` is the folder that its file names are relative to, both relative to the root.

    ``boxes``: whether it has any; a split without an object, or a list of images, has none.
    """

    json: str
    images: str
    keypoints: bool = False
    boxes: bool = True

    @property
    def templates(self) -> tuple[str, str]:
        """The JSON and the folder with ``{split}`` for the split's name, which is where the words of both say it."""
        return with_split(self.json), with_split(self.images)

    @property
    def root(self) -> str:
        """The folder in which the JSON and the images of all splits lie."""
        return root_of(self.templates)


def _last_split(text: str) -> re.Match[str] | None:
    return next(reversed(list(_SPLIT.finditer(text))), None)


def with_split(text: str) -> str:
    """Return a path with ``{split}`` for the last word that names a split, if there is one."""
    found = _last_split(text)
    return text if found is None else f"{text[: found.start()]}{{split}}{text[found.end() :]}"


def coco_files(tree: FolderTree) -> list[CocoFile]:
    """JSONs with boxes whose images are there. Captions, panoptic segments and lists of images are none."""
    jsons = [name for name in tree.others if name.lower().endswith(".json")]
    if not jsons or len(jsons) > MOST_FILES:
        by_folder = Counter(name.rpartition("/")[0] for name in jsons)
        jsons = [name for name in jsons if by_folder[name.rpartition("/")[0]] <= 20][:MOST_FILES]
    folders = _folders_by_name(tree) if jsons else {}
    found = (_looked_into(tree, name, folders) for name in sorted(jsons))
    return [one for one in found if one is not None]


def _folders_by_name(tree: FolderTree) -> Mapping[str, list[str]]:
    folders: dict[str, list[str]] = defaultdict(list)
    for name in tree.images:
        folders[posixpath.basename(name)].append(name)
    return folders


def _looked_into(tree: FolderTree, name: str, folders: Mapping[str, list[str]]) -> CocoFile | None:
    try:
        with open_regular(tree.root / name) as stream:
            if not os.fstat(stream.fileno()).st_size:
                return None
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                keys = set()
                for key in _KEYS.finditer(content):
                    keys.add(key[1])
                    if len(keys) == 3:
                        break
                boxes = _BOX.search(content) is not None
                if len(keys) < 3 or _SEGMENTS.search(content) or not (boxes or _EMPTY.search(content)):
                    return None
                names = list(_first_names(content))
                keypoints = _KEYPOINTS.search(content) is not None
    except (OSError, DataError, ValueError):
        return None
    images = _folder_of(names, name, folders)
    return None if images is None else CocoFile(name, images, keypoints, boxes)


def _first_names(content: mmap.mmap) -> Iterator[str]:
    for count, found in enumerate((_FILE_NAME if _FILE_NAME.search(content) else _COCO_URL).finditer(content)):
        if count == _NAMES:
            return
        name = found[1].decode("utf-8", "replace").replace("\\/", "/").replace("\\\\", "/")  # the latter of Windows
        yield name if found.re is _FILE_NAME else "/".join(name.split("/")[-2:])


def _folder_of(names: list[str], json: str, folders: Mapping[str, list[str]]) -> str | None:
    """The folder in which most of the named files lie; of several that of the JSON's split, else the nearest."""
    counts: Counter[str] = Counter()
    for name in names:
        for path in folders.get(posixpath.basename(name), ()):
            if path == name:
                counts[""] += 1
            elif path.endswith(f"/{name}"):
                counts[path.removesuffix(f"/{name}")] += 1
    enough = [folder for folder, count in counts.items() if count >= max(1, len(names) // 2)]
    if not enough:
        return None
    split, place = _last_split(json), json.rpartition("/")[0]

    def rank(folder: str) -> tuple[bool, bool, int, str]:
        of_folder = _last_split(folder)
        other = split is not None and (of_folder is None or of_folder[1].lower() != split[1].lower())
        return other, not lies_in(folder, place), len(folder), folder

    return min(enough, key=rank)


def root_of(templates: tuple[str, str]) -> str:
    """The folder in which a JSON and its images lie, above the folders of splits; '' is the root."""
    shared = []
    for parts in zip(*(path.split("/") for path in (templates[0].rpartition("/")[0], templates[1])), strict=False):
        if len(set(parts)) > 1 or "{split}" in parts[0]:
            break
        shared.append(parts[0])
    return "/".join(part for part in shared if part)


def coco_settings(found: list[CocoFile]) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    """Settings of the kind that reads these, the folder that is its root, and JSONs that could be meant as well.

    Files of several splits with one template are kind ``coco``; one file of all images is kind ``coco_json``. JSONs
    named ``instances`` come before others, those with keypoints last. None without a file.
    """
    groups: dict[tuple[str, str], list[CocoFile]] = {}
    for one in found:
        groups.setdefault(one.templates, []).append(one)
    groups = {templates: files for templates, files in groups.items() if any(one.boxes for one in files)}
    if not groups:
        return None

    def rank(templates: tuple[str, str]) -> tuple[bool, bool, bool, tuple[str, str]]:
        files = groups[templates]
        return len(files) < 2 <= most, all(one.keypoints for one in files), "instances" not in templates[0], templates

    most = max(map(len, groups.values()))
    first, *others = sorted(groups, key=rank)
    also = tuple(sorted({groups[other][0].json for other in others if rank(other)[:3] == rank(first)[:3]}))
    files, (json, images) = groups[first], first
    if "{split}" not in json:
        base = files[0].images
        relative = posixpath.relpath(json, base or ".")
        extra = {} if relative == "annotations.json" else {"annotations": relative}
        return {"kind": "coco_json", **extra}, base, also
    root = root_of(first)
    inside = [path[len(root) + 1 :] if root else path for path in (json, images)]
    for prefix in ("", "images/"):  # as the published archives are unpacked, and as they are often moved
        if (inside[0], inside[1]) == (_USUAL[0], prefix + _USUAL[1]):
            return {"kind": "coco"}, root, also
    return {"kind": "coco", "images": inside[1] or ".", "annotations": inside[0]}, root, also


def coco_name(files: list[CocoFile]) -> str:
    """Return the name of such a layout: COCO, or COCO as Roboflow exports it."""
    roboflow = any(one.json.endswith("_annotations.coco.json") for one in files)
    return "COCO as Roboflow exports it" if roboflow else "COCO"


def image_folders(files: list[CocoFile]) -> str:
    """Return the folders of the images, for messages."""
    return join(", ".join(sorted({one.images or "this folder" for one in files})))
