"""A cheap look inside while a network trains: every N steps, on the same two images, one row of ``diagnostics.jsonl``.

Attention entropy and diagonal, condition numbers, token cosine, kurtosis, negentropy and histograms come from one
forward pass of two images;
gradient norms are of the step's own gradients, before clipping. Nothing that training uses is changed: no random number
is drawn, modes are put back, no gradient is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from dinoskip.diagnostics.activations import BlockActivations, block_activations, site_activations
from dinoskip.diagnostics.attention import attention_tensors, measures_of
from dinoskip.diagnostics.gaussianity import Moments, densities_of, negentropy_on_device, standardised
from dinoskip.diagnostics.gradients import PARTS, part_norms
from dinoskip.diagnostics.jacobian import LIMIT, evenly, jacobian_of, scaled_factors
from dinoskip.diagnostics.signal import as_input
from dinoskip.errors import DataError
from dinoskip.models.attention_sites import attentions, is_plain_attention
from dinoskip.models.rank_collapse import token_cosine_on_device

COUNT = 2  # each costs a forward pass at every look, in the middle of a training
TOKENS = 12
"""Of the first image, in the Jacobian by W_Q, W_K, W_V."""
_TRIED = 20  # images: a set that begins with more bad ones than that is refused, not read through
_KAPPAS = ("kappa_sa", "kappa_attention", "kappa_weights", "kappa_weights_bound", "kappa_weights_ceiling")
Row = dict[str, list[float]]


class ImageReader(Protocol):
    """Source of the two images."""

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""

    def __len__(self) -> int: ...


class LiveDiagnostics:
    """Looks at a training network. The images are the first two of the set that can be read: the same in every session.

    ``size`` is their side in pixels. Nothing is read before the first look.
    """

    def __init__(self, images: ImageReader, size: int) -> None:
        self._images, self._size = images, size
        self._pixels: Tensor | None = None

    def _inputs(self, parameter: Tensor) -> Tensor:
        if self._pixels is None:
            pixels = []
            for index in range(min(len(self._images), _TRIED)):
                try:
                    pixels.append(as_input(self._images.read(index), self._size))
                except DataError:  # training itself tells of images that cannot be read
                    continue
                if len(pixels) == COUNT:
                    break
            if not pixels:
                raise DataError(f"none of the first {_TRIED} images can be read")
            self._pixels = torch.stack(pixels)
        return self._pixels.to(parameter.device, parameter.dtype, non_blocking=True)

    @torch.no_grad()
    def signals(self, backbone: nn.Module) -> Row:
        """``entropy``, ``diagonal``, ``token_cosine``, ``kurtosis``, ``negentropy``, and those κ of head 1 and the
        first image that :class:`dinoskip.diagnostics.BlockRow` has, too: a list over blocks each; and the densities of
        :class:`dinoskip.diagnostics.gaussianity.Histogram` as ``histogram_1`` of block 1, of the middle and the last.

        Of a network that is no plain ViT a block is an attention with its MLP, and what takes attention apart is left
        out.
        """
        modes = [(module, module.training) for module in backbone.modules()]
        parameter = next(backbone.parameters())
        backbone.eval()
        try:
            looked = [_tensors(block) for block in _blocks_of(backbone, self._inputs(parameter))]
        finally:
            for module, mode in modes:
                module.training = mode
        return _row_of(looked)


def is_known(backbone: nn.Module) -> bool:
    """Whether there is something in a network to look at: blocks, or attention that is known."""
    return _is_vit(backbone) or bool(attentions(backbone))


def _is_vit(backbone: nn.Module) -> bool:
    return isinstance(backbone, VisionTransformer) and all(isinstance(block, Block) for block in backbone.blocks)


def _blocks_of(backbone: nn.Module, images: Tensor) -> Iterable[BlockActivations]:
    if _is_vit(backbone):
        return block_activations(backbone, images)  # type: ignore[arg-type]
    compiled = any(module._compiled_call_impl is not None for module in backbone.modules())
    # inside a compiled block no hook is called
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        return [site for site in site_activations(backbone, images)[0] if site.inputs.shape[1] > 1]


def _tensors(block: BlockActivations) -> dict[str, list[Tensor]]:
    """Return the tensors from which a block's values are computed, on its device; nothing waits for them."""
    tensors = {
        "collapse": [token_cosine_on_device(block.inputs if block.normed is None else block.normed)],
        "kurtosis": [Moments.of(block.output).excess_kurtosis],
        "negentropy": [negentropy_on_device(block.output)],
        "values": [standardised(block.output)],
    }
    if block.attended is not None:
        tensors["attended"] = [block.attended[0]]  # its singular values on the host: on a GPU each block would wait
    attention = attention_tensors(block, images=1, heads=1)
    if attention is not None:
        tensors["attention"] = list(attention)
    if block.attention is not None and block.normed is not None and is_plain_attention(block.attention):
        tensors["jacobian"] = [evenly(block.normed[0], TOKENS), *scaled_factors(block.attention)]
    return tensors


