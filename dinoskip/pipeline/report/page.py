"""The content of a study's report, gathered from the outputs of its stages."""

from __future__ import annotations

import json
import math
import operator
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dinoskip.data.sets.labels import LABELS
from dinoskip.io.files import read_json, write_json, write_text
from dinoskip.optim.config import printed
from dinoskip.pipeline import stages
from dinoskip.pipeline.gallery.previews import FEATURES, previews_of
from dinoskip.pipeline.report.at_chosen_blocks import block_pictures, chosen_blocks, classes_of, scores_of
from dinoskip.pipeline.report.costs import RunMachine, cost_tables
from dinoskip.pipeline.report.notices import note_unfinished, notices, unmeasured
from dinoskip.pipeline.report.places import label_of, published_names, role_of
from dinoskip.pipeline.report.reproduce import commands, yaml_of
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.stage import Shown, ShownOf, Task, last_epochs, without_place
from dinoskip.pipeline.stages.sweep import SweepResult
from dinoskip.pipeline.variants import Variant
from dinoskip.results.records import ImageRecords, read_records
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult, rows_in
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.environment import describe
from dinoskip.settings import tasks
from dinoskip.settings.config import dump, flatten
from visualize import figures
from visualize.comparison import Scores
from visualize.figures.drawing import written_as
from visualize.report import Preview, Report, build_report
from visualize.report.answer import compared_pairs
from visualize.report.content import PrintedTable
from visualize.report.diagnostics import (
    calibration_table,
    epochs_tables,
    outliers_table,
)
from visualize.report.first_sentence import COSINE, RANK
from visualize.report.names import NAMES
from visualize.report.papers import StudyNumbers, printed_tables
from visualize.rows import StudyVariant, principal
from visualize.tables import DataTable, setting

_TRAINING = ("pretrain/", "supervise/")
_EPOCH = operator.attrgetter("epoch")
SHEET = "PCA of patch features to RGB, one line per image, colours aligned between the models"


def write_page(task: Task) -> None:
    """The page and all that stands beside it, a copy of the gallery, and ``study.yaml``."""
    report = measured(task)
    study = yaml_of(task.runtime["study"])
    write_text(task.out / "study.yaml", study)
    write_json(task.out / NAMES, {variant.file_name: variant.name for variant in report.variants})
    with (
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=task.out, ignore_cleanup_errors=True) as scratch,
        written_as(task.settings.section.figure_formats),
    ):
        added, scores = _added(task, Path(scratch)), scores_of(report)
        page = replace(
            report,
            figures=[
                *_figures(task, report, scores, Path(scratch)),
                *(figure for shown in added for figure in shown.figures),
            ],
            papers=_papers(task, report, added),
            **_pictures(task, block_pictures(task, report, scores)),
            diagnostics=[
                *epochs_tables(_logs(task, "metrics.jsonl")),
                *_tables(task),
                *(table for shown in added for table in shown.tables),
                *(cost_tables(task) if task.settings.section.costs else []),
            ],
            environment={**describe(), **_trained_with(task)},
            protocol=_protocol(task),
            commands=commands(study),
        )
        build_report(page, task.out)


def measured(task: Task) -> Report:
    """Return a study's measurements without figures, pictures and settings: variants, rows, records and notices."""
    rows, baselines = _all_rows(task)
    variants = [_variant(task, name, variant_rows) for name, variant_rows in rows.items()]
    settings: ReportSettings = task.settings
    block, rough = _roughness(task)
    return Report(
        title=settings.section.title or settings.study,
        note=settings.section.note,
        variants=variants,
        baselines=baselines,
        records=_records(task),
        confounds=_confounds(task, variants),
        notices=[*settings.said, *notices(task.inputs, settings.missing), *_not_finite(task, rows)],
        unmeasured=unmeasured([*task.inputs, *settings.missing]),
        compare=settings.section.compare,
        datasets=published_names(settings.data),
        epochs=settings.epochs,
        trained_on=settings.trained_on,
        roughness={name: blocks.get(str(block), []) for name, blocks in rough.items()},
        block=block,
        features=_feature_curves(task),
        labelled=any(label.given_by(config) for config in settings.data.values() for label in LABELS.values()),
    )


