"""Rates at which labels of another meaning are noticed and right ones are doubted, and the cost of judging them.

    python -m benchmarks.label_meanings --data SAMPLES          # five minutes on one core

``SAMPLES`` holds small samples of published sets: ``voc_mini/VOCdevkit``, ``ade_mini``, ``ade_mini_derived``
(photographs of other sizes), ``coco_mini`` and ``imagenette_mini``; scenes, videos and rooms are composed, scenes also
in the layouts of other kinds. Each is written again as a script, a tool or a mistake would change it: other values,
photographs turned against their labels, photographs of other labels, another unit. It is judged as the kind that it was
(:mod:`dinoskip.data.sets.signatures`). Sets of n files are drawn with replacement; a set is noticed if it is refused or
doubtful. The seconds are of 1,000 pairs of VOC, as ``plan`` judges them at first.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.pages import markdown_table
from benchmarks.written_kinds import resized, scenes_of, written_kinds
from dinoskip.data.detection import Box
from dinoskip.data.label_values import LabelValues, label_values
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.coco_stuff import NEVER_USED, STUFF_CLASSES
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.meaning import splits_unlike
from dinoskip.data.sets.signatures import judge
from dinoskip.data.turns import BOX_CHANGES, TURN_NAMES, TURNS
from dinoskip.io.images import image_size, read_image, read_mask, turn_upright
from dinoskip.pipeline.leaks import common_verdicts
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate

Values = NDArray[np.int64]
SIZES = (1, 5, 20)
_VIDEOS, _ROOMS, _FOLDER = "davis (composed videos)", "rooms (depth)", "folder (Imagenette)"
_SCENES = "scenes in VOC's layout"
_NORMALS, _PAIRS = "rooms (normals)", "pairs with keypoints"
SETS: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "voc": ({"kind": "voc", "root": "voc_mini/VOCdevkit"}, ("train", "val")),
    "ade20k": ({"kind": "ade20k", "root": "ade_mini"}, ("train", "val")),
    "ade20k (resized)": ({"kind": "ade20k", "root": "ade_mini_derived"}, ("train", "val")),
    "coco_stuff": ({"kind": "coco_stuff", "root": "coco_mini", "classes": "182"}, ("train", "val")),
}


def _table(change: Callable[[Values], Values]) -> NDArray[np.uint8]:
    """A new value for each of 256; those beyond wrap, as 8 bits do."""
    return (change(np.arange(256)) % 256).astype(np.uint8)


def _shifted(by: int, low: int, high: int, values: Values) -> Values:
    """Classes low..high moved by one, others kept."""
    return np.where((values >= low) & (values <= high), values + by, values)


def _permuted(low: int, high: int, values: Values) -> Values:
    order = np.random.default_rng(0).permutation(np.arange(low, high + 1))
    return np.where((values >= low) & (values <= high), order[np.clip(values - low, 0, high - low)], values)


def _train_ids(values: Values) -> Values:
    used = [value for value, name in enumerate(STUFF_CLASSES) if name not in NEVER_USED]
    return np.array([used.index(value) if value in used else 255 for value in values.tolist()])


CHANGES: Mapping[str, Mapping[str, Callable[[Values], Values]]] = {
    "voc": {
        "as published": lambda values: values,
        "objects 255, background 0": lambda values: np.where((values > 0) & (values < 255), 255, 0),
        "classes one higher": partial(_shifted, 1, 1, 19),
        "classes one lower, background kept": partial(_shifted, -1, 2, 20),
        "background as 255": lambda values: np.where(values == 0, 255, values),
        "reduced by one": lambda values: np.where(values == 255, 255, values - 1),
        "classes permuted": partial(_permuted, 1, 20),
    },
    "ade20k": {
        "as published": lambda values: values,
        "reduced by one, other 255": lambda values: values - 1,
        "reduced by one, other 254": lambda values: np.where(values == 0, 254, values - 1),
        "one higher": lambda values: values + 1,
        "reduced by one, other 0": lambda values: np.maximum(values - 1, 0),
        "classes permuted": partial(_permuted, 1, 150),
    },
    "coco_stuff": {
        "as published": lambda values: values,
        "ids": lambda values: np.where(values == 255, 0, values + 1),
        "171 in order": _train_ids,
        "one higher, 255 kept": partial(_shifted, 1, 0, 180),
        "one lower, 255 kept": partial(_shifted, -1, 1, 181),
        "classes permuted": partial(_permuted, 0, 181),
    },
}


def _of_each(label: str, opened: Any, named: Any = None) -> list[LabelValues]:
    return [label_values(label, opened.part([index]), named) for index in range(len(LABELS[label].items(opened)))]


def _renumbered(opened: SegmentationDataset, function: Callable[[Values], Values], out: Path) -> SegmentationDataset:
    """The split with the values of its masks changed."""
    table, paths = _table(function), []
    for number, path in enumerate(opened.label_paths):
        paths.append(out / f"{number}.png")
        Image.fromarray(table[read_mask(path)]).save(paths[-1])
    return replace(opened, label_paths=tuple(paths))


def _turned(opened: Any, turn: int, out: Path) -> Any:
    """The split with its photographs turned as EXIF's number says, so that labels lie turned against them."""
    return _with_photographs(opened, lambda index: turn_upright(read_image(opened.path(index)), turn), out)


