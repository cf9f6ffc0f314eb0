"""Networks that are read level by level: CNNs, hierarchical transformers, any module of the user's.

A level is a place in the network whose output is a map (B, C, h, w). Each has a stride, in pixels a cell, and a width
C of its own; levels are numbered 1.. in the order in which the network computes them, as blocks are. Strides and widths
are read off a forward pass of a picture of zeros, never taken from a table.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError, did_you_mean, first_line
from dinoskip.models.adapter import timm_statistics

MOST_PREFIX_TOKENS = 16
"""Tokens before the patches (class token, registers) that a sequence of tokens may have to be taken for a map."""


@dataclass(frozen=True)
class Level:
    """A level's name in the network, its stride in pixels a cell, and its channels."""

    name: str
    stride: int
    width: int


@dataclass(frozen=True)
class LevelMap:
    """Features of a level: ``tokens`` (B, h·w, C) in raster order, ``cls`` (B, C) or None, ``grid`` (h, w)."""

    tokens: Tensor
    cls: Tensor | None
    grid: tuple[int, int]


class LevelReader(ABC):
    """A network, its levels, and how their maps are had in one forward pass."""

    model: Any
    levels: tuple[Level, ...]
    has_class_token: bool = False

    def __init__(self, model: nn.Module, spec: str) -> None:
        self.model, self.spec = model, spec

    @property
    def multiple(self) -> int:
        """Number of pixels that sides of images must be a multiple of, so that every level has whole cells."""
        return math.lcm(*(level.stride for level in self.levels))

    @abstractmethod
    def read(self, images: Tensor, indices: Sequence[int]) -> dict[int, LevelMap]:
        """Maps of levels ``indices``, counted from 0, of images (B, 3, H, W)."""

    def image_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """Image mean and standard deviation, where the network carries them."""
        return timm_statistics(self.model)


class TimmLevels(LevelReader):
    """Any network of timm that has ``forward_intermediates``: its feature levels by timm's own rule."""

    def __init__(self, model: nn.Module, spec: str, size: int) -> None:
        super().__init__(model, spec)
        self.model.eval()
        gives_prefix = "return_prefix_tokens" in inspect.signature(self.model.forward_intermediates).parameters
        self.has_class_token = gives_prefix and getattr(model, "cls_token", None) is not None
        with torch.no_grad():
            maps = self._pass(next(model.parameters()).new_zeros(1, 3, size, size), None)
        names = [str(entry["module"]) for entry in self.model.feature_info]
        said = [int(entry.get("reduction") or 1) for entry in self.model.feature_info]
        strides = [  # where the picture ends within a cell timm says the stride
            reduction if size % reduction and grid == (math.ceil(size / reduction),) * 2
            else stride_of(spec, name, (size, size), grid)
            for name, reduction, (_, grid) in zip(names, said, maps, strict=True)
        ]  # fmt: skip
        widths = [features.shape[-1] for features, _ in maps]
        self.has_class_token = self.has_class_token and all(features.shape[1] > h * w for features, (h, w) in maps)
        self.levels = tuple(map(Level, names, strides, widths))

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether timm gives this network's levels."""
        return hasattr(model, "forward_intermediates") and bool(getattr(model, "feature_info", None))

    def _pass(self, images: Tensor, indices: list[int] | None) -> list[tuple[Tensor, tuple[int, int]]]:
        """Class token, where there is one, and map of each level as tokens (B, p + h·w, C), and its grid."""
        prefix = {"return_prefix_tokens": True} if self.has_class_token else {}
        passed = self.model.forward_intermediates(
            images, indices=indices, norm=False, output_fmt="NCHW", intermediates_only=True, **prefix
        )
        maps: list[tuple[Tensor, tuple[int, int]]] = []
        for entry in passed:
            features, before = entry if isinstance(entry, tuple) else (entry, None)
            tokens = features.flatten(2).transpose(1, 2)
            whole = tokens if before is None else torch.cat((before[:, :1], tokens), 1)
            maps.append((whole, (int(features.shape[2]), int(features.shape[3]))))
        return maps

    def read(self, images: Tensor, indices: Sequence[int]) -> dict[int, LevelMap]:
        prefix = int(self.has_class_token)
        maps = zip(indices, self._pass(images, list(indices)), strict=True)
        return {i: LevelMap(all_[:, prefix:], all_[:, 0] if prefix else None, grid) for i, (all_, grid) in maps}