# --- what is read ----------------------------------------------------------------------------------------


def _all_rows(task: Task) -> tuple[dict[str, list[EvalResult]], list[EvalResult]]:
    """Rows by variant in the study's order, each once: every variant's stage has those of baselines, and ``accuracy``
    those of ``supervise`` again."""
    grouped: dict[str, dict[EvalResult, None]] = {variant.name: {} for variant in task.settings.variants}
    baselines: dict[EvalResult, None] = {}
    for role, path in sorted(task.inputs.items()):
        for row in note_unfinished(rows_in(path), role, task.settings.missing):
            if row.is_baseline:
                baselines[row] = None
            else:
                grouped[row.model][row] = None
    return {name: list(rows) for name, rows in grouped.items()}, list(baselines)


def _records(task: Task) -> dict[EvalResult, ImageRecords]:
    """Return each image's contribution to the rows of every evaluation that kept it."""
    return {row: records for path in task.inputs.values() for row, records in read_records(path).items()}


def _logs(task: Task, name: str) -> dict[str, list[dict[str, Any]]]:
    """A log of every training run, by the variant's words, in the study's order."""
    logs = {
        role.partition("/")[2]: read_metrics(path / name)
        for role, path in task.inputs.items()
        if role.startswith(_TRAINING)
    }
    named = task.settings.words_of
    return {named(variant.name): logs[variant.name] for variant in task.settings.variants if variant.name in logs}


def _trained_with(task: Task) -> dict[str, str]:
    """Describe the machines on which variants were trained, where their runs say so."""
    machines: dict[str, list[str]] = {}
    for role, path in sorted(task.inputs.items()):
        if role.startswith(_TRAINING) and (path / "env.json").is_file():
            machine = RunMachine.read(path)
            about = f"torch {machine.torch}, {machine.cores} cores of {machine.processor}, GPUs: {machine.GPUs}"
            machines.setdefault(about, []).append(task.settings.words_of(role.partition("/")[2]))
    if len(machines) == 1:
        return {"trained with": next(iter(machines))}
    return {f"trained with ({', '.join(names)})": about for about, names in machines.items()}


# --- variants --------------------------------------------------------------------------------------------


def _variant(task: Task, name: str, rows: Sequence[EvalResult]) -> StudyVariant:
    """Return a variant for the page: the settings that tell it from the others, in three columns, and its weights."""
    run: Variant = task.settings.variant(name)
    last = max(rows, key=_EPOCH, default=None)
    shown: dict[str, object] = {}
    if run.model is None:
        shown["model"] = run.backbone
    else:
        shown = {part: _short(task, run, part) for part in _PARTS}
        shown |= {"seed": run.seed} if run.family else {}
    unresolved = ""
    if run.sweep in task.inputs:
        chosen = SweepResult.read(task.inputs[run.sweep])
        unresolved = chosen.unresolved
        shown["swept learning rate"] = f"{chosen.lr:g} (rate unresolved)" if unresolved else chosen.lr
    if last is not None:
        epochs = sorted({row.epoch for row in rows})
        shown |= {
            "depth": last.depth,
            "epochs": epochs if epochs != [UNKNOWN_EPOCH] else "as given",
            "weights": last.weights[:12],
        }
    about: dict[str, Any] = {"depth": last.depth if last else 0}
    about |= {"family": task.settings.words_of(run.family), "seed": run.seed} if run.family else {}
    if run.model is not None and run.optimizer is not None:
        about |= {"role": role_of(run.model), "optimizer": run.optimizer.name, "depth": run.model.blocks}
    words = task.settings.words_of(name)
    shown |= {"in files": name} if words != name else {}
    return StudyVariant(words, rows=rows, settings=shown, unresolved=unresolved, key=name, **about)


_PARTS = ("model", "initialisation", "optimizer")


