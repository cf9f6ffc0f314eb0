"""The page on discovery in late blocks, written from docs/results/late_blocks/rows.csv alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence_rows import NETWORKS
from benchmarks.pages import folded, markdown_table, read_csv, replace_rows
from dinoskip.files import write_text

PAGE = Path("docs/results/late_blocks.md")
ROWS = Path("docs/results/late_blocks/rows.csv")
EPOCHS, PUBLISHED = ROWS.with_name("epochs.csv"), ROWS.with_name("published.csv")
BLOCKS = range(1, 13)
FALL, EARLY = range(8, 11), range(1, 6)  # the blocks in which discovery fails, and early ones
VERDICT_SEEDS = 4  # with fewer seeds on a side no test of signs reaches p = .05 here, so nothing is decided
SHARE, COMPLETE, COSINE, SINK = "keys by position, %", "complete graphs, %", "cosine of keys", "sink"
AS_IS, WITHOUT, CENTRED = "CorLoc, as it is", "CorLoc, position mean removed", "CorLoc, centred"
OUT = "CorLoc, read at out"
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
        [f"{network}, {name}", *(f"{value:.0f}" for value in values(rows, network, name).mean(0))]
        for network in networks
        for name in names
    ]
    return markdown_table(["mean over seeds, block", *map(str, BLOCKS)], lines)


def details(rows: Rows, network: str, count: int) -> list[str]:
    """Every measure of a network, mean over its seeds, folded."""
    names = list(dict.fromkeys(row["measure"] for row in rows))
    cells = {name: values(rows, network, name).mean(0) for name in names}
    digits = {name: 0 if name.startswith("CorLoc") or name.endswith("%") else 2 for name in names}
    lines = [[name, *(f"{value:.{digits[name]}f}" for value in cells[name])] for name in names]
    title = f"{network}: every measure, mean of {count} seed{'s' if count > 1 else ''}"
    return folded(title, markdown_table(["block", *map(str, BLOCKS)], lines))


_HEAD = """\
# Why does object discovery fall in late blocks of the network with skips?

{conclusion}

In blocks 8 to 10 of the third study's networks the position of a patch in the grid accounts for {share} % of the
variance of the keys of *skip*, and for {mixing_share} % in *mixing* (ranges over seeds and blocks). CorLoc there is
{as_is} in *skip* and {mixing_as_is} in *mixing*. With the mean of each position over the images subtracted from the
same keys it is {without} and {mixing_without}. That also removes the keys' common offset; without the offset alone,
each image's keys centred, *skip* has {centred}.

```sh
python -m benchmarks.late_blocks skip_s0=WEIGHTS.safetensors ... mixing_s0=WEIGHTS.safetensors ... --images 100
python -m benchmarks.late_rates run --data IMAGENETTE                # the two networks at each other's learning rate
python -m benchmarks.late_rates published NAME=WEIGHTS.safetensors   # a network of published size
python -m benchmarks.late_blocks                                     # this page from docs/results/late_blocks/*.csv
```

The networks are those of the [third study](evidence.md): 12 blocks, width 128, 1,770 steps of patch contrast with SOAP
on Imagenette at 64 pixels (seeds: {counts}). They are measured
on 100 composed scenes of 64 pixels with up to three drawn shapes, used in none of our studies; a 95 % interval of one
CorLoc is about ± 10 points. `rows.csv` has every seed and the sha256 of its weights.
"""
_NOTES = """\
*Keys by position*: share of the variance of all keys that the mean of each position over the images accounts for.
*Position mean removed*: TokenCut on keys less that mean, which also removes their common offset.
"""
_LIMITS = """\
**What is not shown.** One loss, one small size, and scenes whose objects lie anywhere. The weights of one run (*mixing*
with seed 1) were not kept. Networks with registers were not trained.
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


def gap(rows: Rows, measure: str) -> float:
    """Return by how much *mixing* is above *skip* in a measure, mean over seeds and blocks 8 to 10."""
    mixing, skip = (float(values(rows, network, measure, FALL).mean()) for network in ("mixing", "skip"))
    return mixing - skip


def conclusion(rows: Rows, epochs: Rows) -> str:
    """Return the answer: what the removal of positions does to *mixing*'s lead, and what exchanging the rates shows."""
    as_is, removed = gap(rows, AS_IS), gap(rows, WITHOUT)
    verb = "leads" if as_is > 0 else "does not lead"
    leads = f"In blocks 8 to 10 *mixing* {verb} *skip* in CorLoc ({as_is:+.0f} points)"
    if as_is > 0 and removed < as_is / 2:
        said = (
            f"{leads}; with positions taken out of the keys the difference is {removed:+.0f}. So in these blocks "
            "*mixing* leads because its keys carry little position, not because they tell objects better"
        )
    else:
        said = f"{leads}; with positions taken out of the keys the difference is {removed:+.0f}"
    return f"**{said}. {_cause(rows, epochs)}.** {_others(rows)}".replace(" -", " −").replace("(-", "(−")


