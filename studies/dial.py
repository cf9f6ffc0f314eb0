# Frozen: rows docs/results/dial/rows.csv, commit a75b8593, 2026-11-25.
"""The page of the study from skips to none: its rows out of finished stages, its strip, and the page from both.

    dinoskip run configs/objectives/dial.yaml                      # and dial_skip.yaml, dial_distilled.yaml
    python -m studies.dial rows runs/dial runs/dial-skip runs/dial-distilled-s*
    python -m studies.dial strip runs/dial runs/dial-skip runs/dial-distilled-s0 --images SCENES/JPEGImages
    python -m studies.dial page

A network counts with the seeds that all finished networks have; one that has none yet is named as missing.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import folded, read_csv, result_row, stage_seconds
from dinoskip.decisions.comparing import BETTER, HIGHER, LOWER, ONE_EACH, WORSE
from dinoskip.decisions.wording import points, signed
from dinoskip.io.files import read_json, write_bytes, write_text
from dinoskip.results.rows import EvalResult, read_rows, rows_csv
from visualize.comparison import Scores
from visualize.report.answer import Answer, AnswerLine, answers
from visualize.report.overview import NOT_SEPARATING
from visualize.report.separation import separations, speechless
from visualize.rows import SKIP, StudyVariant, principal
from visualize.tables import markdown_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "dial.md"
FOLDER = PAGE.with_suffix("")
NETWORKS = {
    "skip": "with skips",
    "mixing": "without skips, calibrated, heads that mix",
    "mixing_annealed": "the same start, the skips' weight from 1 to 0 over 60 % of training",
    "paper_annealed": "the paper's start with beta scaled to the width, annealed likewise",
    "mixing_distilled": "mixing, which learns the features of the trained network with skips of its seed",
}
MEASURES = {"probe": "mIoU", "tokencut": "CorLoc"}
EPOCH, DEPTH, SEEDS = 11, 12, 3
PIXELS = 96
"""Side of a picture of the strip."""
_ABOUT = """\
A ViT of width 128 with {depth} blocks, patches of 8, 48 × 48 pixels; 407 steps of 16 scenes with SOAP: patch contrast,
or, for the last network, distillation (`configs/objectives/dial.yaml`, `dial_skip.yaml`, `dial_distilled.yaml`). Scenes
hold one drawn form each, whose class is the form; textures and colours are random. A probe of the pixels'
[colours](../protocols.md#without-a-network) is still far above the majority class: a mIoU below it says nothing of
learning. mIoU: a linear probe of 20 epochs on 600 scenes, scored on 200; CorLoc: TokenCut by keys on those 200 at
64 × 64. The probe's block is chosen without the images scored, CorLoc's on them, which raises all its numbers, so
nothing is decided by it. Networks end without skips, but for *skip*. **Rates were not searched**: they are those of
earlier trials at width 96 (2e-3 with skips, 1e-3 without), so a difference may be one of rates.
"""


def stage_rows(folders: Sequence[Path]) -> list[EvalResult]:
    """Rows of the finished stages of studies, baselines once."""
    unique: dict[tuple[str, ...], EvalResult] = {}
    for folder in folders:
        for task, metric in MEASURES.items():
            for path in sorted(folder.rglob(f"stages/{task}/*/ep*/*/*/rows.json")):
                variant, epoch = path.parts[-5], int(path.parts[-4].removeprefix("ep"))
                for row in read_rows(path):
                    if row.metric == metric:
                        model = row.model if row.is_baseline else variant
                        kept = row if row.is_baseline else row.with_context({"model": variant, "epoch": epoch})
                        unique.setdefault((task, model, str(kept.epoch), kept.block, kept.note, kept.facet), kept)
    return sorted(unique.values(), key=lambda row: (row.task, row.is_baseline, row.model, row.epoch, row.block))


def name_of(model: str) -> tuple[str, int]:
    """Network and seed of a run: ``("mixing", 0)`` of ``mixing-soap-s0``."""
    match = re.fullmatch(r"(\w+)-soap-s(\d+)", model)
    assert match is not None
    return match[1], int(match[2])


def complete(rows: Sequence[EvalResult]) -> dict[str, set[int]]:
    """Seeds of each network that have both measures, before and after training."""
    every: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for row in rows:
        if not row.is_baseline:
            every.setdefault(name_of(row.model), set()).add((row.task, row.epoch))
    wanted = {(task, epoch) for task in MEASURES for epoch in (0, EPOCH)}
    return {name: {seed for (net, seed), has in every.items() if net == name and wanted <= has} for name in NETWORKS}


def variants_of(rows: Sequence[EvalResult]) -> list[StudyVariant]:
    """The runs that are compared: of the seeds that all finished networks have."""
    seeds = complete(rows)
    shared = set.intersection(*(finished for finished in seeds.values() if finished)) if any(seeds.values()) else set()
    return [
        StudyVariant(
            f"{name}-soap-s{seed}", role=SKIP if name == "skip" else "", optimizer="soap", depth=DEPTH, seed=seed,
            rows=[row for row in rows if row.model == f"{name}-soap-s{seed}"],
            family=name if len(shared) > 1 else "",
        )
        for name in NETWORKS if seeds[name]
        for seed in sorted(shared)
    ]  # fmt: skip


def page(rows: Sequence[EvalResult], about: Mapping[str, Any]) -> str:
    """The page of these rows; ``about`` has the machine, the day and the seconds."""
    variants = variants_of(rows)
    scores = Scores(principal({variant.name: variant.rows for variant in variants}))
    baselines = [row for row in rows if row.is_baseline]
    silent = speechless(separations(variants, scores, baselines))
    pairs = answers(variants, scores, baselines, silent)
    seeds = sorted({variant.seed for variant in variants})
    missing = [name for name, finished in complete(rows).items() if not finished]
    lines = ["# From skips to none, in small", "", f"**{sentence(pairs, silent, seeds, missing)}**", ""]
    lines += [*_grid(pairs, silent), ""]
    lines += [
        f"Difference from the network with skips in points, {_seeds(seeds)}. Undecided: it could be chance, or the "
        "block was chosen on the images shown. "
        f"{NOT_SEPARATING.capitalize()}: no trained network is above every baseline and every untrained network.",
        "",
        "The [third study](evidence.md#what-was-added-after-the-rows-had-been-seen) trains longer, on photographs; its "
        "page sets both studies' CorLoc by the same reading side by side.",
        "",
    ]
    if "strip" in about:
        said = "A line a scene: the picture, then the three leading components of the last block's patches of "
        shown = ", ".join(about["strip"]).replace("_", " ")
        lines += [f"![PCA of patches to RGB]({FOLDER.name}/strip.png)", "", f"{said}{shown}.", ""]
    cost = f"{about['seconds'] / 3600:.1f} hours of stages with one thread, on a processor shared with many others "
    cost += f"({about['machine']}, {about['day']})."
    lines += folded("What was run, and what limits it", [_ABOUT.format(depth=DEPTH), *_networks(rows), "", cost, ""])
    lines += folded("Scores and intervals", [*_compared(pairs, silent), "", *_floors(baselines), ""])
    lines += folded("Every block", [*_by_block(rows), ""])
    return "\n".join(lines).rstrip() + "\n"


def _seeds(seeds: Sequence[int]) -> str:
    return f"mean over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"


def sentence(pairs: Sequence[Answer], silent: Mapping[Any, str], seeds: Sequence[int], missing: Sequence[str]) -> str:
    """Say in a sentence which networks the study tells apart."""
    heard = [line for pair in pairs for line in pair.lines if line.benchmark not in silent]
    words = (HIGHER, LOWER) if len(seeds) == 1 else (BETTER, WORSE)
    above, below = (
        [f"{line.first.name} ({line.benchmark.metric})" for line in heard if line.verdict == word and line.first]
        for word in words
    )
    said = f"{words[0].capitalize()} than the network with skips: {', '.join(above) or 'none'}; "
    said += f"{words[1]}: {', '.join(below) or 'none'}{f', {ONE_EACH}' if len(seeds) == 1 else ''}."
    if not heard:
        said = "Neither measure separates networks here, so nothing is decided about leaving out skips."
    if len(seeds) < SEEDS:
        said += f" {len(seeds)} of {SEEDS} seeds {'has' if len(seeds) == 1 else 'have'} been run"
        said += f", and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not run yet." if missing else "."
    return said.replace("_", " ")


def _word(line: AnswerLine, silent: Mapping[Any, str]) -> str:
    return NOT_SEPARATING if line.benchmark in silent else line.said


def _grid(pairs: Sequence[Answer], silent: Mapping[Any, str]) -> list[str]:
    """Networks × measures: the verdict as a word, and the difference."""
    measures = list(dict.fromkeys(line.benchmark for pair in pairs for line in pair.lines))
    lines = {(pair.first, line.benchmark): line for pair in pairs for line in pair.lines}
    seconds = {line.benchmark: line.second for line in lines.values() if line.second}
    body = [["with skips", *(f"{seconds[key].value:.1f}" if key in seconds else "" for key in measures)]]
    for pair in pairs:
        cells = []
        for key in measures:
            line = lines.get((pair.first, key))
            known = line is not None and line.difference is not None
            cells.append(f"{_word(line, silent)} {signed(line.difference.value)}" if known else "not run")  # type: ignore[union-attr, arg-type]
        body.append([pair.first.partition("-")[0].replace("_", " "), *cells])
    return markdown_rows(["network", *(f"{key.metric}, {key.dataset} {key.split}" for key in measures)], body)


def _compared(pairs: Sequence[Answer], silent: Mapping[Any, str]) -> list[str]:
    body = []
    for pair in pairs:
        for line in pair.lines:
            if line.first and line.second and line.difference:
                sides = (line.first, line.second)
                values = [f"{side.value:.1f} at {'/'.join(score.block for score in side.now)}" for side in sides]
                before = " / ".join(f"{_mean(side.before):.1f}" for side in sides)
                last = " / ".join(f"{_mean(side.last):.1f}" for side in sides)
                p = "" if line.p is None or math.isnan(line.p) else f"{line.p:.2g}"
                cells = [line.benchmark.metric, *values, points(line.difference), _word(line, silent), p, before, last]
                body.append([f"{pair.first} − {pair.second}", *cells])
    columns = ("networks", "measure", "first", "second", "difference", "the first is", "p", "untrained", "last block")
    return markdown_rows(columns, body)


def _mean(scores: Sequence[Any]) -> float:
    return statistics.mean(score.value for score in scores)


def _floors(baselines: Sequence[EvalResult]) -> list[str]:
    body = [[row.rule, row.metric, f"{row.value:.1f}"] for row in baselines]
    return markdown_rows(["without a network", "measure", "value"], body, 2)


def _networks(rows: Sequence[EvalResult]) -> list[str]:
    seeds = complete(rows)
    body = [[name, what, ", ".join(map(str, sorted(seeds[name]))) or "not run yet"] for name, what in NETWORKS.items()]
    return markdown_rows(["network", "what it is", "seeds with both measures"], body, 2)


def _by_block(rows: Sequence[EvalResult]) -> list[str]:
    """Means over the seeds that a network has, before and after, block by block."""
    values: dict[tuple[str, str, int, str], list[float]] = {}
    for row in rows:
        if not (row.is_baseline or row.note):
            values.setdefault((row.task, name_of(row.model)[0], row.epoch, row.block), []).append(row.value)
    blocks = [str(block) for block in range(1, DEPTH + 1)]
    body = []
    for task, metric in MEASURES.items():
        for name in NETWORKS:
            for epoch in (0, EPOCH):
                every = [values.get((task, name, epoch, block)) for block in blocks]
                if any(every):
                    cells = [f"{statistics.mean(values):.1f}" if values else "" for values in every]
                    body.append([metric, name, "after" if epoch else "before", *cells])
    return markdown_rows(["measure", "network", "training", *(f"b{block}" for block in blocks)], body, 3)


def strip(folders: Sequence[Path], images: Path, count: int = 4) -> tuple[bytes, list[str]]:
    """PNG of some scenes and of the last block's patches of each network's first seed, and the networks in order."""
    import numpy as np
    import torch

    from dinoskip.io.images import read_image
    from dinoskip.models import load_backbone
    from visualize.pca import PatchPCA, procrustes, to_rgb
    from visualize.rasters import nearest, png, sheet

    weights = {}
    for name in NETWORKS:
        paths = [
            path for root in folders for path in root.rglob(f"stages/weights/{name}-soap-s0/ep{EPOCH}/*/*.safetensors")
        ]
        weights |= {name: paths[0]} if paths else {}
    pictures = [read_image(path) for path in sorted(images.glob("*.jpg"))[-count:]]
    columns, first = [], None
    for path in weights.values():
        backbone = load_backbone(f"weights:{path}")
        batch = torch.stack([backbone.transform(PIXELS)(picture) for picture in pictures])
        layer = backbone.layers(batch, [backbone.depth], norm="final")[backbone.depth]
        scores = PatchPCA(3).fit(layer.tokens.flatten(0, 1)).transform(layer.tokens)
        flat = scores.reshape(-1, 3)
        first = flat if first is None else first
        rgb = to_rgb((flat @ procrustes(flat, first)).reshape(scores.shape))
        columns.append([nearest(picture.reshape(*layer.grid, 3), (PIXELS, PIXELS)) for picture in rgb])
    shown = [np.asarray(nearest(picture, (PIXELS, PIXELS))) for picture in pictures]
    return png(sheet([[shown[at], *(column[at] for column in columns)] for at in range(len(shown))])), list(weights)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the module's docstring shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "strip", "page"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--images", type=Path, help="folder of scenes, of which the strip shows the last")
    given = parser.parse_args(arguments)
    about = read_json(FOLDER / "about.json") if (FOLDER / "about.json").exists() else {}
    if given.what == "page":
        write_text(PAGE, page([result_row(entry) for entry in read_csv(FOLDER / "rows.csv")], about))
        return 0
    from datetime import UTC, datetime

    from dinoskip.io.files import write_json
    from dinoskip.runtime.environment import describe

    FOLDER.mkdir(parents=True, exist_ok=True)
    if given.what == "rows":
        write_text(FOLDER / "rows.csv", rows_csv(stage_rows(given.folders)))
        where = describe()
        machine = f"{where['cores']} cores, {where['memory']}, torch {where['torch']}, Python {where['python']}"
        day = datetime.now(UTC).date().isoformat()
        about |= {"seconds": round(stage_seconds(given.folders)), "machine": machine, "day": day}
    else:
        picture, names = strip(given.folders, given.images)
        write_bytes(FOLDER / "strip.png", picture)
        about["strip"] = names
    write_json(FOLDER / "about.json", about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
