"""Layouts of labelling tools, simulators and benchmarks, by what they have beside their photographs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from dinoskip.data.recognise.coco_files import with_split
from dinoskip.data.recognise.label_maps import spread
from dinoskip.data.recognise.published import OTHER_ADE20K
from dinoskip.data.recognise.reading import Layout
from dinoskip.data.recognise.tree import FolderTree, join, lies_in, stem_of
from dinoskip.data.recognise.words import split_of

Rule = Callable[[FolderTree, str], Layout | None]
"""Recognises a layout that begins in a folder, by two marks; None if it does not."""

_LOOKED_INTO = 3  # annotations of a layout that has one a picture
_MOST = 0.8  # of the pictures of a folder have an annotation beside them
_WNID = re.compile(r"n\d{8}$")


def cityscapes_names(tree: FolderTree, base: str) -> Layout | None:
    """Pictures named as Cityscapes', wherever they lie; in its own folders it is a published layout."""
    photos = [name for name in tree.below(base) if "_leftImg8bit." in name]
    if not photos or not any("_gtFine_label" in name for name in tree.below(base)):
        return None
    advice = "for its masks name the folders leftImg8bit and gtFine"
    return _layout("Cityscapes", base, photos, "…_leftImg8bit", ("_leftImg8bit", "_gtFine_label"), advice)


def ade20k_full(tree: FolderTree, base: str) -> Layout | None:
    """Masks of objects and of their parts beside each picture, wherever they lie."""
    names = [name for name in tree.below(base) if "_seg." in name or "_parts_" in name]
    texts = base in tree.folders and any("_atr." in name for name in tree.others if lies_in(name, base))
    if not names or not (texts or any("_parts_" in name for name in names)):
        return None
    bases = {name.rpartition("_seg.")[0] for name in names if "_seg." in name}
    photos = [name for name in tree.below(base) if name.rpartition(".")[0] in bases]
    labels = frozenset(tree.below(base)).difference(photos)
    advice = OTHER_ADE20K.format("thousands of")
    return Layout("the full ADE20K", base, None, tuple(photos), "", ("_seg", "_parts_ or _atr"), advice, labels=labels)


def mapillary(tree: FolderTree, base: str) -> Layout | None:
    """A configuration beside splits with folders of images and of labels."""
    config = next((n for n in tree.names_in(base) if fnmatchcase(n, "config*.json")), None)
    if config is None:
        return None
    splits = [inner for inner in tree.folders.get(base, ()) if split_of(inner)]
    photos = [
        name for split in splits for name in tree.below(join(base, split))
        if "images" in name[len(base) :].split("/")[:-1]
    ]  # fmt: skip
    labels = any(
        {"labels", "instances", "panoptic"} & set(tree.folders.get(join(base, split, version), ()))
        for split in splits for version in ("", *tree.folders.get(join(base, split), ()))
    )  # fmt: skip
    if not photos or not labels:
        return None
    versions = {split: ("", *tree.folders.get(join(base, split), ())) for split in splits}
    places = {
        with_split(join(split, version)) for split in splits for version in versions[split]
        if tree.has(base, split, version, "labels")
    }  # fmt: skip
    marks = (config, "images beside labels")
    if not places:
        return _layout("Mapillary Vistas", base, photos, "images", marks, "it has no folder labels, with the classes")
    masks = max(places)  # the newest version
    settings = {"kind": "masks", "images": "{split}/images", "masks": f"{masks}/labels", "classes": config}
    return Layout("Mapillary Vistas", base, settings, tuple(photos), "images", marks)


def supervisely(tree: FolderTree, base: str) -> Layout | None:
    """A file meta.json, and projects of img and ann."""
    places = [
        join(base, inner) for inner in ("", *tree.folders.get(base, ()))
        if tree.has(base, inner, "img") and tree.has(base, inner, "ann")
    ]  # fmt: skip
    annotated = any(name.endswith(".json") for place in places for name in tree.names_in(join(place, "ann")))
    photos = [name for place in places for name in tree.below(join(place, "img"))]
    if not tree.has(base, "meta.json") or not photos or not annotated:
        return None
    marks = ("meta.json", "ann/*.json")
    return Layout("Supervisely", base, {"kind": "supervisely"}, tuple(photos), "img", marks)


