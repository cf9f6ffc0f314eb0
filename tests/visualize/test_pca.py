"""PatchPCA against scikit-learn, sign and chunk invariance, colours and alignment."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from visualize.pca import CHUNK_ROWS, PatchPCA, procrustes, to_rgb


def tokens(seed: int, n: int = 300, dim: int = 20, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sources = rng.exponential(size=(n, 5)) * [5, 4, 3, 2, 1]
    return sources @ rng.standard_normal((5, dim)) + 0.1 * rng.standard_normal((n, dim)) + offset


@given(seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1e4]))
@settings(max_examples=15, deadline=None)
def test_equals_sklearn_up_to_sign(seed: int, offset: float) -> None:
    x = tokens(seed, offset=offset)
    mine, theirs = PatchPCA(3).fit(x), PCA(3, svd_solver="full").fit(x)
    signs = np.sign((mine.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(mine.components_, theirs.components_ * signs[:, None], atol=1e-7)
    np.testing.assert_allclose(mine.transform(x), theirs.transform(x) * signs, atol=1e-6)
    np.testing.assert_allclose(mine.explained_variance_, theirs.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(mine.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)


def test_chunks_and_many_rows_give_the_same_basis() -> None:
    x = tokens(1, n=2 * CHUNK_ROWS + 17, dim=6)
    whole = PatchPCA(3).fit(x)
    for pieces in (list(np.array_split(x, 7)), x.reshape(1, -1, 6), torch.from_numpy(x)):
        np.testing.assert_allclose(PatchPCA(3).fit(pieces).components_, whole.components_, atol=1e-9)
    assert whole.transform(x).shape == (len(x), 3)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_order_of_images_does_not_matter(seed: int) -> None:
    images = tokens(seed, n=24 * 30, dim=12).reshape(24, 30, 12).astype(np.float16)
    order = np.random.default_rng(seed).permutation(24)
    one, other = PatchPCA(3).fit(images), PatchPCA(3).fit([images[i] for i in order])
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-9)  # signs, too
    np.testing.assert_allclose(one.transform(images)[order], other.transform(images[order]), atol=1e-8)


def test_memory_map_equals_sklearn_in_less_memory(tmp_path: Path) -> None:
    """float16 tokens on disk, several times what is held: chunks, their product with themselves, and no more."""
    path, shape = tmp_path / "tokens.npy", (300, 196, 64)
    stored = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    stored[:] = tokens(4, n=300 * 196, dim=64).reshape(shape) + 3
    stored.flush()
    mapped = np.load(path, mmap_mode="r")
    tracemalloc.start()
    mine = PatchPCA(3).fit(mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * CHUNK_ROWS * 64 * 8 < mapped.size * 2
    theirs = PCA(3, svd_solver="full").fit(mapped.reshape(-1, 64))
    signs = np.sign((mine.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(mine.components_, theirs.components_ * signs[:, None], atol=1e-6)
    np.testing.assert_allclose(mine.explained_variance_, theirs.explained_variance_, rtol=1e-6)


def test_scores_are_positively_skewed_whatever_the_sign_of_the_data() -> None:
    x = tokens(2)
    for data in (x, -x):
        scores = PatchPCA(3).fit(data).transform(data)
        assert ((scores**3).mean(axis=0) > 0).all()


def test_unskewed_component_has_a_fixed_sign() -> None:
    line = np.linspace(-1, 1, 11)[:, None] * [[1.0, -3.0]]
    assert PatchPCA(1).fit(line).components_[0, 1] > 0
    assert PatchPCA(1).fit(-line).components_[0, 1] > 0


def test_leading_axes_are_kept_and_half_precision_read() -> None:
    x = tokens(3, n=24).reshape(2, 3, 4, 20)
    basis = PatchPCA(2).fit(x)
    assert basis.transform(x).shape == (2, 3, 4, 2)
    assert basis.transform(torch.from_numpy(x).to(torch.bfloat16)).shape == (2, 3, 4, 2)


def test_constant_tokens_have_zero_scores() -> None:
    x = np.full((9, 4), 7.0)
    assert not PatchPCA(3).fit(x).transform(x).any()


@pytest.mark.parametrize("bad", [np.ones((1, 4)), np.ones((9, 2)), [], np.array([[np.nan] * 4, [1.0] * 4])])
def test_unusable_tokens_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"components need|finite"):
        PatchPCA(3).fit(bad)


def test_one_shot_generator_and_wrong_width_are_refused() -> None:
    with pytest.raises(ValueError, match="generator"):
        PatchPCA(3).fit(chunk for chunk in [tokens(6)])
    with pytest.raises(ValueError, match="channels"):
        PatchPCA(3).fit(tokens(6)).transform(np.ones((2, 3)))


def test_rgb_spans_the_robust_range_of_each_channel() -> None:
    scores = np.linspace(0, 1, 101)[:, None] * [1.0, -10.0, 0.0] + 5
    scores[50] = 1e6  # an outlier does not squeeze the others
    colours = to_rgb(scores)
    assert colours.dtype == np.uint8
    assert colours[0].tolist() == [0, 255, 128]
    assert colours[100].tolist() == [255, 0, 128]
    assert len(np.unique(colours[:, 0])) > 90


def test_rgb_mask_scales_by_the_foreground_and_blackens_the_rest() -> None:
    scores = np.arange(12.0).reshape(2, 2, 3)
    mask = np.array([[True, False], [False, True]])
    colours = to_rgb(scores, (0, 1), mask)
    assert colours.shape == (2, 2, 3)
    assert not colours[~mask].any()
    assert colours[0, 0].tolist() == [0, 0, 0]
    assert colours[1, 1].tolist() == [255, 255, 255]
    assert not to_rgb(scores, mask=np.zeros((2, 2), bool)).any()
    with pytest.raises(ValueError, match="shape"):
        to_rgb(np.ones((4, 2)))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_procrustes_undoes_a_rotation_and_is_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = rng.standard_normal((50, 3))
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    np.testing.assert_allclose(procrustes(source, source @ turn), turn, atol=1e-9)
    target = rng.standard_normal((50, 3))
    best = procrustes(source, target)
    np.testing.assert_allclose(best @ best.T, np.eye(3), atol=1e-12)
    other = np.linalg.qr(best + 0.3 * rng.standard_normal((3, 3)))[0]
    assert np.linalg.norm(source @ best - target) <= np.linalg.norm(source @ other - target) + 1e-9


def test_procrustes_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="aligned"):
        procrustes(np.ones((4, 3)), np.ones((5, 3)))
