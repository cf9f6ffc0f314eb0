# Frozen: rows docs/results/late_blocks/rows.csv, commit ea8f645b, 2026-11-26.
"""The page on discovery in late blocks, written from docs/results/late_blocks/rows.csv alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count as counting
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import folded, markdown_table, read_csv, replace_rows
from dinoskip.io.files import write_text
from studies.evidence_rows import NETWORKS, Paired, label

PAGE = Path("docs/results/late_blocks.md")
ROWS = Path("docs/results/late_blocks/rows.csv")
EPOCHS, PUBLISHED = ROWS.with_name("epochs.csv"), ROWS.with_name("published.csv")
BLOCKS = range(1, 13)
FALL, EARLY = range(8, 11), range(1, 6)  # the blocks in which discovery fails, and early ones
ERROR = 10
"""Half of the 95 % interval of one CorLoc of 100 scenes, in points: 1.96 (0.5 · 0.5 / 100)^½ = 0.098."""
LEVEL = 0.05
SHARE, COMPLETE, COSINE, SINK = "keys by position, %", "complete graphs, %", "cosine of keys", "sink"
SAME = "same cut in all images"
AS_IS, WITHOUT, CENTRED = "CorLoc, as it is", "CorLoc, position mean removed", "CorLoc, centred"
OUT = "CorLoc, read at out"
SHOWN = {
    COSINE: "mean cosine of two keys of an image",
    "cosine of outputs": "mean cosine of two block outputs of an image",
    "rank of keys": "effective rank of an image's centred keys",
    "rank of outputs": "effective rank of an image's centred block outputs",
    SHARE: "keys' variance explained by position, %",
    COMPLETE: "images with all affinities above τ, %",
    SINK: "attention of the most attended patch, × uniform",
    SAME: "agreement of the cuts of two images, 0-1",
    "offset of keys": "length of an image's mean key, by the RMS length of its keys",
    "patches like CLS": "cosine of patch outputs with CLS",
    AS_IS: "CorLoc, keys",
    WITHOUT: "CorLoc, keys, per-position mean subtracted",
    CENTRED: "CorLoc, keys centred in each image",
    "CorLoc, first component removed": "CorLoc, keys, first component of each image removed",
    **{f"CorLoc, τ {tau}": f"CorLoc, keys, τ {tau}" for tau in ("0.1", "0.3", "0.5", "0.7")},
    "CorLoc, read at query": "CorLoc, queries",
    "CorLoc, read at value": "CorLoc, values",
    "CorLoc, read at attn": "CorLoc, attention branches",
    "CorLoc, read at mlp": "CorLoc, MLP branches",
    OUT: "CorLoc, block outputs",
    "CorLoc, read at out, centred": "CorLoc, block outputs centred in each image",
}
"""What the page calls a measure whose name in the rows is another."""
READ_POINTS = tuple(f"CorLoc, read at {name}" for name in ("query", "value", "attn", "mlp", "out"))

Rows = Sequence[Mapping[str, str]]


def read_all() -> list[dict[str, str]]:
    """A row for each measure of each run: ``run``, ``weights`` (sha256), ``measure``, and a column for each block."""
    return read_csv(ROWS) if ROWS.is_file() else []


def add_rows(run: str, rows: Rows) -> None:
    """Add a run's rows, in place of those that it has."""
    replace_rows(ROWS, ["run", "weights", "measure", *map(str, BLOCKS)], rows, ["run"], order)


def order(row: Mapping[str, str]) -> tuple[int, str]:
    """Runs by network, then by seed."""
    network, _, seed = row["run"].partition("_")
    return list(NETWORKS).index(network), seed


def values(rows: Rows, network: str, measure: str, blocks: Iterable[int] = BLOCKS) -> NDArray[np.float64]:
    """A measure of a network, float64 (seeds, blocks)."""
    chosen = [row for row in rows if row["run"].startswith(f"{network}_") and row["measure"] == measure]
    return np.array([[float(row[str(block)]) for block in blocks] for row in chosen], dtype=np.float64)


