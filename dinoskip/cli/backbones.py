"""Commands on frozen networks: eval with a task of its own each, gallery, and features export."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import (
    BLOCKS,
    Args,
    Parser,
    accept_option,
    blocks_of,
    command,
    computing_options,
    count,
    data_option,
    everything_option,
    facets_of,
    group,
    json_option,
    needs_action,
    network_argument,
    networks_and_settings,
)
from dinoskip.cli.rows import conclude, rows_file
from dinoskip.cli.settings import keys_of
from dinoskip.data.photographs import photographs_below
from dinoskip.data.recognise import recognise
from dinoskip.data.sets import KINDS, folder_kinds, synthetic_kinds
from dinoskip.data.sets.labels import CLASSES, DETECTION, LABELS, SEGMENTATION
from dinoskip.data.sets.voc import voc_folder
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.output import given_folder
from dinoskip.pipeline import stages
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.look.study import MEASURES, labelled
from dinoskip.pipeline.stage import Stage
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.runtime.console import say
from dinoskip.settings.config import RawConfig, apply_overrides, validate
from dinoskip.settings.read_points import FACETS, usual_norm
from dinoskip.settings.tasks import TASKS

if TYPE_CHECKING:
    from dinoskip.pipeline.runner import Runner


def add_commands(commands: Any) -> None:
    actions = group(commands, "features", "work with frozen features")
    _add_export(actions)
    parser = command(actions, "convert", convert_features, "write a feature store for other programs")
    parser.add_argument("store", metavar="STORE", help="a folder that features export wrote")
    parser.add_argument("out", metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--to",
        choices=("huggingface", "safetensors", "hdf5", "faiss"),
        default="huggingface",
        help="a data set of Parquet files, a file a block, one file, or indexes to search (default: huggingface)",
    )
    parser.add_argument("--facet", default=None, help="one facet of a store with several (default: all)")
    _add_eval(commands)
    gallery = stages.load("gallery")
    assert gallery.command is not None
    parser = command(commands, "gallery", partial(run_stage, gallery), gallery.command.help)
    network_argument(parser, several=True)
    _shared_options(parser)
    parser.add_argument("--single-file", action="store_true", help="write one page with all images inside")
    _of_stage(parser, gallery)


def _add_eval(commands: Any) -> None:
    """``eval TASK``: a command of every task. Options that all have stand in the help of ``eval`` itself."""
    parser = command(
        commands, "eval", needs_action, "measure frozen networks by a task, such as probe, tokencut or knn",
        details="dinoskip eval knn timm:vit_small_patch16_224.dino --data flowers --out runs/knn",
    )  # fmt: skip
    parser.further = _shared_help
    actions = parser.add_subparsers(title="tasks", metavar="TASK", required=True, parser_class=Parser)
    for stage in map(stages.load, TASKS):
        shared = _shared_parser()  # one each: a default that a task sets is the action's own
        for action in shared._actions:
            action.help = argparse.SUPPRESS  # they stand in the help of `eval` alone
        assert stage.command is not None
        section = stage.command.example.rpartition(".")[0]
        of_task = command(
            actions, stage.name, partial(run_stage, stage), stage.command.help, parents=(shared,),
            details=f"--kind is {stage.command.kind} unless given. `dinoskip settings {section}` lists settings, such "
            f"as {stage.command.example}.\nOptions that all tasks have (--blocks, --csv, --device, ...): "
            "`dinoskip eval --help`.",
        )  # fmt: skip
        of_task.usage = f"dinoskip eval {stage.name} NETWORK ... --data DIR --out DIR [a.b=value ...] [options]"
        network_argument(of_task, several=True)
        _of_stage(of_task, stage)


def _shared_parser() -> Parser:
    """The options that every task has, in a parser of their own."""
    parser = Parser(add_help=False, usage=argparse.SUPPRESS)
    _shared_options(parser)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows as CSV")
    return parser


def _shared_help() -> str:
    """Return the part of ``eval --help`` on the options that every task has."""
    of_all = _shared_parser().format_help().partition("\n")[2]
    usage = "dinoskip eval TASK NETWORK [NETWORK ...] --data DIR --out DIR [a.b=value ...] [options]"
    return f"\n{usage}\n\noptions of every task:\n{of_all}"


def _shared_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the tasks and the gallery share: data, output, blocks and options for computing."""
    data_option(parser, "the data set's folder; none of a synthetic kind", required=False)
    parser.add_argument(
        "--kind",
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"its layout: {', '.join(folder_kinds())}, or synthetic: {', '.join(synthetic_kinds())} "
        "(default: the task's); data.KEY=value sets its keys, e.g. data.classes=27",
    )
    parser.add_argument(
        "--year", type=int, default=2012, choices=(2007, 2012), help="year of a VOC layout (default: 2012)"
    )
    parser.add_argument(
        "--skip-broken",
        action="store_true",
        help="leave out images that are broken, have broken labels or are smaller than a patch; rows say how many",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where results and cached features go")
    parser.add_argument("--blocks", default="all", help=BLOCKS)
    json_option(parser, "the rows")
    accept_option(parser)
    computing_options(parser)


def _of_stage(parser: Parser, stage: Stage) -> None:
    """Add to a command its stage's settings, kind of data and flags."""
    assert stage.command is not None
    parser.set_defaults(kind=stage.command.kind, settings=[])
    parser.settings = partial(keys_of, stage.section, stage.place)
    for opt in stage.command.options:
        if opt.metavar is None:
            parser.add_argument(opt.flag, action="append_const", dest="settings", const=opt.setting, help=opt.help)
        else:
            parser.add_argument(
                opt.flag, action="append", dest="settings", metavar=opt.metavar, type=opt.setting.format, help=opt.help
            )


def _add_export(actions: Any) -> None:
    text = "write the features of every block of every image of a folder"
    parser = command(actions, "export", export_features, text)
    network_argument(parser)
    data_option(parser, "a folder of photographs, or a data set's")
    everything_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="the feature store")
    parser.add_argument("--blocks", default="all", help=BLOCKS)
    parser.add_argument(
        "--facet",
        default=["out"],
        type=facets_of,
        metavar="NAME",
        help=f"one of {', '.join(FACETS)}, or several with commas, in one pass (default: out)",
    )
    parser.add_argument(
        "--norm",
        default=None,
        choices=("none", "final", "layer"),
        help="(default: final for out, attn and mlp, else none)",
    )
    parser.add_argument(
        "--mode", default="square", choices=("square", "center_crop", "native"), help="(default: square)"
    )
    parser.add_argument("--size", type=count, default=224, help="pixels, for square and center_crop (default: 224)")
    parser.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16", "float32"), help="(default: float16)"
    )
    parser.add_argument("--batch", type=count, default=16, metavar="N", help="images per forward pass (default: 16)")
    computing_options(parser)


