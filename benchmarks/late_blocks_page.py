"""The page on discovery in late blocks, written from docs/results/late_blocks/rows.csv alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence_rows import NETWORKS
from benchmarks.pages import folded, markdown_table, read_csv, write_csv
from dinoskip.files import write_text

PAGE = Path("docs/results/late_blocks.md")
ROWS = Path("docs/results/late_blocks/rows.csv")
BLOCKS = range(1, 13)
FALL = range(8, 11)  # the blocks in which discovery fails
SHARE, COMPLETE, COSINE, SINK = "keys by position, %", "complete graphs, %", "cosine of keys", "sink"
AS_IS, WITHOUT, CENTRED = "CorLoc, as it is", "CorLoc, position mean removed", "CorLoc, centred"
READ_POINTS = tuple(f"CorLoc, read at {name}" for name in ("query", "value", "attn", "mlp", "out"))

Rows = Sequence[Mapping[str, str]]


def read_all() -> list[dict[str, str]]:
    """A row for each measure of each run: ``run``, ``weights`` (sha256), ``measure``, and a column for each block."""
    return read_csv(ROWS) if ROWS.is_file() else []


def add_rows(run: str, rows: Rows) -> None:
    """Add a run's rows, in place of those that it has."""
    kept = sorted([row for row in read_all() if row["run"] != run] + [dict(row) for row in rows], key=order)
    write_csv(ROWS, ["run", "weights", "measure", *map(str, BLOCKS)], kept)


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


def most(rows: Rows, network: str, names: Iterable[str], blocks: Iterable[int] = FALL) -> str:
    """The largest value of several measures."""
    blocks = list(blocks)
    return f"{max(values(rows, network, name, blocks).max() for name in names):.0f}"


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
# Why does object discovery fall in late blocks?

**Because the keys of the network with skips say where a patch lies, not what it shows.** In blocks 8 to 10 of all
{skip} seeds, a patch's position in the grid accounts for {share} % of the variance of the keys. TokenCut then cuts
every image along the same line, and CorLoc is {as_is}, far below the centre box. With the mean of each position over
the images subtracted from the same keys, CorLoc is {without}. In *mixing*, which has no skips, the position accounts
for {mixing_share} %, and CorLoc is {mixing_as_is} before the subtraction and {mixing_without} after it. In this study
the lead of *mixing* in CorLoc is therefore that it does not carry positions to its late blocks, not that its keys tell
objects better.

```sh
python -m benchmarks.late_blocks skip_s0=WEIGHTS.safetensors ... mixing_s0=WEIGHTS.safetensors ... --images 100
python -m benchmarks.late_blocks      # this page from docs/results/late_blocks/rows.csv
```

The networks are those of the [third study](evidence.md): 12 blocks, width 128, 1,770 steps of patch contrast with SOAP
on Imagenette at 64 pixels (seeds: {counts}). They are measured
on 100 composed scenes of 64 pixels with up to three drawn forms, which no study has; a 95 % interval of one CorLoc is
about ± 10 points. `rows.csv` has every seed and the sha256 of its weights.
"""
_EXCLUDED = """\
*Keys by position*: share of the variance of all keys that the mean of each position over the images accounts for.
*Position mean removed*: TokenCut on keys less that mean, which also removes their common offset.

**Causes that are excluded**, for *skip* in blocks 8 to 10 of all seeds:

- *Complete graphs*: {complete} % of images.
- *A common offset of the keys*: their cosine is {cosine}, in blocks 1 to 5 {early_cosine}, and centring each image's
  keys leaves CorLoc at {centred}.
- *τ*: at 0.1, 0.3 and 0.5 CorLoc is at most {tau}, at 0.7 at most {tau7}.
- *The first component of an image's keys*: without it CorLoc is at most {first}.
- *Attention sinks and patches that resemble the CLS token*: the most attended patch gets {sink} times uniform
  attention, in blocks 1 to 5 {early_sink}; the cosine of patches with CLS is {cls}.
- *The read point*: queries, values, attention, MLP and block outputs reach at most {read}.
"""
_SKIPLESS = """\
**The skipless networks.** In *annealed*, position accounts for {annealed_share} % of the keys in blocks 4 to 12, and
the subtraction changes CorLoc there from {annealed_as_is} to {annealed_without}. In *paper*, position accounts for
{paper_share} %. Its CorLoc is {paper_as_is} in blocks 10 to 12, for the reason that the field knows: its keys have a
common offset, {paper_complete} % of its graphs are complete, and centring gives {paper_centred}.

**What is not shown.** One loss, one small size, and scenes whose objects lie anywhere. The weights of one run (*mixing*
with seed 1) were not kept. Whether networks of the published size fall for this reason has not been measured. Networks
with registers were not trained.
"""


def page(rows: Rows) -> str:
    """The page; every number in its sentences is read from the rows."""
    runs = seeds(rows)
    last, late, early = range(10, 13), range(4, 13), range(1, 6)
    counts = ", ".join(f"*{name}* {' '.join(which)}" for name, which in runs.items())
    head = _HEAD.format(
        skip=len(runs["skip"]),
        counts=counts,
        share=span(rows, "skip", SHARE),
        as_is=span(rows, "skip", AS_IS),
        without=span(rows, "skip", WITHOUT),
        mixing_share=span(rows, "mixing", SHARE),
        mixing_as_is=span(rows, "mixing", AS_IS),
        mixing_without=span(rows, "mixing", WITHOUT),
    )
    excluded = _EXCLUDED.format(
        complete=span(rows, "skip", COMPLETE),
        cosine=span(rows, "skip", COSINE, digits=2),
        early_cosine=span(rows, "skip", COSINE, early, digits=2),
        centred=span(rows, "skip", CENTRED),
        tau=most(rows, "skip", [f"CorLoc, τ {tau}" for tau in ("0.1", "0.3", "0.5")]),
        tau7=most(rows, "skip", ["CorLoc, τ 0.7"]),
        first=most(rows, "skip", ["CorLoc, first component removed"]),
        sink=span(rows, "skip", SINK, digits=1),
        early_sink=span(rows, "skip", SINK, early, digits=1),
        cls=span(rows, "skip", "patches like CLS", digits=2),
        read=most(rows, "skip", READ_POINTS),
    )
    skipless = _SKIPLESS.format(
        annealed_share=span(rows, "annealed", SHARE, late),
        annealed_as_is=span(rows, "annealed", AS_IS, late),
        annealed_without=span(rows, "annealed", WITHOUT, late),
        paper_share=span(rows, "paper", SHARE, late),
        paper_as_is=span(rows, "paper", AS_IS, last),
        paper_complete=span(rows, "paper", COMPLETE, last),
        paper_centred=span(rows, "paper", CENTRED, last),
    )
    table = means(rows, [SHARE, AS_IS, WITHOUT], [name for name, which in runs.items() if which])
    folded = [line for name, which in runs.items() if which for line in details(rows, name, len(which))]
    return "\n".join([head, *table, excluded, skipless, *folded]).rstrip() + "\n"


def write_page() -> None:
    """Write the page from the committed rows."""
    write_text(PAGE, page(read_all()))
