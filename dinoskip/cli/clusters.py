"""Commands for clusters: submit, and requeue, which the script of a job calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, count, data_option, overrides_argument
from dinoskip.cli.training import pretrain_job
from dinoskip.console import log
from dinoskip.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    parser = command(
        commands,
        "submit",
        submit,
        "submit a study, or with --data and --out one pretraining run, as a SLURM job",
        details="options of sbatch may follow after --: dinoskip submit STUDY.yaml -- --dependency=afterok:123",
    )
    parser.add_argument("config", help="a study, or the YAML of `dinoskip pretrain`")
    overrides_argument(parser, "settings laid over the file")
    parser.add_argument("--cluster", metavar="FILE", help="a YAML that says what to ask for: docs/cluster.md")
    parser.add_argument("--until", metavar="STAGE", help="of a study: run up to and including this stage")
    parser.add_argument("--variant", metavar="NAME", help="of a study: one variant alone, side by side with other jobs")
    data_option(parser, "a folder of images, for `dinoskip pretrain`", former="--images", required=False)
    parser.add_argument("--out", metavar="DIR", help="its run directory")
    parser.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    parser.set_defaults(sbatch=[])

    parser = commands.add_parser("requeue")  # not in the list of commands
    parser.set_defaults(handler=requeue, verbosity=0)
    parser.add_argument("output")
    parser.add_argument("--begin", action="store_true")
    parser.add_argument("--code", type=count, default=0)
    parser.add_argument("--max", type=count, default=0)


def _check_torch() -> None:
    """:class:`ConfigError` if the jobs' torch, which is this one, can use no GPU, or not one that is visible here."""
    import torch  # heavy

    from dinoskip.environment import gpu_problem

    problem = gpu_problem(torch.version.cuda, torch.cuda.is_available())
    if problem is not None:
        raise problem
    if torch.version.cuda is None and torch.version.hip is None:
        log.warning("this torch is built for the CPU alone: jobs on GPUs need another, see docs/cluster.md, Drivers")


def submit(args: Args) -> int:
    """``dinoskip submit``: check everything here, then write the script and give it to sbatch."""
    from dinoskip.config import read_yaml, validate
    from dinoskip.pipeline.stages.weights import recipe_of
    from dinoskip.pipeline.study import load_study  # torch
    from dinoskip.training.launch import ClusterConfig, folder_of, script
    from dinoskip.training.launch import submit as give
    from dinoskip.training.recipe import TrainConfig

    cluster = validate(ClusterConfig, read_yaml(args.cluster)) if args.cluster else ClusterConfig()
    if bool(args.data) != bool(args.out) or (args.data and (args.until or args.variant)):
        alone = "--until and --variant are for a study"
        raise ConfigError(f"--data and --out go together, for one pretraining run; {alone}")
    settings = [args.config, *args.overrides]
    if args.data:
        recipe: TrainConfig | None = pretrain_job(args).pretrain
        output = Path(args.out)
        command = ["pretrain", *settings, "--data", args.data, "--out", args.out]
    else:
        study, variants = load_study(args.config, args.overrides)
        recipe, output = recipe_of(study), study.directory
        known = [variant.name for variant in variants]
        if args.variant and args.variant not in known:
            raise ConfigError(f"--variant {args.variant}: is none of {', '.join(known)}")
        chosen = {"--until": args.until, "--variant": args.variant}
        command = ["run", *settings, *(word for flag, value in chosen.items() if value for word in (flag, value))]
    slices = cluster.ranks * recipe.accumulate if recipe else 1
    if recipe and recipe.batch_size % slices:
        raise ConfigError(
            f"batch_size: {recipe.batch_size} cannot be shared by {cluster.ranks} processes"
            f" in {recipe.accumulate} micro-batches each",
            f"take a multiple of {slices}, or another number of GPUs",
        )
    command += ["--device", "cuda" if cluster.gpus_per_node else "cpu"]
    if cluster.gpus_per_node:
        _check_torch()
    name = f"{output.name}-{args.variant}" if args.variant else output.name
    text = script(cluster, name, output, command, Path.cwd())
    if args.dry_run:
        print(text, end="")
        return 0
    print(f"job {give(text, name, output, args.sbatch)}; script and log in {folder_of(output)}")
    return 0


def requeue(args: Args) -> int:
    """``dinoskip requeue``, which the script of a job calls; exit code 0 if there is nothing to be done by hand."""
    from dinoskip.training import launch  # torch

    if args.begin:
        launch.begin(Path(args.output))
        return 0
    again, why = launch.finish(Path(args.output), args.code, args.max)
    print(f"job {launch.job_id()}: {why}", file=sys.stderr)
    return 0 if again else int(args.code)
