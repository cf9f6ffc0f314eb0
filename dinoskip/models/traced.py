"""A backbone as one file that runs without our code: every block's features, by torch.export or as ONNX.

Input ``images``: float32 (B, 3, S, S), normalised; any B, the S that it was traced for, by default the network's own:
positions are resized while tracing, so that another size is another file. Outputs, for blocks n from 1:
``block{n}_tokens`` (B, (S / patch)², C) and, where the network has a CLS token, ``block{n}_cls`` (B, C).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.io.files import atomic_path
from dinoskip.models.backbone import Backbone, Norm
from dinoskip.runtime.randomness import torch_rng

TOLERANCE = 1e-4  # of the largest feature, between a program and the network that it was made of
METADATA = "dinoskip"
_TRACED, _CHECKED = 2, 3  # images; the batch must not be fixed


class EveryBlock(nn.Module):
    """A backbone's forward pass: images (B, 3, S, S) to the features of every block under a norm, in one tuple."""

    def __init__(self, backbone: Backbone, norm: Norm) -> None:
        super().__init__()
        self.model = backbone.model
        self._layers, self._blocks, self._norm = backbone.layers, range(1, backbone.depth + 1), norm
        kinds = ("tokens", "cls") if backbone.has_class_token else ("tokens",)
        self.outputs = [f"block{number}_{kind}" for number in self._blocks for kind in kinds]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Tensors in the order of ``outputs``."""
        layers = self._layers(images, self._blocks, norm=self._norm)
        return tuple(part for layer in layers.values() for part in (layer.tokens, layer.cls) if part is not None)


def native_size(backbone: Backbone) -> int:
    """Side of the images whose positions the network has itself; 224 where it does not say."""
    embedding = getattr(getattr(backbone.model, "patch_embed", None), "img_size", None)
    size = embedding or getattr(getattr(backbone.model, "config", None), "image_size", None) or 224
    side = int(size[0] if isinstance(size, tuple | list) else size)
    return max(1, side // backbone.patch_size) * backbone.patch_size


def describe(backbone: Backbone, size: int, norm: Norm) -> dict[str, Any]:
    """Return the facts that a user of the file must know, which it carries in its metadata."""
    return {
        "spec": backbone.spec, "weights_sha256": backbone.weights_hash, "image_size": size, "norm": norm,
        "patch_size": backbone.patch_size, "mean": list(backbone.mean), "std": list(backbone.std),
    }  # fmt: skip


def _images(backbone: Backbone, count: int, size: int) -> Tensor:
    """Noise, the same every time."""
    return torch.randn(count, 3, size, size, generator=torch_rng(0, "traced", backbone.spec))


def _export(backbone: Backbone, size: int, norm: Norm) -> tuple[EveryBlock, Any]:
    if size <= 0 or size % backbone.patch_size:
        raise ConfigError(f"size {size} is not a multiple of the patch size {backbone.patch_size}")
    module = EveryBlock(backbone, norm).eval()
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        images = _images(backbone, _TRACED, size)
        return module, torch.export.export(module, (images,), dynamic_shapes={"images": {0: batch}})


@torch.no_grad()
def _check(backbone: Backbone, module: EveryBlock, size: int, run: Callable[[Tensor], Sequence[Tensor]]) -> float:
    """The largest difference to the backbone on other images, as a share of its largest feature."""
    images = _images(backbone, _CHECKED, size)
    expected = module(images)
    scale = max(float(tensor.abs().max()) for tensor in expected)
    worst = max(float((a - b).abs().max()) for a, b in zip(expected, run(images), strict=True))
    if not worst <= TOLERANCE * scale:
        raise WeightsError(f"{backbone.spec}: the program's features differ by {worst:.2g}, of at most {scale:.2g}")
    return worst / scale


def save_program(path: Path, backbone: Backbone, *, size: int | None = None, norm: Norm = "none") -> float:
    """Write ``torch.export``'s program (``.pt2``), run it, and return how far its features are from the backbone's.

    ``torch.export.load(path).module()(images)`` gives the tuple of outputs. Raises :class:`ConfigError` for a size that
    is not whole patches, :class:`WeightsError` if the features differ by more than :data:`TOLERANCE`.
    """
    size = size or native_size(backbone)
    module, program = _export(backbone, size, norm)
    about = {**describe(backbone, size, norm), "outputs": module.outputs}
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={METADATA: json.dumps(about)})
        loaded = torch.export.load(temporary.open("rb")).module()
        return _check(backbone, module, size, loaded)


def _name_batch(graph: Any) -> None:
    """Call the number of images ``batch``, which the exporter calls by a number, wherever it stands."""
    symbolic = graph.inputs[0].shape[0]
    for value in [*graph.inputs, *(out for node in graph for out in node.outputs)]:
        for place, side in enumerate(value.shape or ()):
            if side == symbolic:
                value.shape[place] = "batch"


def _onnxruntime(path: Path) -> Any:
    """The package, once all that the export needs is there."""
    try:  # an extra
        return [importlib.import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise ConfigError(f"{path}: needs the package {error.name}", "pip install 'dinoskip[onnx]'") from error


def save_onnx(path: Path, backbone: Backbone, *, size: int | None = None, norm: Norm = "none") -> float:
    """Write ONNX, run it by onnxruntime on the CPU, and return how far its features are from the backbone's.

    Weights are inside the file. Raises as :func:`save_program`, and :class:`ConfigError` where the extra is missing.
    """
    runtime, size = _onnxruntime(path), size or native_size(backbone)
    with atomic_path(path) as temporary:
        module, program = _export(backbone, size, norm)
        exported: Any = torch.onnx.export(
            program, (), input_names=["images"], output_names=module.outputs, dynamo=True, verbose=False
        )
        _name_batch(exported.model.graph)
        exported.model.metadata_props[METADATA] = json.dumps(describe(backbone, size, norm))
        exported.save(str(temporary))
        session = runtime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        return _check(
            backbone,
            module,
            size,
            lambda images: [torch.from_numpy(array) for array in session.run(None, {"images": images.numpy()})],
        )
