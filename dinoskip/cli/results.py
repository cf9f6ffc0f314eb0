"""The command compare: two result rows over the same images."""

from __future__ import annotations

from typing import Any

from dinoskip.cli.arguments import Args, command, count, json_option, print_json

_ROW = "a folder with rows.json, such as runs/probe/stages/probe/x/ep0/voc2012, or FOLDER@block=7,norm=final"


def add_commands(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "compare",
        compare,
        "compare two results over the same images: paired difference, its interval, McNemar's test",
        details="Where several blocks are left, one is chosen without the images that are reported: a probe's by its "
        "held-out\ntraining images, others by cross-fitting over halves of the images.",
    )
    parser.add_argument("a", metavar="ROW", help=_ROW)
    parser.add_argument("b", metavar="ROW", help="another; the difference is the first minus this one")
    parser.add_argument("--resamples", type=count, default=1000, metavar="N", help="of the bootstrap (default: 1000)")
    parser.add_argument("--seed", type=count, default=0, help="of the resamples and the halves (default: 0)")
    json_option(parser)


def compare(args: Args) -> int:
    """``dinoskip compare``."""
    from eval import compare as pairs  # numpy, scipy

    made = pairs.compare(args.a, args.b, resamples=max(1, args.resamples), seed=args.seed)
    if not args.json:
        print(made.text)
        return 0
    sides = {side: {**one.row.plain(), "block": one.block} for side, one in (("a", made.a), ("b", made.b))}
    test = None if made.mcnemar is None else vars(made.mcnemar)
    print_json({**sides, "difference": vars(made.difference), "mcnemar": test, "differs": list(made.differs)})
    return 0
