# Frozen: rows docs/concepts/readings.json, commit d279338a, 2026-11-26.
"""Measured effects of each reading of the papers' open sentences, fresh and trained, and the page that reports them.

python -m studies.readings measure [--seeds 3] [SENTENCE ...]   (minutes; replaces docs/concepts/readings.json)
python -m studies.readings trained FOLDER ...                   (adds the numbers of finished studies to it)
python -m studies.readings page                                 (writes docs/concepts/readings.md from it)
python -m studies.readings                                      (prints the tables)

The sentences are those of plugins/papers/dinoskip_papers/readings.py. ViT-S/16 without skips at 224 pixels, on the
four photographs of scikit-image, untrained, float32 on a CPU. Trained are networks of six blocks, by
configs/results/readings_small.yaml and configs/results/readings_small_recipe.yaml.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.pages import markdown_table
from dinoskip.diagnostics import bundled_photos
from dinoskip.diagnostics.activations import block_activations
from dinoskip.diagnostics.attention import attention_measures
from dinoskip.diagnostics.propagation import propagation
from dinoskip.init import ModelConfig, build_model
from dinoskip.io.files import read_json, write_json, write_text
from dinoskip.results.rows import read_rows
from dinoskip.runtime.console import configure, log
from dinoskip.runtime.environment import describe
from dinoskip.settings.config import RawConfig, apply_overrides, validate
from dinoskip_papers.readings import SENTENCES, Reading, Sentence

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "concepts" / "readings.md"
MEASURED = PAGE.with_suffix(".json")
FRESH: Mapping[str, Any] = {"name": "vit_small_patch16", "img_size": 224, "skip": False}
MIDDLE, LAST = 6, 12
MEASURES = {
    "cosine_6": "tokens, block 6",
    "cosine_12": "tokens, block 12",
    "cls_12": "CLS tokens, block 12",
    "ln_kappa": "ln κ of attention",
    "gradient": "gradient, block 1 / 12",
}
"""Fields of a measured row, and the columns that they are."""
TRAINED = {("probe", "mIoU", "out"): "mIoU, trained", ("tokencut", "CorLoc", "key"): "CorLoc, trained"}
"""Task, metric and tensor of the columns of trained networks."""
COLUMNS = list(TRAINED.values())
MIOU = COLUMNS[0]
LATE = ("4", "5", "6")
"""The blocks over whose mean a trained network counts: the later half, fixed before the first run."""
REFERENCE = "skip-adamw"
KAPPA_IMAGES, KAPPA_HEADS = 2, 3  # of which singular values are taken: they are the costly part


def network(reading: Reading) -> ModelConfig:
    """The network of a reading: its settings of the model over a ViT-S without skips."""
    settings = [one for one in reading.settings if one.startswith("model.")]
    tree = apply_overrides(RawConfig({"model": dict(FRESH)}), settings).tree
    return validate(ModelConfig, RawConfig(tree["model"]), "model")


def measure(reading: Reading, seed: int, images: Tensor) -> dict[str, float]:
    """A row of :data:`MEASURES` for one fresh network.

    Cosines are means: between different patches of an image, and between the CLS tokens of different images, at a
    block's output. ``ln_kappa`` is the median over blocks of the median ln κ(A) over images and heads. ``gradient`` is
    the ratio of the norms of the gradients of block 1 and block 12, of :func:`dinoskip.diagnostics.propagation`'s loss.
    """
    model = build_model(network(reading), seed).eval()
    rows = {row.block: row for row in propagation(model, images)}
    with torch.no_grad():
        each = [
            attention_measures(block, images=KAPPA_IMAGES, heads=KAPPA_HEADS)
            for block in block_activations(model, images[:KAPPA_IMAGES])
        ]
    kappas = torch.tensor([one.kappa_median for one in each if one is not None], dtype=torch.float64)
    return {
        "cosine_6": rows[MIDDLE].token_cosine, "cosine_12": rows[LAST].token_cosine, "cls_12": rows[LAST].cls_cosine,
        "ln_kappa": float(kappas.log().quantile(0.5)), "gradient": rows[1].gradient / rows[LAST].gradient,
    }  # fmt: skip


def measure_all(seeds: int, names: Sequence[str]) -> None:
    """Measure the readings of the sentences named (all without a name); those of a sentence are kept when it is done.

    A network that several readings have is measured once.
    """
    images = bundled_photos(4, FRESH["img_size"]).float()
    kept = read_json(MEASURED)["rows"] if MEASURED.is_file() and names else []
    known: dict[tuple[ModelConfig, int], dict[str, float]] = {}
    for sentence in SENTENCES:
        if sentence.unmeasured or (names and sentence.name not in names):
            continue
        kept = [row for row in kept if row["sentence"] != sentence.name]
        for reading in sentence.readings:
            for seed in range(seeds):
                place = network(reading), seed
                if place not in known:
                    known[place] = measure(reading, seed, images)
                kept.append({"sentence": sentence.name, "reading": reading.name, "seed": seed} | known[place])
            log.info("%s, %s: measured", sentence.name, reading.name)
        measured = {"machine": describe(), "day": str(datetime.now(UTC).date()), "rows": kept}
        write_json(MEASURED, {**(read_json(MEASURED) if MEASURED.is_file() else {}), **measured})


# --- trained networks --------------------------------------------------------------------------------


def trained_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return a row for each network, with its seed, or baseline, and column of :data:`TRAINED`.

    A network that two studies have is the first one's. Raises :class:`DataError` for a folder without rows.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for folder in folders:
        own: dict[tuple[str, str], list[float]] = {}
        for row in read_rows(folder / "rows.json"):
            for (task, metric, facet), column in TRAINED.items():
                read = row.is_baseline or (row.facet == facet and row.block in LATE)
                if read and (row.task, row.metric) == (task, metric):
                    own.setdefault((row.model, column), []).append(row.value)
        values = own | values
    return [
        {"network": network, "column": column, "value": statistics.mean(found)}
        for (network, column), found in values.items()
    ]


def of_network(rows: Sequence[Mapping[str, Any]], network: str, column: str) -> list[float]:
    """Return a network's numbers, one a seed, or a baseline's one number."""
    name = re.compile(rf"{re.escape(network)}(-s\d+)?")
    return [row["value"] for row in rows if name.fullmatch(row["network"]) and row["column"] == column]


# --- the page ----------------------------------------------------------------------------------------


def page(measured: Mapping[str, Any]) -> str:
    """Return the page of the sentences and of what was measured."""
    machine, rows, trained = measured["machine"], measured["rows"], measured["trained"]["rows"]
    seeds = sorted({row["seed"] for row in rows})
    where = f"{machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}, {measured['day']}"
    parts = [
        "# Readings of the papers",
        "",
        "Some sentences of the papers can be read in more than one way, and the reading changes the method. Each "
        "reading is a setting. Ours is first; it is the default, or what the configurations of the papers name. "
        "[Train them](../configurations.md): `configs/paper/readings.yaml` has the readings of network and data as "
        "variants, `configs/paper/readings_recipe.yaml` those of the recipe. This page is written by `python -m "
        "studies.readings page` from `plugins/papers/dinoskip_papers/readings.py` and from measurements of fresh "
        "networks.",
        "",
        "**What is measured**: untrained ViT-S/16 without skips on four photographs of 224 pixels (`python -m "
        f"studies.readings measure`; {where}). Mean and, in brackets, smallest and largest of {len(seeds)} seeds. "
        "*tokens*: mean cosine of two patches of an image at a block's output, 1: all alike. *CLS tokens*: mean "
        "cosine of the CLS tokens of two images. *ln κ of attention*: median over blocks; 36 is the largest that is "
        "told from infinite. *gradient*: norm of that of block 1's parameters over that of block 12's (loss on the "
        "CLS token). None of it says which network trains better.",
        "",
        trained_words(measured["trained"]),
        "",
        *(line for sentence in SENTENCES for line in section(sentence, rows, trained)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def trained_words(trained: Mapping[str, Any]) -> str:
    """Return what is trained, how it counts, and the numbers to compare with."""
    machine, rows = trained["machine"], trained["rows"]
    seeds = len(of_network(rows, REFERENCE, MIOU))
    skip = " and ".join(f"{_percent(of_network(rows, REFERENCE, column))} {column.split(',')[0]}" for column in COLUMNS)
    rules = sorted({row["network"] for row in rows if row["network"].startswith("baseline")})
    levels = [
        f"{name.partition(': ')[2]} {value:.1f} {column.split(',')[0]}"
        for column in COLUMNS for name in rules for value in of_network(rows, name, column)
    ]  # fmt: skip
    where = f"{machine['cores']} cores, torch {machine['torch']}, {trained['day']}"
    return (
        "**What is trained**: DINO for 64 steps of 16 synthetic scenes, six blocks of width 128 without skips, minutes "
        "for all networks of a seed (`configs/results/readings_small.yaml`, `readings_small_recipe.yaml`; "
        f"{where}); {seeds} seeds, brackets as above. A network counts by the mean over blocks 4 to 6 of the mIoU of a "
        "linear probe and of CorLoc by TokenCut, on scenes of one object each, fixed before the first run. The same "
        f"network with skips: {skip}. Without a network: {', '.join(levels)}. So few steps show how a reading "
        "begins, not where it ends."
    )


def section(sentence: Sentence, rows: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence: quotation, what is open, readings with what they do, why ours is ours."""
    fresh = [] if sentence.unmeasured else list(MEASURES)
    columns = COLUMNS if any(reading.small for reading in sentence.readings) else []
    lines = []
    for reading in sentence.readings:
        name = f"**{reading.name}** (ours)" if reading is sentence.ours else reading.name
        own = [row for row in rows if (row["sentence"], row["reading"]) == (sentence.name, reading.name)]
        cells = [_cell([row[field] for row in own]) for field in fresh]
        cells += [_percent(of_network(trained, reading.small_network, column)) for column in columns]
        lines.append([name, "<br>".join(f"`{one}`" for one in reading.settings), *cells])
    titles = ["reading", "setting", *(MEASURES[field] for field in fresh), *columns]
    return [
        f"## {sentence.title}",
        "",
        f"> {sentence.quotation}",
        "",
        f"*{sentence.paper}*, {sentence.place}. {sentence.open}",
        "",
        *markdown_table(titles, lines),
        f"Why ours: {sentence.why}{f' Not measured fresh: {sentence.unmeasured}' if sentence.unmeasured else ''}",
        "",
    ]