def _settings_of(variant: Variant, part: str) -> tuple[str, dict[str, Any]]:
    """Name and other settings of one of a trained variant's :data:`_PARTS`; the model without its initialisation."""
    assert variant.model is not None
    assert variant.optimizer is not None
    config = {"model": variant.model, "initialisation": variant.model.init, "optimizer": variant.optimizer}[part]
    return config.name, config.model_dump(mode="json", exclude={"name", "init"} if part == "model" else {"name"})


def _shared(task: Task, variant: Variant, part: str) -> dict[str, Any]:
    """The settings that all variants whose ``part`` goes by the same name have in common."""
    name, values = _settings_of(variant, part)
    alike = [settings for other, settings in (_settings_of(v, part) for v in task.settings.trained) if other == name]
    return {key: value for key, value in values.items() if all(key in other and other[key] == value for other in alike)}


def _short(task: Task, variant: Variant, part: str) -> str:
    """``soap (lr 0.0005)``: the name, and what is not shared with the others of that name."""
    (name, values), shared = _settings_of(variant, part), _shared(task, variant, part)
    rest = {key: value for key, value in values.items() if key not in shared}
    about = ", ".join(f"{key} {setting(value)}" for key, value in flatten(rest).items())
    return f"{name} ({about})" if about else name


def _confounds(task: Task, variants: Sequence[StudyVariant]) -> list[str]:
    """List settings, other than skips and initialisation, in which two compared networks differ."""
    lines: dict[str, None] = {}
    for first, second in compared_pairs(variants):
        left, right = (_apart_from_skips(task.settings.variant(name)) for name in (first, second))
        if left and right:
            for key in dict.fromkeys((*left, *right)):
                if left.get(key) != right.get(key):
                    values = f"{setting(left.get(key))} and {setting(right.get(key))}"
                    lines[f"{first} and {second} also differ in {key}: {values}"] = None
    return list(lines)


_OF_SKIPS = {"skip", "skip_weight", "init", "drop_path"}


def _apart_from_skips(variant: Variant | None) -> dict[str, Any]:
    """A variant's settings without its skips and initialisation, with the drop path that it was trained with.

    {} of one that was not trained here.
    """
    if variant is None or variant.model is None or variant.optimizer is None:
        return {}
    model = {**variant.model.model_dump(mode="json", exclude=_OF_SKIPS), "depth": variant.model.blocks}
    flat = flatten({"model": model, "optimizer": dump(variant.optimizer)})
    return {**flat, "drop path": variant.model.drop_path_in_training}


def _protocol(task: Task) -> dict[str, dict[str, object]]:
    """Every setting that affects a number, by section; of models and optimizers what all of a name share."""
    card = task.settings.card
    sections: dict[str, dict[str, object]] = {"study": {"seed": card["seed"]}}
    for part in _PARTS:
        for variant in task.settings.trained:
            sections[f"{part}: {_settings_of(variant, part)[0]}"] = flatten(_shared(task, variant, part))
    sections |= {name: dict(flatten(value)) for name, value in card.items() if isinstance(value, Mapping)}
    sections |= {f"data: {name}": flatten(without_place(config)) for name, config in task.settings.data.items()}
    return {name: values for name, values in sections.items() if values}


# --- figures and tables ----------------------------------------------------------------------------------


def loss_of(task: Task, variants: Sequence[StudyVariant], out: Path) -> figures.Figure | None:
    """The losses of a study's training runs, a panel an optimizer; None if none was trained."""
    return figures.loss_figure(_logs(task, "metrics.jsonl"), out, optimizers_of(variants))


def optimizers_of(variants: Sequence[StudyVariant]) -> dict[str, str]:
    """The optimizers' printed names, by variant, of those that were trained."""
    return {variant.name: printed(variant.optimizer) for variant in variants if variant.optimizer}


