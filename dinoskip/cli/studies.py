"""Commands on studies: run, plan, status, report, gc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import (
    Args,
    accept_option,
    command,
    computing_options,
    count,
    json_option,
    overrides_argument,
    print_json,
    print_table,
)
from dinoskip.cli.hours import plan_on_cluster, say_assumed
from dinoskip.cli.rows import best_rows, conclude, print_rows, publish, rows_of
from dinoskip.cli.settings import keys_of
from dinoskip.errors import ConfigError, DataError, DinoskipError
from dinoskip.io.files import find_below, read_json, write_json
from dinoskip.io.output import own_folder
from dinoskip.pipeline import cleaning, graph, stages
from dinoskip.pipeline.artifacts import PARTIAL
from dinoskip.pipeline.estimate import costs as estimates
from dinoskip.pipeline.estimate.cards import CARDS
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.executor import ForeignWorkers, LocalWorkers, places, visible_gpus
from dinoskip.pipeline.outlook import at_work, outlook
from dinoskip.pipeline.progress import NO_TIME
from dinoskip.pipeline.report.results_folder import copy_markdown, markdown_file
from dinoskip.pipeline.runner import Spread
from dinoskip.pipeline.scheduling import NodeEngine
from dinoskip.pipeline.study import Study, build_nodes, load_study
from dinoskip.pipeline.study_runner import report_without_missing, runner_of, study_runner
from dinoskip.runtime.console import duration, human_bytes, log, say
from dinoskip.runtime.environment import machine, this_command
from dinoskip.runtime.memory import usable_memory

if TYPE_CHECKING:
    from dinoskip.pipeline.runner import Runner
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


def _study_arguments(parser: Any, *, choose: bool = False) -> None:
    parser.add_argument("config", help="a study's YAML; `dinoskip init-study NAME` writes one to start from")
    overrides_argument(parser, "settings that override the file", partial(keys_of, Study))
    json_option(parser)
    if choose:
        parser.add_argument("--only", metavar="STAGE", help="run only this stage; its inputs must be finished")
        parser.add_argument("--from", dest="start", metavar="STAGE", help="run this stage and those after it")
        parser.add_argument("--until", metavar="STAGE", help="run up to and including this stage")
        parser.add_argument(
            "--variant",
            dest="variants",
            metavar="NAME",
            action="append",
            default=[],
            help="run only the stages of this variant; may be repeated",
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would run, and run nothing")


def _retrain_option(parser: Any) -> None:
    parser.add_argument(
        "--retrain",
        action="store_true",
        help="train again, in its place, a finished training that is damaged; without it, none is ever replaced",
    )


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "run",
        run,
        "run a study, or continue it where it stopped",
        details=f"stages: {', '.join(stages.names())}",
    )
    _study_arguments(parser, choose=True)
    accept_option(parser)
    _retrain_option(parser)
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="hand stages to N processes of this machine, each with a GPU or its share of the cores "
        "(default: one a GPU; on one GPU or a CPU this process makes them)",
    )
    computing_options(parser)
    parser = command(commands, "plan", plan, "list for every stage whether it must run, and why")
    _study_arguments(parser)
    accept_option(parser)
    _retrain_option(parser)
    parser.add_argument(
        "--assume-data",
        action="store_true",
        help="plan without the data: stages, GPU hours and disk from published numbers of images",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="how long it takes over the jobs and GPUs of a cluster's file (docs/cluster.md), memory and disk",
    )
    about = "the GPU for which hours are estimated (default: a100)"
    parser.add_argument("--card", choices=tuple(CARDS), default="a100", help=about)
    _study_arguments(command(commands, "status", status, "show how far a study is and its results so far"))
    parser = command(commands, "report", report, "write a study's report again from finished stages")
    _study_arguments(parser)
    parser.add_argument(
        "--markdown", metavar="FILE.md", help="also copy the Markdown there, and its images into a folder beside it"
    )
    computing_options(parser)
    parser = command(commands, "gc", gc, "list, and delete, stage outputs that a study no longer uses")
    _study_arguments(parser)
    parser.add_argument("--delete", action="store_true", help="delete them; unfinished work is kept")
    parser.add_argument(
        "--delete-unfinished",
        action="store_true",
        help="delete unfinished work of other settings, which its own command would continue",
    )


def opened(args: Args) -> tuple[StudyBase, tuple[Variant, ...], Runner]:
    """The study of a command, and what runs it. Commands with ``--accept`` are stopped by doubtful data."""
    study, variants = load_study(args.config, args.overrides)
    device, workers = getattr(args, "device", "auto"), getattr(args, "workers", 0)
    device = study.device if device == "auto" else device
    hours_alone = getattr(args, "assume_data", False) or getattr(args, "cluster", None)  # which need no data
    accept = None if hours_alone else getattr(args, "accept", None)
    nodes = build_nodes(study, variants)
    again = getattr(args, "retrain", False)
    runner = study_runner(study, variants, nodes, device=device, workers=workers, accept=accept, retrain=again)
    return study, variants, runner


def _show_plan(runner: Runner, chosen: set[str], *, as_json: bool) -> None:
    steps = [step for step in runner.plan() if step.node.id in chosen]
    memory = runner.memory()
    if as_json:
        print_json(
            [
                {
                    "node": step.node.id, "stage": step.node.stage, "state": step.state, "reason": step.reason,
                    "memory": memory.get(step.node.id),
                }
                for step in steps
            ]
        )  # fmt: skip
    else:
        print_table([(step.state, step.node.id, step.reason) for step in steps], ("state", "stage", "why"))
        runner.progress(chosen)
    waiting = [step.node.id for step in steps if step.state != "cached"]
    _say_memory({node: memory[node] for node in waiting if node in memory})
    graph.refuse_damaged(steps, chosen)


def _say_memory(memory: Mapping[str, float]) -> None:
    """Say which of the stages that would run takes the most for graphs and windows, and warn of those that do not fit.

    ``memory`` are peak bytes by node, of this machine.
    """
    if not memory:
        return
    usable, largest = usable_memory(), max(memory, key=memory.__getitem__)
    log.info("memory beside networks: at most %s, %s", human_bytes(memory[largest]), largest)
    for node, needed in memory.items():
        if needed > usable:
            log.warning(
                "%s needs about %s of memory, %s can be had here: use smaller images or a lower storage.window",
                node, human_bytes(needed), human_bytes(usable),
            )  # fmt: skip


def run(args: Args) -> int:
    study, _, runner = opened(args)
    chosen = chosen_nodes(args, runner)
    if args.dry_run:
        _show_plan(runner, chosen, as_json=args.json)
        return 0
    spread = workers_of(args, study, runner)
    _note_command(study)
    return _finish(runner, _made(args, runner, chosen, spread), as_json=args.json)


def _made(args: Args, runner: Runner, chosen: set[str], spread: Callable[[], Spread] | None) -> Mapping[str, str]:
    """Run; where workers could not make some stages, first write the page of what is there, which names those."""
    try:
        return runner.run(chosen, spread)
    except DinoskipError:
        if runner.failed and "report" in chosen:
            with suppress(DinoskipError):  # the first failure is what is told
                again, _ = _page_of_what_is_there(args, runner.failed)
                conclude(again, ("report",))
        raise


def _page_of_what_is_there(args: Args, failed: Mapping[str, str]) -> tuple[Runner, dict[str, str]]:
    """Make the report of finished stages alone; ``failed`` are reasons why others are not."""
    study, variants, runner = opened(args)
    there = report_without_missing(runner.planner, runner.plan(), failed)
    device = "cpu" if args.device == "auto" else args.device  # no network computes: a page is made without the GPU, too
    runner = runner_of(study, variants, there, device=device, workers=args.workers)
    return runner, runner.run({"report"})


def _ranks() -> tuple[int, int]:
    """This process's rank, and how many torchrun or srun has started to work together; they need not have met."""
    from dinoskip.runtime.distributed import rank_and_size  # torch

    return rank_and_size()


