"""Tables of networks that were not trained: signal propagation and weights, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What subtracting means changed in a variant's first weights, block by block."""
    columns = ["block"] + [f"{said}, {when}" for said in _CALIBRATED.values() for when in ("without", "with")]
    pairs = zip(measured["before"], measured["after"], strict=True)
    body = [[one["block"], *(row[key] for key in _CALIBRATED for row in (one, other))] for one, other in pairs]
    note = (
        f"Of the network before any training, without and with the measured means subtracted, on {measured['images']} "
        "images beside those measured; gradient: norm over the block's parameters."
    )
    return DataTable(f"{name}: calibrated on images", columns, body, note)


def weights_table(title: str, rows: Rows) -> DataTable:
    """One model's weights block by block, folded."""
    return DataTable.of(title, rows, _WEIGHTS, folded=True)


def _at(values: Sequence[float], block: int) -> float | None:
    return float(values[block - 1]) if block <= len(values) else None
