"""Numbers of "Cutting the Skip" (tables 1 to 4 and the table of figure 3), to show beside ours when a study asks."""

from __future__ import annotations

from dataclasses import dataclass

from dinoskip.errors import ConfigError


@dataclass(frozen=True)
class PublishedTable:
    """One table as printed: heading, column names, and rows whose numbers are percent."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]


_SEGMENTATION = "linear segmentation probe, mIoU; ViT-S/16"
_DISCOVERY = "TokenCut, CorLoc of the best block; ViT-S/16"

PUBLISHED = {
    "paper.table1": PublishedTable(
        "Table 1: ImageNet-1k accuracy, supervised ViT-B",
        ("model", "AdamW", "SOAP"),
        (("skip", 80.3, 80.1), ("skipless", 61.4, 77.0), ("skipless, initialised", 78.1, 80.8)),
    ),
    "paper.table2": PublishedTable(
        f"Table 2: {_SEGMENTATION}",
        ("features, optimizer", "model, epochs", "VOC2012", "COCO-Stuff", "ADE20K"),
        (
            ("single layer, AdamW", "skip, 300", 56.3, 24.6, 23.7),
            ("single layer, AdamW", "skipless, 300", 62.3, 24.9, 22.5),
            ("single layer, AdamW", "skipless, 200", 62.1, 28.3, 22.8),
            ("single layer, SOAP", "skip, 300", 51.3, None, 20.5),
            ("single layer, SOAP", "skipless, 300", 57.6, 23.5, 21.3),
            ("single layer, SOAP", "skipless, 200", 63.4, 27.6, 22.5),
            ("multiscale, AdamW", "skip, 300", 61.6, 26.7, 26.0),
            ("multiscale, AdamW", "skipless, 300", 65.4, 28.0, 26.3),
            ("multiscale, AdamW", "skipless, 200", 65.0, 28.2, 27.0),
            ("multiscale, SOAP", "skip, 300", 61.3, 25.9, 25.3),
            ("multiscale, SOAP", "skipless, 300", 59.5, 25.1, 23.7),
            ("multiscale, SOAP", "skipless, 200", 64.8, 27.6, 25.6),
        ),
    ),
    "paper.table3": PublishedTable(
        f"Table 3: depth, multiscale {_SEGMENTATION}, AdamW",
        ("model", "blocks", "VOC2012", "COCO-Stuff", "ADE20K"),
        (
            ("skip", 12, 61.6, 26.7, 26.0),
            ("skipless", 12, 65.0, 28.2, 27.0),
            ("skipless", 11, 66.2, 28.0, 26.7),
            ("skipless", 10, 64.1, 27.1, 25.2),
            ("skipless", 9, 61.1, 26.0, 24.4),
        ),
    ),
    "paper.table4": PublishedTable(
        f"Table 4: depth, {_DISCOVERY}, AdamW",
        ("model", "blocks", "VOC2012", "COCO20k"),
        (
            ("skip", 12, 32.3, 21.2),
            ("skipless", 12, 53.5, 36.5),
            ("skipless", 11, 47.4, 31.9),
            ("skipless", 10, 43.9, 25.4),
            ("skipless", 9, 34.8, 24.0),
        ),
    ),
    "paper.figure3": PublishedTable(
        f"Figure 3: {_DISCOVERY}",
        ("optimizer", "model, epochs", "VOC2012", "COCO20k"),
        (
            ("AdamW", "skip, 300", 32.3, 21.2),
            ("AdamW", "skipless, 300", 53.5, 36.5),
            ("AdamW", "skipless, 200", 54.0, 38.5),
            ("SOAP", "skip, 300", 49.4, 27.5),
            ("SOAP", "skipless, 300", 63.2, 46.7),
            ("SOAP", "skipless, 200", 68.1, 54.1),
        ),
    ),
}


def published(name: str) -> PublishedTable:
    """The table called ``paper.table1`` .. ``paper.table4`` or ``paper.figure3``, else :class:`ConfigError`."""
    if name not in PUBLISHED:
        raise ConfigError(f"report.compare: {name!r} is none of {', '.join(PUBLISHED)}")
    return PUBLISHED[name]
