"""The page of the studies of objectives: which one keeps the tokens of a skipless ViT alive.

    dinoskip run configs/results/objectives.yaml data.imagenette.root=SMALL       # and _dino, _ibot, _mae
    python -m benchmarks.objectives runs/objectives runs/objectives-* --table docs/results/objectives.md

Each folder is a study of configs/results whose report was written; folders may hold different numbers of seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.pages import draw_beside, markdown_table, spread
from dinoskip.files import read_json, write_text
from dinoskip.results import EvalResult, best_by_heldout, read_rows
from visualize.figures.drawing import curve, heading, legend, panels
from visualize.report.seeds import OverSeeds, SeedsLine
from visualize.rows import Benchmark

TITLES = {
    "objectives": "Patch contrast",
    "objectives-dino": "DINO",
    "objectives-ibot": "iBOT",
    "objectives-mae": "MAE",
}
"""Of the studies, by their folders' names."""
NETWORKS = ("skip", "default", "paper", "calibrated", "mirrored")
CURVES = "objectives-blocks"
PROBE = Benchmark("probe", "mIoU", "scenes", "val")
_INTRO = """# Which objective keeps the tokens of a skipless ViT alive?

Written by `python -m benchmarks.objectives STUDY ... --table PAGE.md` from {runs} training runs of
{command}.
{hours:.1f} core-hours, {machine}.

A ViT of width 128 with 12 blocks, patches of 8, 48 × 48 pixels, learns from 1,600 photographs of Imagenette: 400 steps
of 16 images with SOAP, equally many images for every objective. The rate of a network is the best of three by the
probe at the last block, after 100 steps, on scenes that are not those reported. *dense* is the mIoU of a linear probe
of the patches on 317 embedded scenes (7 classes); *chosen* is the block that is best on held-out training scenes;
*cosine* is between the tokens of an image at the last block, 1 where all are alike; k-NN (20 neighbours) is at the
last block, on Imagenette's validation images. *a → b*: before training and after it. ± is the standard deviation over
seeds. `skip` alone has skip connections. Short runs of a small network: leads, not laws.
"""


