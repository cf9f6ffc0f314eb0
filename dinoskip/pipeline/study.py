"""A study is one YAML: data, a model and an optimizer to vary, a recipe, and what to evaluate and show.

Its sections are those of :mod:`dinoskip.pipeline.sections` and of the stages, each declared once, in its own place.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import create_model

from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import ConfigError, DataError
from dinoskip.pipeline import stages
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import EvaluateBase, StudyBase
from dinoskip.pipeline.stage import Problem, Stage, StudyNodes, at_share, beyond_depth, unknown_data
from dinoskip.pipeline.stages.external import HASHES
from dinoskip.pipeline.stages.tasks import rounded_sizes
from dinoskip.pipeline.variants import Variant, confounds, expand, loading
from dinoskip.plugins import use_files
from dinoskip.runtime.console import log
from dinoskip.settings.config import Config, RawConfig, apply_overrides, read_yaml, validate
from dinoskip.settings.networks import Network
from dinoskip.settings.tasks import tasks
from dinoskip.training.supervised_config import with_defaults

STAGES = stages.load_all()
_OF_ONE_PAGE = ("report.note",)
"""Keys on a study's own results, which are not passed on to a study that extends it."""


def _fields(below: str) -> dict[str, Any]:
    """The sections that stages have directly below a key."""
    sections: dict[str, Any] = {}
    for stage in STAGES.values():
        parent, _, name = stage.place.rpartition(".")
        if stage.section is not None and parent == below:
            kind = stage.choices or stage.section
            sections[name] = (kind, stage.section()) if stage.required else (kind | None, None)
    return sections


Evaluate: type[EvaluateBase] = create_model(
    "Evaluate", __base__=EvaluateBase, __doc__=EvaluateBase.__doc__, **_fields("evaluate")
)
Study: type[StudyBase] = create_model(
    "Study",
    __base__=StudyBase,
    __doc__="A whole study: data, model, recipe, variants, what to measure and show.",
    evaluate=(Evaluate, Evaluate()),
    **_fields(""),
)


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> tuple[StudyBase, tuple[Variant, ...]]:
    """Read a study and expand its variants; every problem is reported at once (:class:`ConfigError`)."""
    return study_of(apply_overrides(read_yaml(path, _OF_ONE_PAGE), list(overrides)))


def study_of(source: RawConfig, *, open_backbones: bool = False) -> tuple[StudyBase, tuple[Variant, ...]]:
    """:func:`load_study` from a tree of settings.

    With ``open_backbones`` those of which depth and patch are not known for sure are opened, so that settings that do
    not fit them are said before any stage runs.
    """
    source.tree = _with_study_defaults(source.tree)
    _use_plugins(source)
    study = validate(Study, source)
    variants, lines = expand(study.variants, source, study.seed)
    if open_backbones:
        variants = tuple(_opened(variant) for variant in variants)
    for key, text in _problems(study, variants):
        lines.append(f"{source.place(key)}: {key}: {text}")
    if lines:
        unique = tuple(dict.fromkeys(lines))
        raise ConfigError("\n".join(unique), problems=unique)
    for line in (*confounds(variants), *_missing_boards(study)):
        log.warning("%s", line)
    for line in _said(study, variants):
        log.info("%s", line)
    return study, variants


def _use_plugins(source: RawConfig) -> None:
    """Import the plug-ins that a study names, which its settings may be of."""
    files = source.tree.get("plugins", ())
    if isinstance(files, list):  # what else it may be is said where settings are validated
        use_files(file for file in files if isinstance(file, str))
    if new := set(stages.names()) - set(STAGES):
        raise ConfigError(
            f"{source.place('plugins')}: plugins: {min(new)!r} came after dinoskip was imported",
            "call dinoskip.plugins.use_files before anything else is imported",
        )


def _opened(variant: Variant) -> Variant:
    """Return ``variant`` with width, patch and depth of its backbone."""
    if variant.backbone is None or (variant.shape is not None and not variant.shape.guessed):
        return variant
    backbone = loading().load_backbone(variant.backbone)
    return replace(variant, shape=Network(backbone.dim, backbone.size_multiple, backbone.depth))


