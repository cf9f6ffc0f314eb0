"""The stage ``analyze``: weights of fresh and trained networks, signal propagation, and what is inside on photographs.

``dinoskip analyze`` shows the same on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.config import Config, RawConfig, settings_for_key, validate
from dinoskip.console import table
from dinoskip.diagnostics import SignalRow, block_activations, bundled_photos, signal_table, weight_spectrum
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.diagnostics.jacobian import evenly
from dinoskip.diagnostics.quantization import bits_of
from dinoskip.distributed import choose_device
from dinoskip.files import write_json
from dinoskip.init.build import ModelConfig, build_model
from dinoskip.init.report import report
from dinoskip.models import Backbone, load_backbone
from dinoskip.models.attention_factors import is_plain_attention
from dinoskip.models.build import ModelName
from dinoskip.pipeline.inputs import open_split
from dinoskip.pipeline.inspection import CALIBRATION, PRECISIONS, inputs_of, inside, quantised_scores
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import DataInputs, Problem, Stage, StudyNodes, Task, beyond_depth, not_multiples
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.pretrain import WEIGHTS, start_of
from dinoskip.pipeline.variants import Variant
from eval.online import OnlineKnn
from eval.online.config import OnlineKnnConfig


def _precision(label: str) -> str:
    bits_of(label)
    return label


class QuantiseConfig(OnlineKnnConfig):
    """k-NN on the CLS token of the trained networks with rounded weights and activations (docs/diagnostics.md)."""

    precisions: tuple[Annotated[str, AfterValidator(_precision)], ...] = Field(
        PRECISIONS,
        min_length=1,
        description="bits of weights and activations: W8A12, W16A8; A6 rounds activations alone",
    )


class AnalyzeSection(Config):
    """Fresh models at initialisation: conditioning per block, and signal propagation on bundled photographs."""

    model: ModelName = Field("vit_small_patch16", description="of the signal table's fresh networks")
    depth: int = Field(12, ge=1, description="their blocks")
    img_size: int = Field(224, ge=16, description="side in pixels of the photographs' centre crop")
    photos: int = Field(2, ge=1, le=4, description="bundled photographs that are looked at")
    spectrum: int | None = Field(
        None, ge=1, description="block of which all singular values of attention's Jacobian by its weights are given"
    )
    spectrum_tokens: int = Field(32, ge=1, description="tokens, evenly spaced in a photograph, at which they are taken")
    quantise: QuantiseConfig | None = Field(None, description="k-NN with rounded weights and activations; null: none")


_START = " start"  # of roles: weights with which a variant begins


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """The block must be there, the data set be known, and crops be whole patches."""
    section = study.section(AnalyzeSection)
    if section.spectrum is not None:
        yield from beyond_depth({"analyze.spectrum": [section.spectrum]}, variants)
    if section.quantise is not None:
        yield from not_multiples({"analyze.quantise.size": section.quantise.size}, variants)
        if section.quantise.dataset not in study.data:
            known, name = ", ".join(study.data) or "none", section.quantise.dataset
            yield "analyze.quantise.dataset", f"{name!r} is not one of the data sets under data: {known}"


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study."""
    fresh = {variant.name: settings_for_key(variant.model) for variant in nodes.variants if variant.model is not None}
    settings = {
        "seed": nodes.study.seed,
        "models": fresh,
        "signal": settings_for_key(nodes.section(AnalyzeSection)),
    }
    weights = {f"{one.variant.name} ep{one.epoch}": one.inputs["weights"] for one in nodes.models if one.inputs}
    begun = {
        f"{variant.name}{_START}": node for variant in nodes.variants for node in start_of(nodes, variant).values()
    }
    asked, images = nodes.section(AnalyzeSection).quantise, DataInputs()
    if asked is not None and weights:
        contents = [(what, "classes", split) for what in ("images", "targets") for split in asked.splits]
        images = data.of_dataset(nodes, asked.dataset, "train", *contents)
    nodes.add(STAGE, "", settings, inputs={**weights, **begun}, data=images)


def run(task: Task) -> None:
    """Write ``analysis.json``."""
    specs = {role: f"weights:{path / WEIGHTS}" for role, path in sorted(task.inputs.items()) if role != "data"}
    trained = {role: spec for role, spec in specs.items() if not role.endswith(_START)}
    section = validate(AnalyzeSection, RawConfig(dict(task.settings["signal"])))
    result = analysis(
        {
            name: specs.get(f"{name}{_START}") or validate(ModelConfig, RawConfig(dict(tree)))
            for name, tree in task.settings["models"].items()
        },
        trained,
        section,
        task.settings["seed"],
    )
    if section.quantise is not None:
        result["quantised"] = _quantised(task, section.quantise, trained)
    write_json(task.out / "analysis.json", result)