def span(rows: Rows, network: str, measure: str, blocks: Iterable[int] = FALL, digits: int = 0) -> str:
    """Smallest and largest value over seeds and blocks: ``48-86``, ``-0.3 to 0.1``."""
    every = values(rows, network, measure, blocks)
    low, high = f"{every.min():.{digits}f}", f"{every.max():.{digits}f}"
    return low if low == high else f"{low}{' to ' if every.min() < 0 else '-'}{high}"


def seeds(rows: Rows) -> dict[str, list[str]]:
    """The seeds that each network has, by network in their order."""
    runs = sorted({row["run"] for row in rows}, key=lambda run: order({"run": run}))
    return {name: [run.partition("_s")[2] for run in runs if run.startswith(f"{name}_")] for name in NETWORKS}


def means(rows: Rows, names: Sequence[str], networks: Iterable[str]) -> list[str]:
    """A table of means over seeds, a column for each block."""
    lines = [
        [f"{label(network)}, {SHOWN[name]}", *(f"{value:.0f}" for value in values(rows, network, name).mean(0))]
        for network in networks
        for name in names
    ]
    return markdown_table(["mean over seeds, block", *map(str, BLOCKS)], lines)


def details(rows: Rows, network: str, count: int) -> list[str]:
    """Every measure of a network, mean over its seeds, folded."""
    names = list(dict.fromkeys(row["measure"] for row in rows))
    cells = {name: values(rows, network, name).mean(0) for name in names}
    digits = {name: 0 if name.startswith("CorLoc") or name.endswith("%") else 2 for name in names}
    lines = [[SHOWN.get(name, name), *(f"{value:.{digits[name]}f}" for value in cells[name])] for name in names]
    title = f"{label(network)}: every measure, mean of {count} seed{'s' if count > 1 else ''}"
    return folded(title, markdown_table(["block", *map(str, BLOCKS)], lines))


_HEAD = """\
# Why does object discovery fall in late blocks of the network with skips?

TokenCut by keys on 100 composed scenes of 64 pixels, with networks of the [third study](evidence.md).

{conclusion}

```sh
python -m studies.late_blocks skip_s0=WEIGHTS.safetensors ... mixing_s0=WEIGHTS.safetensors ... --images 100
python -m studies.late_rates run --data IMAGENETTE                # the two networks at each other's learning rate
python -m studies.late_rates published NAME=WEIGHTS.safetensors   # a network of published size
python -m studies.late_blocks                                     # this page from docs/results/late_blocks/*.csv
```

The networks are those of the [third study](evidence.md): 12 blocks, width 128, 1,770 steps of patch contrast with SOAP
on Imagenette at 64 pixels (seeds: {counts}). {names}They are measured
on 100 composed scenes of 64 pixels with up to three drawn shapes, used in none of our studies; a 95 % interval of one
CorLoc is about ± 10 points. `rows.csv` has every seed and the sha256 of its weights.
"""
_NOTES = """\
Means of TokenCut on 100 scenes. *Explained by position*: the share of the variance of all keys that their means by
position, over the images, account for. *Per-position mean subtracted*: from every key the mean, over the images, of the
keys at its position, which includes the offset that all keys share.
"""
_LIMITS = """\
**What is not shown.** *mixing* and *skip* differ in skips, in initialisation, in heads that mix (at the start one head
of every fourth block averages over all tokens) and in learning rate; only the last is varied here. One loss, one small
size, and scenes whose objects lie anywhere. The weights of one run (*mixing* with seed 1) were not kept. Networks with
registers were not trained.
"""
_OTHERS = """\
## What others found

That late features of ViTs carry positions, and that taking them out helps, is known:

- *Denoising Vision Transformers* ([2401.02957](https://arxiv.org/abs/2401.02957)) attributes artefacts that are alike
  in all images to the position embedding, and trains a network that removes them.
- *Bi-Orthogonal Factor Decomposition* ([2601.05328](https://arxiv.org/abs/2601.05328)) parts token activations into
  factors of position and of content by an analysis of variance; the share above is that decomposition's for position.
- *What DINO saw* ([2603.16840](https://arxiv.org/abs/2603.16840)) reads positions out of DINO's features by linear
  probes, and lowers them by fine-tuning with ALiBi.

Of these papers the abstracts were read. Subtracting the mean of every position is our own choice of a removal.
"""


