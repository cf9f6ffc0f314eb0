"""What each command does. Imported only when a command runs; prints results on stdout."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.console import log, table
from dinoskip.distributed import is_main
from dinoskip.errors import ConfigError
from dinoskip.files import MANIFEST, TEMPORARY, publish_directory, write_text
from dinoskip.locks import directory_lock
from dinoskip.pipeline import graph, nodes, stages
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import Study, Variant, load_study
from dinoskip.results import EvalResult, read_rows, rows_csv

if TYPE_CHECKING:
    from dinoskip.config import RawConfig
    from dinoskip.training.objective import Observer
    from dinoskip.training.pretraining import PretrainJob

Args = argparse.Namespace


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    print(json.dumps(value, indent=1))


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Print left-aligned columns on stdout."""
    print(table(rows, header))


# --- studies -----------------------------------------------------------------------------------------


def _runner(study: Study, variants: tuple[Variant, ...], args: Args) -> Runner:
    return Runner(
        study.directory,
        nodes.build_nodes(study, variants),
        stages.STAGES,
        device=getattr(args, "device", "auto"),
        workers=getattr(args, "workers", 0),
    )


def _show_plan(runner: Runner, chosen: set[str], *, as_json: bool) -> None:
    steps = [step for step in runner.plan() if step.node.id in chosen]
    if as_json:
        print_json([{"node": s.node.id, "stage": s.node.stage, "state": s.state, "reason": s.reason} for s in steps])
    else:
        print_table([(step.state, step.node.id, step.reason) for step in steps], ("state", "stage", "why"))


def _install_report(runner: Runner, study: Study) -> Path | None:
    """Bring the published report to its stable place, ``STUDY/report``; return the page."""
    source = runner.output("report")
    if source is None:
        return None
    final, fresh = study.directory / "report", study.directory / f"{TEMPORARY}report-{os.getpid()}"
    with directory_lock(study.directory):
        for left in study.directory.glob(f"{TEMPORARY}*"):  # of a run that was killed here
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(MANIFEST, "timing.json"))
        publish_directory(fresh, final)
    return final / "index.html"


def run(args: Args) -> int:
    """``dinoskip run``."""
    study, variants = load_study(args.config, args.overrides)
    runner = _runner(study, variants, args)
    chosen = graph.select(
        runner.planner.nodes,
        list(stages.STAGES),
        only=args.only,
        start=args.start,
        until=args.until,
        variant=args.variant,
    )
    if args.dry_run:
        _show_plan(runner, chosen, as_json=args.json)
        return 0
    return _finish(runner, study, runner.run(chosen), as_json=args.json)


def _finish(runner: Runner, study: Study, happened: Mapping[str, str], *, as_json: bool) -> int:
    """Install the report if it was among what was run, and say where it is."""
    if not is_main():
        return 0
    page = _install_report(runner, study) if "report" in happened else None
    if as_json:
        print_json({"stages": happened, "report": str(page.resolve()) if page else None})
    elif page:
        print(f"report: {page.resolve()}")
    return 0


def plan(args: Args) -> int:
    """``dinoskip plan``."""
    study, variants = load_study(args.config, args.overrides)
    runner = _runner(study, variants, args)
    _show_plan(runner, {node.id for node in runner.planner.nodes}, as_json=args.json)
    return 0


def report(args: Args) -> int:
    """``dinoskip report``: the report stage alone, of what is there."""
    from dinoskip.pipeline.publishing import copy_markdown, markdown_file
    from dinoskip.pipeline.report import of_what_is_there

    target = markdown_file(args.markdown) if args.markdown else None
    study, variants = load_study(args.config, args.overrides)
    runner = _runner(study, variants, args)
    there = of_what_is_there(runner.planner, runner.plan())
    runner = Runner(study.directory, there, stages.STAGES, device=args.device, workers=args.workers)
    happened = runner.run({"report"})
    if target is not None and (made := runner.output("report")) is not None:
        copy_markdown(made, target)
    return _finish(runner, study, happened, as_json=args.json)


def _rows(runner: Runner) -> list[EvalResult]:
    rows: list[EvalResult] = []
    for node in runner.planner.nodes:
        out = runner.output(node.id)
        if out is not None and (out / "rows.json").is_file():
            rows += read_rows(out / "rows.json")
    return sorted(dict.fromkeys(rows), key=lambda row: row.is_baseline)  # baselines once, below the models


def _best(rows: list[EvalResult]) -> list[EvalResult]:
    """The best single block and the multiscale row of every model, data set and metric."""
    groups: dict[tuple[Any, ...], EvalResult] = {}
    for row in rows:
        what = (row.task, row.dataset, row.metric, row.is_baseline, row.model, row.epoch)
        key = (*what, "+" in row.block, row.norm, row.note, row.facet, row.protocol)
        if key not in groups or row.value > groups[key].value:
            groups[key] = row
    return [groups[key] for key in sorted(groups)]


