"""One call from Python: rows of any backbones on any data set, ready for a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.look.study import MEASURES, Blocks, labels_of, study_tree
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.pipeline.variants import Variant
from dinoskip.results.rows import EvalResult, rows_in
from dinoskip.settings.config import RawConfig, apply_overrides
from dinoskip.settings.tasks import TASKS


def evaluate(
    backbones: str | Path | Sequence[str | Path],
    data: str | Path,
    tasks: Collection[str] = MEASURES,
    *,
    out: str | Path = "runs/evaluate",
    kind: str | None = None,
    images: int = 0,
    blocks: Blocks = "all",
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int = 0,
) -> list[dict[str, Any]]:
    """Measure frozen features of every block; ``pandas.DataFrame(evaluate(...))`` is a table of the result.

    What is in ``out`` already is not computed again.

    Args:
        backbones: one or several specs: a checkpoint's path (or ``Path``), ``run:DIR``, ``timm:NAME``, ``hf:NAME``, ...
        data: the folder of a data set with labels.
        tasks: names of tasks (``dinoskip --help``); those that the data set has no labels for are left out. By default
            the quick ones.
        out: the folder that keeps features and results.
        kind: the data set's layout (``voc``, ``ade20k``, ``masks``, ...), if it is not seen in the folder.
        images: at most so many of each split, drawn by a fixed seed; 0: all.
        blocks: ``"all"`` or numbers from 1.
        settings: of a study, such as ``{"evaluate.probe.protocol": "paper"}``.
        device: ``auto``, ``cpu`` or ``cuda``.
        workers: threads or processes that read images; 0: automatic.

    Returns:
        A dict for each row, with the fields of :class:`dinoskip.results.rows.EvalResult`; baselines among them.

    Raises:
        ConfigError: for a task, spec or setting that is not understood, or if there is nothing to measure.
        DataError: for a folder that cannot be read, and for doubtful data, such as equal files in both splits, unless
            ``settings`` accept them: ``{"accept": ["equal-files:NAME"]}``.
    """
    if unknown := sorted(set(tasks) - set(TASKS)):
        raise ConfigError(f"evaluate: {', '.join(unknown)} is none of {', '.join(TASKS)}")
    specs = [str(spec) for spec in ([backbones] if isinstance(backbones, str | Path) else backbones)]
    labels = labels_of(Path(data), kind)
    tree = study_tree(specs, labels, Path(out), images=images, blocks=blocks, measures=tasks, gallery=False)
    tree["device"] = device
    changes = [f"{key}={value}" for key, value in (settings or {}).items()]
    study, variants = study_of(apply_overrides(RawConfig(tree, {"": "evaluate"}), changes))
    found = run_tasks(study, variants, tasks, device=device, workers=workers)
    if not found:
        raise ConfigError(f"evaluate: {data} has no labels for {', '.join(tasks)}")
    return [row.plain() for row in dict.fromkeys(row for rows in found.values() for row in rows)]


def run_tasks(
    study: StudyBase,
    variants: tuple[Variant, ...],
    tasks: Collection[str],
    *,
    device: str = "auto",
    workers: int = 0,
    accept: Collection[str] = (),
) -> dict[str, list[EvalResult]]:
    """Run the nodes of ``tasks`` with what they need; the rows of each node by its id, {} where there is none.

    ``accept`` are names of verdicts on the data that may pass beside those of the study.
    """
    nodes = only(build_nodes(study, variants), tasks, gathering="")
    if not nodes:
        return {}
    runner = study_runner(study, variants, nodes, device=device, workers=workers, accept=accept)
    runner.run({node.id for node in nodes})
    outputs = {node.id: runner.output(node.id) for node in nodes}
    return {name: rows_in(output) for name, output in outputs.items() if output is not None}