def _others(rows: Rows) -> str:
    """Return in how many seeds the other skipless networks fall, with their share by position there."""
    parts = []
    for name in ("annealed", "paper"):
        fell = [falls(curve) for curve in values(rows, name, AS_IS).tolist()]
        share = span(rows, name, SHARE)
        complete = span(rows, name, COMPLETE, range(10, 13))
        parts.append(
            f"*{name}* falls in {_of((sum(fell), len(fell)))} seeds, with {share} % of its keys' variance by position "
            f"and {complete} % of graphs complete in blocks 10 to 12"
        )
    return f"{'; '.join(parts)}."


# --- skips or learning rate --------------------------------------------------------------------------


def falls(as_is: Sequence[float]) -> bool:
    """Whether CorLoc by block falls: the mean of blocks 8 to 10 is more than 10 points (the error of one) below 3 to "
    "5."""
    early, late = (np.mean([as_is[block - 1] for block in blocks]) for blocks in (range(3, 6), FALL))
    return bool(late < early - 10)


def exchanged(epochs: Rows) -> dict[tuple[str, str], list[bool]]:
    """Return whether CorLoc falls at the last epoch, for each seed of each network and rate of ``epochs.csv``."""
    last = str(max((int(row["epoch"]) for row in epochs), default=0))
    outcome: dict[tuple[str, str], list[bool]] = {}
    for row in epochs:
        if row["epoch"] == last and row["measure"] == AS_IS:
            outcome.setdefault((row["network"], row["rate"]), []).append(falls([float(row[str(b)]) for b in BLOCKS]))
    return outcome


def _cause(rows: Rows, epochs: Rows) -> str:
    """Return which of skips and learning rate the fall goes with, so far."""
    original = {name: [falls(curve) for curve in values(rows, name, AS_IS).tolist()] for name in ("skip", "mixing")}
    other = {network: fell for (network, _), fell in exchanged(epochs).items() if network in original}
    if set(other) != set(original):
        return "Whether skips or something else is the cause is open"
    counts = {name: (sum(fell), len(fell)) for name, fell in original.items()}
    said = (
        f"At the study's rates {_of(counts['skip'])} seeds of *skip* and {_of(counts['mixing'])} of *mixing* fall; "
        f"with the rates exchanged {_of((sum(other['skip']), len(other['skip'])))} of *skip* and "
        f"{_of((sum(other['mixing']), len(other['mixing'])))} of *mixing*"
    )
    seeds_each = min(len(fell) for fell in other.values())
    skip, mixing = (all(other[name]) for name in ("skip", "mixing"))
    if skip and not any(other["mixing"]):
        reading = "in this pair the fall goes with the skips, at both rates"
    elif mixing and not any(other["skip"]):
        reading = "in this pair the fall goes with the rate, not with the skips"
    elif not any(other["skip"]) and not any(other["mixing"]):
        reading = "in this pair the fall needs both the skips and their rate"
    else:
        reading = "in this pair neither skips nor rate alone goes with the fall"
    if seeds_each < VERDICT_SEEDS:
        many = f"{seeds_each} exchanged seed{'s' if seeds_each > 1 else ''} of each"
        return f"{said}: this suggests that {reading}, which {many} do not decide ({VERDICT_SEEDS} are needed)"
    return f"{said}: {reading}"


def _of(count: tuple[int, int]) -> str:
    return f"{count[0]} of {count[1]}"


def by_epoch(epochs: Rows) -> list[str]:
    """Return a table of blocks 8 to 10 by epoch: the share by position, CorLoc as it is and with positions removed."""
    cells: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for row in epochs:
        if row["measure"] in (SHARE, AS_IS, WITHOUT):
            mean = float(np.mean([float(row[str(block)]) for block in FALL]))
            key = (row["network"], row["rate"], row["measure"])
            cells.setdefault(key, {}).setdefault(int(row["epoch"]), []).append(mean)
    every = sorted({epoch for by in cells.values() for epoch in by})
    lines = []
    for (network, rate, measure), by in cells.items():
        means_of = [f"{np.mean(by[epoch]):.0f}" if epoch in by else "" for epoch in every]
        lines.append([f"{network} at {rate}, {measure}", str(max(map(len, by.values()))), *means_of])
    return markdown_table(["mean over blocks 8-10 and seeds, by epoch", "seeds", *map(str, every)], lines)


def _skips_or_rate(epochs: Rows) -> list[str]:
    if not epochs:
        return []
    return [
        "## Skips or learning rate",
        "",
        "The study chose a rate for each network after 100 steps; that of *skip* is nine times that of *mixing*. Here "
        "each is trained at the other's, else as in the study, and measured at every epoch (295 steps) on the same 100 "
        "scenes. *Falls*: CorLoc in blocks 8 to 10 is more than 10 points below blocks 3 to 5.",
        "",
        *by_epoch(epochs),
    ]


