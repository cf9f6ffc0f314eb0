"""Content hashes of what lies outside a study: data sets and weights files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.files import hash_of, read_manifest, sha256_file


def fingerprint_dataset(config: Any, usage: str, split: str) -> str:
    """Hash of what a stage reads of a data set: names and contents (sizes alone for very large image folders)."""
    from dinoskip.data import datasets
    from dinoskip.data.folders import fingerprint

    if usage == "images":
        return datasets.open_images(config, split=split).fingerprint()
    if usage == "labels":
        labelled = datasets.open_labelled(config, split)
        return hash_of([labelled.fingerprint(), [int(label) for label in labelled.labels]])
    opened: Any = (datasets.open_segmentation if usage == "segmentation" else datasets.open_detection)(config, split)
    root = datasets.dataset_root(config)
    targets = opened.label_paths if usage == "segmentation" else opened.annotation_paths
    return fingerprint(root, [path.relative_to(root).as_posix() for path in (*opened.image_paths, *targets)])


def fingerprint_spec(spec: str) -> str:
    """Hash of the weights behind a backbone spec: the file's content, a run's newest checkpoint, or the name itself."""
    kind, _, rest = spec.partition(":")
    if kind in {"weights", "dino"}:
        return sha256_file(Path(rest)) if Path(rest).is_file() else "missing"
    if kind == "run" and Path(rest).is_dir():
        from dinoskip.models.export import newest_checkpoint

        return str(read_manifest(newest_checkpoint(Path(rest)))["hash"])
    return hash_of(spec)
