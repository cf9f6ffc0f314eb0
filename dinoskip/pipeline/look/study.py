"""A study of any backbones on any folder of photographs: what the folder has labels for is measured."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dinoskip.data import sets as datasets
from dinoskip.data.recognise import recognise, say
from dinoskip.data.recognise.words import unread_container
from dinoskip.data.sets.labels import CLASSES, DETECTION, LABELS, SEGMENTATION, Label
from dinoskip.data.shards import holds_shards
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import EXTENSIONS
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.pipeline.variants import backbone_names
from dinoskip.runtime.console import log
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.tasks import EvaluationTask, task, tasks
from eval.knn.config import KnnConfig

IMAGES = "all_images"
"""Key of ``data`` of the images without their labels."""
MEASURES = tuple(record.name for record in tasks() if record.look is not None)
"""Tasks that a look does, of those that the folder has labels for."""
Blocks = Literal["all"] | Sequence[int]
CUT = 12  # photographs without labels on which TokenCut is drawn, at their own size: minutes for many


@dataclass(frozen=True)
class FolderLabels:
    """Data set in a folder: its settings, and the splits that have each kind of label, by the kind's name.

    ``classes`` is the number of training images that have a class. ``images`` are settings of another set, of the same
    images, which is shown and trained on where the labelled set has boxes alone of a kind with masks, or no list of
    training images.
    """

    data: dict[str, Any]
    found: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: int = 0
    images: dict[str, Any] = field(default_factory=dict)


def labels_of(root: Path, kind: str | None = None) -> FolderLabels:
    """Look at what lies in a folder. Raises :class:`DataError` for one without images or with unusable masks."""
    if not root.is_dir():
        advice = unread_container(root.name) if root.is_file() else None
        raise DataError(f"{root}: is not a folder", advice or "give a folder of photographs, or a data set's")
    plain: dict[str, Any] = {"kind": "images", "root": str(root)}
    tree = _of_kind(root, kind) if kind else plain if holds_shards(root) else _recognised(root)
    candidates = [{**tree, "year": year} for year in (2012, 2007)] if tree["kind"] == "voc" else [tree]
    looked = [_labels(candidate) for candidate in candidates]
    useful = [labels for labels in looked if labels.found]
    if useful:
        return _with_images(useful[0])
    if tree["kind"] not in {"images", "folder"}:
        log.warning("%s: laid out as %s, but has no labels that can be read: shown as photographs", root, tree["kind"])
    return FolderLabels(plain)


def _of_kind(root: Path, kind: str) -> dict[str, Any]:
    """Settings of a kind that the user names: those that are recognised, if it is that one, else its defaults."""
    with suppress(DataError):
        settings = recognise(root).settings
        if settings is not None and settings["kind"] == kind:
            return dict(settings)
    return {"kind": kind, "root": str(root)}


def _recognised(root: Path) -> dict[str, Any]:
    """Settings of the data set that lies in a folder; what is taken of it and left is said in a line."""
    reading = recognise(root)
    # label maps of a set whose labels are read are not left out
    say(root, reading.line, noteworthy=reading.has_rest if reading.settings else reading.noteworthy)
    return dict(reading.settings or {"kind": "images", "root": str(root)})


def _labels(tree: dict[str, Any]) -> FolderLabels:
    config = dataset_of(tree)

    def opens(label: Label[Any], splits: Sequence[str]) -> bool:
        try:
            return all(len(label.items(datasets.open_labels(label, config, split))) for split in splits)
        except (ConfigError, DataError) as error:
            log.debug("%s", error)
            return False

    looked = {label.name: [splits for splits in label.seen_by if opens(label, splits)] for label in LABELS.values()}
    found = {name: splits[0] for name, splits in looked.items() if splits}
    classes = len(datasets.open_labels(CLASSES, config, found[CLASSES.name][0])) if CLASSES.name in found else 0
    return FolderLabels(tree, found, classes)


def dataset_of(tree: dict[str, Any]) -> Any:
    """The data set of these settings."""
    return validate(OneDataset, RawConfig({"dataset": tree}, {"": "command line"})).dataset


def _with_images(labels: FolderLabels) -> FolderLabels:
    """``labels`` with ``images`` where they are needed."""
    config = dataset_of(labels.data)
    try:
        masks_alone = SEGMENTATION.name in labels.found or not SEGMENTATION.given_by(config)
        if masks_alone and len(datasets.open_training_images(config)):
            return labels
    except DataError as error:
        log.debug("%s", error)
    name = DETECTION.name if DETECTION.name in labels.found else next(iter(labels.found))
    labelled = datasets.open_labels(LABELS[name], config, labels.found[name][-1])
    return replace(labels, images={"kind": "images", "root": str(labelled.path(0).parent)})


def study_tree(
    backbones: Sequence[str],
    labels: FolderLabels,
    out: Path,
    *,
    images: int = 0,
    blocks: Blocks = "all",
    measures: Collection[str] = MEASURES,
    gallery: bool = True,
    skip_broken: bool = False,
) -> dict[str, Any]:
    """The settings of the study, in the folder ``out``. ``images``: at most so many of a split; 0: all."""
    root = Path(labels.data["root"]).resolve()
    name, images = name_of(labels), 0 if labels.found and holds_at_most(root, images) else images
    name = safe_name(f"{name}-{images}-images" if images and labels.found else name)
    skips = {"skip_broken": True} if skip_broken else {}
    shown = {IMAGES: {**labels.images, **skips}} if labels.images else {}
    limit = {**({"limit": images} if images and labels.found else {}), **skips}
    evaluate: dict[str, Any] = {"blocks": blocks, "blocks_of": "deepest", "probe": dict(task("probe").look or {})}
    for record in tasks():
        if record.name in measures and record.label in labels.found:
            splits = _splits(record, labels.found[record.label])
            evaluate[record.name] = {**(record.look or {}), "datasets": [name], **splits}
    if "knn" in evaluate:
        evaluate["knn"]["k"] = _neighbours(min(labels.classes, images or labels.classes))
    page: dict[str, Any] = {"dataset": next(iter(shown), name)}
    note = ""
    if gallery and not labels.found:
        count = len(datasets.open_images(dataset_of(labels.data), root, split="train"))
        page["first"] = max(1, min(count, images or count))
        note = _unlabelled(count, page["first"])
    tree = {
        "name": out.name,
        "output": str(out.parent),
        "data": {name: {**labels.data, **limit}, **shown},
        "variants": {"model": labelled(backbones)},
        "evaluate": evaluate,
        "report": {"title": f"A look at {root.name}", **({"note": note} if note else {})},
    }
    return {**tree, "gallery": page} if gallery else tree


_OF_ONE_IMAGE = EXTENSIONS | {".txt", ".xml", ".json", ".csv", ".yaml", ".md"}
"""Extensions of files that hold one image, or no image."""


def holds_at_most(root: Path, images: int) -> bool:
    """Whether a folder has no more files than ``images``, each of one image at most, so that no limit is needed.

    Looking ends with the first file beyond them.
    """
    count = 0
    for _, _, names in os.walk(root):
        for name in names:
            extension = Path(name).suffix.lower()
            count += extension in EXTENSIONS
            if count > images or extension not in _OF_ONE_IMAGE:
                return False
    return True


def _unlabelled(count: int, shown: int) -> str:
    """Return the page's sentence on photographs without labels: their number, and how many of them it shows."""
    which = "" if shown == count else f"; the first {shown:,} are shown (--images 0: all)"
    cuts = f" TokenCut is drawn on the first {CUT} of a page." if shown > CUT else ""
    return f"{count:,} photographs without labels{which}.{cuts}"


