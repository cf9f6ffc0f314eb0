"""The page of the whole paper from the folders of its studies, finished or not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError
from dinoskip.io.files import hash_of
from dinoskip.io.output import Output
from dinoskip.pipeline.report.page import SHEET, loss_of, measured, optimizers_of, strip_of
from dinoskip.pipeline.report.results_folder import STUDY
from dinoskip.pipeline.report.settings import described
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import report_without_missing, study_runner
from dinoskip.results.rows import EvalResult
from dinoskip_papers.page import PaperPage, build_paper
from visualize import figures
from visualize.figures.activations import softmax_figure
from visualize.report import Preview, Report
from visualize.rows import StudyVariant, principal


@dataclass(frozen=True)
class _Source:
    """A study: its folder, what its report reads, and what that says."""

    folder: Path
    task: Task
    report: Report

    @property
    def training(self) -> tuple[Path, str]:
        """Folder of stages and hash of recipe and seed: where equal, networks of one name are the same networks."""
        card = self.task.settings.card
        recipe = {part: card.get(part) for part in ("seed", "pretrain", "supervise")}
        return self.folder.parent / self.task.runtime["stages"], hash_of(recipe)


def write_paper(folders: Sequence[Path], out: Path) -> dict[str, tuple[int, int]]:
    """Write the page of the studies in ``folders`` into ``out``; return each table's filled cells and all.

    Raises :class:`ConfigError` for a folder without a report, for studies that share their stages and whose networks of
    one name differ, and if ``out`` is the folder of a study.
    """
    if any((out / name).exists() for name in ("report", "stages")):
        raise ConfigError(f"{out}: is the folder of a study", "choose another for the page with --out")
    output = Output(out, "paper")
    output.refuse_foreign(("index.html", "paper.md", "img", "tables"))
    sources = [_source(folder, out) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    groups: dict[tuple[Path, str], list[_Source]] = {}
    for source in sources:
        groups.setdefault(source.training, []).append(source)
    reports = [_together(group) for group in groups.values()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, output.filled() as folder:
        page = PaperPage(
            reports,
            _figures(sources, reports, Path(scratch)),
            _pictures(sources),
            {str(source.folder): source.report.title for source in sources},
        )
        return build_paper(page, folder)


def _source(folder: Path, out: Path) -> _Source:
    """A study with the stages of it that are there."""
    if not (folder / "report" / STUDY).is_file():
        raise ConfigError(f"{folder}: holds no report/{STUDY}", "`dinoskip report CONFIG` makes one of what is there")
    study, variants = load_study(folder / "report" / STUDY, [f"name={folder.name}", f"output={folder.parent}"])
    runner = study_runner(study, variants, build_nodes(study, variants), device="cpu")
    (node,) = (node for node in report_without_missing(runner.planner, runner.plan()) if node.stage == "report")
    inputs = {role: path for role, source in node.inputs.items() if (path := runner.output(source)) is not None}
    task = Task(node.settings, {**node.runtime, "stages": study.directory.name}, inputs, out, "cpu", 0)
    return _Source(folder, task, measured(task))


def _together(group: Sequence[_Source]) -> Report:
    """Studies with the same networks as one: a variant has the rows of all."""
    settings: dict[str, Any] = {}
    variants: dict[str, StudyVariant] = {}
    for source in group:
        for variant in source.report.variants:
            wanted = described(source.task.settings.variant(variant.name))
            if settings.setdefault(variant.name, wanted) != wanted:
                others = ", ".join(str(other.folder) for other in group if other is not source)
                raise ConfigError(
                    f"{source.folder}: its {variant.name} is another network than that of {others}", "leave one out"
                )
            known = variants.setdefault(variant.name, variant)
            variants[variant.name] = replace(known, rows=_once([*known.rows, *variant.rows]))
    reports = [source.report for source in group]
    pictured = next((report for report in reports if report.roughness), reports[0])
    return replace(
        reports[0],
        title=", ".join(source.folder.name for source in group),
        variants=list(variants.values()),
        baselines=_once([row for report in reports for row in report.baselines]),
        records={row: records for report in reports for row, records in report.records.items()},
        confounds=list(dict.fromkeys(line for report in reports for line in report.confounds)),
        notices=list(dict.fromkeys(line for report in reports for line in report.notices)),
        compare=list(dict.fromkeys(name for report in reports for name in report.compare)),
        datasets={ours: paper for report in reports for ours, paper in report.datasets.items()},
        roughness=pictured.roughness,
        block=pictured.block,
    )


def _once(rows: Sequence[EvalResult]) -> list[EvalResult]:
    """Rows without repetitions, in order; by what they print, since a NaN differs from itself."""
    return list({repr(row): row for row in rows}.values())


def _figures(sources: Sequence[_Source], reports: Sequence[Report], scratch: Path) -> dict[str, figures.Figure]:
    """Figure 5, and figures 1 and 2 where a study has them."""
    losses = (
        loss_of(source.task, source.report.variants, scratch / "loss")
        for source in sources
        if "paper.table1" in source.report.compare
    )
    drawn = {
        "figure 1": next((figure for figure in losses if figure), None),
        "figure 2": next((figure for report in reports if (figure := _epochs(report, scratch))), None),
        "figure 5": softmax_figure(scratch / "softmax"),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _epochs(report: Report, scratch: Path) -> figures.Figure | None:
    """Segmentation against epoch, of the deepest networks that stand in the paper's tables."""
    named = [variant for variant in report.variants if variant.role]
    deepest = [variant for variant in named if variant.depth == max(other.depth for other in named)]
    kept = principal({variant.name: [row for row in variant.rows if row.task == "probe"] for variant in deepest})
    return figures.epochs_figure(kept, scratch / "epochs", optimizers_of(deepest))


def _pictures(sources: Sequence[_Source]) -> dict[str, Preview]:
    """Figures 4 and 6 from the gallery of the first study that table 2 is made by."""
    for source in sources:
        gallery = source.task.inputs.get("gallery")
        if gallery is not None and "paper.table2" in source.report.compare:
            sheet = Preview(gallery / f"sheet-block{source.report.block}.png", SHEET, SHEET)
            return {"figure 4": strip_of(gallery), "figure 6": sheet}
    return {}
