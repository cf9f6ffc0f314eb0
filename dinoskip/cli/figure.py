"""The command figure: images × networks and blocks as one figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, blocks_of, command, json_option, print_json
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.io.files import MAX_JSON, read_regular, write_text
from dinoskip.io.output import given_file
from dinoskip.runtime.console import say
from dinoskip.settings.read_points import FACETS

SHOWN = ("pca", "foreground", "tokencut", "probe")
"""The layers of :mod:`dinoskip.pipeline.look.figure`, which is heavy to import."""


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "figure",
        figure,
        "draw images × networks and blocks for a paper: PDF, PNG, LaTeX line",
        details="dinoskip figure runs/look-photos --blocks 3,6,9,12 --layer pca --out figures/pca\n\n"
        "Of a study the pictures are those of its gallery, in its colours. Of feature stores they are computed:\n"
        "PCA over the images of the figure, aligned along blocks and stores.",
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="STUDY|STORE",
        help="a study's folder with a gallery, or feature stores, or NAME=STORE",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the figure: FILE.pdf, FILE.png and FILE.tex")
    parser.add_argument("--layer", default="pca", choices=SHOWN, help="what is shown (default: pca)")
    parser.add_argument(
        "--images", default="4", metavar="ID,ID", help="ids of images, or how many from the first (default: 4)"
    )
    parser.add_argument("--blocks", help="all, or blocks such as 3,6,9-12 (default: quarters of the depth)")
    parser.add_argument("--models", metavar="NAME,NAME", help="networks in the order of their columns (default: all)")
    parser.add_argument("--width-mm", type=float, default=174.0, metavar="MM", help="width (default: 174)")
    parser.add_argument("--dpi", type=int, default=300, metavar="N", help="of photographs and the PNG (default: 300)")
    parser.add_argument("--font", default="DejaVu Sans", metavar="NAME", help="a font's name or .ttf file")
    parser.add_argument("--font-size", type=float, default=8.0, metavar="PT", help="in points (default: 8)")
    parser.add_argument("--data", metavar="DIR", help="of stores: the folder of their images (default: none is shown)")
    parser.add_argument(
        "--facet", choices=FACETS, metavar="NAME", help="of stores with several facets (default: the first)"
    )
    parser.add_argument("--tau", type=float, default=0.2, metavar="T", help="of TokenCut on stores (default: 0.2)")
    json_option(parser)


def figure(args: Args) -> int:
    stem = Path(args.out)
    stem = stem.with_suffix("") if stem.suffix in {".pdf", ".png", ".tex"} else stem
    _check(args, stem)
    blocks = None if args.blocks is None else blocks_of(args.blocks)
    from dinoskip.pipeline.look.figure import FigureWishes, figure_content  # torch, as below
    from visualize.figures.grid import GridStyle, write_grid

    wishes = FigureWishes(
        args.layer, _images(args.images), blocks, args.models.split(",") if args.models else (),
        Path(args.data) if args.data else None, args.facet, args.tau,
    )  # fmt: skip
    content = figure_content(args.source, wishes)
    style = GridStyle(args.width_mm, args.dpi, args.font, args.font_size)
    stem.parent.mkdir(parents=True, exist_ok=True)
    pdf, png = write_grid(content.groups, content.rows, stem, style)
    line = f"\\includegraphics[width={args.width_mm:g}mm]{{{pdf.name}}}"
    write_text(stem.with_suffix(".tex"), f"% {_made_by()}\n{line}\n")
    if args.json:
        about = {"images": content.images, "models": content.models, "blocks": content.blocks, "latex": line}
        print_json({"pdf": str(pdf.resolve()), "png": str(png.resolve()), **about})
        return 0
    say(line, f"figure: {pdf.resolve()}", f"figure: {png.resolve()}")
    return 0


def _made_by() -> str:
    from visualize.figures.grid import MADE_BY

    return MADE_BY


def _images(text: str) -> int | list[str]:
    return int(text) if text.isdigit() else text.split(",")


def _check(args: Args, stem: Path) -> None:
    """Numbers in their ranges, and files that this command may write, before anything is read."""
    ranges = (
        ("--width-mm", args.width_mm, 10, 2000),
        ("--dpi", args.dpi, 36, 2400),
        ("--font-size", args.font_size, 4, 72),
    )
    for option, value, least, most in ranges:
        if not least <= value <= most:
            raise ConfigError(f"{option} {value:g}: must be from {least} to {most}")
    if not 0 <= args.tau < 1:
        raise ConfigError(f"--tau {args.tau:g}: must be from 0 to below 1")
    if args.images == "0":
        raise ConfigError("--images 0: must be 1 or more, or ids")
    for ending in (".pdf", ".png", ".tex"):
        given_file(stem.with_suffix(ending), lambda path: _made_by().encode() in read_regular(path, MAX_JSON))
    for source in args.source:
        place = Path(source) if Path(source).exists() else Path(source.partition("=")[2] or source)
        if not place.is_dir():
            near = (
                did_you_mean(place.name, [one.name for one in place.parent.iterdir()])
                if place.parent.is_dir()
                else None
            )
            raise ConfigError(f"{place}: is no folder", near or "give a study's folder, or a feature store")
