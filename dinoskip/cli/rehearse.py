"""The command rehearse: a study, made small, from its data to its last page in minutes, and what stays empty."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, computing_options, json_option, overrides_argument, print_json
from dinoskip.cli.rows import publish, rows_of
from dinoskip.cli.settings import keys_of
from dinoskip.errors import ConfigError
from dinoskip.io.files import write_json, write_text
from dinoskip.io.output import given_folder, own_folder
from dinoskip.pipeline.study import Study, build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.runtime.console import duration, say

EMPTY = 2
"""Exit code where cells stay empty: settings ask for what no stage of the study makes."""
MOST_SHOWN = 20  # lines: a screen; rehearsal.json has them all
MARK = "REHEARSAL.txt"


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "rehearse",
        rehearse,
        "run a study small, on synthetic data, and list what stays empty",
        details="Networks, images, sets and steps are made small; variants, recipes, protocols and tables do not.\n"
        "The data are synthetic, in the layout of the sets that the study names, so none of these is needed. The exit\n"
        "code is 2 if a score, a table's cell, a figure or an image that the settings ask for stays empty.",
    )
    parser.add_argument("config", help="a study's YAML")
    overrides_argument(parser, "settings that override the file", partial(keys_of, Study))
    parser.add_argument(
        "--out", default="", metavar="DIR", help="where data, stages and pages go (default: runs/rehearsed/NAME)"
    )
    json_option(parser, "counts, what is empty, seconds")
    computing_options(parser)


def rehearse(args: Args) -> int:
    from dinoskip.pipeline.rehearsal import filled, shrink  # torch

    started = time.monotonic()
    name = Path(args.config).stem
    out = _folder(args.out or f"runs/rehearsed/{name}")
    study, variants = load_study(shrink.write_rehearsal(args.config, out, args.overrides, name=f"{name}.yaml"))
    runner = study_runner(study, variants, build_nodes(study, variants), device=args.device, workers=args.workers)
    runner.run({node.id for node in runner.planner.nodes})
    pages = publish(runner, rows_of(runner))
    found, seconds = filled.filled(study, variants, study.results), time.monotonic() - started
    done = {
        "config": str(args.config),
        "seconds": round(seconds, 1),
        "filled": found.counts,
        "empty": found.faults,
        "page": str(pages[0].resolve()),
    }
    write_json(study.results / "rehearsal.json", done)
    if args.json:
        print_json(done)
    else:
        _print(found.counts, found.faults, seconds, pages[0].resolve())
    return EMPTY if found.faults else 0


def _folder(given: str) -> Path:
    """The folder of rehearsals: new, empty or made by this command, since data are composed in it."""
    out = given_folder(given)
    mark = out / MARK
    if out.is_dir() and any(out.iterdir()) and not mark.is_file():
        raise ConfigError(f"{out}: holds other files than rehearsals", "name a new folder with --out")
    own_folder(out)
    write_text(mark, "Everything here was made by dinoskip rehearse; it may be deleted.\n")
    return out


def _print(counts: dict[str, int], empty: list[str], seconds: float, page: Path) -> None:
    """Counts of what is filled, the first lines of what is empty, and where the page is."""
    say(f"filled: {', '.join(f'{sort} {number}' for sort, number in counts.items())}")
    for line in empty[:MOST_SHOWN]:
        say(f"empty: {line}")
    if len(empty) > MOST_SHOWN:
        say(f"empty: {len(empty) - MOST_SHOWN} more, in rehearsal.json")
    say(f"rehearsed in {duration(seconds)}; {len(empty)} empty")
    say(f"page: {page}")
