"""Every instrument on every block of one backbone and a few images: one row of numbers a block, JSON-able."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from dinoskip.diagnostics.activations import BlockActivations, as_tokens, block_activations, site_activations
from dinoskip.diagnostics.attention import attention_measures
from dinoskip.diagnostics.conditioning import drift, query_key_spectrum, query_key_trace, vo_condition
from dinoskip.diagnostics.gaussianity import Histogram, Moments, histogram, negentropy
from dinoskip.diagnostics.gradients import gradient_norms
from dinoskip.diagnostics.jacobian import evenly, input_jacobian, weight_jacobian
from dinoskip.diagnostics.tokens import log_condition, norm_outliers, rankme, stable_rank
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip.models.attention_sites import attentions, head_factors, is_plain_attention
from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.rank_collapse import effective_rank, token_cosine
from dinoskip.settings.config import Config


class BlockAnalysisConfig(Config):
    """Settings of the analysis: how many images, heads, steps and tokens are measured.

    The costly parts are the singular values of attention and of Jacobians.
    """

    kappa_images: int = Field(4, ge=1, description="images of which attention's and sub-blocks' κ is taken")
    kappa_heads: int = Field(3, ge=1, description="heads of which attention's κ is taken, evenly spaced")
    lanczos_steps: int = Field(24, ge=0, description="of the Jacobian by attention's input; 0 leaves it out")
    weight_tokens: int = Field(12, ge=0, description="tokens in the Jacobian by W_Q, W_K, W_V; 0 leaves it out")


@dataclass(frozen=True)
class BlockRow:
    """One block. κ are cut at 4.5e15; NaN stands for what the block does not have or was not asked for."""

    block: int
    """1..depth."""
    kappa_vo: float = math.nan
    """κ(W^V W^O), the full product over heads."""
    vo_drift: float = math.nan
    """‖W Wᵀ/g² - I‖₂ of W = W^V W^O: 0 for a scaled orthogonal one."""
    qk_trace: float = math.nan
    """tr(W^Q W^Kᵀ)/√dh, mean over heads."""
    qk_largest: float = math.nan
    """Largest singular value of W^Q W^Kᵀ, mean over heads."""
    kappa_qk: float = math.nan
    """Largest over dh-th singular value of W^Q W^Kᵀ, median over heads."""
    attention_diagonal: float = math.nan
    """Mean A_ii."""
    attention_entropy: float = math.nan
    """Row entropy / ln n."""
    attention_wins: float = math.nan
    """Share of rows whose largest entry is the diagonal."""
    kappa_attention: float = math.nan
    """Median κ(A) over the images and heads looked at."""
    ln_kappa_tokens: float = math.nan
    """Mean ln κ of an image's tokens before the block and its norm (paper 1, Fig. 4)."""
    ln_kappa_out: float = math.nan
    """Mean ln κ of an image's tokens after the block's attention, its skip included where there is one."""
    token_cosine: float = math.nan
    """Mean cosine of different tokens after norm1."""
    effective_rank: float = math.nan
    """Of an image's tokens after norm1."""
    stable_rank: float = math.nan
    """Of an image's tokens after norm1."""
    rankme: float = math.nan
    """Effective rank of the tokens of all images together, after norm1."""
    norm_ratio: float = math.nan
    """Largest over median norm of the block's output tokens."""
    outlier_share: float = math.nan
    """Share of output tokens above 3 × the median norm."""
    kappa_sa: float = math.nan
    """Median κ of attention's output, per image (n × C)."""
    kappa_sa_skip: float = math.nan
    """The same with the skip: SA(X) + X."""
    kappa_mlp: float = math.nan
    """Median κ of the MLP's output."""
    kappa_mlp_skip: float = math.nan
    """The same with the skip."""
    k_largest: float = math.nan
    """Largest singular value of K = ∂ attention / ∂ norm1's output, first image."""
    k_largest_error: float = math.nan
    """Its error."""
    k_smallest: float = math.nan
    """Smallest singular value of K; an upper bound unless the error is 0."""
    kappa_k: float = math.nan
    """κ(K); a lower bound unless the error is 0."""
    kappa_weights: float = math.nan
    """κ of ∂ head 1 / ∂ (W_Q, W_K, W_V) at evenly spaced tokens of the first image."""
    kappa_weights_bound: float = math.nan
    """Theorem 3.1's bound of it (paper 3)."""
    kappa_weights_ceiling: float = math.nan
    """Upper limit of it, never exceeded."""
    excess_kurtosis: float = math.nan
    """Of all values of the block's output."""
    channel_kurtosis: float = math.nan
    """Median over channels of the output's."""
    negentropy: float = math.nan
    """Of the output's values as one distribution, in nats."""
    grad_block: float = math.nan
    grad_query: float = math.nan
    grad_key: float = math.nan
    grad_value: float = math.nan
    grad_output: float = math.nan
    grad_fc1: float = math.nan
    grad_fc2: float = math.nan
    """Frobenius norms of ∂L/∂W, of all matrices and of each, L a cross-entropy of a random read-out."""
    rank_deficient: bool = False
    """Whether any κ of this row met the limit: a collapsed block."""


