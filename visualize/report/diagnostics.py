"""Tables of what training, calibration and the gallery measured beside scores: epochs, first weights, outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from visualize.tables import DataTable

Rows = Sequence[Mapping[str, Any]]

_CALIBRATED = {
    "token_cosine": "token cosine",
    "cls_cosine": "CLS cosine between images",
    "rms": "rms",
    "gradient": "gradient",
}


def calibration_table(name: str, measured: Mapping[str, Any]) -> DataTable:
    """Return the table of a variant's first weights, block by block, without and with the measured means subtracted."""
    columns = ["block"] + [f"{said}, {when}" for said in _CALIBRATED.values() for when in ("without", "with")]
    pairs = zip(measured["before"], measured["after"], strict=True)
    body = [[before["block"], *(row[key] for key in _CALIBRATED for row in (before, after))] for before, after in pairs]
    note = (
        f"Of the network before any training, without and with the measured means subtracted, on {measured['images']} "
        "images beside those measured; gradient: norm over the block's parameters."
    )
    return DataTable(f"{name}: calibrated on images", columns, body, note)


def epochs_tables(logs: Mapping[str, Rows]) -> list[DataTable]:
    """Epochs after which each run reached the first one's final top-1; no table unless two runs measured it."""
    curves = {
        name: [(float(row["epoch"]), float(row["top1"])) for row in rows if row.get("top1") is not None]
        for name, rows in logs.items()
    }
    curves = {name: curve for name, curve in curves.items() if curve}
    if len(curves) < 2:
        return []
    first, whole = next(iter(curves.items()))
    end, goal = whole[-1]
    body: list[list[object]] = []
    for name, curve in curves.items():
        reached = next((epoch for epoch, top1 in curve if top1 >= goal), None)
        share = None if reached is None else 100 * reached / end
        body.append([name, curve[-1][1], "never" if reached is None else reached, "–" if share is None else share])
    columns = ["variant", "final top-1", f"epochs to {first}'s final top-1", f"in percent of {first}'s"]
    note = "The first epoch at which the accuracy, measured every supervise.online_every epochs, was at least that."
    return [DataTable("Epochs to an accuracy", columns, body, note)]


OUTLIERS_DO = (
    "They resemble each other at any position, so TokenCut may cut them off instead of an object, and LOST may start "
    "from one."
)
_OUTLIERS = f"Patches of the gallery's images whose norm is above 3 × the median of their block. {OUTLIERS_DO}"


def farthest(blocks: Mapping[str, Mapping[str, float]]) -> str:
    """The block whose largest norm is the most medians."""
    return max(blocks, key=lambda block: blocks[block]["ratio"])


def outliers_said(outliers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """A line for each network with the block of its largest norm, and what outliers do where there are any."""
    lines = []
    for variant, blocks in outliers.items():
        if blocks:
            at = farthest(blocks)
            count = blocks[at]
            largest = f"max norm {count['ratio']:.1f} × median, block {at}"
            share = f"{100 * count['share']:.2f} % of patches have an outlying norm"
            lines.append(f"{variant}: {share if count['share'] else 'no high-norm outlier patches'} ({largest})")
    if any(count["share"] > 0 for blocks in outliers.values() for count in blocks.values()):
        lines.append(f"outliers (norm above 3 × median): {OUTLIERS_DO[0].lower()}{OUTLIERS_DO[1:]}")
    return lines


def outliers_table(outliers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> DataTable:
    """Share and norm of patches of outlying norm, {variant: {block: OutlierCount}}.

    Of each variant the block of the largest norm over the median, and all that have outliers.
    """
    body = [
        [variant, int(block), count["ratio"], 100 * count["share"], count["norm"] or None, count["median"]]
        for variant, blocks in outliers.items()
        for block, count in blocks.items()
        if count["share"] > 0 or block == farthest(blocks)
    ]
    columns = ["variant", "block", "largest norm / median", "outliers, %", "their mean norm", "median norm"]
    return DataTable("Patches of outlying norm", columns, body, note=_OUTLIERS)