def _published(published: Rows) -> list[str]:
    lines = [
        [f"{row['network']}, {row['measure']}", *(f"{float(row[str(block)]):.0f}" for block in BLOCKS)]
        for row in published
    ]
    if not lines:
        return []
    first = published[0]
    return [
        "## At published width",
        "",
        f"`dinov2s_saliency` is a ViT-S/14 of DINOv2 that others fine-tuned to predict saliency: real features, not "
        f"DINOv2's. {first['images']} scenes at {first['size']} pixels; the interval of one CorLoc is about ± 15 "
        f"points.",
        "",
        *markdown_table(["block", *map(str, BLOCKS)], lines),
    ]


# --- other suspects ----------------------------------------------------------------------------------


def suspects(rows: Rows) -> list[str]:
    """Return a table of what else could explain the fall of *skip*: CorLoc under each change, and whether it is out.

    A change is excluded as the cause where CorLoc in blocks 8 to 10 of all seeds stays below half of the lowest that
    the removal of positions gives.
    """
    enough = values(rows, "skip", WITHOUT, FALL).min() / 2
    changes = {
        "common offset: each image's keys centred": [CENTRED],
        "first component of each image's keys removed": ["CorLoc, first component removed"],
        "τ 0.1, 0.3, 0.5": [f"CorLoc, τ {tau}" for tau in ("0.1", "0.3", "0.5")],
        "τ 0.7": ["CorLoc, τ 0.7"],
        "read at query, value, attn, mlp, out": READ_POINTS,
    }
    lines = []
    for change, names in changes.items():
        top = max(float(values(rows, "skip", name, FALL).max()) for name in names)
        lines.append([change, f"{top:.0f}", "excluded" if top < enough else "not excluded"])
    lines.append(["mean of every position removed", span(rows, "skip", WITHOUT), ""])
    facts = [
        f"complete graphs {span(rows, 'skip', COMPLETE)} %",
        f"cosine of keys {span(rows, 'skip', COSINE, digits=2)} (blocks 1 to 5: "
        f"{span(rows, 'skip', COSINE, EARLY, digits=2)})",
        f"attention of the most attended patch {span(rows, 'skip', SINK, digits=1)} times uniform (blocks 1 to 5: "
        f"{span(rows, 'skip', SINK, EARLY, digits=1)})",
        f"cosine of patches with CLS {span(rows, 'skip', 'patches like CLS', digits=2)}",
    ]
    return [
        "## Other suspects",
        "",
        "*skip*, blocks 8 to 10 of all seeds: the largest CorLoc under each change. *Excluded* as the cause: it stays "
        f"below half of the lowest with positions removed ({enough:.0f}).",
        "",
        *markdown_table(["change", "CorLoc", "as the cause"], lines),
        f"There also: {'; '.join(facts)}.",
        "",
    ]


def _skipless(rows: Rows) -> list[str]:
    late, last = range(4, 13), range(10, 13)
    return [
        f"**Other skipless networks.** In *annealed*, position accounts for {span(rows, 'annealed', SHARE, late)} % of "
        f"the keys in blocks 4 to 12, and CorLoc there is {span(rows, 'annealed', AS_IS, late)}, with positions "
        f"removed {span(rows, 'annealed', WITHOUT, late)}. In *paper* it accounts for "
        f"{span(rows, 'paper', SHARE, late)} %. In its blocks 10 to 12 CorLoc is {span(rows, 'paper', AS_IS, last)}, "
        f"{span(rows, 'paper', COMPLETE, last)} % of graphs are complete, and CorLoc is "
        f"{span(rows, 'paper', CENTRED, last)} with each image's keys centred.",
        "",
    ]


def page(rows: Rows, epochs: Rows = (), published: Rows = ()) -> str:
    """Return the page; its sentences are made from the rows."""
    runs = seeds(rows)
    head = _HEAD.format(
        conclusion=conclusion(rows, epochs),
        counts=", ".join(f"*{name}* {' '.join(which)}" for name, which in runs.items()),
        share=span(rows, "skip", SHARE),
        as_is=span(rows, "skip", AS_IS),
        without=span(rows, "skip", WITHOUT),
        mixing_share=span(rows, "mixing", SHARE),
        mixing_as_is=span(rows, "mixing", AS_IS),
        mixing_without=span(rows, "mixing", WITHOUT),
        centred=span(rows, "skip", CENTRED),
    )
    table = means(rows, [SHARE, AS_IS, WITHOUT], [name for name, which in runs.items() if which])
    details_of = [line for name, which in runs.items() if which for line in details(rows, name, len(which))]
    parts = [
        head, *table, _NOTES, *_skips_or_rate(epochs), *_published(published), *suspects(rows), *_skipless(rows),
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
