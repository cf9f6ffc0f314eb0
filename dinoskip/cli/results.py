"""The commands compare, two rows over the same images, and board, rows of many studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import Args, command, count, json_option, print_json
from dinoskip.io.output import Output, given_folder
from dinoskip.runtime.console import say

if TYPE_CHECKING:
    from visualize.board.ranking import BoardTable

_ROW = "a folder with rows.json, such as runs/probe/stages/probe/x/ep0/voc2012, or FOLDER@block=7,norm=final"


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "compare",
        compare,
        "compare two results over the same images: difference and tests",
        details="If several blocks match, one is chosen without the reported images: for a probe on held-out training\n"
        "images, otherwise by cross-fitting over halves of the images, or with fewer than 30 images the last.",
    )
    parser.add_argument("a", metavar="ROW", help=_ROW)
    parser.add_argument("b", metavar="ROW", help="another; the difference is the first minus this one")
    parser.add_argument("--seed", type=count, default=0, help="seed of the halves of the images (default: 0)")
    json_option(parser)
    parser = command(
        commands,
        "board",
        board,
        "merge the rows of studies and machines into one page and CSV",
        details="Ranks backbones where task, metric, data set, split, protocol, resolution, norm, facet, classes and "
        "number\nof images are the same; for other rows it says which setting differs.",
    )
    parser.add_argument(
        "rows",
        nargs="+",
        metavar="ROWS",
        help="a study, a folder with rows.json below it, or such a file; NAME=ROWS gives a name",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where the page and the CSV files go")
    parser.add_argument("--title", default="Board", metavar="TEXT", help="(default: Board)")
    json_option(parser)


def board(args: Args) -> int:
    from visualize.board import BOARD_FILES, make_board, read_sources, write_board  # numpy, scipy

    out = given_folder(args.out)
    Output(out, "board").refuse_foreign(BOARD_FILES)
    ranked = make_board(read_sources(args.rows))
    page = write_board(ranked, out, args.title)
    if args.json:
        tables = [{"measure": table.label, **table.setting, "lines": _ranks(table)} for table in ranked.tables]
        refused = [{"measure": pair.label, "differs": dict(pair.differs)} for pair in ranked.refused]
        print_json({"page": str(page.resolve()), "tables": tables, "refused": refused})
        return 0
    for table in ranked.tables:
        first = table.lines[0]
        where = " ".join(filter(None, (first.source, first.backbone, first.score.block)))
        count = sum(line.rank is not None for line in table.lines)
        say(f"{table.label}: first of {count} is {where} with {first.score.value:.1f}")
    for pair in ranked.refused:
        say(f"not ranked together, {pair.label}: {pair.text}")
    say(f"board: {page.resolve()}")
    return 0


def _ranks(table: BoardTable) -> list[dict[str, Any]]:
    return [
        {
            "rank": line.rank, "source": line.source, "backbone": line.backbone, "block": line.score.block,
            "value": line.score.value,
        }
        for line in table.lines
    ]  # fmt: skip


def compare(args: Args) -> int:
    from eval import compare as pairs  # numpy, scipy

    comparison = pairs.compare(args.a, args.b, seed=args.seed)
    if not args.json:
        say(comparison.text)
        return 0
    about = [{"block": side.block, "selected": side.score.selected} for side in (comparison.a, comparison.b)]
    a, b = ({**side.row.plain(), **of} for side, of in zip((comparison.a, comparison.b), about, strict=True))
    test = None if comparison.mcnemar is None else vars(comparison.mcnemar)
    # NaN, which equals nothing, as null
    apart = {name: value if value == value else None for name, value in vars(comparison.difference).items()}
    said = {"verdict": comparison.verdict.said, "why": comparison.verdict.why}
    print_json({"a": a, "b": b, "difference": apart, "mcnemar": test, **said, "differs": list(comparison.differs)})
    return 0
