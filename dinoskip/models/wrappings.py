"""Checkpoint files of anyone: the tensors of the one network in them, whatever it is wrapped in.

Files hold containers in containers (``state_dict``, ``model``, ``teacher``, ``model_ema``, ...), and names start with
those of the modules around the network (``module.``, ``backbone.``, ``model.``, ``visual.``, ...). Neither is listed
here: a ViT is found by its patch embedding, any other network by names that it must have, and what precedes them is the
wrapping. What torch puts between the parts of a name (``_orig_mod``, ...) is left out first. Tensors only are read, no
code of the file runs.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinoskip.errors import WeightsError
from dinoskip.io.files import is_zip, load_tensors, load_torch_file

PATCH_EMBEDDINGS = (
    "patch_embed.proj.weight",  # timm, the DINO authors, MAE, iBOT, MoCo v3
    "conv1.weight",  # CLIP and OpenCLIP, beside class_embedding
    "embeddings.patch_embeddings.projection.weight",  # transformers
    "embeddings.patch_embeddings.weight",
    "embeddings.patch_embedding.weight",
)
TEACHERS = ("teacher", "ema", "momentum", "target", "encoder_k")
"""Parts of the names of an averaged copy of the weights, which is taken unless the student is asked for. MoCo calls it
encoder_k."""
OPTIMIZER = {"optimizer", "optimizer_states", "optim", "exp_avg", "exp_avg_sq", "momentum_buffer"}
"""Containers of moments of gradients, which may have the names of a network's tensors and are none."""
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_fpw_module")
"""Parts of names that torch.compile, FSDP, activation checkpointing, Lightning and FairScale put anywhere in them."""
_WRAPPER = re.compile(rf"(?<![^./])(?:{'|'.join(WRAPPERS)})\.")
_INNER_MODULE = re.compile(r"(?<=[^./]\.)module\.")  # of DataParallel around a part of the network
_UNREAD = (
    (
        re.compile(r"(^|\.)lora_(A|B|a|b|down|up|embedding_A)(\.|$)"),
        "LoRA adapters, beside their base or without it; what they add depends on settings that no tensor tells",
        "merge them first, with peft: model.merge_and_unload(), and save that state_dict",
    ),
    (
        re.compile(r"(^|\.)blocks\.\d+\.residual1\.fn\.q_proj\."),
        "CAPI's ViT, whose rotary positions and residuals no network here computes",
        "clone facebookresearch/capi and return its model from a function: python:FILE.py:FUNCTION",
    ),
    (
        re.compile(r"(^|\.)_?flat_param(_\d+)?$"),
        "flattened parameters of FSDP, one rank's part of the weights",
        "save a full state_dict: StateDictType.FULL_STATE_DICT, or torch.distributed.checkpoint.state_dict",
    ),
)
"""Names of what is known and not read: what it is, and what to do."""
HEADS = re.compile(
    r"(head|heads|fc|classifier|classification_head|head_dist|projection_head|proj_head|projector|predictor|mlp_head"
    r"|prototypes?|queue\w*|aux\w*|AuxLogits)(\.|$)"
)
"""Parts beside a network's own, of which no feature depends: classifiers, and heads of self-supervised training."""
BATCHES = "num_batches_tracked"
"""Count of the batches a BatchNorm has seen, which files of old versions lack and frozen networks do not use."""
_SHARE = 0.5  # of a network's names that tensors under one prefix must have to be taken for it
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


def found_under(taken: str) -> str:
    """``; found under model_ema/module.``, the end of what is said of a file; "" for a plain state_dict."""
    return f"; found under {taken}" if taken else ""


class NotInFile(WeightsError):
    """A file that does not hold what is looked for, under any prefix."""


class _Inert:
    """Stands for an object of a settings library in a checkpoint: whatever it is made of is dropped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def read_content(path: Path, *, shapes_only: bool = False) -> Any:
    """Return the content of a ``.safetensors`` or torch file. Raises :class:`WeightsError` for files that are neither.

    Settings and numbers beside the weights (Namespace, OmegaConf, Lightning, numpy) are passed over. With
    ``shapes_only``, the tensors of a torch file have no values (:func:`dinoskip.io.files.load_torch_file`).
    """
    if path.suffix == ".safetensors":
        return load_tensors(path)
    with torch.serialization.safe_globals([argparse.Namespace, *_stand_ins(path)]):
        return load_torch_file(path, shapes_only=shapes_only)


def _stand_ins(path: Path) -> list[Any]:
    """Empty classes under the names of harmless ones that the file mentions; none for what is no new torch file."""
    try:
        if not is_zip(path):
            return []
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # said by the reader that comes next
        return []
    harmless = [name for name in named if name.startswith(_INERT) or name in _INERT_ALSO]
    return [(type("Inert", (_Inert,), {}), name) for name in harmless]


def unwrapped(name: str) -> str:
    """A tensor's name, or a path of containers and a prefix, without what ``WRAPPERS`` names, wherever it stands."""
    return _WRAPPER.sub("", name)


def _unwrapped_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under names without wrappers; under their own where two would be called the same."""
    short = {unwrapped(name): tensor for name, tensor in tensors.items()}
    return short if len(short) == len(tensors) else tensors


def _containers(content: Any, trail: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every mapping in ``content`` with tensors in it, under names without wrappers, by the path of its keys.

    Those of :data:`OPTIMIZER` are passed over.
    """
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if tensors:
        yield trail, _unwrapped_names(tensors)
    for name, value in content.items():
        if name in OPTIMIZER:
            continue
        yield from _containers(value, f"{trail}{name}/", depth + 1)