def _of_others(opened: Any, out: Path) -> Any:
    """The split with the labels of each image beside the next photograph, at the size of its own."""

    def next_one(index: int) -> NDArray[np.uint8]:
        height, width = read_image(opened.path(index)).shape[:2]
        other = Image.fromarray(read_image(opened.path((index + 1) % len(opened))))
        return np.array(other.resize((width, height)))

    return _with_photographs(opened, next_one, out)


def _with_photographs(opened: Any, photograph: Callable[[int], NDArray[np.uint8]], out: Path) -> Any:
    paths = []
    for index in range(len(opened)):
        paths.append(out / f"{index}.jpg")
        Image.fromarray(photograph(index)).save(paths[-1], quality=95)
    return replace(opened, image_paths=tuple(paths))


def _rates(each: list[LabelValues], config: Any, draws: int) -> list[str]:
    """Share of sets of each size that are refused, and that are doubtful, in percent."""
    rng, shown = np.random.default_rng(0), []
    for size in SIZES:
        states = []
        for _ in range(draws):
            values = reduce(add, (each[index] for index in rng.integers(0, len(each), size)))
            rules = (*type(config).signatures, *LABELS[values.label].signatures)
            found = {verdict.state for verdict in judge(values, "set", rules)}
            states.append("refused" if "refused" in found else "doubtful" if "doubtful" in found else "")
        shown.append(f"{100 * states.count('refused') / draws:.1f} / {100 * states.count('doubtful') / draws:.1f}")
    return shown


Row = list[str]


