"""Tables 1 to 4 and figure 3's table of "Cutting the Skip" (ICLR 2026): layout, numbers, and what each cell asks for.

One number, the single-layer mIoU of the skip model with SOAP on COCO-Stuff, could not be read in the text that these
were taken from: it is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dinoskip.errors import ConfigError
from visualize.rows import DEFAULT, INITIALISED, SKIP, StudyVariant, families

EPOCHS = 300  # of every run in the paper


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number (percent, None: not legible) and which row of ours may stand beside it.

    ``depth`` None is any number of blocks, ``epoch`` is of the paper's 300, ``several`` asks for multiscale features.
    """

    paper: float | None
    task: str
    metric: str
    dataset: str
    role: str
    optimizer: str
    epoch: int = EPOCHS
    depth: int | None = None
    several: bool = False


@dataclass(frozen=True)
class PublishedTable:
    """A table as printed: header lines of (text, columns spanned), and rows of labels and cells."""

    name: str
    title: str
    head: Sequence[Sequence[tuple[str, int]]]
    stubs: int
    rows: Sequence[tuple[Sequence[str], Sequence[PublishedNumber]]]
    parts: frozenset[int] = frozenset()  # rows that begin a new part
    rule: str = ""  # how a row of ours is chosen, beyond what is said under every table


_BEST = "A single block is the best on the split shown, an upper estimate; the paper does not say which its {} is. "
_SEVERAL = "Multiscale is the study's combination of blocks (evaluate.multiscale); the paper does not print its own. "


def _table1() -> PublishedTable:
    numbers = {SKIP: (80.3, 80.1), DEFAULT: (61.4, 77.0), INITIALISED: (78.1, 80.8)}
    printed = {SKIP: "skip", DEFAULT: "skipless", INITIALISED: "skipless + our init"}
    rows = [
        (
            (printed[role], f"ViT-Base + {optimizer}"),
            [PublishedNumber(value, "classify", "top1", "ImageNet", role, optimizer)],
        )
        for role, pair in numbers.items()
        for optimizer, value in zip(("AdamW", "SOAP"), pair, strict=True)
    ]
    return PublishedTable(
        "paper.table1",
        "Table 1: validation accuracy of ViT-Base on ImageNet-1k using AdamW and SOAP",
        ((("", 1), ("model", 1), ("accuracy", 1)),),
        2,
        rows,
        frozenset({2, 4}),
        "Ours is the top-1 of the last checkpoint.",
    )


_SETS2 = ("VOC2012", "COCO-Stuff", "ADE20K")
_COLUMNS = ((300, SKIP), (300, INITIALISED), (200, INITIALISED))  # epochs and variants, in the order printed


def _table2() -> PublishedTable:
    numbers = {
        ("single feature", "AdamW"): (56.3, 62.3, 62.1, 24.6, 24.9, 28.3, 23.7, 22.5, 22.8),
        ("single feature", "SOAP"): (51.3, 57.6, 63.4, None, 23.5, 27.6, 20.5, 21.3, 22.5),
        ("multiscale", "AdamW"): (61.6, 65.4, 65.0, 26.7, 28.0, 28.2, 26.0, 26.3, 27.0),
        ("multiscale", "SOAP"): (61.3, 59.5, 64.8, 25.9, 25.1, 27.6, 25.3, 23.7, 25.6),
    }
    places = [(name, epoch, role) for name in _SETS2 for epoch, role in _COLUMNS]
    rows = [
        (
            (features, optimizer),
            [
                PublishedNumber(value, "probe", "mIoU", name, role, optimizer, epoch, several=features == "multiscale")
                for value, (name, epoch, role) in zip(values, places, strict=True)
            ],
        )
        for (features, optimizer), values in numbers.items()
    ]
    return PublishedTable(
        "paper.table2",
        "Table 2: DINO ViT-Small, linear probing segmentation, mIoU",
        _epoch_head(_SETS2),
        2,
        rows,
        frozenset({2}),
        _BEST.format("single feature") + _SEVERAL,
    )


