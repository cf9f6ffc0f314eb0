"""AP is compared image by image, at a block that other images choose, on the page and by ``dinoskip compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.decisions.comparing import NetworkScores, compared_pair
from dinoskip.results.average_precision import MatchedDetections
from dinoskip.results.records import RecordedRow, read_records, write_recorded_rows
from dinoskip.results.rows import CROSS_FITTED, EvalResult
from dinoskip.results.statistics import explained_interval, score
from eval.compare import compare
from eval.rows import percent_row
from tests.results.test_average_precision import detections
from visualize.comparison import Scores

IDS = [f"{number:03}" for number in np.random.default_rng(0).permutation(90)]  # rows' order is not that of ids


def worse(records: MatchedDetections, share: float, seed: int) -> MatchedDetections:
    lost = np.random.default_rng(seed).random(len(records.hits)) < share
    return replace(records, hits=np.where(lost, 0, records.hits).astype(records.hits.dtype))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two networks of three blocks; the second one misses a quarter more."""
    root, base = tmp_path_factory.mktemp("rows"), detections(90, 3)
    for network, missed in (("good", 0.0), ("poor", 0.25)):
        recorded: list[RecordedRow] = []
        for block, share in (("1", 0.4), ("2", 0.0), ("3", 0.3)):
            every = worse(base, share + missed, int(block))
            for metric, part in (("box AP", every), ("box AP50", every.at(0, 1))):
                row = EvalResult(metric, 0.0, "detection", block, "coco", "val", 90, model=network)
                recorded.append(percent_row(row, metric, score(part), explained_interval(part), part))
        (root / network).mkdir()
        write_recorded_rows(root / network, IDS, recorded)
    return {network: root / network for network in ("good", "poor")}


@pytest.mark.parametrize("metric", ["box AP", "box AP50"])
def test_rows_are_paired_and_cross_fitted(metric: str, folders: dict[str, Path]) -> None:
    pair = compare(f"{folders['good']}@metric={metric}", f"{folders['poor']}@metric={metric}")
    assert pair.a.block == "2 (cross-fitted)"
    assert pair.difference.n == 90
    assert pair.difference.p < 0.001
    fixed = compare(f"{folders['good']}@metric={metric},block=2", f"{folders['poor']}@metric={metric},block=2")
    assert fixed.difference.value == pytest.approx(pair.difference.value)
    values = [row.value for row in (fixed.a.row, fixed.b.row)]
    assert fixed.difference.value == pytest.approx(values[0] - values[1])
    width = fixed.a.row.high - fixed.a.row.low
    assert fixed.difference.high - fixed.difference.low < width


def test_the_page_pairs_them_too(folders: dict[str, Path]) -> None:
    records = {row: one for folder in folders.values() for row, one in read_records(folder).items()}
    rows = {name: [row for row in records if row.model == name] for name in folders}
    scores = Scores(rows, records)
    assert scores.benchmarks
    for benchmark in scores.benchmarks:
        networks = []
        for name in folders:
            chosen = scores.chosen(scores.rows(name, benchmark, scores.last_epoch(name, benchmark)))
            assert chosen is not None
            assert (chosen.selected, chosen.blocks) == (CROSS_FITTED, ("2",))
            assert chosen.ids == tuple(sorted(IDS))
            networks.append(NetworkScores(name, (chosen,)))
        pair = compared_pair(*networks)
        assert pair is not None
        assert pair.judgement.difference.n == 90
        assert pair.judgement.difference.p < 0.001
