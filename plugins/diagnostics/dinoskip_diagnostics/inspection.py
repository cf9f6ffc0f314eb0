"""Analysis of backbones on photographs (``dinoskip analyze --data``): rows, distortions, CKA, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.photographs import photographs_below
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.diagnostics import analyze_blocks, cka_between, distortions, quantised
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.diagnostics.quantization import bits_of, wnam
from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig, SkiplessInit
from dinoskip.models import Backbone
from dinoskip.models.attention_sites import attentions
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.runtime.console import Progress, log, table
from dinoskip.runtime.distributed import World
from dinoskip.settings.config import RawConfig, validate
from dinoskip_diagnostics.results import CkaPair, Inside, QuantisedScore
from eval.online import OnlineKnn, OnlineProbe
from eval.online.config import OnlineKnnConfig, OnlineProbeConfig
from visualize.figures import network_figures

CALIBRATION = 160
"""Images of a folder that fix the activations' ranges: 32,000 tokens at 224 pixels, as in paper 4."""
_INSIDE = (
    "attention_diagonal", "attention_entropy", "kappa_attention", "ln_kappa_tokens", "token_cosine", "effective_rank",
    "norm_ratio", "outlier_share",
    "kappa_sa", "kappa_sa_skip", "kappa_k", "kappa_weights", "kappa_weights_bound", "excess_kurtosis", "negentropy",
    "grad_query",
)  # fmt: skip


def fresh_backbones(name: str, depth: int, img_size: int, seed: int) -> dict[str, Backbone]:
    """Three fresh networks that differ in skips and initialisation alone, float64."""
    shape: dict[str, Any] = {"name": name, "depth": depth, "img_size": img_size}
    models = {
        "skip": ModelConfig(**shape),
        "skipless default": ModelConfig(**shape, skip=False),
        "skipless initialised": ModelConfig(**shape, skip=False, init=SkiplessInit()),
    }
    return {key: Backbone.from_model(build_model(config, seed).double(), key) for key, config in models.items()}


def refuse_without_attention(backbones: Mapping[str, Backbone]) -> None:
    """:class:`ConfigError` for a network that is read level by level and has no attention that is known."""
    for spec, backbone in backbones.items():
        if not backbone.num_heads and not attentions(backbone.model):
            raise ConfigError(f"analyze: {spec} has no attention that is known, by which blocks are analysed")


def photographs(folder: str, count: int) -> list[Path]:
    """Return at most ``count`` images of a folder, evenly spread; :class:`DataError` for one without images."""
    images = photographs_below(Path(folder))
    step = max(1, len(images) // count)
    return [images.path(index) for index in range(0, len(images), step)][:count]


def inputs_of(backbone: Backbone, paths: Sequence[Path], size: int) -> Tensor:
    """Return the input of a backbone for these images: the centre square of each, (B, 3, size, size)."""
    transform = Transform(mode="center_crop", size=size)
    side, _ = transform.padded_size(size, size, backbone.patch_size)
    pixels = [load_pixels(transform, path, backbone.patch_size) for path in paths]
    return Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)(pixels, side, side)


def inside(
    backbones: Mapping[str, Backbone], images: Mapping[str, Tensor], config: BlockAnalysisConfig | None = None
) -> Inside:
    """Rows of :func:`dinoskip.diagnostics.analyze_blocks`, the quantisation probe and CKA of all pairs.

    ``images`` (B, 3, H, W) for each backbone, of the same photographs. They calibrate the quantisation and
    are measured, so that what is seen is rounding, not clipping.
    """
    blocks: dict[str, dict[str, Any]] = {}
    sqnr: dict[str, dict[str, dict[str, float | None]]] = {}
    pairs: list[CkaPair] = []
    with Progress("analyze", len(backbones), "network") as progress:
        for name, backbone in backbones.items():
            inputs = images[name]
            try:
                blocks[name] = analyze_blocks(backbone, inputs, config).as_json()
                sites = distortions(backbone, inputs, inputs)
                sqnr[name] = {site.site: {str(b): _finite(v) for b, v in site.sqnr.items()} for site in sites}
            except ConfigError as error:
                log.warning("left out: %s", error)
            progress.advance()
    names = list(backbones)
    for index, left in enumerate(names):
        for right in names[index:]:
            try:
                matrix = cka_between(backbones[left], backbones[right], images[left])
            except ValueError as error:
                log.warning("no CKA: %s", error)
                continue
            pairs.append(CkaPair(left, right, [[_finite(v) for v in row] for row in matrix.tolist()]))
    return Inside(blocks, sqnr, pairs)