def yolo(tree: FolderTree, base: str) -> Layout | None:
    """Texts of five numbers or more a line, in labels parallel to images, or beside the pictures."""
    photos: list[str] = []
    folders: list[tuple[str, str]] = []
    for folder in (place for place in tree.folders if lies_in(place, base)):
        parts = folder.split("/")
        if "labels" not in parts[len(base.split("/")) if base else 0 :]:
            continue
        at = len(parts) - 1 - parts[::-1].index("labels")
        images = ["/".join([*parts[:at], name, *parts[at + 1 :]]) for name in ("images", "JPEGImages")]
        for place in images:
            if _have_texts(tree, tree.images_in.get(place, ()), folder):
                photos += tree.images_in[place]
                folders.append((place, folder))
    if photos:
        marks = ("labels/*.txt of five numbers", "images of their names")
        return _of_yolo(tree, base, photos, folders, marks)
    beside = tree.images_in.get(base, ())
    if _have_texts(tree, beside, base):
        return _of_yolo(tree, base, beside, [(base, base)], ("texts of five numbers", "pictures of their names"))
    return None


_YOLO_LISTS = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")


def _of_yolo(
    tree: FolderTree, base: str, photos: Sequence[str], folders: list[tuple[str, str]], marks: tuple[str, ...]
) -> Layout:
    """The layout of folders of images, each with its folder of texts; kind ``yolo`` reads it if classes are named."""
    named = next((place for place in _above(folders[0][0], base) if any(tree.has(place, n) for n in _YOLO_LISTS)), None)
    shown = "" if folders == [(base, base)] else "images"
    if named is None:
        advice = "for its boxes write classes.txt, a class name a line in the order of the numbers (kind yolo)"
        return _layout("YOLO", base, photos, shown, marks, advice)
    templates = {
        (_cut(with_split(images)), _cut(with_split(labels))) for images, labels in folders
    }  # fmt: skip
    if len(templates) > 1:
        advice = "its splits lie in different ways: name images and labels of one of them (kind yolo)"
        return _layout("YOLO", base, photos, shown, marks, advice)
    (images, labels), inside = templates.pop(), len(named) + 1 if named else 0
    given = {"images": images[inside:] or ".", "labels": labels[inside:] or "."}
    usual = {"images": "images/{split}", "labels": "labels/{split}"}
    settings = {"kind": "yolo", **({} if given == usual else given)}
    return Layout("YOLO", base, settings, tuple(photos), shown, marks, root=named)


def _above(folder: str, base: str) -> list[str]:
    """A folder and those above it down to ``base``, the deepest first."""
    parts, least = folder.split("/"), len(base.split("/")) if base else 0
    return ["/".join(parts[:end]) for end in range(len(parts), least - 1, -1)]


def _cut(template: str) -> str:
    """A path down to the split, or to the folder of images or labels: the folders in it are listed with it."""
    parts = template.split("/")
    ends = [at for at, part in enumerate(parts) if part in {"{split}", "images", "labels", "JPEGImages"}]
    return "/".join(parts[: ends[-1] + 1]) if ends else template


def _have_texts(tree: FolderTree, images: Sequence[str], folder: str) -> bool:
    """Whether pictures have texts of boxes in a folder: most a file, and these have numbers."""
    stems = {stem_of(name) for name in images}
    texts = [name for name in tree.others_in.get(folder, ()) if name.endswith(".txt") and stem_of(name) in stems]
    if not texts or len(texts) < min(len(stems), 20) * (1 - _MOST):  # images of nothing have none
        return False
    lines = [line.split() for name in spread(texts, 10) for line in tree.text(name).splitlines() if line.strip()]
    return bool(lines) and all(len(line) >= 5 and all(map(_is_number, line)) for line in lines[:-1] or lines)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def cvat_masks(tree: FolderTree, base: str) -> Layout | None:
    """Masks in the colours of labelmap.txt, in a folder as VOC's."""
    labels = [folder for folder in ("SegmentationClass", "SegmentationObject") if tree.has(base, folder)]
    if not tree.has(base, "labelmap.txt") or "SegmentationClass" not in labels:
        return None
    if ":" not in tree.text(join(base, "labelmap.txt")):
        return None
    masks = [join(base, folder) for folder in labels]
    pictures = join(base, "JPEGImages") if tree.has(base, "JPEGImages") else base
    photos = [name for name in tree.below(pictures) if not any(lies_in(name, folder) for folder in masks)]
    listed = {split_of(stem_of(name)) for name in tree.names_in(join(base, "ImageSets/Segmentation"))}
    where = "JPEGImages" if tree.has(base, "JPEGImages") else "."
    settings = {"kind": "masks", "images": where, "masks": "SegmentationClass", "classes": "labelmap.txt"}
    if {"train", "val"} <= listed and where != ".":
        settings = {"kind": "voc"}
    return Layout(
        "CVAT masks", base, settings, tuple(photos), "JPEGImages", ("labelmap.txt", "SegmentationClass")
    )  # fmt: skip