def _quantised(task: Task, config: QuantiseConfig, trained: Mapping[str, str]) -> list[dict[str, Any]]:
    """k-NN top-1 of every trained network as it is and rounded; training images fix the activations' ranges."""
    sets = [open_split(task, "classes", split) for split in config.splits] if trained else []
    rows: list[dict[str, Any]] = []
    for name, spec in trained.items():
        measure = OnlineKnn(sets[0], sets[1] if len(sets) > 1 else None, config)
        step = max(1, len(sets[0]) // CALIBRATION)
        paths = [sets[0].path(index) for index in range(0, len(sets[0]), step)][:CALIBRATION]
        backbone = load_backbone(spec, device=str(choose_device(task.device)))
        known = inputs_of(backbone, paths, config.size)
        rows += [{**row, "name": name} for row in quantised_scores(backbone, [measure], known, config.precisions)]
    return rows


_QUICK = BlockAnalysisConfig(kappa_images=1, kappa_heads=2, lanczos_steps=0)
_COLUMNS = ("kappa_vo", "vo_min", "vo_max", "logit_diagonal", "logit_spread", "kappa_q", "fc1_gain", "fc2_gain")


def analysis(
    fresh: Mapping[str, ModelConfig | str], trained: Mapping[str, str], signal: AnalyzeSection | None, seed: int
) -> dict[str, Any]:
    """``{"fresh": {name: rows}, "trained": {name: rows}, "photographs": ..., "spectrum": ..., "signal": rows}``.

    ``fresh`` models are initialised here, or are specs of those that were; ``trained`` are backbone specs. Their rows
    are those of :func:`dinoskip.init.report.report`. ``signal`` asks for signal propagation in three fresh networks,
    and for what :func:`dinoskip.pipeline.inspection.inside` finds in the trained networks (else the fresh ones) on two
    photographs, and for all singular values of one block's Jacobian there (:func:`weight_spectrum`), by network.
    All is JSON-able.
    """
    rows: list[SignalRow] = []
    if signal is not None:
        photos = bundled_photos(signal.photos, signal.img_size)
        rows = signal_table(photos, name=signal.model, depth=signal.depth, seed=seed)
    networks = {
        name: load_backbone(one) if isinstance(one, str) else Backbone.from_model(build_model(one, seed), name)
        for name, one in fresh.items()
    }
    loaded = {name: load_backbone(spec) for name, spec in trained.items()}
    shown = (loaded or networks) if signal is not None else {}
    images = {name: bundled_photos(2, int(shown[name].model.patch_embed.img_size[0])).float() for name in shown}
    return {
        "fresh": {name: _weights(backbone.model) for name, backbone in networks.items()},
        "trained": {name: _weights(backbone.model) for name, backbone in loaded.items()},
        "photographs": inside(shown, images, _QUICK),
        "spectrum": {name: _spectrum(shown[name], images[name][:1], signal) for name in shown} if signal else {},
        "signal": [asdict(row) for row in rows],
    }


def _spectrum(backbone: Backbone, image: Tensor, section: AnalyzeSection) -> list[float]:
    """Singular values of the Jacobian of a block's attention by its weights, falling; none where none are asked for."""
    if section.spectrum is None or section.spectrum > backbone.depth:
        return []
    with torch.no_grad():
        block = next(islice(block_activations(backbone, image), section.spectrum - 1, None))
    if block.attention is None or block.normed is None or not is_plain_attention(block.attention):
        return []
    tokens = evenly(block.normed[0], section.spectrum_tokens)
    return [float(f"{value:.6g}") for value in weight_spectrum(block.attention, tokens).tolist()]


def _weights(model: VisionTransformer) -> list[dict[str, Any]]:
    return [asdict(row) for row in report(model)]


def as_text(result: Mapping[str, Any]) -> str:
    """Both tables as aligned text."""
    lines: list[str] = []
    for state in ("fresh", "trained"):
        for name, rows in result[state].items():
            cells = [_weights_row(row) for row in rows]
            lines += [f"{name}, {state}: weights by block", table(cells, ("block", *_COLUMNS), right=True), ""]
    if result["signal"]:
        lines.append(signal_text(result["signal"], "signal propagation at initialisation"))
    return "\n".join(lines).rstrip()


def signal_text(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Rows of :class:`SignalRow` as a table; with the product of the skips' weights, where rows have one."""
    depth = len(rows[0]["token_cosine"])
    shown = sorted({1, min(3, depth), max(1, depth // 2), depth})
    header = ["network", *(f"cos b{b}" for b in shown), "cos final", *(f"rank b{b}" for b in shown), "rank final"]
    header += [f"q-grad b{b}" for b in shown] + ["product"] * ("product" in rows[0])
    return f"{title}\n{table([_signal_row(row, shown) for row in rows], header, right=True)}"


def _weights_row(row: Mapping[str, Any]) -> list[str]:
    return [str(row["block"]), *(_number(row[name]) for name in _COLUMNS)]


def _signal_row(row: Mapping[str, Any], shown: Sequence[int]) -> list[str]:
    cells = [str(row["name"]), *(f"{row['token_cosine'][b - 1]:.3f}" for b in shown), f"{row['final_cosine']:.3f}"]
    cells += [f"{row['effective_rank'][b - 1]:.1f}" for b in shown] + [f"{row['final_effective_rank']:.2f}"]
    cells += [f"{row['query_gradient'][b - 1]:.1e}" for b in shown]
    return cells + ([f"{row['product']:.2g}"] if "product" in row else [])


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"


STAGE = Stage("analyze", run, add_nodes, AnalyzeSection, place="analyze", check=check, version=6)