def _epoch_head(sets: Sequence[str]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Two header lines: data sets over epochs and models."""
    columns = [(f"{epoch} {'skip' if role == SKIP else 'skipless'}", 1) for _ in sets for epoch, role in _COLUMNS]
    return (("", 1), ("", 1), *((name, 3) for name in sets)), (("", 1), ("epochs", 1), *columns)


def _figure3() -> PublishedTable:
    numbers = {"AdamW": (32.3, 53.5, 54.0, 21.2, 36.5, 38.5), "SOAP": (49.4, 63.2, 68.1, 27.5, 46.7, 54.1)}
    sets = ("VOC2012", "COCO20k")
    places = [(name, epoch, role) for name in sets for epoch, role in _COLUMNS]
    rows = [
        (
            ("", optimizer),
            [
                PublishedNumber(value, "tokencut", "CorLoc", name, role, optimizer, epoch)
                for value, (name, epoch, role) in zip(values, places, strict=True)
            ],
        )
        for optimizer, values in numbers.items()
    ]
    title = "Figure 3: DINO ViT-Small, object discovery with TokenCut, CorLoc"
    best = "The block is the best on the split shown, as in the paper."
    return PublishedTable("paper.figure3", title, _epoch_head(sets), 2, rows, rule=best)


# Variants and blocks of the lines of tables 3 and 4, in the order printed.
_DEPTHS = ((SKIP, 12), (INITIALISED, 12), (INITIALISED, 11), (INITIALISED, 10), (INITIALISED, 9))


def _by_depth(
    name: str,
    title: str,
    sets: Sequence[str],
    template: PublishedNumber,
    skipless_epoch: int,
    numbers: Sequence[Sequence[float]],
    rule: str,
) -> PublishedTable:
    """Tables 3 and 4: models of several depths, AdamW; ``template`` has task, metric and kind of features."""
    rows = []
    for (role, depth), values in zip(_DEPTHS, numbers, strict=True):
        epoch = EPOCHS if role == SKIP else skipless_epoch
        cells = [
            replace(template, paper=value, dataset=dataset, role=role, epoch=epoch, depth=depth)
            for value, dataset in zip(values, sets, strict=True)
        ]
        rows.append((("skip" if role == SKIP else "skipless", str(depth)), cells))
    head = (("", 1), ("depth", 1), *((dataset, 1) for dataset in sets))
    return PublishedTable(name, title, (head,), 2, rows, frozenset({1}), rule)


def _table3() -> PublishedTable:
    template = PublishedNumber(None, "probe", "mIoU", "", SKIP, "AdamW", several=True)
    numbers = ((61.6, 26.7, 26.0), (65.0, 28.2, 27.0), (66.2, 28.0, 26.7), (64.1, 27.1, 25.2), (61.1, 26.0, 24.4))
    title = "Table 3: depth (AdamW), linear probing segmentation, mIoU"
    rule = _SEVERAL + "Skipless models after 200 epochs, as in the paper; the skip model after 300 (its table 2)."
    return _by_depth("paper.table3", title, _SETS2, template, 200, numbers, rule)


def _table4() -> PublishedTable:
    template = PublishedNumber(None, "tokencut", "CorLoc", "", SKIP, "AdamW")
    numbers = ((32.3, 21.2), (53.5, 36.5), (47.4, 31.9), (43.9, 25.4), (34.8, 24.0))
    title = "Table 4: depth (AdamW), object discovery with TokenCut, CorLoc"
    rule = "The block is the best on the split shown, as in the paper; all models after 300 epochs (as in figure 3)."
    return _by_depth("paper.table4", title, ("VOC2012", "COCO20k"), template, EPOCHS, numbers, rule)


PUBLISHED = {table.name: table for table in (_table1(), _table2(), _table3(), _table4(), _figure3())}

MADE_BY = {
    "figure 1": "configs/paper/table1_supervised.yaml",
    "paper.table1": "configs/paper/table1_supervised.yaml",
    "paper.table2": "configs/paper/table2_dino.yaml",
    "figure 2": "configs/paper/figure2_epochs.yaml",
    "paper.figure3": "configs/paper/table2_dino.yaml",
    "paper.table3": "configs/paper/table3_depth.yaml",
    "paper.table4": "configs/paper/table3_depth.yaml",
    "figure 4": "configs/paper/table2_dino.yaml",
    "figure 6": "configs/paper/table2_dino.yaml",
}
"""The shipped study that makes a table or figure of the paper."""


def published(name: str) -> PublishedTable:
    """The table called ``paper.table1`` .. ``paper.table4`` or ``paper.figure3``, else :class:`ConfigError`."""
    if name not in PUBLISHED:
        raise ConfigError(f"report.compare: {name!r} is none of {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def networks_for(cell: PublishedNumber, variants: Sequence[StudyVariant]) -> dict[str, list[StudyVariant]]:
    """The networks that are those of a cell, by name, each with its seeds of training: more than one is one too many.

    Of a table that names no depth they are the deepest.
    """
    same = [run for run in variants if (run.role, run.optimizer) == (cell.role, cell.optimizer.lower())]
    depth = cell.depth or max((run.depth for run in same), default=0)
    return families(run for run in same if run.depth == depth)