def cvat_images(tree: FolderTree, base: str) -> Layout | None:
    """One XML of all pictures."""
    if not tree.has(base, "annotations.xml"):
        return None
    begin = tree.text(join(base, "annotations.xml"))
    listed = {name.rpartition("/")[2] for name in re.findall(r'<image\s[^>]*?name="([^"]+)"', begin)}
    named = [name for name in tree.below(base) if name.rpartition("/")[2] in listed]
    photos = [name for folder in sorted({name.rpartition("/")[0] for name in named}) for name in tree.images_in[folder]]
    if "<annotations" not in begin or not photos:
        return None
    marks = ("annotations.xml", "names of pictures in it")
    return Layout("CVAT images", base, {"kind": "cvat"}, tuple(photos), "", marks)


def voc_beside(tree: FolderTree, base: str) -> Layout | None:
    """An XML of VOC's format beside each picture, in one folder or in one a split, as Roboflow and LabelImg write."""
    places = [base, *(join(base, inner) for inner in tree.folders.get(base, ()) if split_of(inner))]
    photos: list[str] = []
    for place in places:
        images = tree.images_in.get(place, [])
        xmls = {stem_of(n): n for n in tree.others_in.get(place, ()) if n.lower().endswith(".xml")}
        with_one = [name for name in images if stem_of(name) in xmls]
        sample = [tree.text(xmls[stem_of(name)], 4096) for name in spread(with_one, _LOOKED_INTO)]
        if with_one and len(with_one) >= _MOST * len(images) and all("<annotation" in text for text in sample):
            photos += images
    if not photos:
        return None
    whole = any(name.rpartition("/")[0] == base for name in photos)
    settings = {"kind": "voc_xml", **({"images": "."} if whole else {})}
    marks = ("an XML a picture", "root annotation")
    return Layout("VOC's XMLs beside pictures", base, settings, tuple(photos), "", marks)


_IMAGENET = (
    ("train", "val", "test"),
    ("ILSVRC/Data/CLS-LOC/train", "ILSVRC/Data/CLS-LOC/val", "ILSVRC/Data/CLS-LOC/test"),
    ("ILSVRC2012_img_train", "ILSVRC2012_img_val", "ILSVRC2012_img_test"),
)
"""Folders of ImageNet's splits as archives, Kaggle and older scripts leave them."""
_CLASSES_OF_VAL = re.compile(r"devkit|val_solution|val(idation)?_ground_?truth|synset", re.IGNORECASE)


def imagenet(tree: FolderTree, base: str) -> Layout | None:
    """Folders named by WordNet ids to train on, and a flat val whose classes a list has."""
    for train, val, test in _IMAGENET:
        wnids = [name for name in tree.folders.get(join(base, train), ()) if _WNID.match(name)]
        flat = tree.images_in.get(join(base, val), ())
        beside = (*tree.names_in(base), *tree.folders.get(base, ()), *tree.names_in(join(base, val)))
        if wnids and flat and any(map(_CLASSES_OF_VAL.search, beside)):
            photos = [*tree.below(join(base, train)), *flat, *tree.below(join(base, test))]
            advice = "for classes sort val into folders as train's (PyTorch's valprep.sh does) and use kind folder"
            return _layout(
                "ImageNet with devkit", base, photos, f"{train}, {val}", ("wnid folders", "flat val"), advice
            )
    return None


def davis_like(tree: FolderTree, base: str) -> Layout | None:
    """Videos: folders of numbered frames, and of masks of the same names."""
    for resolution in tree.folders.get(join(base, "JPEGImages"), ()):
        images, masks = join(base, "JPEGImages", resolution), join(base, "Annotations", resolution)
        videos = set(tree.folders.get(images, ())) & set(tree.folders.get(masks, ()))
        if videos and any(tree.images_in.get(join(masks, video)) for video in videos):
            photos = list(tree.below(join(base, "JPEGImages")))
            advice = f"its masks are read at 480p (kind davis), not at {resolution}"
            return _layout("DAVIS", base, photos, "JPEGImages", ("JPEGImages/", "Annotations/ of its videos"), advice)
        if not tree.folders.get(images) and tree.images_in.get(masks):  # YouTube-VOS and others: no resolution
            photos = list(tree.below(join(base, "JPEGImages")))
            return _layout(
                "videos with masks", base, photos, "JPEGImages", ("JPEGImages/", "Annotations/ of its videos"),
                "for kind davis move both folders' videos into a folder 480p",
            )  # fmt: skip
    return None


def _layout(name: str, base: str, photos: Sequence[str], shown: str, marks: tuple[str, ...], advice: str) -> Layout:
    return Layout(name, base, None, tuple(photos), shown, marks, advice)


RULES: tuple[Rule, ...] = (
    cityscapes_names,
    ade20k_full,
    mapillary,
    imagenet,
    supervisely,
    yolo,
    davis_like,
    cvat_masks,
    cvat_images,
    voc_beside,
)
"""In the order in which they are asked."""
