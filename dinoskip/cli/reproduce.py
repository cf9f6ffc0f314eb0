"""The command reproduce: numbers that authors publish of a network, with ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import (
    Args,
    accept_option,
    command,
    computing_options,
    json_option,
    network_argument,
    print_json,
    print_table,
)
from dinoskip.io.files import write_json
from dinoskip.io.output import given_folder
from dinoskip.runtime.console import say

if TYPE_CHECKING:
    from dinoskip.pipeline.look.reproduce import Reproduced


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "reproduce",
        reproduce,
        "measure numbers that are published of a network, and compare",
        details="Without --data the published numbers are listed with their sources. A number is inside if ours "
        "differs by no\nmore than its tolerance, which allows for the protocols' differences; with another number of "
        "images it is not comparable.",
    )
    network_argument(parser)
    parser.add_argument("--as", dest="name", metavar="NAME", help="which public network it is, as 'DINO ViT-S/16'")
    parser.add_argument(
        "--data", action="append", default=[], metavar="DIR", help="a data set's folder; may be repeated"
    )
    parser.add_argument(
        "--out", default="runs/reproduce", metavar="DIR", help="where results go (default: %(default)s)"
    )
    json_option(parser, "the table")
    accept_option(parser)
    computing_options(parser)


def reproduce(args: Args) -> int:
    from dinoskip.pipeline.look import reproduce as numbers  # torch
    from dinoskip.runtime.distributed import is_main

    data, out = [Path(root) for root in args.data], Path(args.out)
    if data:
        out = given_folder(out, data)
    found = numbers.reproduce(
        args.network, data, out, name=args.name, device=args.device, workers=args.workers, accept=args.accept
    )
    if not is_main():
        return 0
    if data:
        write_json(out / "reproduced.json", [one.plain() for one in found])
    if args.json:
        print_json([one.plain() for one in found])
    else:
        _print(found)
    return 0


def _print(found: list[Reproduced]) -> None:
    """The table, and below it what differs in the protocols, once each."""
    reasons = list(dict.fromkeys(one.number.differences for one in found))
    lines = []
    for one in found:
        number, row = one.number, one.row
        metric = f"{number.metric} ({number.protocol})" if number.protocol else number.metric
        ours = "" if row is None else row.shown
        band = "" if number.band is None else f"± {number.band:g}"
        why = "" if one.why == number.differences else one.why
        lines.append(
            (number.task, number.data_name, metric, f"{number.value:g}", band, ours, one.verdict, why,
             number.source, f"({reasons.index(number.differences) + 1})")
        )  # fmt: skip
    print_table(lines, ("task", "data", "metric", "published", "tolerance", "ours", "verdict", "", "source", "differs"))
    for index, reason in enumerate(reasons, 1):
        say(f"({index}) {reason}")