@dataclass(frozen=True)
class _Layout:
    """Layout of a module's output that is a map."""

    kind: str  # NCHW, NHWC or tokens
    prefix: int  # tokens before the patches
    stride: int
    width: int

    def read(self, output: Tensor, height: int, width: int) -> LevelMap:
        grid = (height // self.stride, width // self.stride)
        if self.kind == "tokens":
            return LevelMap(output[:, self.prefix :], output[:, 0] if self.prefix else None, grid)
        channels_last = output if self.kind == "NHWC" else output.permute(0, 2, 3, 1)
        return LevelMap(channels_last.flatten(1, 2), None, (channels_last.shape[1], channels_last.shape[2]))


class HookedLevels(LevelReader):
    """Any module: its levels are outputs of the submodules ``layers``, seen by hooks that are gone after the pass.

    An output may be a map (B, C, h, w) or (B, h, w, C), or tokens (B, p + h·w, C) with p class and register tokens
    before those of the patches; of a tuple the first entry counts. Without ``layers`` they are chosen by
    :func:`usual_layers`. Raises :class:`ConfigError` for names that are not in the network or give no map.
    """

    def __init__(self, model: nn.Module, spec: str, layers: Sequence[str] | None = None, size: int = 224) -> None:
        super().__init__(model, spec)
        self.model.eval()
        layouts = map_layouts(model, spec, size)
        names = list(layers) if layers is not None else usual_layers(model, layouts)
        modules = dict(model.named_modules())
        for name in names:
            if name not in modules:
                raise ConfigError(
                    f"{spec}: it has no layer {name!r}",
                    did_you_mean(name, modules) or f"`dinoskip models layers {spec}` lists them",
                )
            if name not in layouts:
                raise ConfigError(
                    f"{spec}: the output of layer {name!r} is no map of the image",
                    f"`dinoskip models layers {spec}` lists those that are",
                )
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"{spec}: {'layers are named twice' if names else 'no layer gives a map of the image'}")
        self.layouts = [layouts[name] for name in names]
        self.modules = [modules[name] for name in names]
        self.has_class_token = all(layout.prefix > 0 for layout in self.layouts)
        self.levels = tuple(
            Level(name, layout.stride, layout.width) for name, layout in zip(names, self.layouts, strict=True)
        )

    def read(self, images: Tensor, indices: Sequence[int]) -> dict[int, LevelMap]:
        wanted = {i: self.modules[i] for i in indices}
        outputs = outputs_of(self.model, wanted, images)
        height, width = images.shape[-2:]
        maps = {i: self.layouts[i].read(outputs[i], height, width) for i in indices}
        if not self.has_class_token:
            maps = {i: LevelMap(level.tokens, None, level.grid) for i, level in maps.items()}
        return maps


def outputs_of(model: nn.Module, modules: Mapping[Any, nn.Module], images: Tensor) -> dict[Any, Tensor]:
    """The first tensor that each of ``modules`` returns in a forward pass of images (B, 3, H, W), by its key.

    Of a module that is called several times, the last. The hooks are removed, whatever happens. Modules that return no
    tensor, or are not called, are left out.
    """
    return inputs_and_outputs_of(model, modules, images)[1]


