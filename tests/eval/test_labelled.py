"""Frozen tokens with their label maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import eval.labelled as labelled
from dinoskip.errors import DataError
from eval.labelled import BatchNormedTokens, batchnorm_statistics, labels_ahead

CPU = torch.device("cpu")


def test_batchnorm_statistics_are_those_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    stored = (1000 + rng.standard_normal((7, 5, 3)) * [1, 2, 0]).astype(np.float32)
    rows = np.array([0, 2, 3, 6])
    exact = stored[rows].reshape(-1, 3).astype(np.float64)
    for chunk in (2**22, 15):
        monkeypatch.setattr(labelled, "_CHUNK_VALUES", chunk)
        mean, inverse = batchnorm_statistics(stored, rows, CPU)
        np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6)
        np.testing.assert_allclose(inverse, (exact.var(0) + 1e-5) ** -0.5, rtol=1e-3)
    stored[3, 0, 0] = np.inf
    with pytest.raises(DataError, match="not finite"):
        batchnorm_statistics(stored, rows, CPU)


@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.float32])
def test_tokens_have_the_same_bits_however_much_fits(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are kept in float32, kept as stored, or read batch by batch: 480 values in twice the allowed bytes."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((8, 6, 10)).astype(np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is np.uint16 else values.astype(dtype)
    tokens = {("final", 1): stored}
    statistics = {("final", 1): batchnorm_statistics(stored, np.arange(8), CPU)}
    batches = []
    for limit in (4, stored.itemsize, 1):  # bytes a value
        monkeypatch.setattr(labelled, "memory_limit", lambda limit=limit: 2 * limit * stored.size)
        kept = BatchNormedTokens(tokens, CPU, statistics)
        assert (len(kept._kept), len(kept._stored)) == {4: (1, 0), 1: (0, 0)}.get(limit, (0, 1))
        batches.append([kept.batch(np.array(rows))["final", 1] for rows in ([3, 0], [3, 7])])
        kept.check()
    for batch in batches[1:]:
        assert all(torch.equal(one, other) for one, other in zip(batch, batches[0], strict=True))


def test_labels_come_in_order_and_an_error_where_it_is() -> None:
    def label(row: int) -> np.ndarray:
        if row == 40:
            raise DataError("label map 40")
        return np.full((2, 2), row, np.uint8)

    got = labels_ahead(label, range(30, 60))
    assert [int(next(got)[0, 0]) for _ in range(10)] == list(range(30, 40))
    with pytest.raises(DataError, match="40"):
        next(got)
    assert [int(one[0, 0]) for one in labels_ahead(label, [5])] == [5]
