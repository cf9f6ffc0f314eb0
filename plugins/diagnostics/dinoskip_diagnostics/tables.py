"""Tables of ``dinoskip analyze`` and the stage ``analyze``, as JSON and as text.

They describe fresh and trained networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.data import sets as datasets
from dinoskip.diagnostics import SignalRow, block_activations, bundled_photos, signal_table, weight_spectrum
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.diagnostics.jacobian import evenly
from dinoskip.diagnostics.label_free import label_free
from dinoskip.errors import ConfigError
from dinoskip.init.block_report import report
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.models import Backbone, load_backbone
from dinoskip.models.attention_sites import is_plain_attention
from dinoskip.models.traced import native_size
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.inputs import dataset_of, open_split
from dinoskip.runtime.console import log, table
from dinoskip.runtime.distributed import choose_device
from dinoskip.training.calibration import centre_crops, spread
from dinoskip_diagnostics.config import AnalyzeSection, LabelFreeConfig, QuantiseConfig
from dinoskip_diagnostics.inspection import CALIBRATION, inputs_of, inside, quantised_scores
from dinoskip_diagnostics.results import Analysis, QuantisedScore
from eval.online import OnlineKnn


def quantised(task: Task, config: QuantiseConfig, trained: Mapping[str, str]) -> list[QuantisedScore]:
    """k-NN top-1 of every trained network as it is and rounded; training images fix the activations' ranges."""
    sets = [open_split(task, "classes", split) for split in config.splits] if trained else []
    rows: list[QuantisedScore] = []
    for name, spec in trained.items():
        measure = OnlineKnn(sets[0], sets[1] if len(sets) > 1 else None, config)
        step = max(1, len(sets[0]) // CALIBRATION)
        paths = [sets[0].path(index) for index in range(0, len(sets[0]), step)][:CALIBRATION]
        backbone = load_backbone(spec, device=str(choose_device(task.device)))
        known = inputs_of(backbone, paths, config.size)
        rows += [replace(score, name=name) for score in quantised_scores(backbone, [measure], known, config.precisions)]
    return rows


def without_labels(task: Task, config: LabelFreeConfig, trained: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of :class:`dinoskip.diagnostics.label_free.LabelFreeRow` of every trained network, by its name."""
    config_of_data, root = dataset_of(task)
    images = datasets.open_training_images(config_of_data, root, split="train")
    crops = centre_crops(images, spread(len(images), config.images), config.size)
    device = str(choose_device(task.device))
    return {
        name: [asdict(row) for row in label_free(load_backbone(spec, device=device), crops)]
        for name, spec in trained.items()
    }


_QUICK = BlockAnalysisConfig(kappa_images=1, kappa_heads=2, lanczos_steps=0)
_COLUMNS = ("kappa_vo", "vo_min", "vo_max", "logit_diagonal", "logit_spread", "kappa_q", "fc1_gain", "fc2_gain")


def analysis(
    fresh: Mapping[str, ModelConfig | str], trained: Mapping[str, str], signal: AnalyzeSection | None, seed: int
) -> Analysis:
    """Weights by block; with ``signal``, what else it asks for.

    ``fresh`` models are initialised here, or are specs of those that were; ``trained`` are backbone specs. ``signal``
    asks for signal propagation in three fresh networks, and for what is inside the trained networks (else the fresh
    ones) on two photographs, and for all singular values of one block's Jacobian there (:func:`weight_spectrum`).
    """
    rows: list[SignalRow] = []
    if signal is not None:
        photos = bundled_photos(signal.photos, signal.img_size)
        rows = signal_table(photos, name=signal.model, depth=signal.depth, seed=seed)
    networks = {
        name: load_backbone(model) if isinstance(model, str) else Backbone.from_model(build_model(model, seed), name)
        for name, model in fresh.items()
    }
    loaded = {name: load_backbone(spec) for name, spec in trained.items()}
    shown = (loaded or networks) if signal is not None else {}
    images = {name: bundled_photos(2, native_size(shown[name])).float() for name in shown}
    return Analysis(
        fresh={name: _weights(backbone.model) for name, backbone in networks.items()},
        trained={name: _weights(backbone.model) for name, backbone in loaded.items()},
        photographs=inside(shown, images, _QUICK),
        spectrum={name: _spectrum(shown[name], images[name][:1], signal) for name in shown} if signal else {},
        signal=[asdict(row) for row in rows],
    )


def _spectrum(backbone: Backbone, image: Tensor, section: AnalyzeSection) -> list[float]:
    """Singular values of the Jacobian of a block's attention by its weights, falling; none where none are asked for."""
    if section.spectrum is None or section.spectrum > backbone.depth or not backbone.num_heads:
        return []
    with torch.no_grad():
        block = next(islice(block_activations(backbone, image), section.spectrum - 1, None))
    if block.attention is None or block.normed is None or not is_plain_attention(block.attention):
        return []
    tokens = evenly(block.normed[0], section.spectrum_tokens)
    return [float(f"{value:.6g}") for value in weight_spectrum(block.attention, tokens).tolist()]


def _weights(model: nn.Module) -> list[dict[str, Any]]:
    try:
        return [asdict(row) for row in report(model)]
    except ConfigError as error:  # q/k norms, no attention
        log.warning("no table of weights: %s", error)
        return []


def as_text(result: Analysis) -> str:
    """Write the tables of fresh and trained networks as aligned text."""
    lines: list[str] = []
    for state, networks in (("fresh", result.fresh), ("trained", result.trained)):
        for name, rows in networks.items():
            cells = [[str(row["block"]), *(_number(row[name]) for name in _COLUMNS)] for row in rows]
            lines += [f"{name}, {state}: weights by block", table(cells, ("block", *_COLUMNS), right=True), ""]
    if result.signal:
        rows_of_signal = [SignalRow(**row) for row in result.signal]
        lines.append(signal_text(rows_of_signal, "signal propagation at initialisation"))
    return "\n".join(lines).rstrip()


def signal_text(rows: Sequence[SignalRow], title: str, products: Sequence[float] = ()) -> str:
    """A table; with the products of the skips' weights, where they are given."""
    depth = len(rows[0].token_cosine)
    shown = sorted({1, min(3, depth), max(1, depth // 2), depth})
    header = ["network", *(f"cos b{b}" for b in shown), "cos final", *(f"rank b{b}" for b in shown), "rank final"]
    header += [f"q-grad b{b}" for b in shown] + ["product"] * bool(products)
    cells = [_signal_row(row, shown) for row in rows]
    for row, product in zip(cells, products, strict=False):
        row.append(f"{product:.2g}")
    return f"{title}\n{table(cells, header, right=True)}"


def _signal_row(row: SignalRow, shown: Sequence[int]) -> list[str]:
    cells = [row.name, *(f"{row.token_cosine[b - 1]:.3f}" for b in shown), f"{row.final_cosine:.3f}"]
    cells += [f"{row.effective_rank[b - 1]:.1f}" for b in shown] + [f"{row.final_effective_rank:.2f}"]
    return cells + [f"{row.query_gradient[b - 1]:.1e}" for b in shown]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"