def lead(rows: Rows, measure: str, blocks: Iterable[int] = FALL) -> Paired:
    """Return by how much *mixing* is above *skip* in a measure, mean over blocks, by the seeds that both have."""
    of: dict[str, dict[str, float]] = {"mixing": {}, "skip": {}}
    blocks = list(blocks)
    for row in rows:
        network, _, seed = row["run"].partition("_s")
        if row["measure"] == measure and network in of:
            of[network][seed] = float(np.mean([float(row[str(block)]) for block in blocks]))
    return Paired({int(seed): value - of["skip"][seed] for seed, value in of["mixing"].items() if seed in of["skip"]})


def conclusion(rows: Rows, epochs: Rows) -> str:
    """Return the answer, in paragraphs: what removing positions does and leaves open, the rates, others."""
    paragraphs = [
        f"**{_gap(rows)}.** {_alike(rows)}",
        _unexplained(rows, epochs),
        f"{_cause(rows, epochs)} {_level(rows, epochs)}".strip(),
        *(_other(rows, name) for name in ("annealed", "paper")),
    ]
    return "\n\n".join(paragraphs)


def _gap(rows: Rows) -> str:
    """Return *mixing*'s lead in CorLoc of keys, and whether it closes with positions or the common offset removed."""
    as_is, removed, centred = (lead(rows, measure) for measure in (AS_IS, WITHOUT, CENTRED))
    if as_is.sign <= 0:
        return (
            f"In blocks 8 to 10 *mixing* does not lead *skip* in CorLoc of keys ({as_is.text} points, {as_is.n} seeds; "
            f"with the mean of each position subtracted {removed.text})"
        )
    closes, also = (abs(change.mean) < as_is.mean / 2 for change in (removed, centred))
    return (
        f"In blocks 8 to 10 *mixing* leads *skip* by {as_is.text} points of CorLoc of keys ({as_is.n} seeds). "
        f"Subtracting the mean of each position {'closes' if closes else 'does not close'} this gap ({removed.text}); "
        f"subtracting each image's mean key {'closes it too' if also else 'alone does not'} ({centred.text})"
    )


def _alike(rows: Rows) -> str:
    """Return how alike the cuts of images are in late blocks, and what their keys have of position."""
    alike = [
        f"{', '.join(f'{value:.2f}' for value in values(rows, name, SAME, FALL).mean(0))} (*{name}*)"
        for name in ("skip", "mixing")
    ]
    numbers = {
        measure: [span(rows, name, measure) for name in ("skip", "mixing")] for measure in (SHARE, AS_IS, WITHOUT)
    }
    return (
        f"In blocks 8, 9 and 10 the cuts of two images agree by {' and '.join(alike)} (1: all images are cut along the "
        f"same line). Position explains {numbers[SHARE][0]} % of the keys' variance in *skip*, {numbers[SHARE][1]} % "
        f"in *mixing*; CorLoc is {numbers[AS_IS][0]} and {numbers[AS_IS][1]}, with the mean of each position "
        f"subtracted {numbers[WITHOUT][0]} and {numbers[WITHOUT][1]} (ranges over seeds and blocks)."
    )


def _unexplained(rows: Rows, epochs: Rows) -> str:
    """Return what the removal of positions leaves open: how much is harmful, other blocks, block outputs."""
    share_of, score_of = (float(values(rows, "annealed", name, FALL).mean()) for name in (SHARE, AS_IS))
    equal = [("*annealed*", share_of, score_of)]
    for network in ("skip", "mixing"):
        for (name, rate), share in at_last_epoch(epochs, SHARE).items():
            if name == network:
                as_is = at_last_epoch(epochs, AS_IS)[name, rate]
                equal.append((f"*{network}* at learning rate {rate}", _late(share), _late(as_is)))
    listed = ", ".join(f"{score:.0f} at {share:.0f} % ({name})" for name, share, score in equal)
    shares, scores = [share for _, share, _ in equal], [score for *_, score in equal]
    unequal = max(scores) - min(scores) > ERROR > max(shares) - min(shares)
    told = "How much position is harmful is not told by its share" if unequal else "Shares elsewhere"
    ahead = [(block, gap) for block in BLOCKS if (gap := lead(rows, WITHOUT, [block])).sign > 0]
    left = ", ".join(f"by {gap.text} in block {block}" for block, gap in ahead) or "in no block"
    low = [block for block in BLOCKS if lead(rows, OUT, [block]).sign > 0]
    outputs = values(rows, "skip", OUT).mean(0)
    return (
        f"{told}: CorLoc in blocks 8 to 10 is {listed}. With positions subtracted *mixing* leads {left} (95 % "
        f"intervals of single blocks, not corrected). Only keys are explained: in block outputs *mixing* leads in "
        f"{len(low)} of {len(BLOCKS)} blocks, *skip* has {', '.join(f'{value:.0f}' for value in outputs)} in blocks 1 "
        "to 12, and positions were not subtracted from outputs."
    )