def convert_features(args: Args) -> int:
    from dinoskip.features.convert import SAVE, facets_of  # torch

    SAVE[args.to](facets_of(args.store, args.facet), given_folder(args.out, [args.store]))
    say(args.out)
    return 0


def export_features(args: Args) -> int:
    from dinoskip.features import Transform, export
    from dinoskip.models import load_backbone
    from dinoskip.runtime.distributed import world  # torch

    out = given_folder(args.out, [args.data])
    transform = validate(Transform, RawConfig({"mode": args.mode, "size": args.size}))
    named = ("network", "blocks", "facet", "norm", "dtype", "mode", "size", "batch")
    same = {name: getattr(args, name) for name in named}
    with world(args.device, same, args.out) as here:
        export(
            load_backbone(args.network, device=here.device),
            photographs_below(Path(args.data), everything=args.everything),
            out,
            blocks_of(args.blocks),
            facet=args.facet,
            norm=[args.norm or usual_norm(facet, "final") for facet in args.facet],
            dtype=args.dtype,
            transform=transform,
            batch_size=args.batch,
            workers=args.workers,
            here=here,
            images={"kind": "folder", "root": str(Path(args.data).resolve())},
        )
    if here.is_main:
        say(args.out)
    return 0


def _data_name(data: dict[str, Any], overrides: Sequence[str]) -> str:
    """Return the data set's name in rows: its ``dataset_name``, made a valid name of at most 64 characters."""
    of_data = [f"dataset.{text.removeprefix('data.')}" for text in overrides if text.startswith("data.")]
    config = validate(OneDataset, apply_overrides(RawConfig({"dataset": data}, {"": "command line"}), of_data)).dataset
    return re.sub(r"[^A-Za-z0-9._-]+", "_", config.dataset_name).lstrip("._-")[:64] or "data"


