"""Weight selection (Xu et al., Initializing Models with Larger Ones, 2024): a small ViT starts as part of a larger."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, assign


def weight_selection_(student: nn.Module, teacher: nn.Module) -> nn.Module:
    """Fill ``student`` with a selection of ``teacher``'s weights, in place; returns the student.

    Every parameter but the classifier's (``head.*``, left as it is) comes from the teacher's of the same name, so the
    student takes the teacher's first blocks. From each dimension of n entries the student's m are picked evenly:
    0, n/m, 2n/m, ... where m divides n, else round(i·(n-1)/(m-1)). The fused qkv weight is one matrix of 3D rows; the
    rule never takes a row of one of the three parts for another. Nothing is rescaled and nothing is random.

    Raises :class:`ConfigError` if either is not a timm VisionTransformer, if the student is deeper or wider anywhere,
    if it has skip connections and the teacher has not, if one has parts (LayerScale, q/k norm, registers) that the
    other lacks, or if patch size or number of positions differ, since every second pixel or position is no smaller
    version of the whole.
    """
    assign(student, weight_selection_tensors(student, teacher))
    return student


def weight_selection_tensors(student: nn.Module, teacher: nn.Module) -> Assignments:
    """Yield name and value of each parameter that :func:`weight_selection_` assigns."""
    for role, model in (("student", student), ("teacher", teacher)):
        if not isinstance(model, VisionTransformer):
            raise ConfigError(f"weight_selection_: the {role} is a {type(model).__name__}, not a VisionTransformer")
    if _has_all_skips(student) and not _has_all_skips(teacher):
        raise ConfigError("weight_selection_: the teacher has no skip connections, the student has", "use skip=false")
    of_teacher = _selectable(teacher)
    of_student = _selectable(student)
    depth = len(student.blocks)  # type: ignore[arg-type]
    if depth > len(teacher.blocks):  # type: ignore[arg-type]
        raise ConfigError(f"weight_selection_: the student's {depth} blocks are more than the teacher's")
    later = tuple(f"blocks.{index}." for index in range(depth, len(teacher.blocks)))  # type: ignore[arg-type]
    odd = sorted(set(of_student) ^ {name for name in of_teacher if not name.startswith(later)})
    if odd:
        holder = "student" if odd[0] in of_student else "teacher"
        raise ConfigError(f"weight_selection_: only the {holder} has {odd[0]}", "use models of the same parts")
    for name, target in of_student.items():
        _check_shape(name, tuple(target.shape), tuple(of_teacher[name].shape))
    for name, target in of_student.items():
        yield name, select_uniformly(of_teacher[name].detach().double().cpu(), tuple(target.shape))


def select_uniformly(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Evenly spaced entries of ``weight`` along every dimension, ``shape`` of them; no entry of shape may be larger."""
    for dimension, (have, want) in enumerate(zip(weight.shape, shape, strict=True)):
        if have == want:
            continue
        if have % want == 0:
            index = torch.arange(want) * (have // want)
        else:
            index = torch.linspace(0, have - 1, want, dtype=torch.float64).round().long()
        weight = weight.index_select(dimension, index)
    return weight


def _has_all_skips(model: nn.Module) -> bool:
    blocks: Any = model.blocks
    return all(all(getattr(block, "skip_weights", (1.0, 1.0))) for block in blocks)


def _selectable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if not name.startswith("head.")}


def _check_shape(name: str, small: tuple[int, ...], large: tuple[int, ...]) -> None:
    fixed = {"patch_embed.proj.weight": slice(1, None), "pos_embed": slice(0, 2)}.get(name)
    if fixed is not None and small[fixed] != large[fixed]:
        raise ConfigError(f"weight_selection_: {name} is {small} in the student and {large} in the teacher",
                          "patch size and image size must be the same")  # fmt: skip
    if len(small) != len(large) or any(s > t for s, t in zip(small, large, strict=True)):
        raise ConfigError(f"weight_selection_: {name} {small} is larger than the teacher's {large}")