@dataclass(frozen=True)
class BlockAnalysis:
    """Rows of all blocks of one backbone, and three histograms."""

    rows: tuple[BlockRow, ...]
    histograms: dict[int, Histogram]
    """By block, of the outputs of the first, middle and last."""

    def as_json(self) -> dict[str, Any]:
        """The rows and histograms as JSON can hold them; NaN becomes None."""
        rows = [{key: _finite_or_none(value) for key, value in asdict(row).items()} for row in self.rows]
        return {"rows": rows, "histograms": {str(b): asdict(h) for b, h in self.histograms.items()}}


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def analyze_blocks(backbone: Backbone, images: Tensor, config: BlockAnalysisConfig | None = None) -> BlockAnalysis:
    """Measure every block. ``images`` (B, 3, H, W), normalised, B of 1 to about 16; one pass in the weights' dtype.

    Give float64 weights where gradients of 1e-15 should mean something. All measures are computed in float64.
    """
    config = config or BlockAnalysisConfig()
    images = images.to(backbone.device, backbone.dtype)
    if not backbone.num_heads:
        return _of_sites(backbone, images, config)
    gradients = gradient_norms(backbone, images)
    shown = sorted({1, (backbone.depth + 1) // 2, backbone.depth})
    rows, histograms = [], {}
    with torch.no_grad():
        for block in block_activations(backbone, images):
            row = _signals(BlockRow(block.number), block, config)
            row = _weights(row, block.attention)
            values: dict[str, Any] = dict(_jacobians(block, config))
            values |= {f"grad_{part}": norm for part, norm in gradients[block.number - 1].items()}
            rows.append(replace(row, **values))
            if block.number in shown:
                histograms[block.number] = histogram(block.output)
    return BlockAnalysis(tuple(rows), histograms)


@torch.no_grad()
def _of_sites(backbone: Backbone, images: Tensor, config: BlockAnalysisConfig) -> BlockAnalysis:
    """Analyse a network that is read level by level: a row for each attention with the MLP that follows it.

    Its tokens are those that attention is given; ln κ is of what enters the block around it, and its second norm.
    Raises :class:`ConfigError` where there is no attention.
    """
    model = backbone.model
    present = attentions(model)
    if not present:
        raise ConfigError(f"{backbone.spec}: blocks are analysed by their attention, and it has none that is known")
    holders = {site.name: site.name.rpartition(".")[0] for site in present}
    second = {name: _second_norm(model.get_submodule(holder), holder) for name, holder in holders.items()}
    sites, inputs = site_activations(model, images, [*holders.values(), *second.values()])
    rows, histograms = [], {}
    for attention, activations in zip(present, sites, strict=True):
        row = BlockRow(activations.number)
        row = row if activations.inputs.shape[1] < 2 else _signals(row, activations, config)
        row = _weights(row, activations.block)
        around = {"ln_kappa_tokens": holders[attention.name], "ln_kappa_out": second[attention.name]}
        kappas: dict[str, Any] = {key: _ln_kappa(inputs.get(name), config.kappa_images) for key, name in around.items()}
        rows.append(replace(row, **kappas))
        if activations.number in {1, (len(present) + 1) // 2, len(present)}:
            histograms[activations.number] = histogram(activations.output)
    return BlockAnalysis(tuple(rows), histograms)


def _second_norm(holder: nn.Module, name: str) -> str:
    """The norm that is given what attention leaves, its skip included; "" where there is none by a known name."""
    norm_name = next((norm for norm in ("norm3", "norm2") if hasattr(holder, norm)), "")  # XCiT's third comes second
    return ".".join(filter(None, (name, norm_name))) if norm_name else ""


def _ln_kappa(tokens: Tensor | None, images: int) -> float:
    return math.nan if tokens is None else log_condition(as_tokens(tokens[:images])).log_mean


def _weights(row: BlockRow, attention: nn.Module | None) -> BlockRow:
    if attention is None or not is_plain_attention(attention):
        return row
    _, _, value, output = head_factors(attention)
    condition, spectrum = vo_condition(attention), query_key_spectrum(attention)
    root = spectrum.shape[1] ** 0.5
    return replace(
        row,
        kappa_vo=float(condition.kappa),
        vo_drift=drift((value @ output).T),
        qk_trace=float(query_key_trace(attention).mean()) / root,
        qk_largest=float(spectrum[:, 0].mean()),
        # A smallest value of 0 gives a huge condition number instead of infinity, which JSON does not have.
        kappa_qk=float((spectrum[:, 0] / spectrum[:, -1].clamp_min(1e-300)).quantile(0.5)),
        rank_deficient=row.rank_deficient or bool(condition.rank_deficient),
    )


def _signals(row: BlockRow, activations: BlockActivations, config: BlockAnalysisConfig) -> BlockRow:
    count = config.kappa_images
    values: dict[str, Any] = {}
    tokens = log_condition(activations.inputs[:count])
    deficient = tokens.rank_deficient
    outputs = {"kappa_sa": activations.attended, "kappa_mlp": activations.mixed}
    middle = activations.middle  # None: where the skips begin is not known
    skips = {"kappa_sa": None if middle is None else activations.inputs, "kappa_mlp": middle}
    for name, output in outputs.items():
        if output is None:
            continue
        alone = log_condition(output[:count])
        values[name], deficient = alone.median, deficient or alone.rank_deficient
        if (skip := skips[name]) is not None:
            values[f"{name}_skip"] = log_condition((output + skip)[:count]).median
    if activations.middle is not None:
        values["ln_kappa_out"] = log_condition(activations.middle[:count]).log_mean
    measures = attention_measures(activations, images=count, heads=config.kappa_heads)
    if measures is not None:
        deficient |= measures.rank_deficient
        values |= {
            "attention_diagonal": measures.diagonal, "attention_entropy": measures.entropy,
            "attention_wins": measures.diagonal_wins, "kappa_attention": measures.kappa_median,
        }  # fmt: skip
    normed = activations.inputs if activations.normed is None else activations.normed
    ratio, share = norm_outliers(activations.output)
    channels = Moments.of(activations.output, per_channel=True).excess_kurtosis
    return replace(
        row, **values, ln_kappa_tokens=tokens.log_mean, token_cosine=token_cosine(normed),
        effective_rank=effective_rank(normed), stable_rank=stable_rank(normed), rankme=rankme(normed.flatten(0, 1)),
        norm_ratio=ratio, outlier_share=share, negentropy=negentropy(activations.output),
        excess_kurtosis=float(Moments.of(activations.output).excess_kurtosis),
        channel_kurtosis=float(channels.nanmedian()), rank_deficient=deficient,
    )  # fmt: skip


def _jacobians(activations: BlockActivations, config: BlockAnalysisConfig) -> dict[str, float]:
    attention = activations.attention
    values: dict[str, float] = {}
    if attention is None or activations.normed is None or isinstance(attention, EntmaxAttention):
        return {}
    first = activations.normed[0]
    if config.lanczos_steps:
        extremes = input_jacobian(attention, first, steps=config.lanczos_steps)
        values |= {
            "k_largest": extremes.largest, "k_largest_error": extremes.largest_error,
            "k_smallest": extremes.smallest, "kappa_k": extremes.kappa,
        }  # fmt: skip
    if config.weight_tokens and is_plain_attention(attention):
        jacobian = weight_jacobian(attention, evenly(first, config.weight_tokens))
        values |= {
            "kappa_weights": jacobian.kappa, "kappa_weights_bound": jacobian.bound,
            "kappa_weights_ceiling": jacobian.ceiling,
        }  # fmt: skip
    return values