def _runner_of(args: Args, stage: Stage) -> Runner:
    """A study of existing backbones, in ``--out``, with one stage and what it needs. ``data.KEY=value`` sets keys."""
    synthetic = args.kind in synthetic_kinds()
    if synthetic == bool(args.data):
        wrong = f"--data {args.data}: kind {args.kind} is synthetic" if synthetic else "--data: is needed"
        hint = (
            "leave it out"
            if synthetic
            else f"the data set's folder, or a synthetic kind: {', '.join(synthetic_kinds())}"
        )
        raise ConfigError(wrong, hint)
    data: dict[str, Any] = {"kind": args.kind} if synthetic else {"kind": args.kind, "root": args.data}
    if args.kind == "voc":
        data["year"] = args.year
    if args.skip_broken:
        data["skip_broken"] = True
    networks, overrides = networks_and_settings(args.network)
    overrides = [*args.settings, *overrides]  # options that stand for settings; what is written out wins
    out, name = Path(args.out), _data_name(data, overrides)
    tree: dict[str, Any] = {
        "name": out.name,
        "output": str(out.parent),
        "data": {name: data},
        "variants": {"model": labelled(networks)},
        "device": args.device,
        "evaluate": {"blocks": blocks_of(args.blocks)},
    }
    if stage.name == "gallery":
        tree["gallery"] = {"dataset": name, "single_file": args.single_file}
    else:
        tree["evaluate"][stage.name] = {"datasets": [name]}
        tree["report"] = {"title": f"{stage.name} on {name}, block by block"}
        if _pictured(stage):
            tree["gallery"] = {"dataset": name}
    overrides = [re.sub(r"^data\.", f"data.{name}.", text) for text in overrides]
    source = RawConfig(tree, {"": "command line", "name": "--out", stage.asked_by: "--data"})
    study, variants = study_of(apply_overrides(source, overrides))
    if args.kind == "voc" and stage.name in TASKS:
        _refuse_photographs(stage.name, Path(args.data), args.year)
    asked = {stage.name, "gallery"} if _pictured(stage) else {stage.name}
    nodes = only(build_nodes(study, variants), asked, gathering="" if stage.name == "gallery" else "report")
    return study_runner(study, variants, nodes, device=args.device, workers=args.workers, accept=args.accept)


def _refuse_photographs(task: str, folder: Path, year: int) -> None:
    """:class:`DataError` for a folder of plain photographs, where a task that needs labels expects VOC by default."""
    try:
        voc_folder(folder, year)
    except DataError:
        if recognise(folder).settings is None:  # nothing but photographs
            labels = LABELS[TASKS[task].label].short
            raise DataError(
                f"{folder}: photographs without {labels}, against which eval {task} scores",
                f"dinoskip look --data {folder} shows what networks see there; --kind names the layout of labels",
            ) from None


def _pictured(stage: Stage) -> bool:
    """Whether the page of the task's command has a gallery: not where images lie inside the files of their labels."""
    return stage.name in MEASURES and TASKS[stage.name].label in {SEGMENTATION.name, DETECTION.name, CLASSES.name}


def run_stage(stage: Stage, args: Args) -> int:
    """``dinoskip eval TASK``, or ``dinoskip gallery``."""
    from dinoskip.runtime.distributed import is_main  # torch

    if csv := getattr(args, "csv", None):
        rows_file(csv)  # before hours of work
    runner = _runner_of(args, stage)
    runner.run({node.id for node in runner.planner.nodes})
    if is_main():
        page = "gallery" if stage.name == "gallery" else "report"
        conclude(runner, (page,), as_json=args.json, csv=csv)
    return 0