def _note_command(study: StudyBase) -> None:
    """Keep the command in the study's folder, for ``dinoskip resume``."""
    if _ranks()[0] == 0 and (noted := this_command()).get("command", [""])[0] in {"run", "submit"}:
        write_json(own_folder(study.results) / "command.json", noted)


def chosen_nodes(args: Args, runner: Runner) -> set[str]:
    """The nodes that a command of a run asks for; :class:`ConfigError` for names that do not exist."""
    return graph.select(
        runner.planner.nodes, stages.names(), only=args.only, start=args.start, until=args.until, variants=args.variants
    )


def run_spread(args: Args, study: StudyBase, runner: Runner, spread: Callable[[StudyBase], Spread]) -> int:
    """A run whose nodes workers elsewhere make; this process hands them out. With --dry-run it says what would run."""
    chosen = chosen_nodes(args, runner)
    if args.dry_run:
        _show_plan(runner, chosen, as_json=args.json)
        return 0
    _note_command(study)
    return _finish(runner, _made(args, runner, chosen, lambda: spread(study)), as_json=args.json)


def look(args: Args) -> tuple[StudyBase, Runner]:
    """All that a run looks at before it computes: settings, data, batch, packages, and room on the disk."""
    study, _, runner = opened(args)
    chosen = chosen_nodes(args, runner)
    steps = [step for step in runner.plan() if step.node.id in chosen]
    graph.refuse_damaged(steps, chosen)
    runner.look()
    missing = {step.node.id for step in steps if step.state != "cached"}
    if runner.room is not None and missing:
        runner.room(runner, missing)
    return study, runner


