"""The stage ``analyze``: weights of fresh and trained networks, signal propagation, and what is inside on photographs.

``dinoskip analyze`` shows the same on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import Field
from timm.models.vision_transformer import VisionTransformer

from dinoskip.config import Config, RawConfig, settings_for_key, validate
from dinoskip.console import table
from dinoskip.diagnostics import SignalRow, bundled_photos, signal_table
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.files import write_json
from dinoskip.init.build import ModelConfig, build_model
from dinoskip.init.report import report
from dinoskip.models import Backbone, load_backbone
from dinoskip.models.build import ModelName
from dinoskip.pipeline.inspection import inside
from dinoskip.pipeline.stage import Stage, StudyNodes, Task
from dinoskip.pipeline.stages.pretrain import WEIGHTS, start_of


class AnalyzeSection(Config):
    """Fresh models at initialisation: conditioning per block, and signal propagation on bundled photographs."""

    model: ModelName = Field("vit_small_patch16", description="of the signal table's fresh networks")
    depth: int = Field(12, ge=1, description="their blocks")
    img_size: int = Field(224, ge=16, description="side in pixels of the photographs' centre crop")
    photos: int = Field(2, ge=1, le=4, description="bundled photographs that are looked at")


_START = " start"  # of roles: weights with which a variant begins


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
    nodes.add(STAGE, "", settings, inputs={**weights, **begun})


def run(task: Task) -> None:
    """Write ``analysis.json``."""
    specs = {role: f"weights:{path / WEIGHTS}" for role, path in sorted(task.inputs.items())}
    result = analysis(
        {
            name: specs.get(f"{name}{_START}") or validate(ModelConfig, RawConfig(dict(tree)))
            for name, tree in task.settings["models"].items()
        },
        {role: spec for role, spec in specs.items() if not role.endswith(_START)},
        validate(AnalyzeSection, RawConfig(dict(task.settings["signal"]))),
        task.settings["seed"],
    )
    write_json(task.out / "analysis.json", result)


_QUICK = BlockAnalysisConfig(kappa_images=1, kappa_heads=2, lanczos_steps=0)
_COLUMNS = ("kappa_vo", "vo_min", "vo_max", "logit_diagonal", "logit_spread", "kappa_q", "fc1_gain", "fc2_gain")


def analysis(
    fresh: Mapping[str, ModelConfig | str], trained: Mapping[str, str], signal: AnalyzeSection | None, seed: int
) -> dict[str, Any]:
    """``{"fresh": {name: rows}, "trained": {name: rows}, "photographs": ..., "signal": rows}``, JSON-able.

    ``fresh`` models are initialised here, or are specs of those that were; ``trained`` are backbone specs. Their rows
    are those of :func:`dinoskip.init.report.report`. ``signal`` asks for signal propagation in three fresh networks,
    and for what :func:`dinoskip.pipeline.inspection.inside` finds in the trained networks (else the fresh ones) on two
    photographs.
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
        "signal": [asdict(row) for row in rows],
    }


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
        depth = len(result["signal"][0]["token_cosine"])
        shown = sorted({1, min(3, depth), max(1, depth // 2), depth})
        header = ["network", *(f"cos b{b}" for b in shown), "cos final", *(f"rank b{b}" for b in shown), "rank final"]
        header += [f"q-grad b{b}" for b in shown]
        lines += [
            "signal propagation at initialisation",
            table([_signal_row(r, shown) for r in result["signal"]], header, right=True),
        ]
    return "\n".join(lines).rstrip()


def _weights_row(row: Mapping[str, Any]) -> list[str]:
    return [str(row["block"]), *(_number(row[name]) for name in _COLUMNS)]


def _signal_row(row: Mapping[str, Any], shown: Sequence[int]) -> list[str]:
    cells = [str(row["name"]), *(f"{row['token_cosine'][b - 1]:.3f}" for b in shown), f"{row['final_cosine']:.3f}"]
    cells += [f"{row['effective_rank'][b - 1]:.1f}" for b in shown] + [f"{row['final_effective_rank']:.2f}"]
    return cells + [f"{row['query_gradient'][b - 1]:.1e}" for b in shown]


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"


STAGE = Stage("analyze", run, add_nodes, AnalyzeSection, place="analyze", version=5)