def _print_rows(rows: list[EvalResult]) -> None:
    rows = [row for row in rows if not row.is_of_a_seed]  # their means are shown
    models = [row for row in rows if not row.is_baseline]
    more = [name for name in ("facet", "protocol") if len({getattr(row, name) for row in models}) > 1]
    shown = ("task", "dataset", "metric", "model", "epoch", "block", "norm", *more, "shown", "interval", "note")
    heads = {"dataset": "data", "shown": "value", "interval": "95 %"}
    print_table([[getattr(row, name) for name in shown] for row in rows], [heads.get(name, name) for name in shown])


def status(args: Args) -> int:
    """``dinoskip status``: counts of stages, a running pretraining's step, results so far."""
    study, variants = load_study(args.config, args.overrides)
    runner = _runner(study, variants, args)
    steps = runner.plan()
    training = {}
    for path in sorted(study.directory.glob("stages/*/*/.partial-*/status.json")):  # pretrain, supervise
        training[path.parent.parent.name] = json.loads(path.read_text())
    rows = _best(_rows(runner))
    counts = {state: sum(step.state == state for step in steps) for state in ("cached", "run", "blocked")}
    if args.json:
        print_json({"stages": counts, "training": training, "best": [row.plain() for row in rows]})
        return 0
    print(f"{study.directory}: {counts['cached']} of {len(steps)} stages done")
    for name, state in training.items():
        print(f"{name}: {state.get('state')}, step {state.get('step')} of {state.get('steps')}")
    if rows:
        _print_rows(rows)
    return 0


def gc(args: Args) -> int:
    """``dinoskip gc``."""
    study, variants = load_study(args.config, args.overrides)
    runner = _runner(study, variants, args)
    pending = [step for step in runner.plan() if step.state != "cached"]
    unused = runner.artifacts.unused(runner.current())
    if args.delete and pending:
        raise ConfigError(
            f"{study.directory}: {len(pending)} stages are not finished, so what they may need is not known",
            "finish the study with `dinoskip run`, then delete",
        )
    for path in unused:
        if args.delete:
            shutil.rmtree(path)
        elif not args.json:
            print(path)
    if args.json:
        print_json({"unused": [str(path) for path in unused], "deleted": args.delete})
    else:
        log.info("%d unused outputs%s", len(unused), " deleted" if args.delete else "; --delete removes them")
    return 0


# --- parts on plain inputs -----------------------------------------------------------------------------


def pretrain_job(args: Args) -> PretrainJob:
    """The job of ``dinoskip pretrain CONFIG [a.b=value ...]``; a study's other sections are left out."""
    from dinoskip.config import validate
    from dinoskip.training.pretraining import PretrainJob

    return validate(PretrainJob, _job_source(args, "pretrain"))


def _job_source(args: Args, recipe: str) -> RawConfig:
    """What a single run reads of ``CONFIG [a.b=value ...]``, which may be a study's."""
    from dinoskip.config import RawConfig, apply_overrides, read_yaml

    overrides = list(args.overrides)
    if args.config and "=" in args.config:  # no file was given, the first override took its place
        overrides.insert(0, args.config)
        args.config = None
    source = apply_overrides(read_yaml(args.config) if args.config else RawConfig(), overrides)
    if recipe == "supervise" and "supervised" in source.tree:
        log.warning("supervised: is called supervise now; the old name is read for one more version")
        source.tree["supervise"] = source.tree.pop("supervised")
    for key in Study.model_fields.keys() - {"seed", "model", "optimizer", recipe}:
        source.tree.pop(key, None)
    if isinstance(source.tree.get(recipe), dict):
        source.tree[recipe].pop("dataset", None)
    return source


def _observer(args: Args, job: PretrainJob) -> Observer | None:
    from dinoskip.data import FolderConfig
    from dinoskip.pipeline.online import build_observer
    from eval.online.config import OnlineConfig, OnlineKnnConfig

    if args.online_knn:
        section = OnlineConfig(knn=OnlineKnnConfig(dataset="online"))
        return build_observer(section, {"knn": (FolderConfig(root=args.online_knn), None)})
    if job.pretrain.online_every:
        log.warning("pretrain.online_every: nothing is evaluated without --online-knn DIR")
    return None


def pretrain(args: Args) -> int:
    """``dinoskip pretrain``."""
    from dinoskip.data.shards import open_source
    from dinoskip.training.pretraining import pretrain as train

    job = pretrain_job(args)
    if args.online_knn and not job.pretrain.online_every:
        job = job.model_copy(update={"pretrain": job.pretrain.model_copy(update={"online_every": 1})})
    computing = {"device": args.device, "workers": args.workers, "observer": _observer(args, job)}
    final = train(job, open_source(args.images), Path(args.out), allow=args.allow_change, **computing)
    if is_main():
        print(final)
    return 0