def knn_measure(folder: str, size: int) -> Any:
    """Top-1 of k-NN (k = 10) on the class token, of ``folder``/train and /val: at most 1,000 and 500 images.

    Raises :class:`DataError`.
    """
    train, val = (LabelledFolder.open(Path(folder) / part) for part in ("train", "val"))
    if train.class_names != val.class_names:
        raise DataError(f"{folder}: train and val have different classes")
    k = min(10, len(train))
    config = OnlineKnnConfig(dataset="images", size=size, k=(k,), train_images=1000, val_images=500)
    return OnlineKnn(train, val, config)


def probe_measure(data: str, size: int) -> Any:
    """mIoU of the quick linear probe of the last two blocks on ``KIND:DIR``: 200 images to fit, 100 to score.

    Raises :class:`ConfigError` for another spelling or a kind without label maps, :class:`DataError`.
    """
    kind, colon, root = data.partition(":")
    if not colon:
        raise ConfigError(f"--probe {data}: is not KIND:DIR", "write e.g. voc:VOCdevkit or ade20k:ADEChallengeData2016")
    config = validate(OneDataset, RawConfig({"dataset": {"kind": kind, "root": root}}, {"": "--probe"})).dataset
    train, val = (open_labels(SEGMENTATION, config, split) for split in ("train", "val"))
    return OnlineProbe(train, val, OnlineProbeConfig(dataset="images", size=size))


def quantised_scores(
    backbone: Backbone, measures: Sequence[Any], calibration: Tensor, precisions: Sequence[str]
) -> list[QuantisedScore]:
    """The headline of each of ``measures`` for the network as it is and in each of ``precisions``, in float32.

    ``calibration`` (B, 3, H, W), normalised, fixes the activations' ranges.
    """
    plain = quantised(backbone, None, None, calibration).to(backbone.device, torch.float32)
    here, rows = World(0, 1, backbone.device), []
    pairs = [(None, None), *map(bits_of, precisions)]
    with Progress(f"{backbone.spec} quantised", len(pairs) * len(measures), "scores") as progress:
        for weight, activation in pairs:
            network = quantised(plain, weight, activation, calibration)
            for measure in measures:
                with Progress.hidden():
                    value = measure(network, here).get(measure.score)
                rows.append(QuantisedScore(backbone.spec, wnam(weight, activation), measure.score, value))
                progress.advance()
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def draw(result: Inside, out: Path) -> list[Path]:
    """Figures of what :func:`inside` found, SVG, PDF and PNG, into ``out``; the files."""
    figures = network_figures(asdict(result), out)
    return [path for figure in figures for name, path in figure.files.items() if name != "dark"]


def inside_text(result: Inside, scores: Sequence[QuantisedScore]) -> str:
    """A table per network, SQNR by bits, and scores by bits."""
    lines: list[str] = []
    for name, analysis in result.inside.items():
        cells = [[_short(row[key]) for key in ("block", *_INSIDE)] for row in analysis["rows"]]
        lines += [f"{name}: inside, by block", table(cells, ("block", *_INSIDE), right=True), ""]
    for name, sites in result.sqnr.items():
        bits = list(next(iter(sites.values())))
        medians = [float(torch.tensor([site[b] or math.nan for site in sites.values()]).nanmedian()) for b in bits]
        shown = ", ".join(f"{b} bit {v:.1f} dB" for b, v in zip(bits, medians, strict=True))
        lines.append(f"{name}: median SQNR of activations: {shown}")
    bits = list(dict.fromkeys(score.quantised for score in scores))
    percent = {(score.name, score.measure, score.quantised): score.percent for score in scores}
    cells = [
        [*key, *(_short(percent[*key, label]) for label in bits)]
        for key in dict.fromkeys((score.name, score.measure) for score in scores)
    ]
    if cells:
        lines += ["", "scores in percent, weights and activations rounded", table(cells, ("network", "measure", *bits))]
    return "\n".join(lines).rstrip()


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