def _row_of(looked: Sequence[dict[str, list[Tensor]]]) -> Row:
    """The lists over blocks, from one copy to the host."""
    shown = {1, (len(looked) + 1) // 2, len(looked)}
    for number, block in enumerate(looked, 1):
        if number not in shown:
            del block["values"]
    host = iter(_on_host([tensor for block in looked for part in block.values() for tensor in part]))
    row: Row = {name: [] for name in ("entropy", "diagonal", "token_cosine", "kurtosis", "negentropy", *_KAPPAS)}
    for number, block in enumerate(looked, 1):
        part = {name: [next(host) for _ in tensors] for name, tensors in block.items()}
        row["token_cosine"].append(float(part["collapse"][0]))
        row["kurtosis"].append(float(part["kurtosis"][0]))
        row["negentropy"].append(float(part["negentropy"][0]))
        if "values" in part:
            row[f"histogram_{number}"] = [float(f"{density:.4g}") for density in densities_of(part["values"][0])]
        if "attended" in part:
            row["kappa_sa"].append(_kappa(torch.linalg.svdvals(part["attended"][0].double())))
        if "attention" in part:
            measures = measures_of(*part["attention"])
            row["entropy"].append(measures.entropy)
            row["diagonal"].append(measures.diagonal)
            row["kappa_attention"].append(measures.kappa_median)
        if "jacobian" in part:
            jacobian = jacobian_of(*part["jacobian"])
            row["kappa_weights"].append(jacobian.kappa)
            row["kappa_weights_bound"].append(jacobian.bound)
            row["kappa_weights_ceiling"].append(jacobian.ceiling)
    return {name: values for name, values in row.items() if values}


def _kappa(values: Tensor) -> float:
    """Largest over smallest of singular values, falling, cut as all κ are."""
    largest, smallest = float(values[0]), float(values[-1])
    return LIMIT if largest >= smallest * LIMIT else largest / smallest


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, those of a GPU as float64 and by one copy."""
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    packed = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).cpu()
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def gradient_rows(backbone: nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> Row:
    """``grad_query`` ... ``grad_fc2``, a list over blocks each; ``of`` gives a parameter's whole gradient."""
    if _is_vit(backbone):
        blocks: Sequence[dict[str, Tensor]] = [part_norms(block, of) for block in backbone.blocks]  # type: ignore[union-attr]
    else:
        blocks = _norms_of_sites(backbone, of)
    parts = [part for part in PARTS if blocks and all(part in block for block in blocks)]
    if not parts:
        return {}
    norms = torch.stack([torch.stack([block[part] for block in blocks]) for part in parts]).tolist()
    return {f"grad_{part}": values for part, values in zip(parts, norms, strict=True)}


def _norms_of_sites(backbone: nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> list[dict[str, Tensor]]:
    """Norms of the gradients of each attention's four matrices."""
    named, norms = dict(backbone.named_parameters()), []
    for site in attentions(backbone):
        factors = {"query": site.query, "key": site.key, "value": site.value, "output": site.output}
        whole = {name: of(named[name]) for name in {factor.name for factor in factors.values()}}
        given = {name: gradient.detach() for name, gradient in whole.items() if gradient is not None}
        norms.append({part: f.read(given).norm() for part, f in factors.items() if f.name in given})
    return norms