def supervise(args: Args) -> int:
    """``dinoskip supervise``."""
    from dinoskip.config import validate
    from dinoskip.data.folders import LabelledFolder
    from dinoskip.training.supervised import SupervisedJob
    from dinoskip.training.supervised import supervise as train_classifier

    job = validate(SupervisedJob, _job_source(args, "supervise"))
    train = LabelledFolder.open(args.train)
    val = LabelledFolder.open(args.val, train.class_names) if args.val else None
    computing = {"device": args.device, "workers": args.workers}
    final = train_classifier(job, train, val, args.out, allow=args.allow_change, **computing)
    if is_main():
        print(final)
    return 0


def _blocks(text: str) -> Any:
    if text == "all":
        return "all"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--blocks {text}: is neither all nor numbers such as 3,6,9,12") from None


def features_export(args: Args) -> int:
    """``dinoskip features export``."""
    from dinoskip.config import RawConfig, validate
    from dinoskip.data.folders import ImageFolder
    from dinoskip.distributed import world
    from dinoskip.features import Transform, export
    from dinoskip.models import load_backbone

    transform = validate(Transform, RawConfig({"mode": args.mode, "size": args.size}))
    with world(args.device) as here:
        export(
            load_backbone(args.backbone, device=here.device),
            ImageFolder.open(args.images),
            Path(args.out),
            _blocks(args.blocks),
            facet=args.facet,
            norm=args.norm or ("final" if args.facet == "out" else "none"),
            dtype=args.dtype,
            transform=transform,
            batch_size=args.batch,
            workers=args.workers,
            file_format=args.format,
            here=here,
        )
    if here.is_main:
        print(args.out)
    return 0


def _data_name(data: dict[str, Any], overrides: Sequence[str]) -> str:
    """What rows call the data set of ``--data``: its :func:`dinoskip.data.dataset_name`, as far as a name may be it."""
    from dinoskip.config import RawConfig, apply_overrides, validate
    from dinoskip.data.sets import dataset_name
    from dinoskip.pipeline.make import DatasetBox

    own = [f"dataset.{text.removeprefix('data.')}" for text in overrides if text.startswith("data.")]
    config = validate(DatasetBox, apply_overrides(RawConfig({"dataset": data}, {"": "command line"}), own)).dataset
    return re.sub(r"[^A-Za-z0-9._-]+", "_", dataset_name(config)).lstrip("._-")[:64] or "data"


def _frozen(args: Args, section: str, stage: str) -> Runner:
    """Run one evaluation as a study of existing backbones, in ``--out``.

    ``section`` is the list under ``evaluate`` that names the data set, if one does. ``data.KEY=value`` sets its keys.
    """
    from dinoskip.config import RawConfig, apply_overrides, validate
    from dinoskip.pipeline.study import expand

    data: dict[str, Any] = {"kind": args.kind, "root": args.data}
    if args.kind == "voc":
        data["year"] = args.year
    out, name = Path(args.out), _data_name(data, args.overrides)
    tree = {
        "name": out.name,
        "output": str(out.parent),
        "data": {name: data},
        "variants": {"model": [{"backbone": spec} for spec in args.backbone]},
        "evaluate": {"blocks": _blocks(args.blocks), **({section: [name]} if section else {})},
        "gallery": {"dataset": name, "single_file": args.single_file} if stage == "gallery" else {},
    }
    overrides = [re.sub(r"^data\.", f"data.{name}.", text) for text in args.overrides]
    source = apply_overrides(RawConfig(tree, {"": "command line", "name": "--out"}), overrides)
    study = validate(Study, source)
    runner = _runner(study, expand(study, source), args)
    runner.run({node.id for node in runner.planner.nodes if node.stage in {"features", stage}})
    return runner


def _measured(args: Args, section: str, stage: str) -> int:
    rows = _rows(_frozen(args, section, stage))
    log.info("%s: rows and all else it made are below %s", stage, Path(args.out) / "stages" / stage)
    if args.csv:
        write_text(Path(args.csv), rows_csv(rows))
    if args.json:
        print_json([row.plain() for row in rows])
    else:
        _print_rows(rows)
        for row in _best([row for row in rows if row.task == "tokencut" and row.block.isdigit()]):
            print(f"best block of {row.model}, {row.facet}, {row.protocol}: {row.block} with CorLoc {row.shown}")
    return 0


def probe(args: Args) -> int:
    """``dinoskip probe``."""
    return _measured(args, "datasets", "probe")


def tokencut(args: Args) -> int:
    """``dinoskip tokencut``."""
    return _measured(args, "discover", "tokencut")


def knn(args: Args) -> int:
    """``dinoskip knn``."""
    return _measured(args, "knn", "knn")


def retrieve(args: Args) -> int:
    """``dinoskip retrieve``."""
    return _measured(args, "retrieval", "retrieve")


def gallery(args: Args) -> int:
    """``dinoskip gallery``."""
    out = _frozen(args, "", "gallery").output("gallery")
    assert out is not None
    print(f"gallery: {(out / 'index.html').resolve()}")
    return 0
