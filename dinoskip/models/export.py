"""Weights files: safetensors with timm's parameter names, and in the header what model they are for.

The header's metadata has one entry, ``dinoskip``, a JSON object {"format": 1, "model": VitConfig, "info": {...}};
``info`` holds epoch, step, role, seed, initialisation, optimizer and whatever else the writer knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import WeightsError
from dinoskip.io.files import (
    canonical_json,
    load_tensors,
    read_tensor_header,
    save_tensors,
    verify_beside_manifest,
)
from dinoskip.models.build import from_config
from dinoskip.settings.config import dump
from dinoskip.settings.specs import FORMAT, METADATA_KEY, declared_weights
from dinoskip.settings.vit_config import VitConfig

PREFIXES = ("module.", "_orig_mod.", "backbone.")
_FIRST = "blocks.0."
T = TypeVar("T")


def strip_prefixes(state: Mapping[str, T], where: str | Path) -> dict[str, T]:
    """Remove the wrappers' prefixes (DataParallel, torch.compile, DINO's multi-crop) from the *start* of each name.

    Raises :class:`WeightsError` when two names become the same.
    """
    stripped: dict[str, T] = {}
    for name, tensor in state.items():
        short = name
        while short.startswith(PREFIXES):
            short = short[len(next(prefix for prefix in PREFIXES if short.startswith(prefix))) :]
        if short in stripped:
            raise WeightsError(f"{where}: two tensors are both called {short} once {', '.join(PREFIXES)} are removed")
        stripped[short] = tensor
    return stripped


def listed(names: Iterable[str], label: str) -> list[str]:
    """``N LABEL (a, b, c, d, ...)`` as a list of one; empty for no names."""
    ordered = sorted(names)
    if not ordered:
        return []
    shown = ", ".join(ordered[:4]) + (", ..." if len(ordered) > 4 else "")
    return [f"{len(ordered)} {label} ({shown})"]


Shape = Sequence[int]


def check_shapes(expected: Mapping[str, Shape], given: Mapping[str, Shape], where: str | Path) -> None:
    """:class:`WeightsError` with counts and names unless ``given`` has the names and shapes of ``expected``."""
    common = expected.keys() & given.keys()
    misshapen = {
        f"{name} {tuple(given[name])} for {tuple(expected[name])}"
        for name in common
        if tuple(given[name]) != tuple(expected[name])
    }
    problems = [
        *listed(expected.keys() - given.keys(), "missing"),
        *listed(given.keys() - expected.keys(), "not in the model"),
        *listed(misshapen, "of another shape"),
    ]
    if problems:
        fitting = len(common) - len(misshapen)
        raise WeightsError(f"{where}: the weights do not fit: {fitting} of {len(expected)} do; {'; '.join(problems)}")


def check_fit(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str | Path) -> None:
    """:class:`WeightsError` with counts and names unless ``state`` has just the tensors of ``expected``, all finite."""
    check_shapes(
        {name: tensor.shape for name, tensor in expected.items()},
        {name: tensor.shape for name, tensor in state.items()},
        where,
    )
    broken = [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if broken:
        raise WeightsError(f"{where}: not finite: {'; '.join(listed(broken, 'tensors'))}")


def check_network(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str | Path) -> None:
    """:func:`check_fit`, and :class:`WeightsError` where every tensor of a whole network is 0, or weights are integers.

    A part may be 0 or have no tensor at all: heads start at 0, and a network of one objective may have no head.
    """
    check_fit(expected, state, where)
    floats = [name for name, tensor in expected.items() if tensor.is_floating_point()]
    whole = [name for name in floats if not (state[name].is_floating_point() or state[name].is_complex())]
    if whole:  # without their scale they are no weights, and cast to 8 bits most small ones are 0
        raise WeightsError(
            f"{where}: integers where weights are expected: {'; '.join(listed(whole, 'tensors'))}",
            "a quantised network has scales beside them: export it in float16 or float32",
        )
    if not any(tensor.any() for tensor in state.values()):
        raise WeightsError(f"{where}: every weight is 0", "the file was made but not filled: write it again")


def load_strict(model: nn.Module, state: Mapping[str, Tensor], where: str | Path) -> None:
    """Load every tensor of ``state`` into a whole network; :class:`WeightsError` as :func:`check_network` raises it."""
    check_network(model.state_dict(), state, where)
    model.load_state_dict(dict(state), strict=True)


def save_weights(path: str | Path, state: Mapping[str, Tensor], config: VitConfig, info: Mapping[str, Any]) -> None:
    """Write a weights file atomically: canonical names, shapes and dtypes as given, the configuration in the header.

    A subclass of :class:`VitConfig` may be given; only the fields that fix the model are stored. Skips that change in
    training are stored with their first weight. ``info`` must be JSON-able.
    Raises :class:`DiskFull` or :class:`ConfigError` when the file cannot be written.
    """
    first = config.first
    model = VitConfig(**{name: getattr(first, name) for name in VitConfig.model_fields})
    header = canonical_json({"format": FORMAT, "model": dump(model), "info": dict(info)})
    save_tensors(Path(path), strip_prefixes(state, path), {METADATA_KEY: header})


def _read_header(path: Path) -> tuple[VitConfig, dict[str, Any]]:
    """Return the model and info that a weights file declares, after comparing its tensors with that model."""
    config, info, header = declared_weights(path)
    check_shapes(model_shapes(config), strip_prefixes(header.shapes, path), path)
    return config, info


def model_shapes(config: VitConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model by name, from one block of it, without building the whole."""
    if config.timm_name is not None:
        with torch.device("meta"):
            return {name: tuple(tensor.shape) for name, tensor in from_config(config).state_dict().items()}
    with torch.device("meta"):
        small = from_config(config.model_copy(update={"depth": 1}), weight_init="skip").state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in small.items()}
    block = {name.removeprefix(_FIRST): shape for name, shape in shapes.items() if name.startswith(_FIRST)}
    outside = {name: shape for name, shape in shapes.items() if not name.startswith(_FIRST)}
    depth = range(config.blocks)
    return outside | {f"blocks.{index}.{name}": shape for index in depth for name, shape in block.items()}


