"""The command cuts: TokenCut on one photograph from several facets and at several thresholds, as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import SPEC, Args, command, count, facets_of, json_option, print_json, print_table
from dinoskip.errors import ConfigError


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "cuts",
        cuts,
        "draw TokenCut on one photograph from several facets and at several tau, by one pass of a network",
        details="Shows how much the answer depends on the choice; each facet as it is and with the image's mean token "
        "subtracted.\nCuts of complete graphs, which are chance, are crossed out.",
    )
    parser.add_argument("backbone", metavar="BACKBONE", help=SPEC)
    parser.add_argument("photo", metavar="PHOTO", help="an image file")
    parser.add_argument("--out", required=True, metavar="FILE", help="the figure: FILE.png or FILE.pdf")
    parser.add_argument("--block", type=count, default=0, metavar="N", help="(default: the last)")
    parser.add_argument("--facet", default="key,query,value,out", metavar="F,F", help="(default: %(default)s)")
    parser.add_argument("--tau", default="0.1,0.2,0.3,0.5,0.7", metavar="T,T", help="(default: %(default)s)")
    json_option(parser)


def cuts(args: Args) -> int:
    from dinoskip.pipeline.look.cuts import draw_cuts  # torch

    out, taus = Path(args.out), _taus(args.tau)
    if out.suffix not in {".png", ".pdf"}:
        raise ConfigError(f"--out {out}: ends neither in .png nor in .pdf")
    result = draw_cuts(args.backbone, Path(args.photo), out, args.block, facets_of(args.facet), taus)
    if args.json:
        print_json({"figure": str(out.resolve()), **result})
        return 0
    columns = ("facet", "centred", "tau", "cosine", "complete", "box", "share")
    print_table([tuple(_cell(cut[column]) for column in columns) for cut in result["cuts"]], columns)
    if result["agreement"] is not None:
        print(f"cuts that are not complete agree with each other by IoU {result['agreement']:.2f} on average")
    print(f"figure: {out.resolve()}")
    return 0


def _cell(value: Any) -> str:
    return ("yes" if value else "") if isinstance(value, bool) else str(value)


def _taus(text: str) -> list[float]:
    try:
        taus = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tau {text}: is no list of numbers such as 0.2,0.5") from None
    if len(set(taus)) < len(taus) or not all(0 <= tau < 1 for tau in taus):
        raise ConfigError(f"--tau {text}: each once, from 0 to below 1")
    return taus
