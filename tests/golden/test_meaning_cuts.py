"""Cuts that do not exist and removal of positions, against recorded outputs of float64 code written apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eval.tokencut import TokenCut, tokencut
from eval.tokencut.positions import position_means, position_share, without_positions
from tests.helpers.golden import recorded

GOLDEN, DEGENERATE = recorded("meaning", "degenerate")
POSITIONS = recorded("meaning", "posremove")[1]


def equal_cut(cut: Any, wanted: dict[str, np.ndarray], ambiguous: bool) -> None:
    """Check that a cut equals the specification's to the bit, its vector within 1e-5 of the vector's largest entry."""
    assert isinstance(cut, TokenCut)
    assert cut.is_cut == bool(wanted["is_cut"])
    assert cut.seed == int(wanted["seed"])
    assert cut.box == tuple(wanted["box"].tolist())
    assert cut.ambiguous == ambiguous
    np.testing.assert_array_equal(cut.mask, wanted["mask"])
    np.testing.assert_array_equal(cut.component, wanted["component"])
    if not cut.is_cut:
        assert np.isnan(cut.eigenvector).all()
        return
    vector = wanted["eigenvector"]
    turned = vector if vector @ cut.eigenvector >= 0 else -vector
    np.testing.assert_allclose(cut.eigenvector, turned, rtol=0, atol=1e-5 * np.abs(vector).max())


@pytest.mark.parametrize("case", DEGENERATE, ids=lambda case: case["name"])
def test_degenerate(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    cut = tokencut(data["features"], tuple(case["grid"]), case["tau"], case["eps"])
    equal_cut(cut, data, case["expected"]["ambiguous"])
    second, third = case["expected"]["eigenvalues"]
    assert isinstance(cut, TokenCut)
    assert cut.eigenvalue == pytest.approx(second, abs=1e-9)
    assert cut.eigenvalue + cut.gap == pytest.approx(third, abs=1e-9)
    if not cut.is_cut:
        uniform = case["expected"]["edges"] in {0, cut.mask.size * (cut.mask.size - 1) // 2}
        assert (case["expected"]["reason"] == "uniform") == uniform


def of_image(data: dict[str, np.ndarray], i: int, end: str) -> dict[str, np.ndarray]:
    """Return the expected values of one image's cut."""
    names = ("eigenvector", "mask", "component", "box", "seed", "is_cut")
    return {name: data[f"{name}{end}"][i] for name in names}


def joined(layers: np.ndarray) -> np.ndarray:
    """Features (L, N, C) of one image as features whose cosine is the mean of the layers'."""
    length = np.linalg.norm(layers, axis=-1, keepdims=True)
    return np.concatenate(list(layers / np.maximum(length, 1e-12)), axis=-1)


@pytest.mark.parametrize("case", POSITIONS, ids=lambda case: case["name"])
def test_position_removal(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    several = "grids" in case
    for number, grid in enumerate(case["grids"] if several else [case["grid"]]):
        end = f"_{number}" if several else ""
        features, wanted = data[f"features{end}"], data[f"removed{end}"]
        found = np.stack([without_positions(layer, keep_mean=case["keep_mean"]) for layer in features])
        assert np.abs(found - wanted).max() <= 2e-6 * max(np.abs(wanted).max(), np.finfo(np.float32).tiny)
        shares = [position_share(layer) for layer in features]
        expected = [case["expected"]["share"][number]] if several else case["expected"]["share"]
        assert shares == pytest.approx(expected, abs=1e-6)
        if "position_mean" in data:
            means = np.stack([position_means(layer) for layer in features])
            np.testing.assert_allclose(means, data["position_mean"], rtol=0, atol=1e-12)
        for i in range(features.shape[1]):
            cut = tokencut(
                found[0, i] if len(found) == 1 else joined(found[:, i]), tuple(grid), case["tau"], case["eps"]
            )
            equal_cut(cut, of_image(data, i, end), ambiguous=False)