def _said(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[str]:
    """Yield a line for each network that is not read as written: sizes in whole patches, blocks by share of depth."""
    for record in tasks():
        yield from rounded_sizes(record, study, variants)
    numbers = study.evaluate.blocks
    depths = {variant.name: variant.network.depth for variant in variants if variant.network is not None}
    if study.evaluate.blocks_of == "deepest" and not isinstance(numbers, str):
        deepest = max(depths.values(), default=0)
        for name, depth in depths.items():
            if depth < deepest:
                read = ", ".join(map(str, at_share(numbers, depth, deepest)))
                of = ", ".join(map(str, numbers))
                yield f"{name} has {depth} blocks: read at {read}, the share of its depth that {of} are of {deepest}"


def _missing_boards(study: StudyBase) -> Iterator[str]:
    """A line for each board that training is to write and whose package is not installed."""
    for section in ("pretrain", "supervise"):
        for board in getattr(getattr(study, section, None), "boards", ()):
            if importlib.util.find_spec(board) is None:
                yield f"{section}.boards: {board} is not installed, nothing will be shown there: pip install {board}"


def _with_study_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    """``tree`` with a study's own defaults: no drop path, which only networks with skips can have."""
    filled = with_defaults(tree) if tree.get("supervise") else dict(tree)
    model = filled.get("model", {})
    return {**filled, "model": {"drop_path": 0.0, **model}} if isinstance(model, dict) else filled


def _problems(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Yield the problems of a study that would otherwise fail only when a stage runs."""
    evaluate = study.evaluate
    if (evaluate.precision, study.device) == ("tf32", "cpu"):
        yield "evaluate.precision", "tf32 is of GPUs, and device is cpu: use fp32 or bf16"
    chosen = {"evaluate.blocks": () if isinstance(evaluate.blocks, str) else evaluate.blocks}
    chosen["evaluate.multiscale"] = evaluate.multiscale if isinstance(evaluate.multiscale, tuple) else ()
    deepest = max((v.network.depth for v in variants if v.network is not None), default=0)
    by_share = evaluate.blocks_of == "deepest"
    yield from beyond_depth(
        chosen, [v for v in variants if not by_share or v.network is None or v.network.depth == deepest]
    )
    for stage in STAGES.values():
        yield from _unknown_data(study, stage)
        if stage.check is not None:
            yield from stage.check(study, variants)


def _unknown_data(study: StudyBase, stage: Stage) -> Iterator[Problem]:
    """Data sets that a section names and the study lacks, or that lack what the stage reads."""
    for field, name in _named(study, stage):
        key = f"{stage.place}.{field}"
        yield from unknown_data(study, key, name)
        label = LABELS.get(str(stage.use))
        if name in study.data and label is not None and not label.given_by(study.data[name]):
            yield key, f"{name!r} is of kind {study.data[name].kind}, which has no {label.what}"


def _hash(study: StudyBase, function: Callable[..., str], *content: Any, seen: list[Path]) -> str:
    """The hash of a content; :class:`DataError` also says for which stages labels are wanted that are not there."""
    try:
        return function(*content, seen=seen)
    except DataError as error:
        config, use = content[0], content[1] if len(content) > 2 else None
        wanted = {
            f"{stage.place}.{field}": (stage.name, name)
            for stage in STAGES.values()
            if stage.use == use in LABELS
            for field, name in _named(study, stage)
            if study.data.get(name) is config
        }
        if not wanted:
            raise
        asking, (name, *_) = zip(*wanted.values(), strict=True)
        remedy = f"if {name} has no {LABELS[str(use)].what}, leave it out of {' and '.join(wanted)}"
        hint = f"{error.hint}; {remedy}" if error.hint else remedy
        raise DataError(f"{', '.join(asking)}: {error.message}", hint) from error


def _named(study: StudyBase, stage: Stage) -> Iterator[tuple[str, str]]:
    """The data sets that a stage's section names, and in which field."""
    section: Config | None = study.find(stage.section) if stage.section is not None else None
    for field in ("datasets", "dataset"):
        named = getattr(section, field, None) or ()
        yield from ((field, name) for name in ((named,) if isinstance(named, str) else named))


def build_nodes(study: StudyBase, variants: tuple[Variant, ...]) -> list[Node]:
    """Every node of a study, in order of execution."""
    hashes = {what: partial(_hash, study, function) for what, function in HASHES.items()}
    nodes = StudyNodes(study, variants, hashes)
    for stage in STAGES.values():
        if stage.add_nodes is not None:
            stage.add_nodes(nodes)
    position = list(STAGES)
    return sorted(nodes.nodes.values(), key=lambda node: position.index(node.stage))