def refuse_skipless_weights(path: Path, what: str) -> None:
    """:class:`WeightsError` if a file is one of ours for a network that lacks skips, which ``what`` has.

    Its tensors would fit, and compute something else.
    """
    if path.suffix != ".safetensors" or METADATA_KEY not in read_tensor_header(path).metadata:
        return
    config, _ = _read_header(path)
    if not config.has_all_skips or config.attention != "softmax":
        lacking = f"attention={config.attention}" if config.has_all_skips else "skip_weight"
        lacking = lacking if config.skip is True else f"skip={config.skip}"
        raise WeightsError(
            f"{path}: weights of a network with {lacking.lower()}, and {what} has all skip connections",
            f"load it as weights:{path}",
        )


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], VitConfig, dict[str, Any]]:
    """Read a weights file: tensors (on the CPU), model configuration, info.

    A file that a ``MANIFEST.json`` beside it names is compared with it. Raises :class:`WeightsError`.
    """
    path = Path(path)
    config, info = _read_header(path)
    problem = verify_beside_manifest(path)
    if problem is not None:
        raise WeightsError(problem, "take another checkpoint, or copy the file again")
    return strip_prefixes(load_tensors(path), path), config, info


def build_from_weights(path: str | Path) -> tuple[VisionTransformer, dict[str, Any]]:
    """Rebuild the model of a weights file, in eval mode on the CPU; :class:`WeightsError` unless every tensor fits."""
    state, config, info = load_weights(path)
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    model = from_config(config, weight_init="skip").to(dtype)
    load_strict(model, state, path)
    return model.eval(), info


@torch.no_grad()
def hash_weights(state: Mapping[str, Tensor]) -> str:
    """Hex sha256 over names, dtypes, shapes and bytes of the tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
