"""Section of the report on an analysis.

It has signal propagation, weights block by block, and the values inside trained networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from dinoskip.pipeline.stage import Shown, ShownOf
from dinoskip_diagnostics.results import Analysis, Inside
from visualize import figures
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


def shown(of: ShownOf) -> Shown:
    """Figures and tables of a study's one analysis, and the mean ln κ of the tokens of its networks."""
    (path,) = of.outputs.values()
    found = Analysis.read(path)
    tokens = {name: mean_ln_kappa(net["rows"]) for name, net in inside_of(of, found.photographs).inside.items()}
    tables = [tokens_table(tokens)] if tokens else []
    if found.quantised:
        words = of.words_of({row["name"] for row in found.quantised})
        tables.append(quantised_table([{**row, "name": words[row["name"]]} for row in found.quantised]))
    tables += label_free_tables(found.label_free or {})
    tables.append(signal_table(found.signal))
    tables += [weights_table(f"{name}: weights at initialisation", rows) for name, rows in found.fresh.items()]
    return Shown(_figures(of, found), tables, tokens)


def _figures(of: ShownOf, found: Analysis) -> list[figures.Figure]:
    order = list(of.variants)
    trained = {name: found.trained[key] for name, key in of.last_epochs(found.trained).items()}
    weights = {"at initialisation": found.fresh, "trained": trained}
    caption = "Weights by block, at initialisation and trained"
    spectra = {name: found.spectrum[key] for name, key in of.last_epochs(found.spectrum).items()}
    drawn = [
        figures.signal_figure(found.signal, of.figures / "signal"),
        figures.weights_figure(weights, of.figures / "weights", caption=caption, variants=order),
        *figures.network_figures(asdict(inside_of(of, found.photographs)), of.figures, order),
        figures.spectrum_figure(
            {name: curve for name, curve in spectra.items() if curve}, of.figures / "spectrum", order
        ),
    ]
    return [figure for figure in drawn if figure is not None]


def inside_of(of: ShownOf, photographs: Inside) -> Inside:
    """Return the measurements inside networks, by variant."""
    names = of.last_epochs(photographs.inside)
    variants, place = {name: variant for variant, name in names.items()}, list(names).index
    pairs = [
        replace(pair, left=variants[pair.left], right=variants[pair.right])
        for pair in photographs.cka
        if pair.left in variants and pair.right in variants
    ]
    return Inside(
        {variant: photographs.inside[name] for variant, name in names.items()},
        {variant: photographs.sqnr[name] for variant, name in names.items() if name in photographs.sqnr},
        sorted(pairs, key=lambda pair: (place(pair.left), place(pair.right))),
    )


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
    """Metrics without labels at the last block by network and epoch (``NAME epN``), all blocks, and the choices."""
    from dinoskip.diagnostics.label_free import choices  # torch

    if not measured:
        return []
    runs: dict[str, dict[int, Rows]] = {}
    for name, rows in measured.items():
        run, _, epoch = name.rpartition(" ep")
        runs.setdefault(run, {})[int(epoch)] = rows
    last = [[name, *(rows[-1][key] for key in _LABEL_FREE)] for name, rows in measured.items()]
    note = "At the last block. DSE as in its released code (λ = 1), with its parts; RankMe of the images' mean patches "
    note += (
        "and of one patch per image; position: held-out R² of row and column, on unchanged images and (turned) under "
    )
    note += "random flips and rotations by multiples of 90°, and the share of the variance between positions."
    tables = [DataTable("Metrics without labels", ["network", *_LABEL_FREE.values()], last, note)]
    body = [[run, name, epoch] for run, by_epoch in runs.items() for name, epoch in choices(by_epoch).items()]
    if body:
        note = (
            "At the last block: DSE with λ of this run's epochs, its highest peak; the highest rank; the lowest R² of "
        )
        note += "position in turned images. Epoch 0, before training, is not chosen from."
        tables.append(
            DataTable("Epoch that each metric without labels chooses", ["network", "by", "epoch"], body, note)
        )
    every = [
        [name, row["block"], *(row[key] for key in _LABEL_FREE)] for name, rows in measured.items() for row in rows
    ]
    columns = ["network", "block", *_LABEL_FREE.values()]
    return [*tables, DataTable("Metrics without labels, every block", columns, every, folded=True)]


def weights_table(title: str, rows: Rows) -> DataTable:
    """One model's weights block by block, folded."""
    return DataTable.of(title, rows, _WEIGHTS, folded=True)


def _at(values: Sequence[float], block: int) -> float | None:
    return float(values[block - 1]) if block <= len(values) else None
