"""Commands to begin with: demo, and init-study."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from dinoskip.cli import studies
from dinoskip.cli.arguments import Args, Parser, command, computing_options, data_option
from dinoskip.errors import ConfigError
from dinoskip.io.files import write_text
from dinoskip.runtime.console import say
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.fields import StudyName

CONFIGS = Path(__file__).parent.parent / "configs"
"""The studies that come with the package."""
PURPOSES = {
    "compare": "weights that exist, on labelled data",
    "train": "networks with and without skips, and measure them",
    "with_pretrained": "networks of your own beside a pretrained one, on one page",
    "features": "visualise features of photographs, without labels",
}


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "demo",
        demo,
        "train and measure networks with and without skips, in minutes",
        details="Runs the study whose path it prints first. Run it again to resume. Every dense "
        f"task on embedded data: `dinoskip run {CONFIGS / 'tasks.yaml'}`.",
    )
    parser.add_argument("--quick", action="store_true", help="train and show less, in about a minute")
    parser.add_argument(
        "--out", default="runs", metavar="DIR", help="the folder in which the study's folder is made (default: runs)"
    )
    computing_options(parser)
    text = "write a study's YAML to start from, with comments"
    parser = command(commands, "init-study", init_study, text)
    parser.add_argument("name", help="name of the study; the file is NAME.yaml")
    parser.add_argument(
        "purpose",
        nargs="?",
        default="compare",
        choices=PURPOSES,
        help="; ".join(f"{name}: {purpose}" for name, purpose in PURPOSES.items()) + " (default: compare)",
    )
    data_option(parser, "a folder of photographs, with labels or without, that the study is made for", required=False)


def demo(args: Args) -> int:
    config = CONFIGS / ("quick.yaml" if args.quick else "demo.yaml")
    parser = Parser()
    studies.add_commands(parser.add_subparsers())
    given = parser.parse_args(["run", str(config), f"output={args.out}"])
    return studies.run(Namespace(**vars(given) | vars(args)))


def init_study(args: Args) -> int:
    path = Path(f"{args.name.removesuffix('.yaml')}.yaml")
    name = validate(StudyName, RawConfig({"name": path.stem}, {"": "command line"})).name
    if path.exists():
        raise ConfigError(f"{path}: is there already", "give another name")
    text = (CONFIGS / "start" / f"{args.purpose}.yaml").read_text(encoding="utf-8")
    text, then = re.sub(r"(?<!:)NAME", name, text), "put your data and backbones in, then"
    if args.data:
        from dinoskip.pipeline.look.start import fitted  # torch

        text, seen = fitted(text, Path(args.data))
        then = f"for {seen}; next"
    write_text(path, text)
    say(f"{path}: {then} `dinoskip plan {path}`")
    return 0
