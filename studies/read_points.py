# Frozen: rows docs/concepts/read_points.md, commit 037bca12, 2026-11-24.
"""Read points of blocks: the table and the curves of docs/concepts/read_points.md.

dinoskip run configs/results/read_points.yaml
python -m studies.read_points runs/read-points docs/concepts
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import draw_beside, markdown_table
from dinoskip.io.files import read_json
from dinoskip.results.rows import EvalResult, read_rows
from visualize.figures.drawing import curve, heading, legend, panels
from visualize.tables import mean_deviation

TITLES = {"probe": "linear probe", "retrieve": "patch k-NN"}
PICTURE = "read_points-blocks"
Values = dict[int, list[float]]  # by block, one a seed


def values(rows: Sequence[EvalResult], network: str, task: str, facet: str) -> Values:
    """mIoU in percent of every block of a network after training, one a seed."""
    read = [row for row in rows if _network(row) == network and (row.task, row.facet) == (task, facet)]
    last = max((row.epoch for row in read), default=0)
    kept = [row for row in read if row.metric == "mIoU" and not row.note and row.block.isdigit() and row.epoch == last]
    by_block: Values = {}
    for row in sorted(kept, key=lambda row: (int(row.block), row.model)):
        by_block.setdefault(int(row.block), []).append(row.value)
    return by_block


def _network(row: EvalResult) -> str:
    """``skip`` of ``skip-soap-s0``."""
    return row.model.split("-")[0]


def table(rows: Sequence[EvalResult]) -> list[str]:
    """The last block of every network: a line a network and read point, a column a task; ± over seeds."""
    lines = []
    for network in dict.fromkeys(map(_network, rows)):
        for facet in dict.fromkeys(row.facet for row in rows if row.task in TITLES):
            by_task = [values(rows, network, task, facet) for task in TITLES]
            cells = [mean_deviation(by_block[max(by_block)]) if by_block else "" for by_block in by_task]
            lines.append([f"{network}, `{facet}`", *cells])
    return markdown_table(["last block, mIoU", *TITLES.values()], lines)


def draw(rows: Sequence[EvalResult], place: Path) -> str:
    """Curves by block, a panel a task and network, into ``place``; the Markdown that shows them."""
    networks = list(dict.fromkeys(map(_network, rows)))
    facets = list(dict.fromkeys(row.facet for row in rows if row.task in TITLES))

    def picture() -> Any:
        figure, grid = panels(len(TITLES) * len(networks), columns=len(networks))
        for axes, (task, network) in zip(grid, ((t, n) for t in TITLES for n in networks), strict=True):
            heading(axes, f"{network}: {TITLES[task]}, mIoU")
            axes.set_xlabel("block")
            for number, facet in enumerate(facets):
                points = {block: statistics.mean(runs) for block, runs in values(rows, network, task, facet).items()}
                curve(axes, points, number, facet)
        for at in range(0, len(grid), len(networks)):
            for axes in grid[at + 1 : at + len(networks)]:
                axes.sharey(grid[at])
        legend(figure, grid, facets)
        return figure

    return draw_beside(place, PICTURE, picture, "mIoU by block of each network, read at its output, attention and MLP")


def main() -> int:
    """Read the study; print the table, draw the curves."""
    parser = argparse.ArgumentParser(prog="python -m studies.read_points")
    parser.add_argument("study", type=Path, help="folder of the study of configs/results/read_points.yaml")
    parser.add_argument("place", type=Path, help="folder for the picture")
    args = parser.parse_args()
    rows = [row for row in read_rows(args.study / "rows.json") if not row.is_baseline]
    machine = read_json(next(args.study.glob("stages/pretrain/*/*/env.json")))
    print("\n".join([*table(rows), draw(rows, args.place)]))
    print(f"{machine['cores']} cores, {machine['memory']}, torch {machine['torch']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
