"""Tables of networks that were not trained: signal propagation and weights, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from visualize.tables import DataTable

Rows = Sequence[Mapping[str, Any]]

_WEIGHTS = {
    "block": "block",
    "kappa_vo": "κ(WV WO)",
    "vo_min": "σ min WV WO",
    "vo_max": "σ max WV WO",
    "logit_diagonal": "logit of a token with itself",
    "logit_spread": "spread of other logits",
    "kappa_q": "κ(WQ), median head",
    "fc1_gain": "fc1 gain",
    "fc2_gain": "fc2 gain",
}
_CALIBRATED = {
    "token_cosine": "token cosine",
    "cls_cosine": "CLS cosine between images",
    "rms": "rms",
    "gradient": "gradient",
}


def signal_table(rows: Rows) -> DataTable:
    """Fresh networks by token cosine, effective rank and query gradient at blocks 1, 3, the middle and the last."""
    depth = max((len(row["token_cosine"]) for row in rows), default=1)
    blocks = sorted({1, min(3, depth), max(1, depth // 2), depth})
    columns = ["network"]
    columns += [f"cosine b{block}" for block in blocks] + ["cosine final"]
    columns += [f"rank b{block}" for block in blocks] + ["rank final"]
    columns += [f"query grad b{block}" for block in blocks]
    body = [
        [
            row["name"],
            *(_at(row["token_cosine"], block) for block in blocks),
            row["final_cosine"],
            *(_at(row["effective_rank"], block) for block in blocks),
            row["final_effective_rank"],
            *(_at(row["query_gradient"], block) for block in blocks),
        ]
        for row in rows
    ]
    note = "Token cosine and effective rank after norm1, before any training; query gradient is the norm of dL/dWQ."
    return DataTable("Signal propagation at initialisation", columns, body, note)


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


def mean_ln_kappa(rows: Rows) -> dict[str, float]:
    """Mean over the blocks that have it of the tokens' ln κ before (``in``) and after attention (``out``)."""
    means = {
        name: [float(row[key]) for row in rows if row.get(key) is not None]
        for key, name in (("ln_kappa_tokens", "in"), ("ln_kappa_out", "out"))
    }
    return {name: fmean(values) for name, values in means.items() if values}


def tokens_table(means: Mapping[str, Mapping[str, float]]) -> DataTable:
    """:func:`mean_ln_kappa` of every variant."""
    body = [[name, of_network.get("in"), of_network.get("out")] for name, of_network in means.items()]
    note = "Mean over all blocks of ln κ of an image's tokens that enter the block and that leave its attention, with "
    note += "its skip where there is one; on a photograph."
    return DataTable("Condition of the tokens, ln κ", ["variant", "in", "out"], body, note)


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


def quantised_table(rows: Rows) -> DataTable:
    """Scores in percent by network and precision, of rows with ``name``, ``quantised``, ``percent``."""
    labels = list(dict.fromkeys(row["quantised"] for row in rows))
    percent = {(row["name"], row["quantised"]): row["percent"] for row in rows}
    body = [
        [name, *(percent.get((name, label)) for label in labels)] for name in dict.fromkeys(r["name"] for r in rows)
    ]
    note = (
        "Top-1 of k-NN on the CLS token, in percent. WnAm: weights of n, activations of m bits, 32 what is left alone; "
    )
    note += "uniform, weights by output channel, activations by tensor."
    return DataTable("Rounded weights and activations", ["network", *labels], body, note)


_LABEL_FREE = {
    "dse": "DSE (code)",
    "inter": "apart",
    "intra": "radius",
    "dim": "dimensions",
    "rankme": "RankMe",
    "rankme_patches": "RankMe, patches",
    "position_r2": "position R²",
    "position_r2_turned": "turned",
    "position_share": "position share",
}


def label_free_tables(measured: Mapping[str, Rows]) -> list[DataTable]:
    """Measures without labels at the last block by network and epoch (``NAME epN``), all blocks, and the choices."""
    from dinoskip.diagnostics.label_free import choices  # torch

    if not measured:
        return []
    runs: dict[str, dict[int, Rows]] = {}
    for name, rows in measured.items():
        run, _, epoch = name.rpartition(" ep")
        runs.setdefault(run, {})[int(epoch)] = rows
    last = [[name, *(rows[-1][key] for key in _LABEL_FREE)] for name, rows in measured.items()]
    note = "At the last block. DSE as its released code prints it (λ = 1), with its parts; RankMe of the images' mean "
    note += "patches and of one patch an image; position: held-out R² of row and column, as it is and of images under "
    note += "random flips and quarter turns, and the share of the variance between places."
    tables = [DataTable("Measures without labels", ["network", *_LABEL_FREE.values()], last, note)]
    body = [[run, name, epoch] for run, by_epoch in runs.items() for name, epoch in choices(by_epoch).items()]
    if body:
        note = (
            "At the last block: DSE with λ of this run's epochs, its highest peak; the highest rank; the lowest R² of "
        )
        note += "position in turned images. Epoch 0, before training, is not chosen from."
        tables.append(
            DataTable("Epoch that each measure without labels chooses", ["network", "by", "epoch"], body, note)
        )
    every = [
        [name, row["block"], *(row[key] for key in _LABEL_FREE)] for name, rows in measured.items() for row in rows
    ]
    columns = ["network", "block", *_LABEL_FREE.values()]
    return [*tables, DataTable("Measures without labels, every block", columns, every, folded=True)]


def weights_table(title: str, rows: Rows) -> DataTable:
    """One model's weights block by block, folded."""
    return DataTable.of(title, rows, _WEIGHTS, folded=True)


def _at(values: Sequence[float], block: int) -> float | None:
    return float(values[block - 1]) if block <= len(values) else None


OUTLIERS_DO = (
    "They resemble each other wherever they are, so TokenCut may cut them off instead of an object, and LOST may start "
    "from one."
)
_OUTLIERS = f"Patches of the gallery's images whose norm is above 3 medians of their block. {OUTLIERS_DO}"


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
