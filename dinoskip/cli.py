"""The command line. No torch, no pydantic here: ``dinoskip --help`` answers at once; handlers are elsewhere.

Exit codes: 0 ok, 1 internal, 2 usage or config, 3 bad data or weights, 4 non-finite training, 5 output in use by
another run, 6 disk full, 75 preempted (SIGTERM, SIGUSR2), 130 interrupted (Ctrl-C). Results go to stdout, all else to
stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dinoskip import __version__, console, options
from dinoskip.errors import ConfigError, DinoskipError, DiskFull, Preempted, is_disk_full

KINDS = ("voc", "ade20k", "coco_stuff", "coco20k", "masks", "coco_json", "folder", "images")
_count = options.count
EXITS = __doc__.split("\n\n", 1)[1].strip() if __doc__ else ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def _command(commands: Any, name: str, handler: str, text: str, *, details: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=details or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=handler, prog=parser.prog)
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", action="store_const", const=-1, default=0, dest="verbosity", help="warnings only"
    )
    loudness.add_argument("-v", "--verbose", action="store_const", const=1, dest="verbosity", help="everything")
    return parser


def _compute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to compute (default: auto)"
    )
    parser.add_argument(
        "--workers",
        type=_count,
        default=0,
        metavar="N",
        help="processes or threads that read images or work on them (default: 0, automatic)",
    )


def _allow_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="KEY",
        help="go on with another value of a setting (or section) than the run began with, e.g. optimizer.lr or data; "
        "recorded in changes.jsonl; may be repeated",
    )


def _study(parser: argparse.ArgumentParser, *, choose: bool = False) -> None:
    parser.add_argument("config", help="a study, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help="settings laid over the file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    if choose:
        parser.add_argument("--only", metavar="STAGE", help="run this stage alone; what it needs must be there")
        parser.add_argument("--from", dest="start", metavar="STAGE", help="run this stage and those after it")
        parser.add_argument("--until", metavar="STAGE", help="run up to and including this stage")
        parser.add_argument("--variant", metavar="NAME", help="run the stages of one variant alone")
        parser.add_argument("--dry-run", action="store_true", help="say what would run, and run nothing")


def _frozen(parser: argparse.ArgumentParser, kind: str, example: str) -> None:
    parser.add_argument(
        "--backbone",
        required=True,
        metavar="SPEC",
        action="append",
        help="run:DIR, weights:FILE.safetensors, dino:FILE.pth, timm:NAME, hub:REPO:NAME or hf:NAME; may be repeated",
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="the data set's folder")
    parser.add_argument(
        "--kind",
        default=kind,
        choices=KINDS,
        metavar="KIND",
        help=f"its layout: {', '.join(KINDS)} (default: {kind}); data.KEY=value sets its keys, e.g. data.classes=27",
    )
    parser.add_argument("--year", type=int, default=2012, choices=(2007, 2012), help="of a VOC layout (default: 2012)")
    parser.add_argument("--out", required=True, metavar="DIR", help="where results and cached features go")
    parser.add_argument("--blocks", default="all", help="all, or numbers such as 3,6,9,12 (default: all)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON on stdout")
    section = example.rpartition(".")[0]
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="a.b=value",
        help=f"settings, e.g. {example}; `dinoskip settings {section}` lists them",
    )
    _compute(parser)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dinoskip",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train DINO ViTs with and without skip connections, and measure every layer's dense features.",
    )
    parser.add_argument("--version", action="version", version=f"dinoskip {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _study_commands(commands)
    _pretrain_command(commands)
    _supervise_command(commands)
    _submit_commands(commands)
    _features_commands(commands)
    _frozen_commands(commands)
    _tool_commands(commands)
    return parser


def _study_commands(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        "run",
        "run a study: train, evaluate and show every variant; continue where it stopped",
        details="stages: data, sweep, pretrain, supervise, weights, features, probe, tokencut, knn, retrieve, analyze, "
        "gallery, report",
    )
    _study(run, choose=True)
    _compute(run)
    settings = _command(
        commands, "settings", "tools:settings", "list the settings of studies and runs, with defaults and meanings"
    )
    settings.add_argument("section", nargs="?", metavar="SECTION", help="these alone, such as pretrain or online.knn")
    _study(_command(commands, "plan", "plan", "say of every stage whether it is cached or must run, and why"))
    _study(_command(commands, "status", "status", "show how far a study is and its results so far"))
    report = _command(commands, "report", "report", "write a study's report again from what is there")
    _study(report)
    report.add_argument(
        "--markdown", metavar="FILE.md", help="copy the Markdown there as well, its pictures into a folder beside it"
    )
    _compute(report)
    gc = _command(commands, "gc", "gc", "list stage outputs that a study no longer uses, and delete them with --delete")
    _study(gc)
    gc.add_argument("--delete", action="store_true", help="delete them")


def _pretrain_command(commands: Any) -> None:
    pretrain = _command(
        commands, "pretrain", "pretrain", "pretrain one DINO ViT on a folder of images; run again to resume"
    )
    pretrain.add_argument(
        "config", nargs="?", help="YAML with seed, model, optimizer, pretrain (a study's, without its variants)"
    )
    pretrain.add_argument(
        "overrides", nargs="*", metavar="a.b=value", help="settings, e.g. model.skip=false model.init.name=skipless"
    )
    pretrain.add_argument(
        "--images", required=True, metavar="DIR", help="a folder of images, a .tar file or a folder of those"
    )
    pretrain.add_argument("--out", required=True, metavar="DIR", help="the run directory")
    pretrain.add_argument(
        "--online-knn",
        metavar="DIR",
        help="evaluate while training: k-NN on DIR/train and DIR/val, one sub-folder a class, every "
        "pretrain.online_every epochs (default: every epoch)",
    )
    _allow_change(pretrain)
    _compute(pretrain)


def _supervise_command(commands: Any) -> None:
    supervise = _command(
        commands, "supervise", "supervise", "train one ViT classifier on labelled images; run again to resume"
    )
    supervise.add_argument(
        "config", nargs="?", help="YAML with seed, model, optimizer, supervise (a study's, without its variants)"
    )
    supervise.add_argument(
        "overrides", nargs="*", metavar="a.b=value", help="settings, e.g. model.name=vit_base_patch16 model.skip=false"
    )
    supervise.add_argument(
        "--train", required=True, metavar="DIR", help="a folder of images with one sub-folder a class"
    )
    supervise.add_argument(
        "--val",
        metavar="DIR",
        help="another, of the same classes, classified every supervise.online_every epochs and at the end",
    )
    supervise.add_argument("--out", required=True, metavar="DIR", help="the run directory")
    _allow_change(supervise)
    _compute(supervise)


def _submit_commands(commands: Any) -> None:
    submit = _command(
        commands,
        "submit",
        "tools:submit",
        "submit a study, or with --images and --out one pretraining run, as a SLURM job",
        details="options of sbatch may follow after --: dinoskip submit STUDY.yaml -- --dependency=afterok:123",
    )
    submit.add_argument("config", help="a study, or the YAML of `dinoskip pretrain`")
    submit.add_argument("overrides", nargs="*", metavar="a.b=value", help="settings laid over the file")
    submit.add_argument("--cluster", metavar="FILE", help="what to ask for, such as configs/cluster/h100_8gpu.yaml")
    submit.add_argument("--until", metavar="STAGE", help="of a study: run up to and including this stage")
    submit.add_argument("--variant", metavar="NAME", help="of a study: one variant alone, side by side with other jobs")
    submit.add_argument("--images", metavar="DIR", help="a folder of images, for `dinoskip pretrain`")
    submit.add_argument("--out", metavar="DIR", help="its run directory")
    submit.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    submit.set_defaults(sbatch=[])

    requeue = commands.add_parser("requeue")  # called by the script of a job; not in the list of commands
    requeue.set_defaults(handler="tools:requeue", verbosity=0)
    requeue.add_argument("output")
    requeue.add_argument("--begin", action="store_true")
    requeue.add_argument("--code", type=_count, default=0)
    requeue.add_argument("--max", type=_count, default=0)


def _features_commands(commands: Any) -> None:
    features = _command(commands, "features", "features", "work with frozen features").add_subparsers(
        metavar="ACTION", required=True, parser_class=_Parser
    )
    export = _command(
        features, "export", "features_export", "write the features of every block of every image of a folder"
    )
    export.add_argument(
        "--backbone",
        required=True,
        metavar="SPEC",
        help="run:DIR, weights:FILE.safetensors, dino:FILE.pth, timm:NAME, hub:REPO:NAME or hf:NAME",
    )
    export.add_argument("--images", required=True, metavar="DIR", help="a folder of images")
    export.add_argument("--out", required=True, metavar="DIR", help="the feature store")
    export.add_argument("--blocks", default="all", help="all, or numbers such as 3,6,9,12 (default: all)")
    export.add_argument("--facet", default="out", choices=("out", "key", "query", "value"), help="(default: out)")
    export.add_argument(
        "--norm", default=None, choices=("none", "final", "layer"), help="(default: final for out, else none)"
    )
    export.add_argument(
        "--mode", default="square", choices=("square", "center_crop", "native"), help="(default: square)"
    )
    export.add_argument("--size", type=_count, default=224, help="pixels, for square and center_crop (default: 224)")
    export.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16", "float32"), help="(default: float16)"
    )
    export.add_argument(
        "--format", default="npy", choices=("npy", "safetensors", "hdf5"), help="of the files (default: npy)"
    )
    export.add_argument("--batch", type=_count, default=16, metavar="N", help="images a forward pass (default: 16)")
    _compute(export)


def _frozen_commands(commands: Any) -> None:
    for name, kind, example, text in (
        ("probe", "voc", "evaluate.probe.size=448", "fit linear segmentation probes on every block of a backbone"),
        ("tokencut", "voc", "evaluate.tokencut.lost_k=100", "discover objects in every block by TokenCut (LOST, too)"),
        ("knn", "folder", "evaluate.knn_k=[20]", "classify by k-NN on the CLS token of every block"),
        ("retrieve", "voc", "evaluate.retrieve.k=30", "segment by the nearest training patches, with every block"),
        (
            "gallery",
            "images",
            "gallery.first=40",
            "make a page of images × blocks × backbones, of any folder of images",
        ),
    ):
        command = _command(commands, name, name, text)
        _frozen(command, kind, example)
        if name == "gallery":
            command.add_argument("--single-file", action="store_true", help="one page with the pictures inside")
        else:
            command.add_argument("--csv", metavar="FILE", help="write the rows as CSV, too")
        if name == "probe":
            options.probe(command)

    analyze = _command(
        commands, "analyze", "tools:analyze", "show conditioning and signal propagation of fresh or trained models"
    )
    options.analyze(analyze)


def _tool_commands(commands: Any) -> None:
    data = _command(commands, "data", "data", "look at data sets, or compose the embedded one").add_subparsers(
        metavar="ACTION", required=True, parser_class=_Parser
    )
    check = _command(data, "check", "tools:data_check", "count, sample and check a data set; name the first faults")
    check.add_argument("kind", choices=KINDS, help="its layout")
    check.add_argument("folder", metavar="ROOT", help="the data set's folder")
    check.add_argument("overrides", nargs="*", metavar="key=value", help="year=2007 classes=27 annotations=FILE ...")
    check.add_argument(
        "--sample", type=_count, default=200, metavar="N", help="images of a split to read (default: 200; 0: all)"
    )
    check.add_argument("--json", action="store_true", help="print JSON on stdout")
    prepare = _command(
        data, "prepare", "tools:data_prepare", "unpack the archives of a published data set; say which are missing"
    )
    prepare.add_argument("kind", choices=("voc", "ade20k", "coco_stuff", "coco20k"), help="which data set")
    prepare.add_argument("archives", nargs="*", metavar="FILE", help=".tar, .zip and lists (.txt) that you downloaded")
    prepare.add_argument("--out", required=True, metavar="ROOT", help="the data set's folder; what is there stays")
    scenes = _command(data, "scenes", "tools:data_scenes", "compose labelled scenes from bundled photographs")
    scenes.add_argument("out", help="folder to make")
    scenes.add_argument("overrides", nargs="*", metavar="key=value", help="images=240 size=224 classes=6 seed=0 ...")
    pack = _command(data, "pack", "tools:data_pack", "pack images for training into tar shards of smaller JPEGs")
    pack.add_argument("images", help="a folder of images, a .tar file or a folder of them")
    pack.add_argument("out", help="folder to make; run again to go on with an interrupted one")
    pack.add_argument(
        "--short-side", type=_count, default=256, metavar="N", help="pixels; nothing is enlarged (default: 256)"
    )
    pack.add_argument("--quality", type=_count, default=90, metavar="Q", help="of the JPEGs, 1-100 (default: 90)")
    pack.add_argument("--workers", type=_count, default=0, metavar="N", help="threads (default: 0, one a processor)")

    models = _command(commands, "models", "models", "list, show and convert models").add_subparsers(
        metavar="ACTION", required=True, parser_class=_Parser
    )
    _command(models, "list", "tools:models_list", "list the model names")
    show = _command(
        models, "show", "tools:models_show", "say what a backbone is: size, blocks, parameters, where it came from"
    )
    show.add_argument(
        "spec", help="run:DIR, weights:FILE.safetensors, dino:FILE.pth, timm:NAME, hub:REPO:NAME or hf:NAME"
    )
    text = "write a run's teacher or a DINO .pth as one weights file"
    convert = _command(models, "convert", "tools:models_convert", text)
    convert.add_argument("spec", help="run:DIR or dino:FILE.pth")
    convert.add_argument("out", help="FILE.safetensors")

    verify = _command(commands, "verify", "tools:verify", "re-hash every finished output below a folder")
    verify.add_argument("folder", help="a study, run, checkpoint or feature store")
    _command(commands, "doctor", "tools:doctor", "say what this machine has and lacks")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse; overrides (``a.b=value``) may stand anywhere among the options, sbatch's after ``--``."""
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if given[:1] == ["submit"] and "--" in given else len(given)
    args, rest = parser.parse_known_args(given[:cut])
    if cut < len(given):
        args.sbatch = given[cut + 1 :]
    for text in rest:
        if text.startswith("-") or "=" not in text or not hasattr(args, "overrides"):
            parser.exit(2, f"error: unrecognized argument {text!r} (see {args.prog} --help)\n")
        args.overrides.append(text)
    if settings := getattr(args, "settings", []):  # options that stand for settings; what is written out wins
        args.overrides = [*settings, *args.overrides]
    return args


def _report(error: DinoskipError) -> int:
    for line in error.problems if isinstance(error, ConfigError) else (str(error),):
        print(f"error: {line}", file=sys.stderr)
    return error.exit_code


class _Terminated(BaseException):
    """SIGTERM or SLURM's SIGUSR2, as an exception that nothing on the way takes for a damaged file."""


def _on_sigterm(number: int, frame: object) -> None:
    raise _Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parse(argv)
    console.configure(args.verbosity)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _on_sigterm)
    try:
        module, _, name = args.handler.rpartition(":")
        return int(getattr(importlib.import_module(f"dinoskip.{module or 'commands'}"), name)(args))
    except DinoskipError as error:
        return _report(error)
    except _Terminated:
        return _report(Preempted("stopped by a signal; run the same command again to continue"))
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if is_disk_full(error):
            return _report(DiskFull(f"no space left while writing: {error}", "free some space and run again"))
        raise
