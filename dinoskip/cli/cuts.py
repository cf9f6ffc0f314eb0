"""The command cuts: TokenCut on one photograph from several facets and at several thresholds, as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import (
    Args,
    command,
    count,
    facets_of,
    json_option,
    network_argument,
    print_json,
    print_table,
)
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.io.files import MAX_JSON, read_regular
from dinoskip.io.output import given_file
from dinoskip.runtime.console import say

_WAYS = ("mean", "mean_kept", "rasa", "insid3")  # the choices of eval.tokencut.treatments.Positions but keep


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "cuts",
        cuts,
        "draw TokenCut on one photograph from several facets, at several tau",
        details="Shows how much the answer depends on the choice; each facet as it is and with the image's mean token "
        "subtracted,\nand with --positions without position.\nCrossed out where the graph has no cut.",
    )
    network_argument(parser)
    parser.add_argument("photo", metavar="PHOTO", help="an image file")
    parser.add_argument("--out", required=True, metavar="FILE", help="the figure: FILE.png or FILE.pdf")
    parser.add_argument("--block", type=count, default=0, metavar="N", help="(default: the last)")
    parser.add_argument("--facet", default="key,query,value,out", metavar="F,F", help="(default: %(default)s)")
    parser.add_argument("--tau", default="0.1,0.2,0.3,0.5,0.7", metavar="T,T", help="(default: %(default)s)")
    parser.add_argument(
        "--positions",
        metavar="W,W",
        help=f"take position out, too: {', '.join(_WAYS)} (default: mean where --images is given, else none)",
    )
    parser.add_argument(
        "--images", metavar="DIR", help="images that means of positions are over: those of PHOTO's grid"
    )
    json_option(parser)


def cuts(args: Args) -> int:
    from dinoskip.pipeline.look.cuts import MADE_BY, draw_cuts  # torch

    out, taus = Path(args.out), _taus(args.tau)
    if out.suffix not in {".png", ".pdf"}:
        raise ConfigError(f"--out {out}: ends neither in .png nor in .pdf")
    out = given_file(out, lambda path: MADE_BY.encode() in read_regular(path, MAX_JSON))
    positions = _positions(args.positions if args.positions is not None else "mean" if args.images else "")
    images = Path(args.images) if args.images else None
    facets = facets_of(args.facet)
    result = draw_cuts(args.network, Path(args.photo), out, args.block, facets, taus, positions, images)
    if args.json:
        print_json({"figure": str(out.resolve()), **result})
        return 0
    columns = ("facet", "centred", "positions", "tau", "cosine", "complete", "box", "share")
    shown = [{**cut, "box": cut["box"] if cut["is_cut"] else "no cut"} for cut in result["cuts"]]
    print_table([tuple(_cell(cut[column]) for column in columns) for cut in shown], columns)
    if result["agreement"] is not None:
        say(f"the cuts that there are agree with each other by IoU {result['agreement']:.2f} on average")
    say(f"figure: {out.resolve()}")
    return 0


def _cell(value: Any) -> str:
    return ("yes" if value else "") if isinstance(value, bool) else str(value)


def _positions(text: str) -> list[str]:
    ways = text.split(",") if text else []
    for way in ways:
        if way not in _WAYS:
            raise ConfigError(f"--positions {way}: is none of {', '.join(_WAYS)}", did_you_mean(way, _WAYS))
    return list(dict.fromkeys(ways))


def _taus(text: str) -> list[float]:
    try:
        taus = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tau {text}: is no list of numbers such as 0.2,0.5") from None
    if len(set(taus)) < len(taus) or not all(0 <= tau < 1 for tau in taus):
        raise ConfigError(f"--tau {text}: each once, from 0 to below 1")
    return taus
