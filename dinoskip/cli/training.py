"""Commands that train one network: pretrain, supervise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import (
    Args,
    accept_option,
    command,
    computing_options,
    data_option,
    everything_option,
    overrides_argument,
    recipe_source,
)
from dinoskip.cli.settings import keys_of
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.photographs import open_photographs
from dinoskip.data.sets import FolderConfig
from dinoskip.data.splits import split_path
from dinoskip.data.verdicts import settle
from dinoskip.init.config import init_for_skipless
from dinoskip.io.output import given_folder
from dinoskip.pipeline.leaks import common_verdicts
from dinoskip.runtime.console import log, say
from dinoskip.settings.config import validate
from dinoskip.training.objectives import PretrainJob
from dinoskip.training.supervised_config import SupervisedJob
from eval.online.config import OnlineConfig, OnlineKnnConfig

if TYPE_CHECKING:
    from dinoskip.training.loop import Observer


def _run_arguments(parser: Any, recipe: str, example: str, job: Any) -> None:
    parser.add_argument(
        "config", nargs="?", help=f"YAML with seed, model, optimizer, {recipe} (a study's, without its variants)"
    )
    overrides_argument(parser, f"settings, e.g. {example}", partial(keys_of, job))
    parser.add_argument("--out", required=True, metavar="DIR", help="the run directory")
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="KEY",
        help="resume although this setting (or section) has changed, e.g. optimizer.lr or data; "
        "recorded in changes.jsonl; may be repeated",
    )
    computing_options(parser)


def add_commands(commands: Any) -> None:
    parser = command(commands, "pretrain", pretrain, "pretrain one ViT on a folder of images; run again to resume")
    data_option(parser, "a folder of photographs or a data set's, a .tar file or a folder of those")
    everything_option(parser)
    parser.add_argument(
        "--online-knn",
        metavar="DIR",
        help="evaluate while training: k-NN on DIR/train, one sub-folder per class, of images held out of the "
        "neighbours, every pretrain.online_every epochs (default: every epoch)",
    )
    _run_arguments(parser, "pretrain", "model.skip=false model.init.name=skipless", PretrainJob)
    parser = command(
        commands, "supervise", supervise, "train one ViT classifier on labelled images; run again to resume"
    )
    data_option(
        parser,
        "a folder with train and, to classify every supervise.online_every epochs and at the end, val; each with one "
        "sub-folder per class; or only the training folder",
    )
    parser.add_argument("--val", metavar="DIR", help="images to classify, of the same classes (default: DATA/val)")
    accept_option(parser)
    _run_arguments(parser, "supervise", "model.name=vit_base_patch16 model.skip=false", SupervisedJob)


def pretrain_job(args: Args) -> PretrainJob:
    """The job of ``dinoskip pretrain CONFIG [a.b=value ...]``; a study's other sections are left out."""
    return validate(PretrainJob, recipe_source(args, "pretrain"))


def _observer(args: Args, job: PretrainJob) -> Observer | None:
    from dinoskip.pipeline.stages.training_runs import build_observer

    if args.online_knn:
        section = OnlineConfig(knn=OnlineKnnConfig(dataset="online"))
        return build_observer(section, {"knn": (FolderConfig(root=args.online_knn), None)})
    if job.pretrain.online_every:
        log.warning("pretrain.online_every: nothing is evaluated without --online-knn DIR")
    return None


def pretrain(args: Args) -> int:
    from dinoskip.runtime.distributed import is_main
    from dinoskip.training.pretraining import pretrain as train

    job = pretrain_job(args)
    job = job.model_copy(update={"model": init_for_skipless(job.model)})
    if args.online_knn and not job.pretrain.online_every:
        job = job.model_copy(update={"pretrain": job.pretrain.model_copy(update={"online_every": 1})})
    computing = {"device": args.device, "workers": args.workers, "observer": _observer(args, job)}
    images = open_photographs(args.data, everything=args.everything)
    out = given_folder(args.out, filter(None, (args.data, args.online_knn)))
    final = train(job, images, out, allow=args.allow_change, **computing)
    if is_main():
        say(final)
    return 0


def training_folder(data: str | Path) -> Path:
    """Return the folder of training images of ``supervise --data``: its ``train``, or the folder itself."""
    inside = split_path(Path(data), "{split}", "train")
    return inside if inside.is_dir() else Path(data)


def supervise(args: Args) -> int:
    from dinoskip.runtime.distributed import is_main
    from dinoskip.training.supervised import supervise as train_classifier

    job = validate(SupervisedJob, recipe_source(args, "supervise"))
    job = job.model_copy(update={"model": init_for_skipless(job.model)})
    root = Path(args.data)
    of_val, train = split_path(root, "{split}", "val"), LabelledFolder.open(training_folder(root))
    both = train.root != root
    place = args.val or (of_val if both and of_val.is_dir() else None)
    val = LabelledFolder.open(place, train.class_names) if place else None
    if val is not None:
        for line in settle(common_verdicts(train, val, root), args.accept):
            log.warning("accepted: %s", line)
    computing = {"device": args.device, "workers": args.workers}
    out = given_folder(args.out, filter(None, (args.data, args.val)))
    final = train_classifier(job, train, val, out, allow=args.allow_change, **computing)
    if is_main():
        say(final)
    return 0