def _opened(label: str, settings: Mapping[str, Any], root: Path, splits: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """The settings of a kind, and its splits with their labels."""
    config: Any = validate(OneDataset, RawConfig({"dataset": {**settings, "root": str(root)}})).dataset
    return config, [open_labels(LABELS[label], config, split) for split in splits]


def _numberings(data: Path, draws: int, only: str) -> Iterator[Row]:
    for name, (settings, splits) in SETS.items():
        if only not in name:
            continue
        config, opened = _opened("segmentation", settings, data / settings["root"], splits)
        named = config.named_classes if name == "voc" else None
        for change, function in CHANGES[settings["kind"]].items():
            with tempfile.TemporaryDirectory() as folder:
                changed = [_renumbered(part, function, _new(folder)) for part in opened]
                each = [one for part in changed for one in _of_each("segmentation", part, named)]
            yield [name, change, str(len(each)), *_rates(each, config, draws)]


def _two_splits(data: Path, composed: Path, draws: int, only: str) -> Iterator[Row]:
    """Two splits of one numbering, and of two: masks of val have values that are one higher (255 stays)."""
    sets = {**SETS, _SCENES: ({"kind": "voc", "root": str(composed)}, ("train", "val"))}
    for name, (settings, splits) in sets.items():
        if only not in name:
            continue
        _, opened = _opened("segmentation", settings, data / settings["root"], splits)
        train, val = (_of_each("segmentation", part) for part in opened)
        higher = [replace(one, files=_one_higher(one.files), pixels=_one_higher(one.pixels)) for one in val]
        for change, other in (("two splits as published", val), ("val one higher than train", higher)):
            rng, shown = np.random.default_rng(0), []
            for size in SIZES:
                doubts = 0
                for _ in range(draws):
                    drawn = (reduce(add, (one[i] for i in rng.integers(0, len(one), size))) for one in (train, other))
                    doubts += bool(splits_unlike(list(drawn), "set"))
                shown.append(f"0.0 / {100 * doubts / draws:.1f}")
            yield [name, change, str(len(train) + len(val)), *shown]


def _one_higher(counts: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *counts[:254], counts[255])


def _positions(data: Path, composed: Path, draws: int, only: str) -> Iterator[Row]:
    """Masks and boxes that are turned against their photographs, or lie beside others."""
    stuff = SETS["coco_stuff"][0]
    for name, label, settings, root, splits in (
        ("voc", "segmentation", {"kind": "voc"}, data / "voc_mini/VOCdevkit", ("train", "val")),
        ("ade20k", "segmentation", {"kind": "ade20k"}, data / "ade_mini", ("train", "val")),
        ("ade20k (resized)", "segmentation", {"kind": "ade20k"}, data / "ade_mini_derived", ("train", "val")),
        ("coco_stuff", "segmentation", stuff, data / "coco_mini", ("train", "val")),
        ("scenes", "segmentation", {"kind": "voc"}, composed, ("train", "val")),
        ("voc, boxes", "detection", {"kind": "voc"}, data / "voc_mini/VOCdevkit", ("train", "val")),
        ("coco, boxes", "detection", {"kind": "coco"}, data / "coco_mini", ("train", "val")),
        ("scenes, boxes", "detection", {"kind": "voc"}, composed, ("train", "val")),
    ):
        if only not in name:
            continue
        config, opened = _opened(label, settings, root, splits)
        for turn in (*TURNS, None):
            with tempfile.TemporaryDirectory() as folder:
                changed = [
                    _of_others(part, _new(folder)) if turn is None else _turned(part, turn, _new(folder))
                    for part in opened
                ]
                each = [one for part in changed for one in _of_each(label, part)]
            change = "of other photographs" if turn is None else f"photographs {TURN_NAMES[turn - 1]}"
            yield [name, change, str(len(each)), *_rates(each, config, draws)]
        with tempfile.TemporaryDirectory() as folder:
            for change, changed in _other_changes(label, opened, folder):
                each = [one for part in changed for one in _of_each(label, part)]
                yield [name, change, str(len(each)), *_rates(each, config, draws)]


def _other_changes(label: str, opened: list[Any], folder: str) -> Iterator[tuple[str, list[Any]]]:
    """Masks of which every third is of another photograph, or that were interpolated; boxes all changed alike."""
    if label == "detection":
        for change in BOX_CHANGES:
            inverse = np.linalg.inv(change.matrix).astype(np.float32)
            yield f"right {change.text}", [_with_boxes(part, inverse) for part in opened]
        return
    yield "every third of other photographs", [_some_of_others(part, _new(folder)) for part in opened]
    yield "resized with interpolation", [_interpolated(part, _new(folder)) for part in opened]


def _with_boxes(opened: Any, matrix: NDArray[np.float32]) -> Any:
    """The split with every box changed, ends x1 y1 x2 y2 as a row times the matrix, within the image."""

    def objects(self: Any, index: int) -> list[Box]:
        height, width = image_size(self.path(index))
        corners = opened.boxes(index) @ matrix
        corners = np.clip(corners, 0, np.array([width, height] * 2))
        return [Box(box.label, *row) for box, row in zip(opened.objects(index), corners.tolist(), strict=True)]

    given = {field.name: getattr(opened, field.name) for field in fields(opened)}
    return type("Changed", (type(opened),), {"objects": objects})(**given)


def _some_of_others(opened: Any, out: Path) -> Any:
    others, paths = _of_others(opened, out), list(opened.image_paths)
    paths[::3] = others.image_paths[::3]
    return replace(opened, image_paths=tuple(paths))


def _interpolated(opened: SegmentationDataset, out: Path) -> SegmentationDataset:
    """The split with masks at three quarters of their size and back, void as the value 0."""
    paths = []
    for number, path in enumerate(opened.label_paths):
        mask = Image.fromarray(np.where(read_mask(path) == 255, 0, read_mask(path)).astype(np.uint8))
        small = mask.resize((mask.width * 3 // 4, mask.height * 3 // 4), Image.Resampling.BILINEAR)
        paths.append(out / f"{number}.png")
        small.resize(mask.size, Image.Resampling.BILINEAR).save(paths[-1])
    return replace(opened, label_paths=tuple(paths))


def _written(composed: Path, draws: int, only: str) -> Iterator[Row]:
    """Scenes in the layouts of other kinds."""
    _, drawn = _opened("segmentation", {"kind": "voc"}, composed, ("train", "val"))
    _, around = _opened("detection", {"kind": "voc"}, composed, ("train", "val"))
    scenes, names = scenes_of(drawn, around)
    for kind in (kind for kind in written_kinds(names) if only in kind.name):
        for change, write in kind.changes.items():
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), scenes)
                config, opened = _opened(kind.label, kind.settings, Path(folder), (kind.split,))
                each = _of_each(kind.label, opened[0])
            yield [kind.name, change, str(len(each)), *_rates(each, config, draws)]


def _videos(draws: int) -> Iterator[Row]:
    """Videos whose label maps are mirrored, lie beside the frames of others, or hold 0 and 255."""
    composed: Any = validate(OneDataset, RawConfig({"dataset": {"kind": "scenes_video", "videos": 12}})).dataset
    with tempfile.TemporaryDirectory() as folder:
        root = composed.generate(Path(folder) / "videos")
        config, (opened,) = _opened("video", {"kind": "davis"}, root, ("val",))
        videos = opened.sequences
        for change in ("as they are", "label maps mirrored", "label maps of the next video", "objects 255"):
            changed = list(videos)
            if change == "label maps of the next video":
                pairs = zip(videos, (*videos[1:], videos[0]), strict=True)
                changed = [replace(video, annotations=other.annotations) for video, other in pairs]
            elif change != "as they are":
                changed = [_redrawn(video, change == "objects 255", _new(folder)) for video in videos]
            each = _of_each("video", replace(opened, sequences=tuple(changed)))
            yield [_VIDEOS, change, str(len(each)), *_rates(each, config, draws)]


def _redrawn(video: Any, binary: bool, out: Path) -> Any:
    paths = []
    for path in video.annotations:
        values = read_mask(path)
        paths.append(out / path.name)
        Image.fromarray(np.where(values > 0, 255, 0).astype(np.uint8) if binary else values[:, ::-1]).save(paths[-1])
    return replace(video, annotations=tuple(paths))


def _new(folder: str) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def _metres(draws: int) -> Iterator[Row]:
    settings = {"kind": "rooms", "images": 40}
    config: Any = validate(OneDataset, RawConfig({"dataset": settings})).dataset
    with tempfile.TemporaryDirectory() as folder:
        root = config.generate(Path(folder) / "rooms")
        opened = [open_labels(LABELS["depth"], config, split, root) for split in ("train", "test")]
        for per_metre in (1000.0, 5000.0, 256.0, 100.0):
            changed = [replace(part, per_metre=per_metre) for part in opened]
            each = [one for part in changed for one in _of_each("depth", part)]
            yield [_ROOMS, f"read at {per_metre:g} a metre", str(len(each)), *_rates(each, config, draws)]
        for change, parts in _turned_maps(opened, folder):
            each = [one for part in parts for one in _of_each("depth", part)]
            yield [_ROOMS, change, str(len(each)), *_rates(each, config, draws)]


def _turned_maps(opened: Any, tmp: str) -> Iterator[tuple[str, Any]]:
    """The splits of rooms with their photographs turned against the maps."""
    for turn in (2, 3, 4, 6):
        yield f"photographs {TURN_NAMES[turn - 1]}", [_turned(part, turn, _new(tmp)) for part in opened]


Axes = Callable[[NDArray[np.float32]], NDArray[np.float32]]
NORMALS: Mapping[str, tuple[Axes, str]] = {
    "as they are": (lambda normals: normals, "all"),
    "z into the image": (lambda normals: normals * np.float32([1, 1, -1]), "test"),
    "y up": (lambda normals: normals * np.float32([1, -1, 1]), "test"),
    "x to the left": (lambda normals: normals * np.float32([-1, 1, 1]), "test"),
    "all three, in all files": (lambda normals: -normals, "all"),
    "y before x": (lambda normals: normals[..., [1, 0, 2]], "all"),
    "z first": (lambda normals: normals[..., [2, 0, 1]], "all"),
    "as colours": (lambda normals: (normals + 1) / 2, "all"),
}
"""What is done to normals, and whether in all files or in those of the test split alone."""


def _normals(draws: int) -> Iterator[Row]:
    """Normals of rooms in another convention of their axes, in some files or all, and turned photographs."""
    settings = {"kind": "rooms", "images": 40, "val_fraction": 0.5}
    config: Any = validate(OneDataset, RawConfig({"dataset": settings})).dataset
    with tempfile.TemporaryDirectory() as folder:
        root = config.generate(Path(folder) / "rooms")
        opened = [open_labels(LABELS["normals"], config, split, root) for split in ("train", "test")]
        changed = [
            (change, [_other_axes(part, axes) if where in {"all", part.split} else part for part in opened])
            for change, (axes, where) in NORMALS.items()
        ]
        for change, parts in [*changed, *_turned_maps(opened, folder)]:
            each = [one for part in parts for one in _of_each("normals", part)]
            yield [_NORMALS, change, str(len(each)), *_rates(each, config, draws)]


def _other_axes(opened: Any, axes: Axes) -> Any:
    def load(image: Path, path: Path) -> Any:
        given = opened.load(image, path)
        return replace(given, normals=_unit(axes(given.normals)))

    return replace(opened, load=load)


def _unit(normals: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors of length 1, as readers make them."""
    length = np.linalg.norm(normals, axis=-1, keepdims=True)
    return (normals / np.maximum(length, 1e-6)).astype(np.float32)


def _keypoints(draws: int) -> Iterator[Row]:
    """Pairs of composed objects whose points are of other pixels, another order or another image."""
    config: Any = validate(OneDataset, RawConfig({"dataset": {"kind": "scenes_pairs"}})).dataset
    rng = np.random.default_rng(0)
    changes: Mapping[str, Callable[[Any], Any]] = {
        "as they are": lambda pair: pair,
        "in shares of the sides": lambda pair: _with_points(pair, lambda points: points / config.size),
        "of images of half the size": lambda pair: _with_points(pair, lambda points: points / 2),
        "y before x": lambda pair: _with_points(pair, lambda points: points[:, ::-1]),
        "mirrored, boxes not": lambda pair: _with_points(pair, lambda points: [config.size, 0] + points * [-1, 1]),
        "source's points for the target": lambda pair: replace(pair, target_points=pair.source_points),
        "another order in the target": lambda pair: replace(pair, target_points=rng.permutation(pair.target_points)),
        "halves exchanged in the target": lambda pair: replace(pair, target_points=np.roll(pair.target_points, 4, 0)),
    }
    with tempfile.TemporaryDirectory() as folder:
        opened: Any = open_labels(LABELS["correspondence"], config, "test", config.generate(Path(folder)))
        for change, function in changes.items():
            each = _of_each("correspondence", replace(opened, pairs=tuple(map(function, opened.pairs))))
            yield [_PAIRS, change, str(len(each)), *_rates(each, config, draws)]


def _with_points(pair: Any, function: Callable[[Any], Any]) -> Any:
    source, target = (np.asarray(function(points)) for points in (pair.source_points, pair.target_points))
    return replace(pair, source_points=source, target_points=target)


def _halved(opened: Any, out: Path) -> Any:
    """The photographs of a split at half their size, in another format."""
    names = tuple(f"{number}.webp" for number in range(len(opened)))
    for number, name in enumerate(names):
        resized(opened.path(number), out / name)
    return replace(opened, root=out, names=names)


def _classes(data: Path, tmp: Path, draws: int) -> Iterator[Row]:
    config, (train, val) = _opened("classes", {"kind": "folder"}, data / "imagenette_mini", ("train", "val"))
    rng, root = np.random.default_rng(0), data / "imagenette_mini"
    one = [index for index in range(len(val)) if val.labels[index] == 0]
    for change, drawn_from, beside in (
        ("as published", range(len(val)), train),
        ("one class alone", one, train),
        ("validation images among the training ones", range(len(val)), val),
        ("the same at half the size", range(len(val)), _halved(val, tmp)),
    ):
        shown = []
        for size in SIZES:
            states = []
            for _ in range(draws):
                part = val.part(rng.choice(list(drawn_from), size, replace=False).tolist())
                found = [*judge(label_values("classes", part), "set", type(config).signatures)]
                found += common_verdicts(beside, part, root)
                states.append({verdict.state for verdict in found})
            refused = sum("refused" in state for state in states)
            doubtful = sum("doubtful" in state for state in states) - sum({"refused", "doubtful"} <= s for s in states)
            shown.append(f"{100 * refused / draws:.1f} / {100 * doubtful / draws:.1f}")
        yield [_FOLDER, change, str(len(drawn_from)), *shown]


def _seconds(data: Path) -> str:
    """The time of the gate at first: every check of masks and boxes of 1,000 pairs."""
    config, opened = _opened("segmentation", {"kind": "voc"}, data / "voc_mini/VOCdevkit", ("train",))
    _, boxes = _opened("detection", {"kind": "voc"}, data / "voc_mini/VOCdevkit", ("train",))
    begin = time.process_time()
    for label, part, named in (("segmentation", opened[0], config.named_classes), ("detection", boxes[0], None)):
        many = part.part([index % len(part) for index in range(1000)])
        judge(label_values(label, many, named), "set", type(config).signatures)
    return f"1,000 pairs of VOC with masks and boxes: {time.process_time() - begin:.1f} s of one core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, metavar="SAMPLES")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with this in their name; seconds")
    parser.add_argument("--draws", type=int, default=200, help="sets of each size (default: 200)")
    args = parser.parse_args()
    if not args.only or args.only == "seconds":
        print(_seconds(args.data))
    with tempfile.TemporaryDirectory() as folder:
        scenes: Any = validate(OneDataset, RawConfig({"dataset": {"kind": "scenes", "images": 60}})).dataset
        composed = scenes.generate(Path(folder) / "scenes")
        rows = [
            *_numberings(args.data, args.draws, args.only),
            *_two_splits(args.data, composed, args.draws, args.only),
            *_positions(args.data, composed, args.draws, args.only),
            *_written(composed, args.draws, args.only),
            *(_videos(args.draws) if args.only in _VIDEOS else ()),
            *(_metres(args.draws) if args.only in _ROOMS else ()),
            *(_normals(args.draws) if args.only in _NORMALS else ()),
            *(_keypoints(args.draws) if args.only in _PAIRS else ()),
            *(_classes(args.data, _new(folder), max(1, args.draws // 10)) if args.only in _FOLDER else ()),
        ]
    head = ("kind", "labels", "files", *(f"n = {size}: refused / doubtful, %" for size in SIZES))
    print("\n".join(markdown_table(head, rows)))


if __name__ == "__main__":
    main()
