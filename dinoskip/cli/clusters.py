"""Commands for clusters: submit, and requeue, which the script of a job calls."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli import studies, training
from dinoskip.cli.arguments import Args, command, count
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.photographs import open_photographs
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.output import own_folder
from dinoskip.pipeline.cluster import ClusterWorkers
from dinoskip.pipeline.estimate.costs import checkpoints_bytes
from dinoskip.pipeline.preflight import refuse_without_disk
from dinoskip.pipeline.runner import Spread
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.runtime.console import log, say
from dinoskip.runtime.environment import gpu_problem, visible_gpu
from dinoskip.settings.config import RawConfig, read_yaml, validate
from dinoskip.training import launch
from dinoskip.training.launch import ClusterConfig, folder_of, script
from dinoskip.training.launch import submit as give
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import Job
from dinoskip.training.supervised_config import SupervisedConfig, SupervisedJob

if TYPE_CHECKING:
    from dinoskip.pipeline.runner import Runner
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.training.recipe import TrainConfig

ASKED = {
    "nodes": "nodes",
    "gpus_per_node": "GPUs of each node, 0 for none",
    "cpus_per_task": "cores of each process",
    "time": "as sbatch takes it, such as 12:00:00",
    "mem": "memory of a node, such as 200G",
    "partition": "the partition",
    "account": "the account",
    "qos": "the quality of service",
    "constraint": "the feature that nodes must have",
}
"""Settings of :class:`dinoskip.training.launch.ClusterConfig` that are options, too; options win over the file."""
FLAGS = {"--dry-run", "--spread", "--detach"}
_OPTIONS = {"--cluster", *(f"--{name.replace('_', '-')}" for name in ASKED)}


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "submit",
        submit,
        "submit a command as a SLURM job",
        details="dinoskip submit run STUDY.yaml --cluster my_cluster.yaml\n"
        "dinoskip submit pretrain --data photos --out runs/mine model.skip=false --nodes 2 --gpus-per-node 8\n"
        "dinoskip submit STUDY.yaml --cluster my_cluster.yaml --spread --detach\n"
        "dinoskip submit STUDY.yaml -- --dependency=afterok:123\n\n"
        "Without a command's name it is `run`, or with --data `pretrain`. Options of sbatch may follow after --.",
    )
    parser.add_argument("job", nargs="*", metavar="COMMAND", help="a command with its own arguments, as without submit")
    parser.add_argument("--cluster", metavar="FILE", help="a YAML with the resources to request: docs/cluster.md")
    for name, text in ASKED.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=f"{text}; overrides the file")
    parser.add_argument(
        "--spread",
        action="store_true",
        help="of a study: each stage is a job of its own, at most `jobs` of the file at once; this command hands them "
        "out until the study is done",
    )
    parser.add_argument(
        "--detach", action="store_true", help="with --spread: hand out in the background, also when the terminal closes"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the script or the stages, and submit nothing")

    parser = commands.add_parser("requeue")  # not in the list of commands
    parser.set_defaults(handler=requeue, verbosity=0, prog=parser.prog)
    parser.add_argument("output")
    parser.add_argument("--begin", action="store_true")
    parser.add_argument("--code", type=count, default=0)
    parser.add_argument("--max", type=count, default=0)


def _check_torch() -> None:
    """:class:`ConfigError` if the jobs' torch, which is this one, can use no GPU, or not one that is visible here."""
    if visible_gpu() is not None:
        import torch  # heavy: only where there is a GPU to try

        problem = gpu_problem(torch.version.cuda, torch.cuda.is_available())
        if problem is not None:
            raise problem
    spec = find_spec("torch")
    build = runpy.run_path(str(Path(str(spec.origin)).parent / "version.py")) if spec else {}
    if build.get("cuda") is None and build.get("hip") is None:
        log.warning("this torch is built for the CPU alone: jobs on GPUs need another, see docs/cluster.md, Drivers")


def split_words(words: Sequence[str], commands: Collection[str]) -> tuple[list[str], list[str], list[str]]:
    """Return submit's own words of its command line, those of the command it submits, and sbatch's after ``--``."""
    cut = words.index("--") if "--" in words else len(words)
    command: list[str] = []
    job: list[str] = []
    left = list(words[:cut])
    while left:
        word = left.pop(0)
        if word.partition("=")[0] in _OPTIONS:
            command += [word] if "=" in word else [word, *left[:1]]
            left = left if "=" in word else left[1:]
        elif word in FLAGS or (not job and word in {"-h", "--help"}):
            command.append(word)
        else:
            job.append(word)
    first = job[0] if job else ""
    if first and first not in commands and (first.startswith("-") or first.endswith((".yaml", ".yml")) or "=" in first):
        given = {word.partition("=")[0] for word in job}
        job.insert(0, "pretrain" if given & {"--data", "--images"} else "run")
    return command, job, list(words[cut + 1 :])


@dataclass(frozen=True)
class _Submitted:
    """Output folder, name and training recipe of a job; for a study also the study and its runner."""

    output: Path
    name: str
    recipe: TrainConfig | None
    study: tuple[StudyBase, Runner] | None = None