@dataclass(frozen=True)
class Network:
    """One network of a study: the rows of each of its seeds."""

    name: str
    lr: float
    seeds: Mapping[int, tuple[EvalResult, ...]]
    epochs: int

    def dense(self, rows: Sequence[EvalResult], epoch: int) -> dict[int, EvalResult]:
        """The probe's rows by block."""
        own = [row for row in rows if row.task == "probe" and row.metric == "mIoU" and not row.note]
        return {int(row.block): row for row in own if row.epoch == epoch}

    def over_seeds(self, value: Callable[[Sequence[EvalResult], int], float], epoch: int) -> list[float]:
        """``value`` of the rows of every seed."""
        return [value(rows, epoch) for rows in self.seeds.values()]

    def last(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """mIoU of the last block."""
        found = self.dense(rows, epoch)
        return found[max(found)].value

    def chosen(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """mIoU of the block that is best on held-out training images."""
        best = best_by_heldout(self.dense(rows, epoch).values())
        return math.nan if best is None else best.value

    def cosine(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """Mean cosine between the tokens of an image, at the last block."""
        found = self.dense(rows, epoch)
        cosine = found[max(found)].token_cosine
        return math.nan if cosine is None else cosine

    def knn(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """Accuracy of nearest neighbours at the last block, in percent."""
        found = {int(row.block): row.value for row in rows if row.task == "knn" and row.epoch == epoch}
        return found[max(found)]


def read_study(folder: Path) -> list[Network]:
    """The networks of a study, in the order of :data:`NETWORKS`; those without rows are left out."""
    every = [row for row in read_rows(folder / "rows.json") if not row.is_baseline]
    networks = []
    for name in NETWORKS:
        seeds: dict[int, list[EvalResult]] = {}
        for row in every:
            family, _, seed = row.model.rpartition("-s")
            if family.split("-")[0] == name:
                seeds.setdefault(int(seed), []).append(row)
        if seeds:
            (sweep,) = folder.glob(f"stages/sweep/{name}-*/*/sweep.json")
            last = max(row.epoch for rows in seeds.values() for row in rows)
            own = {seed: tuple(rows) for seed, rows in sorted(seeds.items())}
            networks.append(Network(name, float(read_json(sweep)["lr"]), own, last))
    return networks


def table(networks: Sequence[Network]) -> list[str]:
    """A line a network."""
    columns = ("network", "rate", "seeds", "cosine", "dense, last block", "dense, chosen block", "k-NN")
    body = []
    for one in networks:
        cells = [one.name, f"{one.lr:g}", str(len(one.seeds))]
        for value, digits in ((one.cosine, 2), (one.last, 1), (one.chosen, 1), (one.knn, 1)):
            before, after = (one.over_seeds(value, epoch) for epoch in (0, one.epochs))
            cells.append(f"{statistics.mean(before):.{digits}f} → {spread(after, digits)}")
        body.append(cells)
    return markdown_table(columns, body)


def verdict(networks: Sequence[Network]) -> str:
    """Of the skipless network with the best dense features: alive or not, and better or worse than skip.

    Better or worse as the reports say it: a difference of means of more than two standard deviations over seeds, pooled
    over both networks, the better one above its own start; undecided with one seed.
    """
    at = {one.name: one for one in networks}
    skip, others = at.get("skip"), [one for one in networks if one.name != "skip"]
    if skip is None or not others:
        return "Not complete yet."
    best = max(others, key=lambda one: statistics.mean(one.over_seeds(one.last, one.epochs)))
    alive = [one.name for one in others if statistics.mean(one.over_seeds(one.cosine, one.epochs)) < 0.9]
    learnt = [
        one.name
        for one in others
        if statistics.mean(one.over_seeds(one.last, one.epochs)) > statistics.mean(one.over_seeds(one.last, 0)) + 1
    ]
    said = f"Tokens alive at the end (cosine below .9): {', '.join(alive) or 'none'}; the last block's dense features "
    said += f"improved by more than a point: {', '.join(learnt) or 'none'}. "
    for what in ("last", "chosen"):
        said += f"{best.name.capitalize()} − skip at the {what} block: {_judged(best, skip, what)}. "
    return said.strip()


def _judged(best: Network, skip: Network, what: str) -> str:
    """The difference of means with its verdict, by the report's rule over seeds."""
    one, two = (
        OverSeeds(tuple(own.over_seeds(value, own.epochs)), (), tuple(own.over_seeds(value, 0)))
        for own, value in ((best, getattr(best, what)), (skip, getattr(skip, what)))
    )
    line = SeedsLine(best.name, skip.name, PROBE, one, two)
    spread_of = "one seed" if math.isnan(line.deviation) else f"deviation {line.deviation:.1f}"
    return f"{line.difference:+.1f} ({spread_of}: {line.verdict})"


def draw(studies: Mapping[str, Sequence[Network]], place: Path) -> str:
    """Curves by block into ``place``; the Markdown that shows them."""

    def picture(colours: Sequence[str]) -> Any:
        figure, grid = panels(2 * len(studies), columns=2)
        for at, (name, networks) in enumerate(studies.items()):
            for axes, what in zip(grid[2 * at : 2 * at + 2], ("dense probe, mIoU", "token cosine"), strict=True):
                heading(axes, f"{TITLES[name]}: {what}")
                axes.set_xlabel("block")
                for one in networks:
                    curve(axes, _points(one, what), colours[NETWORKS.index(one.name)], 0, one.name)
        legend(figure, grid, NETWORKS)
        return figure

    alt = "Dense probe and token cosine by block after training, for every objective and network"
    return draw_beside(place, CURVES, picture, len(NETWORKS), alt)


def _points(one: Network, what: str) -> dict[int, float]:
    """By block, means over seeds after training."""
    every = [one.dense(rows, one.epochs) for rows in one.seeds.values()]
    if what == "token cosine":
        return {block: statistics.mean(rows[block].token_cosine or 0.0 for rows in every) for block in every[0]}
    return {block: statistics.mean(rows[block].value for rows in every) for block in every[0]}


def cost(folders: Sequence[Path]) -> tuple[float, str]:
    """Core-hours of all stages of the studies (one thread each), and the machine and day of the last training."""
    seconds = sum(float(read_json(path)["seconds"]) for folder in folders for path in folder.rglob("timing.json"))
    where, updated = {}, 0.0
    for folder in folders:
        for path in folder.glob("stages/pretrain/*/*/status.json"):
            status = read_json(path)
            if status["updated"] > updated:
                updated, where = status["updated"], read_json(path.with_name("env.json"))
    day = datetime.fromtimestamp(updated, UTC).date()
    machine = f"{where['cores']} cores, {where['memory']}, torch {where['torch']}, Python {where['python']}, {day}"
    return seconds / 3600, machine


def write_page(folders: Sequence[Path], page: Path) -> None:
    """Write ``page`` and its curves beside it."""
    read = {folder.name: read_study(folder) for folder in folders}
    studies = {name: read[name] for name in TITLES if name in read}
    runs = sum(len(one.seeds) for networks in studies.values() for one in networks)
    files = [f"`configs/results/{name.replace('-', '_')}.yaml`" for name in studies]
    hours, machine = cost([folder for folder in folders if folder.name in studies])
    intro = _INTRO.format(runs=runs, command=", ".join(files), hours=hours, machine=machine)
    lines = [intro, "## Verdicts", ""]
    lines += [f"- **{TITLES[name]}.** {verdict(networks)}" for name, networks in studies.items()]
    lines += ["", "## Networks", ""]
    for name, networks in studies.items():
        lines += [f"### {TITLES[name]}", "", *table(networks)]
    page.parent.mkdir(parents=True, exist_ok=True)
    lines += ["## By block, after training", "", draw(studies, page.parent)]
    write_text(page, "\n".join(lines) + "\n")


def main() -> int:
    """Read the studies and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objectives")
    parser.add_argument("studies", type=Path, nargs="+", help="folders of studies, of any of the four objectives")
    parser.add_argument("--table", type=Path, required=True, help="the page to write")
    args = parser.parse_args()
    write_page([folder for folder in args.studies if folder.name in TITLES], args.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
