"""Checks 22 and 23: the first table of the mathematics document, on photographs, at ViT-T width."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from dinoskip.diagnostics import SignalRow, bundled_photos, signal_table
from dinoskip.errors import ConfigError


@pytest.fixture(scope="module")
def rows() -> dict[str, SignalRow]:
    return {row.name: row for row in signal_table(bundled_photos(2), name="vit_tiny_patch16")}


def test_rows_are_complete(rows: dict[str, SignalRow]) -> None:
    assert list(rows) == ["skip", "skipless default", "skipless initialised"]
    for row in rows.values():
        assert len(row.token_cosine) == len(row.effective_rank) == len(row.query_gradient) == 12
        json.dumps(asdict(row), allow_nan=False)
    assert len({row.token_cosine[0] for row in rows.values()}) == 1  # the same embeddings


def test_default_skipless_collapses_by_block_four(rows: dict[str, SignalRow]) -> None:
    row = rows["skipless default"]
    assert min(row.token_cosine[3:]) > 0.999
    assert row.final_effective_rank < 1.01


def test_initialised_skipless_does_not(rows: dict[str, SignalRow]) -> None:
    row = rows["skipless initialised"]
    assert row.token_cosine[5] < 0.90
    assert row.final_cosine < 0.995
    assert row.final_effective_rank > 1.1
    assert list(row.token_cosine) == sorted(row.token_cosine)  # it still contracts, only slowly


def test_skips_keep_tokens_apart(rows: dict[str, SignalRow]) -> None:
    row = rows["skip"]
    assert max(row.token_cosine) < 0.6
    assert min(row.effective_rank) > 30


def test_query_gradient_is_restored(rows: dict[str, SignalRow]) -> None:
    default, ours = rows["skipless default"].query_gradient, rows["skipless initialised"].query_gradient
    assert ours[11] / default[11] > 1e6
    assert ours[0] / ours[11] < 30


def test_photographs() -> None:
    photos = bundled_photos(4, 32)
    assert photos.shape == (4, 3, 32, 32)
    assert photos.dtype == torch.float64
    assert (photos.mean((1, 2, 3)).abs() < 2.5).all()
    assert not torch.equal(photos[0], photos[1])
    with pytest.raises(ConfigError, match="1 to 4 are bundled"):
        bundled_photos(5)