def _settled(job: Args, on_gpus: bool) -> _Submitted:
    """Return a job's output folder, name and training recipe, after a check of its settings."""
    if job.handler is studies.run:
        study, runner = studies.look(job)
        if on_gpus and (study.device, study.evaluate.precision) == ("auto", "auto"):
            log.info("frozen networks compute in fp32: write device: cuda in the study for bf16 on its GPUs")
        name = "-".join([study.name, *job.variants])
        return _Submitted(study.directory, name, recipe_of(study), (study, runner))
    if not getattr(job, "out", None) or not hasattr(job, "device"):
        raise ConfigError(f"submit: {job.prog} has no --out here that a job could go on from", "name one")
    if isinstance(data := getattr(job, "data", None), str) and not Path(data).exists():
        raise DataError(f"--data {data}: no such file or folder", "jobs must find it at this path, too")
    recipe: TrainConfig | None = None
    if job.handler is training.pretrain:
        whole = training.pretrain_job(job)
        recipe = whole.pretrain
        _refuse_unfit(job, whole, recipe, len(open_photographs(job.data, everything=job.everything)))
    elif job.handler is training.supervise:
        labelled = validate(SupervisedJob, training.recipe_source(job, "supervise"))
        recipe = labelled.supervise
        _refuse_unfit(job, labelled, recipe, len(LabelledFolder.open(training.training_folder(job.data))))
    return _Submitted(Path(job.out), Path(job.out).name, recipe)


def _refuse_unfit(job: Args, whole: Job, recipe: PretrainConfig | SupervisedConfig, count: int) -> None:
    """:class:`ConfigError` for a batch of more images than there are, :class:`DiskFull` for too little disk."""
    if count < recipe.batch_size:
        section = "supervise" if isinstance(recipe, SupervisedConfig) else "pretrain"
        raise ConfigError(
            f"{section}.batch_size: {recipe.batch_size} are more than the {count} images of {job.data}"
            f" (take {count} or fewer)"
        )
    refuse_without_disk(Path(job.out), checkpoints_bytes(whole.model, recipe, whole.optimizer.state_bytes))


def _hand_out(args: Args, cluster: ClusterConfig, name: str, study: StudyBase, runner: Runner) -> int:
    """Lead the study's run from here, or from a process that outlives the terminal."""
    job, output = args.parsed, study.directory
    cluster = cluster.model_copy(update={"sbatch": (*cluster.sbatch, *args.sbatch)})
    if cluster.gpus_per_node:
        _check_torch()
    job.dry_run = args.dry_run  # the job's own words do not have it
    if not args.detach or args.dry_run:
        return studies.run_spread(job, study, runner, partial(_spread, cluster, name, job.verbosity))
    ClusterWorkers(output, cluster, name, job.verbosity).close()  # says what is missing while somebody reads it
    log_file = own_folder(folder_of(output)) / "leader.log"
    given = [word for key in ASKED if (value := getattr(args, key)) is not None
             for word in (f"--{key.replace('_', '-')}", str(value))]  # fmt: skip
    given += ["--cluster", args.cluster] if args.cluster else []
    after = ["--", *args.sbatch] if args.sbatch else []
    command = [sys.executable, "-P", "-m", "dinoskip", "submit", "--spread", *given, *args.job, *after]
    with open(log_file, "ab") as stream:
        leader = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    say(f"process {leader.pid} of this machine hands out the stages; it writes {log_file}; SIGTERM stops all jobs")
    return 0


def _spread(cluster: ClusterConfig, name: str, verbosity: int, study: StudyBase) -> Spread:
    """Jobs of the cluster; nodes that jobs of a leader that has died are at are waited for."""
    return Spread(ClusterWorkers(study.directory, cluster, name, verbosity), study.run.retries, waits=True)


def cluster_of(args: Args) -> ClusterConfig:
    """The file's settings, with those of the command line over them."""
    source = read_yaml(args.cluster) if args.cluster else RawConfig()
    for name in ASKED:
        value = getattr(args, name)
        if value is not None:
            source.tree[name] = int(value) if value.isdigit() and name != "time" else value
            source.places[name] = "command line"
    return validate(ClusterConfig, source)


def submit(args: Args) -> int:
    """``dinoskip submit``: check everything here, then write the script and give it to sbatch."""
    cluster = cluster_of(args)
    if args.detach and not args.spread:
        raise ConfigError("--detach: is of --spread", "a job that sbatch has taken needs no terminal")
    if args.spread and args.parsed.handler is not studies.run:
        raise ConfigError("--spread: only a study has stages that can be spread", "name its YAML")
    if args.spread and args.parsed.device == "auto":
        args.parsed.device = "cuda" if cluster.gpus_per_node else "cpu"
    settled = _settled(args.parsed, bool(cluster.gpus_per_node))
    output, name, recipe = settled.output, settled.name, settled.recipe
    slices = cluster.ranks * recipe.accumulate if recipe else 1
    if recipe and recipe.batch_size % slices:
        raise ConfigError(
            f"batch_size: {recipe.batch_size} cannot be shared by {cluster.ranks} processes"
            f" in {recipe.accumulate} micro-batches each",
            f"take a multiple of {slices}, or another number of GPUs",
        )
    if settled.study is not None and args.spread:
        return _hand_out(args, cluster, name, *settled.study)
    words = list(args.job)
    if not any(word.partition("=")[0] == "--device" for word in words):
        words += ["--device", "cuda" if cluster.gpus_per_node else "cpu"]
    if cluster.gpus_per_node:
        _check_torch()
    text = script(cluster, name, output, words, Path.cwd())
    if args.dry_run:
        say(*text.rstrip("\n").split("\n"))
        return 0
    say(f"job {give(text, name, output, args.sbatch)}; script and log in {folder_of(output)}")
    return 0


def requeue(args: Args) -> int:
    """``dinoskip requeue``, which the script of a job calls; exit code 0 if there is nothing to be done by hand."""
    if args.begin:
        launch.begin(Path(args.output))
        return 0
    again, why = launch.finish(Path(args.output), args.code, args.max)
    say(f"job {launch.job_id()}: {why}", error=True)
    return 0 if again else int(args.code)