def _added(task: Task, out: Path) -> list[Shown]:
    """Return the figures and tables that stages make of their own outputs, in order of execution."""
    added = []
    for stage in map(stages.load, stages.names()):
        outputs = {role: path for role, path in task.inputs.items() if role.partition("/")[0] == stage.name}
        if stage.shows is not None and outputs:
            added.append(stage.shows(ShownOf(outputs, _in_order(task), out)))
    return added


def _figures(task: Task, report: Report, scores: Scores, out: Path) -> list[Any]:
    kept, logs, optimizers = principal(report.rows), _logs(task, "metrics.jsonl"), optimizers_of(report.variants)
    read = chosen_blocks(Scores(kept, report.records), list(kept))  # of the facet that curves are of
    drawn = [
        loss_of(task, report.variants, out / "loss"),
        figures.online_figure(logs, out / "online"),
        figures.skip_weight_figure(logs, out / "skip-weight"),
        figures.blocks_figure(kept, out / "blocks", report.baselines, read),
        figures.classes_figure(classes_of(task, report, scores, tasks.task("probe")), out / "classes", list(kept)),
        figures.epochs_figure(kept, out / "epochs", optimizers),
        figures.depth_figure(kept, _families(task), out / "depth"),
    ]
    drawn.append(figures.features_figure(report.features, out / "features", list(_in_order(task))))
    order, (_, rough) = list(_in_order(task)), _roughness(task)
    drawn.append(figures.roughness_figure(rough, out / "roughness", order))
    inside = _logs(task, "diagnostics.jsonl")
    drawn.append(figures.training_figure(inside, out / "inside-training"))
    drawn.append(figures.histograms_figure(inside, out / "histograms-training"))
    return [figure for figure in drawn if figure is not None]


def _feature_curves(task: Task) -> dict[str, dict[str, dict[int, float]]]:
    """Token cosine, effective rank and outliers of the gallery's images by block; empty without a gallery's numbers."""
    gallery = task.inputs.get("gallery")
    if gallery is None or not (gallery / FEATURES).is_file():
        return {}
    summed, outliers = read_json(gallery / FEATURES), read_json(gallery / "outliers.json")
    names = _last_epochs(task, summed)

    def curves(of_network: Mapping[str, Any], key: str, factor: float = 1.0) -> dict[str, dict[int, float]]:
        return {
            words: {int(block): factor * row[key] for block, row in of_network[name].items()}
            for words, name in names.items()
        }

    return {
        COSINE: curves(summed, "cosine"),
        RANK: curves(summed, "rank"),
        "outlier patches, %": curves(outliers, "share", 100.0),
    }


def _last_epochs(task: Task, networks: Mapping[str, Any]) -> dict[str, str]:
    return last_epochs(_in_order(task), networks)


def _in_order(task: Task) -> dict[str, str]:
    """Names of the study's variants by their words."""
    return {task.settings.words_of(variant.name): variant.name for variant in task.settings.variants}


def _roughness(task: Task) -> tuple[int, dict[str, Any]]:
    """Roughness of the gallery's PCA pictures, by variant (its last epoch there) and block, a value an image.

    The first of the pair is the block of the contact sheets, 0 without a gallery.
    """
    if "gallery" not in task.inputs:
        return 0, {}
    roughness = read_json(task.inputs["gallery"] / "roughness.json")
    models = roughness["models"]
    return roughness["block"], {variant: models[name] for variant, name in _last_epochs(task, models).items()}


def _families(task: Task) -> dict[str, tuple[str, int]]:
    """``{words: (what it shares with those that differ in depth alone, its depth)}``."""
    names: dict[str, str] = {}
    families: dict[str, tuple[str, int]] = {}
    for variant in task.settings.trained:
        if variant.model is not None and variant.optimizer is not None:
            key = json.dumps([{**dump(variant.model), "depth": None}, dump(variant.optimizer)], sort_keys=True)
            label = ", ".join(filter(None, (role_of(variant.model), variant.optimizer.name)))
            if label in names.values() and key not in names:
                label = f"{label} ({variant.name})"
            words = task.settings.words_of(variant.name)
            families[words] = (names.setdefault(key, label), variant.model.blocks)
    return families


