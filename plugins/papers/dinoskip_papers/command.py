"""The command paper: the tables, figures and claims of the papers, from studies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, json_option, print_json
from dinoskip.io.output import given_folder
from dinoskip.runtime.console import say
from dinoskip_papers.records import RECORDS


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "paper",
        paper,
        "lay out the tables, figures and claims of the papers with numbers of studies, finished or not",
        details=f"papers: {', '.join(RECORDS)} (default: all). Without a folder the studies below --runs are taken.\n"
        "Only those folders are read: neither data nor networks are needed. For missing numbers the page names\n"
        "the configuration that makes them, or why none does.",
    )
    parser.add_argument(
        "word", nargs="*", metavar="PAPER|STUDY_FOLDER", help="a paper's name, or a study's folder: runs/table2_dino"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where studies are looked for (default: runs)")
    parser.add_argument("--out", default="runs/papers", metavar="FOLDER", help="the pages (default: %(default)s)")
    json_option(parser)


add_commands.after = "board"  # type: ignore[attr-defined]  # where help lists it


def paper(args: Args) -> int:
    """Write the pages and print how much of each table is filled."""
    from dinoskip_papers.studies import find_studies, write_papers  # torch

    names = list(dict.fromkeys(word for word in args.word if word in RECORDS))
    given = [Path(word) for word in args.word if word not in RECORDS]
    out = given_folder(args.out)
    folders = given or find_studies(Path(args.runs))
    if not folders:  # else the page's "not run" would be taken for that of a study that was looked at
        todo = "`dinoskip report CONFIG` makes a study's page; name its folder, or where studies are with --runs"
        say(f"warning: no folder below {args.runs} has a study's page (report/study.yaml): {todo}", error=True)
    filled, sources = write_papers(names or list(RECORDS), folders, out)
    page = (out / "index.html").resolve()
    if args.json:
        tables = {table: list(counts) for cells in filled.values() for table, counts in cells.items()}
        studies = {str(source.folder): source.said for source in sources}
        print_json({"page": str(page), "cells": tables, "studies": studies})
        return 0
    for source in sources:
        say(f"study: {source.folder}: {source.said}")
    for name, cells in filled.items():
        have, every = (sum(counts[place] for counts in cells.values()) for place in (0, 1))
        say(f"{name}: {have} of {every} cells" if every else f"{name}: no printed number compares")
        for table, (have, every) in cells.items():
            say(f"  {table}: {have} of {every}")
    say(f"paper: {page}")
    return 0