def workers_of(args: Args, study: StudyBase, runner: Runner) -> Callable[[], Spread] | None:
    """The workers that a run was given, or of the GPUs that are here; None: this process, and its ranks."""
    asked = study.run.executor is not None or args.jobs
    if _ranks()[1] > 1:
        if asked:
            hint = "start one process, which starts its workers"
            raise ConfigError("--jobs: this is one of several ranks already", hint)
        return None
    gpus = [] if runner.device == "cpu" or study.run.executor is not None else visible_gpus()
    if not asked and len(gpus) < 2:
        return None

    def made() -> Spread:
        if study.run.executor is not None:
            engine: NodeEngine = ForeignWorkers(study.run.executor, study.run.workers, args.verbosity)
        else:
            engine = LocalWorkers(runner.study, places(args.jobs or len(gpus), gpus), args.verbosity)
        return Spread(engine, study.run.retries)

    return made


def _finish(runner: Runner, happened: Mapping[str, str], *, as_json: bool) -> int:
    """Bring report and rows to the top of the study's folder, and print the numbers and where they are."""
    if _ranks()[0] > 0:
        return 0
    if as_json:
        written = publish(runner, rows_of(runner))
        pages = [path for path in written if path.suffix == ".html"]
        print_json({"stages": happened, "report": str(pages[0].resolve()) if pages else None})
    else:
        conclude(runner, ("report",))
    return 0


def plan(args: Args) -> int:
    study, variants, runner = opened(args)
    if args.cluster:
        return plan_on_cluster(args, study, variants, runner)
    if args.assume_data:
        return _estimate(args, study, variants, runner)
    _show_plan(runner, {node.id for node in runner.planner.nodes}, as_json=args.json)
    return 0


def _estimate(args: Args, study: StudyBase, variants: tuple[Variant, ...], runner: Runner) -> int:

    images = StudyImages(study, assume=True)
    every_cost = estimates.costs(images, study, variants, runner.planner.nodes)
    peak = estimates.peak_disk(every_cost, runner.planner.readers, study.storage_rules)
    measured = estimates.measured_rates(every_cost, runner.artifacts.root, machine())
    if args.json:
        rows = [
            {
                **vars(cost),
                "gpu_hours": cost.hours(args.card),
                "hours_here": cost.work * measured[cost.kind] / 3600 if cost.kind in measured else None,
                "known": "measured" if cost.kind in measured else "not measured",
            }
            for cost in every_cost
        ]
        print_json({"card": args.card, "stages": rows, "peak_disk": peak, "not_listed": sorted(images.assumed)})
        return 0
    print_table(estimates.lines(every_cost, args.card, measured), estimates.HEADER)
    reached = CARDS[args.card].reached("bf16")
    source = "measured" if args.card == "h100" else "assumed from an H100's"
    rate = f"{args.card.upper()} at {reached:.0f} TFLOP/s in bfloat16, {source}"
    say(f"GPU hours: training and passes over images alone ({rate}). Peak disk: {peak / 1e9:,.0f} GB")
    asked = study.evaluate.precision
    auto = f" (auto, device: {study.device}; the hours are of bf16)" if asked == "auto" else ""
    say(f"Frozen networks compute in {study.precision}{auto}")
    say(f"Hours here: {'by finished stages of the same kind' if measured else NO_TIME}")
    say_assumed(images)
    return 0