def _tables(task: Task) -> list[Any]:
    """Learning rates tried, patches of outlying norm, what calibration changed."""
    tables = []
    swept = {role.partition("/")[2]: path for role, path in sorted(task.inputs.items()) if role.startswith("sweep/")}
    if swept:
        body = []
        for name, path in swept.items():
            sweep = SweepResult.read(path)
            body += [
                [task.settings.words_of(name), run.lr, run.value, run.loss, run.lr == sweep.lr] for run in sweep.rates
            ]
            measure = f"{sweep.measure} after {sweep.epochs} epochs"
        columns = ["variant", "learning rate", measure, "loss", "chosen"]
        tables.append(DataTable("Learning rates, chosen by short runs", columns, body))
    if "gallery" in task.inputs:
        models = read_json(task.inputs["gallery"] / "outliers.json")
        outliers = outliers_table({variant: models[name] for variant, name in _last_epochs(task, models).items()})
        tables += [outliers] if outliers.rows else []
    for role, path in sorted(task.inputs.items()):
        if role.startswith("calibrate/"):
            words = task.settings.words_of(role.partition("/")[2])
            tables.append(calibration_table(words, read_json(path / "calibration.json")))
    return tables


def _papers(task: Task, report: Report, added: Sequence[Shown]) -> list[PrintedTable]:
    """The published tables that the report asks for, with the study's numbers in them."""
    asked = task.settings.section.compare
    labels = {task.settings.words_of(variant.name): label_of(variant) for variant in task.settings.variants}
    tokens = {name: numbers for shown in added for name, numbers in shown.tokens.items()}
    return printed_tables(asked, StudyNumbers(report, labels, tokens)) if asked else []


def _pictures(task: Task, of_tasks: Sequence[Preview]) -> dict[str, Any]:
    """The gallery, copied beside the page, its strip of pictures, those of tasks, and links to its contact sheets."""
    source = task.inputs.get("gallery")
    if source is None:
        return {"previews": of_tasks}
    # it may exist: a run of this study that was stopped until its lock was old, and goes on, copies the same files
    beside = shutil.ignore_patterns("MANIFEST.json", "timing.json")
    shutil.copytree(source, task.out / "gallery", ignore=beside, dirs_exist_ok=True)
    listed = [Preview(source / one["file"], one["caption"], one["alt"]) for one in previews_of(source)]
    scored = any(path.name == "rows.json" for role in task.inputs.values() for path in role.glob("rows.json"))
    previews = [strip_of(source), *listed[1:]] if scored else [*listed[:1], strip_of(source), *listed[1:]]
    previews += of_tasks
    previews += [Preview(path, SHEET, SHEET, photographs=False) for path in source.glob("sheet-*-plain.png")]
    sheets = [f"gallery/{path.name}" for path in sorted(source.glob("sheet-*.p*"))]
    return {"gallery": "gallery/index.html", "previews": previews, "sheets": sheets}


def strip_of(gallery: Path) -> Preview:
    """The first photographs above each network's colours."""
    blocks = read_json(gallery / "strip.json") if (gallery / "strip.json").is_file() else {}
    alike = (
        "colours aligned between the networks" if len(set(blocks.values())) < 2 else "colours comparable within a row"
    )
    caption = f"PCA of patch features to RGB, {alike}. The block is given beside each row."
    caption += " Look for regions of one colour that follow objects; one colour everywhere is collapse."
    return Preview(gallery / "strip.png", caption, "photographs above each model's PCA colours")


# --- what is said ----------------------------------------------------------------------------------------


def _not_finite(task: Task, rows: Mapping[str, Sequence[EvalResult]]) -> list[str]:
    """Numbers that came out empty: there was nothing to average."""
    lines = []
    for name, variant_rows in rows.items():
        empty = sorted({f"{row.metric} on {row.dataset}" for row in variant_rows if not math.isfinite(row.value)})
        lines += (
            [f"{task.settings.words_of(name)}: no number for {', '.join(empty)}: nothing to average"] if empty else []
        )
    return lines