def inputs_and_outputs_of(
    model: nn.Module, modules: Mapping[Any, nn.Module], images: Tensor
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Return the first tensors that ``modules`` are given and those that they return, of one pass of ``model``."""
    inputs_of: dict[Any, Tensor] = {}
    outputs_by_key: dict[Any, Tensor] = {}

    def keep(key: Any) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensors, value in ((inputs_of, inputs), (outputs_by_key, output)):
                if (tensor := _first_tensor(value)) is not None:
                    tensors.pop(key, None)  # order is that of the last call
                    tensors[key] = tensor

        return hook

    with ExitStack() as hooks, torch.no_grad():
        for key, module in modules.items():
            hooks.callback(module.register_forward_hook(keep(key)).remove)
        model(images)
    return inputs_of, outputs_by_key


def map_layouts(model: nn.Module, spec: str, size: int = 224) -> dict[str, _Layout]:
    """Return the layout of every submodule's output that is a map of the image, by name, in the order of computation.

    They are read off a pass of zeros of ``size`` × 2 ``size`` pixels, ``size`` × ``size`` if the network takes only
    squares.
    Raises :class:`ConfigError` for a network that takes neither.
    """
    modules = dict(model.named_modules())
    weight = next(model.parameters(), torch.zeros(()))
    failure: Exception | None = None
    for height, width in ((size, 2 * size), (size, size)):
        try:
            zeros = torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype)
            outputs = outputs_of(model, modules, zeros)
        except Exception as error:  # of the user's module any kind
            failure = error
            continue
        layouts = {name: layout_of(tuple(output.shape), height, width) for name, output in outputs.items()}
        return {name: layout for name, layout in layouts.items() if layout is not None}
    assert failure is not None
    reason = first_line(failure)
    raise ConfigError(
        f"{spec}: it does not take an image of {size}×{size} pixels: {reason}", "give image_size=PIXELS that it takes"
    )


def layout_of(shape: tuple[int, ...], height: int, width: int) -> _Layout | None:
    """Return the layout of a map of this shape, computed from one image of these sides; None if the shape is no map.

    A map has the same whole number of pixels a cell on both sides, and more than one cell. Channels first are tried
    before channels last; tokens have the fewest before the patches that fit, at most ``MOST_PREFIX_TOKENS``.
    """
    if len(shape) == 4:
        for kind, (rows, columns, channels) in (
            ("NCHW", (shape[2], shape[3], shape[1])),
            ("NHWC", (shape[1], shape[2], shape[3])),
        ):
            stride = height // rows if rows else 0
            if rows * columns > 1 and (rows * stride, columns * stride) == (height, width):
                return _Layout(kind, 0, stride, channels)
    if len(shape) == 3:
        for stride in range(1, math.gcd(height, width) + 1):
            if height % stride or width % stride:
                continue
            prefix = shape[1] - (height // stride) * (width // stride)
            if 0 <= prefix <= MOST_PREFIX_TOKENS and shape[1] - prefix > 1 and shape[2] > 1:
                return _Layout("tokens", prefix, stride, shape[2])
    return None


def usual_layers(model: nn.Module, layouts: Mapping[str, _Layout]) -> list[str]:
    """The layers that stand for a network where none are named.

    Of a network that halves its map on the way, the last of the outermost modules of every stride. Of one whose maps
    are all alike (plain transformers, ConvMixer), the members of its longest list of modules that give such maps.
    """
    by_stride: dict[int, str] = {}
    for name, layout in layouts.items():
        before = by_stride.get(layout.stride)
        if name and (before is None or name.count(".") <= before.count(".")):  # the network itself has no name
            by_stride.pop(layout.stride, None)
            by_stride[layout.stride] = name
    if len(by_stride) > 2 or len({layouts[name].width for name in by_stride.values()}) > 1:
        return list(by_stride.values())
    lists = [
        [f"{name}.{child}" if name else child for child, _ in module.named_children()]
        for name, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList)
    ]
    alike = [names for names in lists if len({layouts.get(name) for name in names}) == 1 and names[0] in layouts]
    return max(alike, key=len, default=list(by_stride.values()))


def stride_of(spec: str, name: str, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """Pixels a cell; :class:`ConfigError` where that is no whole number, the same on both sides."""
    stride = size[0] // grid[0]
    if (grid[0] * stride, grid[1] * stride) != size:
        raise ConfigError(
            f"{spec}: its level {name} has {grid[0]}×{grid[1]} cells of {size[0]}×{size[1]} pixels, not a whole number "
            "of pixels each"
        )
    return stride


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output:
        return _first_tensor(output[0])
    if hasattr(output, "to_tuple"):  # of transformers
        return _first_tensor(output.to_tuple())
    return None
