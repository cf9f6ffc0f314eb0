"""Content hashes of what lies outside a study: data sets and weights files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dinoskip.data import sets as datasets
from dinoskip.data.listing import fingerprint
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS, SEGMENTATION
from dinoskip.data.sets.voc import annotation_of
from dinoskip.io.files import MANIFEST, hash_of, read_manifest, sha256_file
from dinoskip.pipeline.stage import Use
from dinoskip.settings.specs import authors_positions, is_timm_folder, newest_checkpoint, split_spec


def _hash_files(root: Path, paths: Sequence[Path], seen: list[Path] | None) -> str:
    if seen is not None:
        seen.extend(paths)
    return fingerprint(root, [Path(os.path.relpath(path, root)).as_posix() for path in paths])


def images_hash(config: Any, use: Use, split: str, *, seen: list[Path] | None = None) -> str:
    """Hash of the images (names and contents) that a stage of this use reads of a split; ``seen`` gets their files."""
    if use == "pretraining":
        images = datasets.open_training_images(config, split=split)
        if seen is not None:
            seen.extend(images.files)
        return images.fingerprint()
    opened = open_labels(LABELS[use], config, split)
    return _hash_files(datasets.dataset_root(config), [opened.path(index) for index in range(len(opened))], seen)


def targets_hash(config: Any, use: Use, split: str, *, seen: list[Path] | None = None) -> str:
    """Hash of what images are measured against: ids, class names, and masks, boxes or class numbers."""
    label = LABELS[use]
    opened = open_labels(label, config, split)
    targets = label.values(opened)
    if targets is None:
        targets = _hash_files(datasets.dataset_root(config), opened.target_files, seen)
    # what labels of photographs that EXIF turns were taken for before is not said: keys of sets read so stay
    upright = ["upright"] if getattr(opened, "labels_upright", False) else []
    return hash_of([list(opened.ids), list(opened.class_names), targets, *upright])


def annotations_hash(config: Any, split: str, *, seen: list[Path] | None = None) -> str:
    """Hash of the boxes that the gallery may draw: the annotations that exist of a segmentation split."""
    opened = datasets.open_labels(SEGMENTATION, config, split)
    paths = [path for path in map(annotation_of, opened.image_paths) if path.is_file()]
    return _hash_files(datasets.dataset_root(config), paths, seen)


_SMALL_BRANCHES = re.compile(
    r"dinov[23]|deit3|beit|cait|xcit|convnext|davit|eva|poolformer|caformer|tiny_vit|metaformer"
)
"""Names of timm whose random networks may have a small LayerScale."""


def backbone_hash(spec: str, *, seen: list[Path] | None = None) -> str:
    """Hash of the weights behind a spec: its file or folder by content, a run by its newest checkpoint, else its name.

    Raises :class:`ConfigError` for a spec that is not understood.
    """
    kind, name, options = split_spec(spec)
    place = Path(options.get("file", name))
    if seen is not None and place.is_file():
        seen.append(place)
    if kind in {"weights", "dino", "file"} or "file" in options:
        facts = [*_otherwise(kind, name, options), *_asked(options), *_beside(kind, place)]
        digest = sha256_file(place) if place.is_file() else "missing"
        return hash_of([digest, *facts]) if facts else digest
    if kind == "run" and place.is_dir():
        asked, digest = _asked(options), read_manifest(newest_checkpoint(place)).hash
        return hash_of([digest, *asked]) if asked else digest
    if kind == "timm" and name.startswith("local-dir:"):
        kind, place = "hf", Path(name.removeprefix("local-dir:"))
    if kind == "hf" and place.is_dir():
        files = [[path.name, sha256_file(path)] for path in sorted(place.iterdir()) if path.is_file()]
        return hash_of([*files, *_asked(options)])
    if kind == "python" and (file := Path(name.rpartition(":")[0])).is_file():
        return hash_of([spec, sha256_file(file)])
    return hash_of([spec, *_otherwise(kind, name, options)] if _otherwise(kind, name, options) else spec)


_OF_FEATURES = ("act", "grid", "heads", "layers", "mean", "pos_embed", "prefix", "role", "std")


def _asked(options: Mapping[str, Any]) -> list[str]:
    """Options that change what is read of the same file; the teacher is what is taken unless the student is asked for.

    Nothing for a spec without such options, so its key stays.
    """
    return [
        f"{name} {options[name]}" for name in _OF_FEATURES
        if name in options and (name, options[name]) != ("role", "teacher")
    ]  # fmt: skip


def _beside(kind: str, place: Path) -> list[str]:
    """Hash of the description beside a weights file from elsewhere that says how it is read; none if there is none."""
    if kind != "file" or not is_timm_folder(place.parent, place.name):
        return []
    return [f"config {sha256_file(place.parent / 'config.json')}"]


def _otherwise(kind: str, name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the facts in which this version reads a spec otherwise than the one that published keys of it."""
    facts = []
    if "pos_embed" not in options and (rule := authors_positions(kind, name)) != "timm":
        facts.append(f"positions {rule}")
    if kind == "timm" and options.get("pretrained") is False and _SMALL_BRANCHES.search(name):
        facts.append("layer scale 1")
    return facts


def store_hash(path: Path, *, seen: list[Path] | None = None) -> str:
    """Hash of a feature store's files, as its manifest has it."""
    if seen is not None and path.is_dir():
        seen.append(path / MANIFEST)
    return read_manifest(path).hash if path.is_dir() else "missing"


HASHES: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "images": images_hash,
        "targets": targets_hash,
        "annotations": annotations_hash,
        "backbone": backbone_hash,
        "store": store_hash,
    }
)
"""Hashes that a node may ask for by name. With ``seen`` each adds the files that it read to that list."""
