"""MaskCut against the rules written out with dense matrices, and where features are easy or hopeless."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip_dense.objects import MaskCutRound, cut_masks, maskcut
from eval.tokencut.graph import normalise, similarities


def scene(seed: int, grid: tuple[int, int], objects: int, noise: float) -> np.ndarray:
    """Features (N, 16): a background, rectangles of their own direction, noise."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((objects + 1, 16))
    owner = np.zeros(grid, dtype=int)
    for number in range(1, objects + 1):
        top, left = (int(rng.integers(0, side - 3)) for side in grid)
        owner[top : top + int(rng.integers(2, 5)), left : left + int(rng.integers(2, 5))] = number
    return (directions[owner.ravel()] + noise * rng.standard_normal((owner.size, 16))).astype(np.float32)


def by_hand(features: np.ndarray, grid: tuple[int, int], tau: float, eps: float, rounds: int) -> list[dict]:
    """Every round from features that are zeroed, with SciPy's dense solver in float64."""
    values, previous, made = features.copy(), None, []
    painted = np.zeros(grid, dtype=bool)
    for number in range(rounds):
        length = np.linalg.norm(values, axis=1, keepdims=True)
        unit = values / np.maximum(length, 1e-12)
        affinity = np.where(unit @ unit.T > np.float32(tau), 1.0, eps)
        degree = np.diag(affinity.sum(1))
        eigenvalues, vectors = scipy.linalg.eigh(degree - affinity, degree, subset_by_index=[1, 2])
        y = vectors[:, 0] * np.sign(vectors[np.abs(vectors[:, 0]).argmax(), 0])
        side = (y > y.mean()).reshape(grid)
        if sum(side[at] for at in ((0, 0), (0, -1), (-1, 0), (-1, -1))) >= 3:
            y, side = -y, ~side
        labels, _ = scipy.ndimage.label(side)
        mask = labels == labels.ravel()[y.argmax()]
        tied = labels.ravel()[y >= y.max() * (1 - 1e-7)]
        if number:
            union = (mask | previous).sum()
            if (mask & previous).sum() / union > 0.5 or mask.mean() <= 0.01:
                mask = np.zeros(grid, dtype=bool)
        made.append({"mask": mask, "exclusive": mask & ~painted, "gap": eigenvalues[1] - eigenvalues[0], "y": y})
        made[-1]["ambiguous"] = len(set(tied.tolist())) > 1 or abs(y.max() + y.min()) < 1e-7 * y.max()
        painted, previous = painted | mask, mask
        values[painted.ravel()] = 0
    return made


@given(seed=st.integers(0, 10**6), objects=st.integers(1, 4), noise=st.sampled_from([0.3, 1.0, 2.0]))
@settings(max_examples=40, deadline=None)
def test_equals_the_rules_with_zeroed_features(seed: int, objects: int, noise: float) -> None:
    grid = (7, 9)
    features = scene(seed, grid, objects, noise)
    wanted = by_hand(features, grid, 0.15, 1e-5, 4)
    for one, other in zip(maskcut(features, grid, rounds=4), wanted, strict=True):
        if other["gap"] < 1e-6 or np.abs(other["y"] - other["y"].mean()).min() < 1e-7 or other["ambiguous"]:
            return  # from here on rounding decides
        np.testing.assert_array_equal(one.mask, other["mask"])
        np.testing.assert_array_equal(one.exclusive, other["exclusive"])


def test_a_batch_is_its_images_one_by_one() -> None:
    grids = [(8, 8), (4, 16), (8, 8)]
    features = torch.from_numpy(np.stack([scene(seed, grid, 3, 0.5) for seed, grid in enumerate(grids)]))
    batch = cut_masks(similarities(normalise(features)), grids, 0.15, 1e-5, 3)
    for own, grid, rounds in zip(features, grids, batch, strict=True):
        for one, other in zip(rounds, maskcut(own, grid), strict=True):
            np.testing.assert_array_equal(one.mask, other.mask)
            assert one.seed == other.seed


def test_a_collapsed_network_has_no_object() -> None:
    (first, *others) = maskcut(np.ones((16, 4), dtype=np.float32), (4, 4))
    assert not any(part.any() for one in (first, *others) for part in (one.mask, one.component, one.exclusive))
    assert first.seed == -1
    assert isinstance(first, MaskCutRound)
    assert first.complete
    assert first.degenerate
    for features, message in ((np.full((9, 2), np.nan), "finite"), (np.ones((9, 2)), "do not fit")):
        with pytest.raises(ValueError, match=message):
            maskcut(features, (3, 3) if "finite" in message else (2, 3))