def _late(of: Mapping[int, Mapping[int, float]]) -> float:
    """Return the mean over seeds and blocks 8 to 10."""
    return float(np.mean([curve[block] for curve in of.values() for block in FALL]))


def _other(rows: Rows, name: str) -> str:
    """Return whether another skipless network falls, and whether positions or a common offset cost it CorLoc."""
    fell = [falls(curve) for curve in values(rows, name, AS_IS).tolist()]
    blocks = list(range(3, 13))
    as_is, removed, centred = (values(rows, name, measure, blocks).mean(0) for measure in (AS_IS, WITHOUT, CENTRED))
    share, complete = (span(rows, name, measure, range(8, 13)) for measure in (SHARE, COMPLETE))
    said = f"*{label(name)}* falls in {_of((sum(fell), len(fell)))} seeds"
    late = slice(blocks.index(8), None)
    if all(removed > as_is + ERROR) and not any(centred > as_is + ERROR):
        lost = removed - as_is
        return (
            f"{said}, but loses to position too: in every block from 3 to 12 its CorLoc is {lost.min():.0f} to "
            f"{lost.max():.0f} points higher with the mean of each position subtracted (means over seeds); centring "
            f"does not raise it. Position explains {share} % of its keys' variance in blocks 8 to 12."
        )
    if any(fell) and all(centred[late] > as_is[late] + ERROR):
        return (
            f"{said}, for another reason: its keys share one large offset. In blocks 8 to 12 position explains {share} "
            f"% of their variance, {complete} % of images have all affinities above τ, and centring each image's keys "
            f"raises CorLoc from {_range(as_is[late])} to {_range(centred[late])} (means over seeds)."
        )
    return (
        f"{said}: in blocks 8 to 12 position explains {share} % of its keys' variance; CorLoc is {_range(as_is[late])} "
        f"with the mean of each position subtracted {_range(removed[late])}, centred {_range(centred[late])}."
    )


def _range(of: NDArray[np.float64]) -> str:
    return f"{of.min():.0f}-{of.max():.0f}"


# --- skips or learning rate --------------------------------------------------------------------------


def falls(as_is: Sequence[float]) -> bool:
    """Whether CorLoc by block falls: the mean of blocks 8 to 10 is more than the error of one CorLoc below 3 to 5."""
    early, late = early_and_late(as_is)
    return late < early - ERROR


def early_and_late(as_is: Sequence[float]) -> tuple[float, float]:
    """Return the means of CorLoc by block over blocks 3 to 5, and over 8 to 10."""
    early, late = (float(np.mean([as_is[block - 1] for block in blocks])) for blocks in (range(3, 6), FALL))
    return early, late


def smallest_p(seeds_each: int) -> float:
    """Return the smallest p of an exact two-sided test of two groups of so many seeds: 2 of all equal partitions."""
    return 2 / math.comb(2 * seeds_each, seeds_each)


VERDICT_SEEDS = next(n for n in counting(2) if smallest_p(n) < LEVEL)
"""With fewer seeds of each network no exact test of the two can tell them apart, so nothing is decided."""


