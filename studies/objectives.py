# Frozen: rows docs/results/objectives.md, commit 41fd7fa3, 2026-11-25.
"""The page of the studies of objectives: which one keeps the tokens of a skipless ViT distinct.

    dinoskip run configs/results/objectives.yaml data.imagenette.root=SMALL       # and _scenes, _dino, _ibot, _mae
    python -m studies.objectives runs/objectives runs/objectives-* --table docs/results/objectives.md

Each folder is a study of configs/results whose report was written; folders may hold different numbers of seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import cost_line, draw_beside, markdown_table, stage_seconds
from dinoskip.io.files import read_json, write_text
from dinoskip.results.estimates import Estimate, Judgement, decided, judged, known
from dinoskip.results.rows import EvalResult, best_by_heldout, read_rows
from visualize.figures.drawing import curve, heading, legend, panels
from visualize.report.answer import BETTER, UNDECIDED, WORSE
from visualize.tables import mean_deviation

TITLES = {
    "objectives": "Patch contrast",
    "objectives-scenes": "Patch contrast on scenes",
    "objectives-scenes-12": "Patch contrast on scenes, 12 blocks",
    "objectives-dino": "DINO",
    "objectives-ibot": "iBOT",
    "objectives-mae": "MAE",
}
"""Of the studies, by their folders' names."""
NOTES = {
    "objectives-scenes": "With 8 blocks, at 64 pixels, from 1,600 synthetic scenes in place of Imagenette: other "
    "scenes than those that are reported, but of the same photographs and objects.",
    "objectives-scenes-12": "As before, with 12 blocks: `configs/results/objectives_scenes.yaml "
    "name=objectives-scenes-12 model.depth=12 variants.seeds=[0]`.",
}
"""What differs from the others, by folder."""
NETWORKS = ("skip", "default", "paper", "calibrated", "mirrored", "mixing")
CURVES = "objectives-blocks"
UNRESOLVED = "rate unresolved"
"""What stands in place of a verdict where the rate of a network, or of the one with skips, is not resolved."""
OLD_SWEEP = "the sweep is from before rates were checked"
ALIVE = 0.9
"""Below this mean cosine the tokens of an image are called distinct."""
_INTRO = """# Which objective keeps the tokens of a skipless ViT distinct?

Written by `python -m studies.objectives STUDY ... --table PAGE.md` from {runs} training runs of
`configs/results/objectives*.yaml`. {cost}.

A ViT of width 128 with 12 blocks, patches of 8, 48 × 48 pixels, learns from 1,600 photographs of Imagenette: 400
steps of 16 images with SOAP, equally many images for every objective. *rate*, per 256 images, is the best of five or
more by the probe at its best block, after 100 steps, on scenes that are not those reported. *dense* is the mIoU of a
linear probe of the patches on 317 synthetic scenes (7 classes); *chosen* is the block that is best on held-out
training scenes; *cosine* is between the tokens of an image at the last block, 1 where all are alike; k-NN (20
neighbours) is at the last block, on Imagenette's validation images. *a → b*: before training and after it. ± is the
standard deviation over seeds. `skip` alone has skip connections; `mirrored` is calibrated with `mlp: mirrored`,
`mixing` with `mixing_heads: 1`. Tokens are *distinct* if their mean cosine is below {alive:g}. *Better* or *worse*
than skip: Welch's t over seeds (the 317 images are taken as fixed) of the difference and of what the better one
gained over its own untrained state, both p < 0.05 after Holm's correction for all lines of this page; *rate
unresolved* where either network's sweep has no rate that is above the majority class, between others, and of five at
least. These are short runs of a small network; larger networks may behave differently.
"""


