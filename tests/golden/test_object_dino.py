"""Object-DINO against recorded outputs of float64 code written apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eval.tokencut.config import ObjectDinoConfig
from eval.tokencut.cut import TokenCut, cut
from eval.tokencut.graph import normalise
from eval.tokencut.object_dino import ensembles, mean_attention, object_dino, standardised
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("meaning", "object_dino")


def equal_cut(found: TokenCut, wanted: dict[str, np.ndarray], end: str) -> None:
    """All but the vector to the bit, that within 1e-5 of its largest, up to its sign."""
    assert found.is_cut == bool(wanted[f"is_cut{end}"])
    assert found.seed == int(wanted[f"seed{end}"])
    assert found.box == tuple(wanted[f"box{end}"].tolist())
    np.testing.assert_array_equal(found.mask, wanted[f"mask{end}"])
    np.testing.assert_array_equal(found.component, wanted[f"component{end}"])
    vector = wanted[f"eigenvector{end}"]
    turned = vector if vector @ found.eigenvector >= 0 else -vector
    np.testing.assert_allclose(found.eigenvector, turned, rtol=0, atol=1e-5 * np.abs(vector).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_object_dino(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    grid, inputs = tuple(case["grid"]), [data[name] for name in ("query", "key", "value")]
    shape = data["ensemble_cosine"].shape
    config = ObjectDinoConfig(
        clusters=case["clusters"],
        tau=case["tau"],
        scale=case["scale"],
        head_feature="map" if case["head_feature"] == "flattened" else "mean",
    )
    unit = torch.stack([normalise(torch.from_numpy(one).flatten(0, 1)) for one in inputs], dim=1)
    of_heads = zip(*ensembles(unit, config), strict=True)
    for found, name in zip(of_heads, ("ensemble_cosine", "ensemble_map"), strict=True):
        np.testing.assert_allclose(torch.stack(found).reshape(shape), data[name], rtol=0, atol=2e-6)
    if "head_features" in data:
        features = mean_attention(unit, config)
        np.testing.assert_allclose(features, data["head_features"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(
            standardised(features), data["standardised"], rtol=0, atol=1e-3 * np.abs(data["standardised"]).max()
        )
    given = data["labels"] if case["labels_given"] else None
    found = object_dino(*inputs, grid, config, eps=case["eps"], labels=given)
    alike = found.labels[:, None] == found.labels
    np.testing.assert_array_equal(alike, data["labels"][:, None] == data["labels"])
    assert set(map(tuple, found.heads.tolist())) == set(map(tuple, data["heads"].tolist()))
    np.testing.assert_allclose(found.similarity, data["affinity"], rtol=0, atol=5e-6)
    equal_cut(found.cut, data, "")
    for affinity in ("mean_cosine", "mean_map"):
        other = object_dino(*inputs, grid, config.model_copy(update={"affinity": affinity}), labels=found.labels)
        np.testing.assert_allclose(other.similarity, data[affinity], rtol=0, atol=2e-6)
        if affinity == "mean_cosine":
            equal_cut(other.cut, data, "_mean_cosine")


def test_mean_similarities_are_what_is_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 3, 12, 4, generator=generator) for _ in range(3)]
    config = ObjectDinoConfig(clusters=2, affinity="mean_cosine", tau=0.0)
    found = object_dino(*inputs, (3, 4), config)
    (again,) = cut(found.similarity[None], [(3, 4)], 0.0, 1e-5)
    assert found.cut.box == again.box
    with pytest.raises(ValueError, match="clusters"):
        object_dino(*inputs, (3, 4), ObjectDinoConfig(clusters=7))
    with pytest.raises(ValueError, match="blocks, heads"):
        object_dino(inputs[0][0], inputs[1], inputs[2], (3, 4))
