"""Options of single commands, for :mod:`dinoskip.cli`. No torch, no pydantic here."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def probe(parser: argparse.ArgumentParser) -> None:
    """Options of ``dinoskip probe``. Each stands for a setting of the study, kept as text in ``settings``."""
    parser.set_defaults(settings=[])
    add = parser.add_argument
    add(
        "--protocol", action="append", dest="settings", metavar="NAME", type="evaluate.probe.protocol={}".format,
        help="paper (default), fast, dinov2, dinov3 or leopart, see docs/protocols.md; "
        "evaluate.probe.KEY=value changes one of its settings, dinoskip settings evaluate.probe lists them",
    )  # fmt: skip
    add(
        "--live", action="append_const", dest="settings", const="evaluate.probe.live=true",
        help="augmented images through the backbone every step, instead of features kept on disk "
        "(dinov2, dinov3 and leopart always do)",
    )  # fmt: skip
    add(
        "--norm", action="append", dest="settings", metavar="NORM", type="evaluate.norm=[{}]".format,
        help="of features: none, final, layer, or several with commas, fitted together (default: final)",
    )  # fmt: skip
    add(
        "--seeds", action="append", dest="settings", metavar="N", type="evaluate.probe.seeds={}".format,
        help="fit N times; rows of each and of their mean ± standard deviation (default: 1)",
    )  # fmt: skip


def analyze(parser: argparse.ArgumentParser) -> None:
    """Options of ``dinoskip analyze``."""
    parser.add_argument(
        "spec", nargs="*", metavar="SPEC", help="weights:FILE, run:DIR or any backbone; without it, fresh ViT-S"
    )
    parser.add_argument(
        "--images", metavar="DIR", help="look inside on photographs of this folder; `bundled` takes scikit-image's"
    )
    parser.add_argument("--count", type=count, default=4, metavar="N", help="of the images (default: 4)")
    parser.add_argument("--size", type=count, default=224, help="side of their centre crop (default: 224)")
    parser.add_argument("--knn", metavar="DIR", help="k-NN on DIR/train and DIR/val, quantised from W8A8 to W4A4 too")
    parser.add_argument("--probe", metavar="KIND:DIR", help="a quick linear probe likewise, e.g. voc:VOCdevkit")
    parser.add_argument("--out", metavar="DIR", help="write inside.json and figures (SVG, PDF) there")
    parser.add_argument("--model", default="vit_small_patch16", help="of the fresh models (default: vit_small_patch16)")
    parser.add_argument("--depth", type=count, default=12, help="of the fresh models (default: 12)")
    parser.add_argument("--seed", type=count, default=0, help="(default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