@dataclass(frozen=True)
class Network:
    """One network of a study: the rows of each of its seeds."""

    name: str
    rate: str
    seeds: Mapping[int, tuple[EvalResult, ...]]
    epochs: int
    unresolved: str = ""
    """Why no rate of its sweep is known to be the best."""

    def dense(self, rows: Sequence[EvalResult], epoch: int) -> dict[int, EvalResult]:
        """The probe's rows by block."""
        probed = [row for row in rows if row.task == "probe" and row.metric == "mIoU" and not row.note]
        return {int(row.block): row for row in probed if row.epoch == epoch}

    def over_seeds(self, value: Callable[[Sequence[EvalResult], int], float], epoch: int) -> list[float]:
        """``value`` of the rows of every seed."""
        return [value(rows, epoch) for rows in self.seeds.values()]

    def last(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """mIoU of the last block."""
        by_block = self.dense(rows, epoch)
        return by_block[max(by_block)].value

    def chosen(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """mIoU of the block that is best on held-out training images."""
        best = best_by_heldout(self.dense(rows, epoch).values())
        return math.nan if best is None else best.value

    def cosine(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """Mean cosine between the tokens of an image, at the last block."""
        by_block = self.dense(rows, epoch)
        cosine = by_block[max(by_block)].token_cosine
        return math.nan if cosine is None else cosine

    def knn(self, rows: Sequence[EvalResult], epoch: int) -> float:
        """Accuracy of nearest neighbours at the last block, in percent."""
        by_block = {int(row.block): row.value for row in rows if row.task == "knn" and row.epoch == epoch}
        return by_block[max(by_block)]


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
            by_seed = {seed: tuple(rows) for seed, rows in sorted(seeds.items())}
            chosen = read_json(sweep)
            networks.append(Network(name, _rate(chosen), by_seed, last, chosen.get("unresolved", OLD_SWEEP)))
    return networks


def _rate(sweep: Mapping[str, Any]) -> str:
    """The rate that a sweep chose; in words where it is the lowest or highest of those tried."""
    tried = [float(run["lr"]) for run in sweep["rates"]]
    chosen = float(sweep["lr"])
    edge = " (lowest)" if chosen == min(tried) else " (highest)" if chosen == max(tried) else ""
    return f"{chosen:g}{edge}"


@dataclass(frozen=True)
class Line:
    """A network minus the one with skips at a block, in percent points, and whether it is better or worse."""

    first: str
    difference: float
    verdict: str


Lines = Mapping[tuple[str, str, str], Line]  # by study, network and block ("last" or "chosen")


def _estimates(network: Network, block: str, epoch: int) -> list[Estimate]:
    return [known(value / 100) for value in network.over_seeds(getattr(network, block), epoch)]


def judged_lines(studies: Mapping[str, Sequence[Network]]) -> dict[tuple[str, str, str], Line]:
    """Every network against the one with skips of its study, at both blocks, decided together."""
    judgements: dict[tuple[str, str, str], Judgement] = {}
    open_: set[tuple[str, str, str]] = set()
    for name, networks in studies.items():
        skip = next((net for net in networks if net.name == "skip"), None)
        for net in networks:
            for block in ("last", "chosen") if skip and net is not skip else ():
                after, before = (
                    [_estimates(network, block, network.epochs if trained else 0) for network in (net, skip) if network]
                    for trained in (True, False)
                )
                judgements[name, net.name, block] = judged(*after, *before)
                if net.unresolved or (skip and skip.unresolved):
                    open_.add((name, net.name, block))
    words = {1: BETTER, -1: WORSE, 0: UNDECIDED}
    return {
        key: Line(key[1], 100 * judgement.difference.value, UNRESOLVED if key in open_ else words[sign])
        for (key, judgement), (sign, _) in zip(judgements.items(), decided(list(judgements.values())), strict=True)
    }


def table(study: str, networks: Sequence[Network], lines: Lines) -> list[str]:
    """Return a table with a line for each network."""
    columns = (
        "network", "rate", "seeds", "cosine", "dense, last block", "− skip", "dense, chosen block", "− skip", "k-NN",
    )  # fmt: skip
    body = []
    for net in networks:
        cosine, last, chosen, knn = (
            _before_and_after(net, value, digits)
            for value, digits in ((net.cosine, 2), (net.last, 1), (net.chosen, 1), (net.knn, 1))
        )
        compared = [lines.get((study, net.name, block)) for block in ("last", "chosen")]
        said = ["" if line is None else f"{line.difference:+.1f}, {line.verdict}" for line in compared]
        cells = [net.name, net.rate, str(len(net.seeds))]
        body.append([*cells, cosine, last, said[0], chosen, said[1], knn])
    return markdown_table(columns, body)


def _before_and_after(net: Network, value: Callable[[Sequence[EvalResult], int], float], digits: int) -> str:
    before, after = (net.over_seeds(value, epoch) for epoch in (0, net.epochs))
    return f"{statistics.mean(before):.{digits}f} → {mean_deviation(after, digits)}"


def verdict(study: str, networks: Sequence[Network], compared: Lines) -> str:
    """Return sentences on the skipless networks that are alive, that have learnt, and that are better than skip."""
    others = [net for net in networks if net.name != "skip"]
    if len(others) in (0, len(networks)):
        return "Not complete yet."
    alive = [net.name for net in others if is_alive(net)]
    learnt = [
        net.name
        for net in others
        if statistics.mean(net.over_seeds(net.last, net.epochs)) > statistics.mean(net.over_seeds(net.last, 0)) + 1
    ]
    said = (
        f"Tokens distinct after training: {', '.join(alive) or 'none'}. Dense features of the last block more than a "
    )
    said += f"point above those before training: {', '.join(learnt) or 'none'}."
    if not any(len(net.seeds) > 1 for net in networks):
        return f"{said} One seed: whether one is better than skip is undecided."
    for block in ("last", "chosen"):
        better = [name for net in others if (name := _if_better(net, compared[study, net.name, block]))]
        said += f" Better than skip at the {block} block: {', '.join(better) or 'none'}."
    return said


def _if_better(net: Network, line: Line) -> str:
    if line.verdict != BETTER:
        return ""
    return f"{net.name} ({line.difference:+.1f}{'' if is_alive(net) else ', its last tokens alike'})"


def is_alive(net: Network) -> bool:
    """Whether the tokens of an image differ at the last block after training: a mean cosine below :data:`ALIVE`."""
    return statistics.mean(net.over_seeds(net.cosine, net.epochs)) < ALIVE


def answer(studies: Mapping[str, Sequence[Network]], compared: Lines) -> str:
    """Whether a skipless network with live tokens has better dense features than skip, and under which objective."""
    said = []
    for block in ("last", "chosen"):
        lines = [
            (TITLES[name], line)
            for name, networks in studies.items()
            for net in networks
            if is_alive(net) and (line := compared.get((name, net.name, block))) is not None
        ]
        won = [f"{line.first} with {title} ({line.difference:+.1f})" for title, line in lines if line.verdict == BETTER]
        nearest = max(lines, key=lambda entry: entry[1].difference, default=None)
        if won or nearest is None:
            said.append(f"At the {block} block: {', '.join(won) or 'no tokens are distinct'}.")
        else:
            title, line = nearest
            said.append(
                f"At the {block} block under no objective; nearest is {line.first} with {title}, "
                f"{line.difference:+.1f} ({line.verdict})."
            )
    question = "Does a skipless network whose tokens stay distinct have better dense features than the one with skips?"
    return f"**{question}** {' '.join(said)}"


def draw(studies: Mapping[str, Sequence[Network]], place: Path) -> str:
    """Curves by block into ``place``; the Markdown that shows them."""

    def picture() -> Any:
        figure, grid = panels(2 * len(studies), columns=2)
        for at, (name, networks) in enumerate(studies.items()):
            for axes, what in zip(grid[2 * at : 2 * at + 2], ("mIoU", "token cosine"), strict=True):
                heading(axes, f"{TITLES[name]}: {what}")
                axes.set_xlabel("block")
                for net in networks:
                    curve(axes, _points(net, what), NETWORKS.index(net.name), net.name)
        legend(figure, grid, NETWORKS)
        return figure

    alt = "Dense probe and token cosine by block after training, for every objective and network"
    return draw_beside(place, CURVES, picture, alt)


def _points(net: Network, what: str) -> dict[int, float]:
    """Mean over seeds after training, by block."""
    every = [net.dense(rows, net.epochs) for rows in net.seeds.values()]
    if what == "token cosine":
        return {block: statistics.mean(rows[block].token_cosine or 0.0 for rows in every) for block in every[0]}
    return {block: statistics.mean(rows[block].value for rows in every) for block in every[0]}


def cost(folders: Sequence[Path]) -> str:
    """Core-hours of all stages of the studies (one thread each), and the machine and day of the last training."""
    where, updated = {}, 0.0
    for folder in folders:
        for path in folder.glob("stages/pretrain/*/*/status.json"):
            status = read_json(path)
            if status["updated"] > updated:
                updated, where = status["updated"], read_json(path.with_name("env.json"))
    return cost_line(stage_seconds(folders), where, updated)


def write_page(folders: Sequence[Path], page: Path) -> None:
    """Write ``page`` and its curves beside it."""
    read = {folder.name: read_study(folder) for folder in folders}
    studies = {name: read[name] for name in TITLES if name in read}
    runs = sum(len(net.seeds) for networks in studies.values() for net in networks)
    intro = _INTRO.format(runs=runs, cost=cost([folder for folder in folders if folder.name in studies]), alive=ALIVE)
    compared = judged_lines(studies)
    lines = [intro, "## Verdicts", "", answer(studies, compared), ""]
    lines += [f"- **{TITLES[name]}.** {verdict(name, networks, compared)}" for name, networks in studies.items()]
    lines += ["", "## Networks", ""]
    for name, networks in studies.items():
        note = [NOTES[name], ""] if name in NOTES else []
        lines += [f"### {TITLES[name]}", "", *note, *table(name, networks, compared)]
    page.parent.mkdir(parents=True, exist_ok=True)
    lines += ["## By block, after training", "", draw(studies, page.parent)]
    write_text(page, "\n".join(lines) + "\n")


def main() -> int:
    """Read the studies and write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies.objectives")
    parser.add_argument("studies", type=Path, nargs="+", help="folders of studies of configs/results/objectives*.yaml")
    parser.add_argument("--table", type=Path, required=True, help="the page to write")
    args = parser.parse_args()
    write_page([folder for folder in args.studies if folder.name in TITLES], args.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
