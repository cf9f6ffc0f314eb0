"""Parameter groups with and without weight decay; every trainable parameter is in exactly one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Weight decay acts on what has more than one dimension and is no bias (facebookresearch/dino).

    So ``pos_embed`` and ``cls_token`` are decayed, LayerNorm's scales are not.
    """
    return parameter.ndim > 1 and not name.endswith("bias")


def param_groups(model: nn.Module | NamedParameters) -> list[dict[str, Any]]:
    """Split the trainable parameters into a decayed and an undecayed group for a torch optimizer.

    Each group holds ``params``, their names as ``names`` (same order) and ``decayed``. Raises ValueError if
    nothing is trainable, or if a name or a tensor comes twice (its state could not be stored by name).
    """
    named = list(model.named_parameters(remove_duplicate=False) if isinstance(model, nn.Module) else model)
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if not trainable:
        raise ValueError("no trainable parameter")
    first: dict[int, str] = {}
    names: set[str] = set()
    for name, parameter in trainable:
        if id(parameter) in first:
            raise ValueError(f"{name} and {first[id(parameter)]} are the same parameter")
        if name in names:
            raise ValueError(f"{name}: two parameters of this name")
        first[id(parameter)] = name
        names.add(name)
    groups = []
    for decayed in (True, False):
        members = [(name, p) for name, p in trainable if is_decayed(name, p) == decayed]
        if members:
            groups.append({"params": [p for _, p in members], "names": [n for n, _ in members], "decayed": decayed})
    return groups


def split_groups(
    groups: list[dict[str, Any]], choose: Callable[[str, nn.Parameter], bool]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the groups of :func:`param_groups` into what ``choose`` takes and the rest, without empty groups."""
    chosen: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for group in groups:
        for wanted, into in ((True, chosen), (False, rest)):
            members = [
                (name, p) for name, p in zip(group["names"], group["params"], strict=True) if choose(name, p) == wanted
            ]
            if members:
                into.append({**group, "params": [p for _, p in members], "names": [name for name, _ in members]})
    return chosen, rest


def by_layer(groups: list[dict[str, Any]], decay: float) -> list[dict[str, Any]]:
    """Split the groups of :func:`param_groups` by layer, with ``lr_scale`` = decay^(layers above it).

    Layers are the embedding (patches, positions, tokens), the blocks, and all above them: the last norm and heads have
    the whole rate (facebookresearch/mae, util/lr_decay.py). With decay 1 the groups are as they were. ValueError if
    no parameter is a block's.
    """
    if decay == 1:
        return groups
    matches = [_BLOCK.search(name) for group in groups for name in group["names"]]
    blocks = [int(match[1]) for match in matches if match and match[1]]
    if not blocks:
        raise ValueError("layer_decay: no parameter belongs to a block")
    top, split = max(blocks) + 2, []
    for layer in range(top + 1):
        chosen, _ = split_groups(groups, lambda name, _, layer=layer: _layer(name, top) == layer)  # type: ignore[misc]
        split += [{**group, "lr_scale": decay ** (top - layer)} for group in chosen]
    return split


_BLOCK = re.compile(r"(?:^|\.)(?:blocks\.(\d+)\.|patch_embed\.|pos_embed$|cls_token$|reg_token$)")


def _layer(name: str, top: int) -> int:
    """0 for the embedding, 1 for the first block, ..., ``top`` for what is above the last."""
    part = _BLOCK.search(name)
    return top if part is None else int(part[1]) + 1 if part[1] else 0