def at_last_epoch(epochs: Rows, measure: str) -> dict[tuple[str, str], dict[int, dict[int, float]]]:
    """Return a measure's curves at the last epoch of ``epochs.csv``, by (network, rate), seed and block."""
    last = str(max((int(row["epoch"]) for row in epochs), default=0))
    of: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for row in epochs:
        if row["epoch"] == last and row["measure"] == measure:
            curve = {block: float(row[str(block)]) for block in BLOCKS}
            of.setdefault((row["network"], row["rate"]), {})[int(row["seed"])] = curve
    return of


def exchanged(epochs: Rows) -> dict[tuple[str, str], list[bool]]:
    """Return whether CorLoc falls at the last epoch, for each seed of each network and rate of ``epochs.csv``."""
    return {
        run: [falls(list(curve.values())) for curve in by.values()] for run, by in at_last_epoch(epochs, AS_IS).items()
    }


def _cause(rows: Rows, epochs: Rows) -> str:
    """Return which of skips and learning rate the fall goes with, so far."""
    original = {name: [falls(curve) for curve in values(rows, name, AS_IS).tolist()] for name in ("skip", "mixing")}
    other = {network: fell for (network, _), fell in exchanged(epochs).items() if network in original}
    if set(other) != set(original):
        return "Whether skips or something else is the cause is open."
    at_own, at_other = (
        [_of((sum(fell[name]), len(fell[name]))) for name in ("skip", "mixing")] for fell in (original, other)
    )
    usual = all(original["skip"]) and not any(original["mixing"])
    skip, mixing = (all(other[name]) for name in ("skip", "mixing"))
    if usual and skip and not any(other["mixing"]):
        reading = "the fall goes with the skips, at both rates"
    elif usual and mixing and not any(other["skip"]):
        reading = "the fall goes with the learning rate, not with the skips"
    elif usual and not any(other["skip"]) and not any(other["mixing"]):
        reading = "*skip* falls at its own learning rate but not at that of *mixing*, and *mixing* at neither"
    else:
        reading = "the fall goes with neither skips nor learning rate alone"
    said = (
        f"**With the learning rates chosen, {at_own[0]} seeds of *skip* and {at_own[1]} of *mixing* fall; with the two "
        f"rates exchanged, {at_other[0]} and {at_other[1]}: {reading}.**"
    )
    seeds_each = min(len(fell) for fell in other.values())
    if seeds_each < VERDICT_SEEDS:
        return (
            f"{said} Exchanged seeds are {seeds_each} of each, which do not decide it: the smallest p of an exact "
            f"two-sided test is {smallest_p(seeds_each):.2g} with {seeds_each} a side, {smallest_p(VERDICT_SEEDS):.2g} "
            f"with {VERDICT_SEEDS}."
        )
    return said


def _level(rows: Rows, epochs: Rows) -> str:
    """Return what exchanging the rates does to CorLoc in blocks 8 to 10; empty without such runs."""
    texts = []
    for tensor, measure in (("keys", AS_IS), ("block outputs", OUT)):
        at = {name: (rate, _late(by)) for (name, rate), by in at_last_epoch(epochs, measure).items()}
        own = {name: float(values(rows, name, measure, FALL).mean()) for name in ("skip", "mixing")}
        parts = [
            f"*{name}* {own[name]:.0f} at its own rate and {at[name][1]:.0f} at {at[name][0]}"
            for name in own
            if name in at
        ]
        if parts:
            texts.append(f"CorLoc of {tensor} in blocks 8 to 10: {', '.join(parts)}.")
    return " ".join(texts)


def _of(count: tuple[int, int]) -> str:
    return f"{count[0]} of {count[1]}"


def by_seed(rows: Rows, epochs: Rows) -> list[str]:
    """Return a table of every seed of *skip* and *mixing* at both rates: CorLoc in early and late blocks, and falls."""
    runs = [
        (f"{network} at its own", seed, curve)
        for network in ("skip", "mixing")
        for seed, curve in zip(seeds(rows)[network], values(rows, network, AS_IS).tolist(), strict=True)
    ]
    runs += [
        (f"{network} at {rate}", f"s{seed}", list(curve.values()))
        for (network, rate), by in at_last_epoch(epochs, AS_IS).items()
        for seed, curve in by.items()
    ]
    lines = []
    for run, seed, curve in runs:
        early, late = early_and_late(curve)
        lines.append([run, seed.removeprefix("s"), f"{early:.1f}", f"{late:.1f}", "yes" if falls(curve) else "no"])
    return markdown_table(["CorLoc of keys, learning rate", "seed", "blocks 3-5", "blocks 8-10", "falls"], lines)