def report(args: Args) -> int:
    """``dinoskip report``: the report stage alone, of what is there."""
    target = markdown_file(args.markdown) if args.markdown else None
    runner, happened = _page_of_what_is_there(args, {})
    if target is not None and (page := runner.output("report")) is not None:
        copy_markdown(page, target)
    return _finish(runner, happened, as_json=args.json)


def _training_state(path: Path) -> dict[str, Any] | None:
    """Return the recorded state of an unfinished training; None if the file is missing, removed or unreadable."""
    try:
        state = read_json(path)
    except DataError as error:
        if path.exists():
            log.warning("%s", error)
        return None
    return state if isinstance(state, dict) else None


def status(args: Args) -> int:
    """``dinoskip status``: counts of stages, who is at work, steps of trainings, time left, results so far."""
    study, _, runner = opened(args)
    steps = runner.plan()
    training = {}
    for path in find_below(study.directory / "stages", f"{PARTIAL}*"):
        state = _training_state(path / "status.json")
        if state is not None:
            training[path.parent.name] = state
    rows = best_rows(rows_of(runner))
    counts = {state: sum(step.state == state for step in steps) for state in ("cached", "run", "waiting", "damaged")}
    workers = at_work(study.directory)
    left = [step.node.id for step in steps if step.state != "cached"]
    past = runner.seconds() if left else {}
    ahead = outlook(past, runner.works() if past else {}, left)
    if args.json:
        about = {
            "workers": [vars(worker) for worker in workers],
            "rates": ahead.rates,
            "hours_left": ahead.hours_over(len(workers)) if len(left) > ahead.untimed else None,
            "untimed": ahead.untimed,
        }
        print_json({"stages": counts, "training": training, **about, "best": [row.plain() for row in rows]})
        return 0
    say(f"{study.directory}: {counts['cached']} of {len(steps)} stages done")
    for worker in workers:
        job = f", job {worker.job}" if worker.job else ""
        say(f"at work: {worker.node} ({worker.host or 'host not known'}, process {worker.pid}{job})")
    if len(left) > ahead.untimed:
        untimed = f" and {ahead.untimed} stages that were not timed yet" if ahead.untimed else ""
        shared = f" over {len(workers)} workers" if len(workers) > 1 else ""
        say(f"left: about {duration(3600 * ahead.hours_over(len(workers)))}{shared}{untimed}")
    for name, state in training.items():
        say(f"{name}: {state.get('state')}, step {state.get('step')} of {state.get('steps')}")
    if rows:
        print_rows(rows)
    return 0


def gc(args: Args) -> int:
    study, _, runner = opened(args)
    pending = [step for step in runner.plan() if step.state != "cached"]
    others = runner.artifacts.newest() if study.stages else set()  # of studies that share this folder
    unused = runner.artifacts.unused({*runner.published().values(), *others})
    works = cleaning.unfinished(runner.artifacts, runner.continued())
    if not args.json:
        for path in unused:
            say(path)
        for work in works:
            use = "" if work.user is None else f", in use: {work.user}"
            say(f"{work.path}  unfinished, {duration(work.seconds)} old{use}")
    if (args.delete or args.delete_unfinished) and pending:
        raise ConfigError(
            f"{study.directory}: {len(pending)} stages are not finished, so what they may need is not known",
            "finish the study with `dinoskip run`, then delete",
        )
    removed = (unused if args.delete else []) + ([work.path for work in works] if args.delete_unfinished else [])
    if removed:
        with cleaning.alone(study.directory):
            for path in removed:
                cleaning.remove(path)
    if args.json:
        listed = [{"path": str(w.path), "seconds": round(w.seconds), "in_use": w.user} for w in works]
        print_json({"unused": [str(path) for path in unused], "unfinished": listed, "deleted": list(map(str, removed))})
    else:
        kinds = (("unused outputs", unused, args.delete, "--delete"),
                 ("unfinished", works, args.delete_unfinished, "--delete-unfinished"))  # fmt: skip
        for label, paths, deleted, flag in kinds:
            log.info("%d %s%s", len(paths), label, " deleted" if deleted else f"; {flag} removes them" if paths else "")
    return 0