def _cell(values: Sequence[float]) -> str:
    """Mean (smallest to largest) of one measure; three digits near 1, two else, powers of ten as such."""
    if not values:
        return ""
    mean, ends = statistics.mean(values), (min(values), max(values))
    return f"{_number(mean)} ({_number(ends[0])} to {_number(ends[1])})"


def _percent(values: Sequence[float]) -> str:
    """Mean (smallest to largest) of numbers in percent."""
    if not values:
        return ""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _number(value: float) -> str:
    if abs(value) >= 1000 or 0 < abs(value) < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:.3f}" if abs(value) <= 1 else f"{value:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the page, or print its tables."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.readings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what")
    take = commands.add_parser("measure")
    take.add_argument("sentences", nargs="*", metavar="SENTENCE", help="their names; without, all")
    take.add_argument("--seeds", type=int, default=3, help="(default: %(default)d)")
    add = commands.add_parser("trained")
    add.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="results of the small studies")
    commands.add_parser("page")
    args = parser.parse_args(argv)
    configure(0)
    if args.what == "measure":
        known = {sentence.name for sentence in SENTENCES if not sentence.unmeasured}
        if unknown := set(args.sentences) - known:
            parser.error(f"{', '.join(sorted(unknown))}: no sentence that is measured: {', '.join(sorted(known))}")
        measure_all(args.seeds, args.sentences)
    elif args.what == "trained":
        rows = trained_rows(args.folders)
        trained = {"machine": describe(), "day": str(datetime.now(UTC).date()), "rows": rows}
        write_json(MEASURED, {**read_json(MEASURED), "trained": trained})
    if args.what is not None:
        write_text(PAGE, page(read_json(MEASURED)))
    else:
        found = read_json(MEASURED)
        rows, trained = found["rows"], found["trained"]["rows"]
        print("\n".join(line for sentence in SENTENCES for line in section(sentence, rows, trained)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
