# Frozen: rows docs/concepts/readings.json, commit d279338a, 2026-11-26.
"""Measured effects of each reading of the papers' open sentences on a fresh ViT-S, and the page that reports them.

python -m studies.readings measure [--seeds 3] [SENTENCE ...]   (minutes; replaces docs/concepts/readings.json)
python -m studies.readings page                                 (writes docs/concepts/readings.md from it)
python -m studies.readings                                      (prints the tables)

The sentences are those of plugins/papers/dinoskip_papers/readings.py. ViT-S/16 without skips at 224 pixels, on the
four photographs of scikit-image, untrained, float32 on a CPU.
"""

from __future__ import annotations

import argparse
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
        write_json(MEASURED, {"machine": describe(), "day": str(datetime.now(UTC).date()), "rows": kept})


# --- the page ----------------------------------------------------------------------------------------


def page(measured: Mapping[str, Any]) -> str:
    """Return the page of the sentences and of what was measured."""
    machine, rows = measured["machine"], measured["rows"]
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
        *(line for sentence in SENTENCES for line in section(sentence, rows)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def section(sentence: Sentence, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence: quotation, what is open, readings with what they do, why ours is ours."""
    columns = ["reading", "setting", *([] if sentence.unmeasured else MEASURES.values())]
    lines = []
    for reading in sentence.readings:
        name = f"**{reading.name}** (ours)" if reading is sentence.ours else reading.name
        own = [row for row in rows if (row["sentence"], row["reading"]) == (sentence.name, reading.name)]
        cells = [] if sentence.unmeasured else [_cell([row[field] for row in own]) for field in MEASURES]
        lines.append([name, "<br>".join(f"`{one}`" for one in reading.settings), *cells])
    return [
        f"## {sentence.title}",
        "",
        f"> {sentence.quotation}",
        "",
        f"*{sentence.paper}*, {sentence.place}. {sentence.open}",
        "",
        *markdown_table(columns, lines),
        f"Why ours: {sentence.why}{f' Not measured here: {sentence.unmeasured}' if sentence.unmeasured else ''}",
        "",
    ]


def _cell(values: Sequence[float]) -> str:
    """Mean (smallest to largest) of one measure; three digits near 1, two else, powers of ten as such."""
    if not values:
        return ""
    mean, ends = statistics.mean(values), (min(values), max(values))
    return f"{_number(mean)} ({_number(ends[0])} to {_number(ends[1])})"


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
    commands.add_parser("page")
    args = parser.parse_args(argv)
    configure(0)
    if args.what == "measure":
        known = {sentence.name for sentence in SENTENCES if not sentence.unmeasured}
        if unknown := set(args.sentences) - known:
            parser.error(f"{', '.join(sorted(unknown))}: no sentence that is measured: {', '.join(sorted(known))}")
        measure_all(args.seeds, args.sentences)
    if args.what is not None:
        write_text(PAGE, page(read_json(MEASURED)))
    else:
        rows = read_json(MEASURED)["rows"]
        print("\n".join(line for sentence in SENTENCES for line in section(sentence, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