def _growing(epochs: Rows) -> str:
    """Return in which exchanged runs the share by position still grows in the last three epochs."""
    of = {key: by for key, by in _means_by_epoch(epochs).items() if key[2] == SHARE}
    parts = []
    for (network, rate, _), by in of.items():
        last = [float(np.mean(by[epoch])) for epoch in sorted(by)[-3:]]
        if len(last) == 3 and last[-1] > last[0]:
            parts.append(f"{', '.join(f'{value:.0f}' for value in last)} % (*{network}* at {rate})")
    if not parts:
        return ""
    return (
        f"The share of position still grows in the last three epochs: {'; '.join(parts)}. Whether longer trainings "
        "would fall is open."
    )


def _means_by_epoch(epochs: Rows) -> dict[tuple[str, str, str], dict[int, list[float]]]:
    """Return means over blocks 8 to 10 of each seed, by (network, rate, measure) and epoch."""
    cells: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for row in epochs:
        if row["measure"] in (SHARE, AS_IS, WITHOUT):
            mean = float(np.mean([float(row[str(block)]) for block in FALL]))
            key = (row["network"], row["rate"], row["measure"])
            cells.setdefault(key, {}).setdefault(int(row["epoch"]), []).append(mean)
    return cells


def by_epoch(epochs: Rows) -> list[str]:
    """Return a table of blocks 8 to 10 by epoch: the share by position, CorLoc as it is and with positions removed."""
    cells = _means_by_epoch(epochs)
    every = sorted({epoch for by in cells.values() for epoch in by})
    lines = []
    for (network, rate, measure), by in cells.items():
        means_of = [f"{np.mean(by[epoch]):.0f}" if epoch in by else "" for epoch in every]
        lines.append([f"{network} at {rate}, {SHOWN[measure]}", str(max(map(len, by.values()))), *means_of])
    return markdown_table(["mean over blocks 8-10 and seeds, by epoch", "seeds", *map(str, every)], lines)


def _skips_or_rate(rows: Rows, epochs: Rows) -> list[str]:
    if not epochs:
        return []
    growing = _growing(epochs)
    rates = {network: float(rate) for network, rate in at_last_epoch(epochs, AS_IS)}  # each is the other's own
    apart = (
        f"; that of *skip* is {rates['mixing'] / rates['skip']:.0f} times that of *mixing*"
        if {"skip", "mixing"} <= set(rates)
        else ""
    )
    return [
        "## Skips or learning rate",
        "",
        f"The study [chose](evidence.md#what-limits-it) a learning rate for each network by mIoU after 100 "
        f"steps{apart}. Here each is trained at the other's, else as in the study, and measured at every epoch "
        "(295 steps) on the same 100 scenes; mIoU was not measured. *Falls*: CorLoc "
        f"of keys in blocks 8 to 10 is more than {ERROR} points, the error of one CorLoc, below blocks 3 to 5.",
        "",
        *by_seed(rows, epochs),
        *by_epoch(epochs),
        *([growing, ""] if growing else []),
    ]


def _published(published: Rows) -> list[str]:
    lines = [
        [f"{row['network']}, {SHOWN[row['measure']]}", *(f"{float(row[str(block)]):.0f}" for block in BLOCKS)]
        for row in published
    ]
    if not lines:
        return []
    first = published[0]
    complete = [
        str(block)
        for block in BLOCKS
        if any(row["measure"] == COMPLETE and float(row[str(block)]) == 100 for row in published)
    ]
    caveat = (
        f" In blocks {', '.join(complete)} all affinities of every image are above τ: what the subtraction gains there "
        "may be due to the common offset, which it also removes"
        if complete
        else ""
    )
    centred = any(row["measure"] == CENTRED for row in published)
    return [
        "## At published width",
        "",
        "`dinov2s_saliency` is a ViT-S/14 that others fine-tuned from DINOv2 to predict saliency; DINOv2's own weights "
        f"were not measured. {first['images']} scenes at {first['size']} pixels; the interval of one CorLoc is about ± "
        f"15 points.{caveat}{'; keys that are only centred were not measured' if caveat and not centred else ''}"
        f"{'.' if caveat else ''}",
        "",
        *markdown_table(["block", *map(str, BLOCKS)], lines),
    ]


