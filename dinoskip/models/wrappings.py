"""Checkpoint files of anyone: the tensors of the one ViT in them, whatever it is wrapped in.

Files hold containers in containers (``state_dict``, ``model``, ``teacher``, ``model_ema``, ...), and names start with
those of the modules around the network (``module.``, ``backbone.``, ``model.``, ``visual.``, ``_orig_mod.``, ...).
Neither is listed here: a ViT is found by its patch embedding, and what precedes its name is the wrapping. Tensors
only are read, no code of the file runs.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinoskip.errors import WeightsError
from dinoskip.files import load_tensors, load_torch_file

PATCH_EMBEDDINGS = (
    "patch_embed.proj.weight",  # timm, the DINO authors, MAE, iBOT, MoCo v3
    "conv1.weight",  # CLIP and OpenCLIP, beside class_embedding
    "embeddings.patch_embeddings.projection.weight",  # transformers
    "embeddings.patch_embeddings.weight",
    "embeddings.patch_embedding.weight",
)
TEACHERS = ("teacher", "ema", "momentum", "target")
"""What names of an averaged copy of the weights contain; it is taken unless the student is asked for."""
_DEEPEST = 4  # containers
_INERT = ("omegaconf.", "pytorch_lightning.", "lightning.", "lightning_fabric.", "numpy.", "pathlib.", "typing.")
_INERT_ALSO = ("argparse.Namespace", "collections.defaultdict", "collections.Counter", "builtins.int", "builtins.dict")


@dataclass(frozen=True)
class Tower:
    """One ViT of a file: its tensors without their common prefix, and what is around them.

    ``taken`` is the path of containers and the prefix, "" for a plain state_dict. ``outside`` are the names of the same
    container that lack the prefix.
    """

    tensors: dict[str, Tensor]
    taken: str = ""
    outside: tuple[str, ...] = ()


class _Inert:
    """Stands for an object of a settings library in a checkpoint: whatever it is made of is dropped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def read_content(path: Path, *, shapes_only: bool = False) -> Any:
    """What a ``.safetensors`` or torch file holds. Raises :class:`WeightsError` for files that are neither.

    Settings and numbers beside the weights (Namespace, OmegaConf, Lightning, numpy) are passed over. With
    ``shapes_only``, the tensors of a torch file have no values (:func:`dinoskip.files.load_torch_file`).
    """
    if path.suffix == ".safetensors":
        return load_tensors(path)
    with torch.serialization.safe_globals([argparse.Namespace, *_stand_ins(path)]):
        return load_torch_file(path, shapes_only=shapes_only)


def _stand_ins(path: Path) -> list[Any]:
    """Empty classes under the names of harmless ones that the file mentions; none for what is no new torch file."""
    try:
        if not zipfile.is_zipfile(path):
            return []
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # said by the reader that comes next
        return []
    harmless = [name for name in named if name.startswith(_INERT) or name in _INERT_ALSO]
    return [(type("Inert", (_Inert,), {}), name) for name in harmless]


def _containers(content: Any, trail: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every mapping in ``content`` with tensors in it, by the path of its keys."""
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if tensors:
        yield trail, tensors
    for name, value in content.items():
        yield from _containers(value, f"{trail}{name}/", depth + 1)


def _towers(content: Any) -> Iterator[Tower]:
    for trail, tensors in _containers(content):
        prefixes = [
            name.removesuffix(patch)
            for name in tensors
            for patch in PATCH_EMBEDDINGS
            if name == patch or name.endswith(f".{patch}")
        ]
        for prefix in prefixes:
            clip = f"{prefix}conv1.weight" in tensors
            if clip and f"{prefix}class_embedding" not in tensors:  # of a convolutional network
                continue
            inside = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            outside = tuple(name for name in tensors if not name.startswith(prefix))
            yield Tower(inside, f"{trail}{prefix}", outside)


def _is_teacher(tower: Tower) -> bool:
    return any(word in tower.taken.lower() for word in TEACHERS)


def find_tower(content: Any, path: Path, role: str | None = None, prefix: str | None = None) -> Tower:
    """The ViT in what a file holds.

    Of several the one under ``prefix`` (as :attr:`Tower.taken` says it), else the averaged copy, else with ``role``
    "student" the other one. Raises :class:`WeightsError` where there is none, or more than one is left.
    """
    towers = list(_towers(content))
    if not towers:
        held = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise WeightsError(
            f"{path}: no ViT in it: no {PATCH_EMBEDDINGS[0]} or its like, under any prefix; it holds: {held}"
        )
    if prefix is not None:
        chosen = [tower for tower in towers if tower.taken == prefix]
    elif role == "student":
        chosen = [tower for tower in towers if not _is_teacher(tower)] or towers
    else:
        chosen = [tower for tower in towers if _is_teacher(tower)] or towers
    if len(chosen) != 1:
        names = ", ".join(tower.taken or "(no prefix)" for tower in towers)
        raise WeightsError(f"{path}: {len(towers)} ViTs in it: {names}", f"say which: {path},prefix={towers[0].taken}")
    return chosen[0]


def read_tower(path: Path, role: str | None = None, prefix: str | None = None) -> Tower:
    """Read a file and return the ViT in it that :func:`find_tower` chooses."""
    return find_tower(read_content(path), path, role, prefix)
