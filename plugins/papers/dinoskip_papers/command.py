"""The command paper: one page of the tables, figures and claims of "Cutting the Skip", from studies of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, json_option, print_json
from dinoskip.io.output import given_folder
from dinoskip.runtime.console import say


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "paper",
        paper,
        "lay out the tables, figures and claims of Cutting the Skip on one page, from studies, finished or not",
        details="The studies are those of configs/paper: table1_supervised, table2_dino, table3_depth,\n"
        "figure2_epochs. For missing numbers the page names the configuration that makes them.",
    )
    parser.add_argument("study", nargs="+", metavar="STUDY_FOLDER", help="a study's folder, such as runs/table2_dino")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the page goes")
    json_option(parser)


add_commands.after = "board"  # type: ignore[attr-defined]  # where help lists it


def paper(args: Args) -> int:
    """Write the page and print how much of each table is filled."""
    from dinoskip_papers.studies import write_paper  # torch

    out = given_folder(args.out)
    cells = write_paper([Path(folder) for folder in args.study], out)
    page = (out / "index.html").resolve()
    if args.json:
        print_json({"page": str(page), "cells": {name: list(counts) for name, counts in cells.items()}})
        return 0
    for name, (have, every) in cells.items():
        say(f"{name}: {have} of {every} cells")
    say(f"paper: {page}")
    return 0