def refuse_unread(content: Any, path: Path) -> None:
    """:class:`WeightsError` that says what a file holds, and what to do, where it is known and cannot be read."""
    for _, tensors in _containers(content):
        for pattern, what, advice in _UNREAD:
            if any(map(pattern.search, tensors)):
                raise WeightsError(f"{path}: {what}", advice)


def _below(trail: str, prefix: str, tensors: dict[str, Tensor], *, modules: bool = False) -> Tower:
    """Return the tensors under a prefix, without ``module`` in names unless the network itself has it (``modules``)."""
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not modules:
        inside = {_INNER_MODULE.sub("", name): tensor for name, tensor in inside.items()}
    return Tower(inside, f"{trail}{prefix}", tuple(name for name in tensors if not name.startswith(prefix)))


_Containers = Sequence[tuple[str, dict[str, Tensor]]]


def _towers(containers: _Containers, anchors: Collection[str]) -> Iterator[Tower]:
    for trail, tensors in containers:
        prefixes = [
            name.removesuffix(anchor)
            for name in tensors
            for anchor in anchors
            if name == anchor or name.endswith(f".{anchor}")
        ]
        for prefix in dict.fromkeys(prefixes):
            clip = f"{prefix}conv1.weight" in tensors and f"{prefix}patch_embed.proj.weight" not in tensors
            if "conv1.weight" in anchors and clip and f"{prefix}class_embedding" not in tensors:
                continue  # of a convolutional network
            yield _below(trail, prefix, tensors)


def _without_inner_modules(containers: _Containers) -> _Containers:
    """The containers with ``module`` left out within names."""
    return [
        (trail, {_INNER_MODULE.sub("", name): tensor for name, tensor in tensors.items()})
        for trail, tensors in containers
    ]


def _is_teacher(tower: Tower) -> bool:
    return any(word in tower.taken.lower() for word in TEACHERS)


def _chosen(towers: Sequence[Tower], path: Path, what: str, role: str | None, prefix: str | None) -> Tower:
    """The tower that is asked for; :class:`WeightsError` unless it is one."""
    if prefix is not None:
        chosen = [tower for tower in towers if tower.taken == unwrapped(prefix)]
    elif role == "student":
        chosen = [tower for tower in towers if not _is_teacher(tower)] or list(towers)
    else:
        chosen = [tower for tower in towers if _is_teacher(tower)] or list(towers)
    if len(chosen) != 1:
        names = ", ".join(tower.taken or "(no prefix)" for tower in towers)
        raise WeightsError(
            f"{path}: {len(towers)} {what} in it: {names}", f"say which: {path},prefix={towers[0].taken}"
        )
    return chosen[0]


def held(content: Any) -> str:
    """The first names in what a file holds, or what it is where it holds none."""
    return ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__


def find_tower(
    content: Any,
    path: Path,
    role: str | None = None,
    prefix: str | None = None,
    anchors: Collection[str] = PATCH_EMBEDDINGS,
) -> Tower:
    """The ViT in what a file holds, or the network that has one of ``anchors``, ends of names of tensors.

    Of several the one under ``prefix`` (as :attr:`Tower.taken` says it), else the averaged copy, else with ``role``
    "student" the other one. Raises :class:`WeightsError` where there is none, or more than one is left.
    """
    what = "ViT" if anchors is PATCH_EMBEDDINGS else "network"
    containers = list(_containers(content))
    towers = list(_towers(containers, anchors)) or list(_towers(_without_inner_modules(containers), anchors))
    if not towers:
        raise NotInFile(
            f"{path}: no {what} in it: no {next(iter(anchors))} or its like, under any prefix; "
            f"it holds: {held(content)}",
            "name its architecture: timm:NAME,file=FILE or tv:NAME,file=FILE",
        )
    return _chosen(towers, path, f"{what}s", role, prefix)


def find_network(
    content: Any, expected: Collection[str], path: Path, role: str | None = None, prefix: str | None = None
) -> Tower | None:
    """The network that has tensors of the ``expected`` names in what a file holds, in any wrapping; None for none.

    At least half of the names must be there under one prefix. Which of several copies: as :func:`find_tower`.
    """
    containers, modules = list(_containers(content)), any(map(_INNER_MODULE.search, expected))
    for searched in (containers, _without_inner_modules(containers)):
        towers = [
            _below(trail, start, tensors, modules=modules)
            for trail, tensors in searched
            for start, count in _prefixes(tensors, expected).items()
            if count >= _SHARE * len(expected)
        ]
        if towers:
            return _chosen(towers, path, "such networks", role, prefix)
    return None


def _prefixes(tensors: Collection[str], expected: Collection[str]) -> Counter[str]:
    """Count the ``expected`` names below each prefix."""
    found: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in expected:
                found["".join(f"{part}." for part in parts[:cut])] += 1
    return found


def without_heads(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], left_out: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """``tensors`` without heads that a network does not have (``HEADS`` and names that begin as ``left_out`` says).

    ``expected`` are the network's own, whose counts of batches are added where they lack.
    """
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if name in expected or not (HEADS.match(name) or name.startswith(left_out))
    }
    counts = {name: tensor for name, tensor in expected.items() if name.endswith(f".{BATCHES}") and name not in kept}
    return kept | counts


def read_tower(path: Path, role: str | None = None, prefix: str | None = None) -> Tower:
    """Read a file and return the ViT in it that :func:`find_tower` chooses."""
    content = read_content(path)
    refuse_unread(content, path)
    return find_tower(content, path, role, prefix)
