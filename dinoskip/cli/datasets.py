"""Commands on data sets: data check, prepare, scenes, pack."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from dinoskip.cli.arguments import (
    Args,
    accept_option,
    command,
    count,
    data_option,
    everything_option,
    group,
    json_option,
    overrides_argument,
    print_json,
)
from dinoskip.cli.settings import keys_of
from dinoskip.data.photographs import open_photographs
from dinoskip.data.sets import folder_kinds, published_kinds
from dinoskip.data.sets.check import check as check_dataset
from dinoskip.data.sets.prepare import missing
from dinoskip.data.sets.prepare import prepare as unpack
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.errors import ConfigError
from dinoskip.io.output import given_folder
from dinoskip.pipeline.leaks import split_verdicts
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.runtime.console import say
from dinoskip.settings.config import RawConfig, apply_overrides, validate


def add_commands(commands: Any) -> None:
    actions = group(commands, "data", "check and prepare data sets, or make the synthetic one")
    parser = command(actions, "check", check, "count, sample and check a data set; name the first faults")
    parser.add_argument("kind", choices=folder_kinds(), help="its layout")
    overrides_argument(parser, "the kind's settings: year=2007 classes=27 annotations=FILE ...")
    data_option(parser, "the data set's folder")
    parser.add_argument(
        "--sample", type=count, default=200, metavar="N", help="images of a split to read (default: 200; 0: all)"
    )
    json_option(parser)
    accept_option(parser)
    parser = command(actions, "prepare", prepare, "unpack the archives of a published data set; say which are missing")
    parser.add_argument("kind", choices=published_kinds(), help="which data set")
    parser.add_argument("archives", nargs="*", metavar="FILE", help="downloaded .tar, .zip and list (.txt) files")
    parser.add_argument("--out", required=True, metavar="ROOT", help="the data set's folder; existing files are kept")
    parser = command(actions, "scenes", scenes, "compose labelled scenes from bundled photographs")
    parser.add_argument("out", help="folder to make")
    overrides_argument(parser, "images=240 size=224 classes=6 seed=0 ...", partial(keys_of, ScenesConfig))
    parser = command(actions, "pack", pack, "pack images for training into tar shards of smaller JPEGs")
    parser.add_argument("out", help="folder to make; run again to continue after an interruption")
    data_option(parser, "a folder of photographs or a data set's, a .tar file or a folder of them")
    everything_option(parser)
    parser.add_argument(
        "--short-side",
        type=count,
        default=256,
        metavar="N",
        help="pixels of the short side; nothing is enlarged (default: 256)",
    )
    parser.add_argument(
        "--quality", type=count, default=90, metavar="Q", help="quality of the JPEGs, 1-100 (default: 90)"
    )
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="threads (default: 0, one a processor)")


def check(args: Args) -> int:
    """``dinoskip data check``; exit code 3 if there are faults, or verdicts on the labels that stop a command."""
    tree: dict[str, Any] = {"kind": args.kind, "root": args.data}
    source = apply_overrides(RawConfig({"dataset": tree}), [f"dataset.{text}" for text in args.overrides])
    config = validate(OneDataset, source).dataset
    rows = check_dataset(config, sample=args.sample or None)
    between = split_verdicts(config)
    for row in rows:
        row.verdicts += between.get((row.task, row.split), [])
    if args.json:
        print_json([asdict(row) for row in rows])
    else:
        for row in rows:
            say(*row.lines())
    stopped = [
        verdict
        for row in rows
        for verdict in row.verdicts
        if verdict.state == "refused" or (verdict.state == "doubtful" and verdict.name not in args.accept)
    ]
    return 3 if stopped or any(row.faults for row in rows) else 0


def scenes(args: Args) -> int:
    out = given_folder(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not an empty folder", "name a new one")
    say(validate(ScenesConfig, apply_overrides(RawConfig(), args.overrides)).generate(out))
    return 0


def prepare(args: Args) -> int:
    """``dinoskip data prepare``: unpack what the user downloaded, then say what is still missing."""
    for line in unpack(args.kind, args.archives, given_folder(args.out)):
        say(line)
    wanted = missing(args.kind, args.out)
    for line in wanted:
        say(line)
    if not any(line.startswith("missing") for line in wanted):
        say(f"next: dinoskip data check {args.kind} --data {args.out}")
    return 0


def pack(args: Args) -> int:
    from dinoskip.data.pack import PackConfig
    from dinoskip.data.pack import pack as write_shards  # torch

    settings = {"short_side": args.short_side, "quality": args.quality}
    config = validate(PackConfig, RawConfig(settings, {"": "command line"}))
    out, source = given_folder(args.out, [args.data]), open_photographs(args.data, everything=args.everything)
    say(write_shards(source, out, config, threads=args.workers))
    return 0