def _splits(record: EvaluationTask, found: Sequence[str]) -> dict[str, str]:
    """The settings of a task that name its splits, where they are not as by default.

    Where one split alone was looked for, what is fitted is fitted on the task's usual one.
    """
    usual = record.section()
    named = {"val_split": found[-1], "split": found[-1], **({"train_split": found[0]} if len(found) > 1 else {})}
    return {key: split for key, split in named.items() if getattr(usual, key, split) != split}


def _neighbours(images: int) -> list[int]:
    """The usual numbers of neighbours that so many training images allow; if none, as many as there are."""
    usual = KnnConfig().k
    allowed = [k for k in usual if k <= images] or [images]
    if images < max(usual):
        log.warning("k-NN: %d training images with classes, so k is %d, not %d", images, max(allowed), max(usual))
    return allowed


def name_of(labels: FolderLabels) -> str:
    """A name for the data set: VOC's with its year, where the folder is called so, else the folder's own."""
    year, root = labels.data.get("year"), Path(labels.data["root"]).resolve()
    is_voc = any("voc" in part.lower() for part in root.parts[-2:])  # VOCdevkit, or VOCdevkit/VOC2012
    return f"voc{year}" if year and is_voc else safe_name(root.name)


def safe_name(text: str) -> str:
    """A name that a data set or a folder may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip("._-")[:50] or "photographs"


def labelled(specs: Sequence[str]) -> list[dict[str, str]]:
    """Entries of ``variants.model``: each backbone under its short name."""
    return [{"backbone": spec, "label": name} for spec, name in zip(specs, backbone_names(specs), strict=True)]