# --- other suspects ----------------------------------------------------------------------------------


def suspects(rows: Rows) -> list[str]:
    """Return a table of what else could explain the fall of *skip*: CorLoc under each change, and whether it is out.

    A change is ruled out as the cause where CorLoc in blocks 8 to 10 of all seeds stays below half of the lowest that
    the removal of positions gives.
    """
    enough = values(rows, "skip", WITHOUT, FALL).min() / 2
    changes = {
        "keys centred in each image (common offset)": [CENTRED],
        "first component of each image's keys removed": ["CorLoc, first component removed"],
        "τ 0.1, 0.3, 0.5 in place of 0.2": [f"CorLoc, τ {tau}" for tau in ("0.1", "0.3", "0.5")],
        "τ 0.7 in place of 0.2": ["CorLoc, τ 0.7"],
        "queries, values, attention or MLP branches, block outputs in place of keys": READ_POINTS,
        "mean of each position subtracted": [WITHOUT],
    }
    lines = []
    for change, names in changes.items():
        of = {name: values(rows, "skip", name, FALL) for name in names}
        best = max(of.values(), key=lambda cells: float(cells.mean()))
        top = max(float(cells.max()) for cells in of.values())
        word = "" if names == [WITHOUT] else "ruled out" if top < enough else "not ruled out"
        lines.append([change, ", ".join(f"{value:.0f}" for value in best.mean(0)), f"{top:.1f}", word])
    facts = [
        f"images with all affinities above τ {span(rows, 'skip', COMPLETE)} %",
        f"cosine of keys {span(rows, 'skip', COSINE, digits=2)} (blocks 1 to 5: "
        f"{span(rows, 'skip', COSINE, EARLY, digits=2)})",
        f"attention of the most attended patch {span(rows, 'skip', SINK, digits=1)} times uniform (blocks 1 to 5: "
        f"{span(rows, 'skip', SINK, EARLY, digits=1)})",
        f"cosine of patch outputs with CLS {span(rows, 'skip', 'patches like CLS', digits=2)}",
    ]
    return [
        "## Other suspects",
        "",
        "CorLoc of *skip* in blocks 8 to 10 under other changes. What a change removes is ruled out as the cause if "
        f"CorLoc stays below {enough:.1f} in every seed and block: half of the lowest value with positions subtracted. "
        "Where a line has several changes, the means are those of the best.",
        "",
        *markdown_table(["change", "mean over seeds, blocks 8, 9, 10", "largest", "as the cause"], lines),
        f"In the same blocks of *skip*: {'; '.join(facts)}.",
        "",
    ]


def page(rows: Rows, epochs: Rows = (), published: Rows = ()) -> str:
    """Return the page; its sentences are made from the rows."""
    runs = seeds(rows)
    head = _HEAD.format(
        conclusion=conclusion(rows, epochs),
        names="".join(f"*{text}* is `{name}` in files. " for name in runs if (text := label(name)) != name),
        counts=", ".join(f"*{label(name)}* {' '.join(which)}" for name, which in runs.items()),
    )
    table = means(rows, [SHARE, AS_IS, WITHOUT], [name for name, which in runs.items() if which])
    details_of = [line for name, which in runs.items() if which for line in details(rows, name, len(which))]
    parts = [
        head, *table, _NOTES, *_skips_or_rate(rows, epochs), *_published(published), *suspects(rows),
        _LIMITS, _OTHERS, "## Every measure", "", *details_of,
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def committed_page() -> str:
    """Return the page of the committed rows."""
    epochs, published = (read_csv(path) if path.is_file() else [] for path in (EPOCHS, PUBLISHED))
    return page(read_all(), epochs, published)


def write_page() -> None:
    """Write the page from the committed rows."""
    write_text(PAGE, committed_page())
