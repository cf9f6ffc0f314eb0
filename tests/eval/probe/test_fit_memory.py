"""A probe run stays under its bound of memory, on tokens that are more than that."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from benchmarks.bench_memory import simulated
from benchmarks.measuring import peak
from dinoskip.errors import ConfigError
from dinoskip.runtime.environment import memory_limit
from eval.probe import fit_probes


def measured(folder: Path) -> tuple[int, int, int, int]:
    """The peak under a small bound, that bound, the peak without one that matters, the tokens as float32: bytes."""
    train, val = (simulated(folder, name, count, 4, size=(56, 70)) for name, count in (("train", 160), ("val", 4)))
    kept = 2 * sum(stored.nbytes for stored in train.tokens.values())

    def fit() -> None:
        fit_probes(train, val, list(train.tokens), (1e-3,), 1, holdout=0.05, refine=1, device="cpu")

    fit()  # what libraries take once
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DINOSKIP_MEMORY", "0.1")
        bound, bounded = memory_limit(), min(peak(fit), peak(fit))  # what the allocator holds beyond it varies
        patch.setenv("DINOSKIP_MEMORY", "4")
        return bounded, bound, peak(fit), kept


def test_peak_is_under_the_bound(tmp_path: Path) -> None:
    """The measurement has a process of its own, whose heap holds nothing of other tests."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        bounded, bound, free, kept = pool.apply(measured, (tmp_path,))
    assert bounded < bound < kept
    assert free > kept  # the measurement sees tokens that are held


@pytest.mark.parametrize("text", ["", "lots", "-1", "0", "nan", "inf"])
def test_a_bound_that_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DINOSKIP_MEMORY", text)
    with pytest.raises(ConfigError, match="GiB"):
        memory_limit()
