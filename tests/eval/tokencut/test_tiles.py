"""Graphs without a matrix against dense ones: edges, degrees, cuts, masks, objects, and what they take of memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import eval.tokencut.eigenvector as eigenvector
import eval.tokencut.graph as graph
import eval.tokencut.memory as memory
import eval.tokencut.tiles as tiles
from eval.tokencut.cut import TokenCut, component_of, tokencut
from eval.tokencut.eigenvector import cut_vectors, dense_vector, restarted_vector
from eval.tokencut.graph import Graphs, build_graphs, normalise, similarities
from eval.tokencut.lost import lost
from eval.tokencut.memory import LARGEST_DENSE, LARGEST_DRAWN, graph_bytes, images_at_once, packs, peak_bytes
from eval.tokencut.tiles import ComputedEdges, LargeEdges, PackedEdges, Tiles

GRID = (13, 17)  # 221 tokens: no multiple of eight, several tiles of 64
TILE = 64
KINDS = ("packed", "computed")


@pytest.fixture(params=KINDS)
def without_a_matrix(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let every graph of more than 48 tokens be one that has no matrix; of either kind of edges."""
    monkeypatch.setattr(graph, "LARGEST_DENSE", 48)
    monkeypatch.setattr(eigenvector, "LARGEST_DENSE", 48)
    monkeypatch.setattr(tiles, "TILE", TILE)
    monkeypatch.setattr(tiles, "packs", lambda tokens: request.param == "packed")
    return str(request.param)


def features(seed: int = 0, grid: tuple[int, int] = GRID, noise: float = 0.6) -> np.ndarray:
    """Descriptors float32 (N, 24) of an object on a background, with noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices(grid)
    inside = ((rows - grid[0] / 2) ** 2 + (columns - grid[1] / 3) ** 2 < 12).ravel()
    sides = rng.standard_normal((2, 24))
    return (sides[inside.astype(int)] + noise * rng.standard_normal((len(inside), 24))).astype(np.float32)


def unit_of(tokens: np.ndarray) -> torch.Tensor:
    return normalise(torch.from_numpy(tokens)[None])


def both(tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> tuple[Graphs, Graphs]:
    """The graph without a matrix, and the dense one."""
    large = build_graphs(similarities(unit_of(tokens)), 0.2, 1e-5)
    assert isinstance(large.edges, LargeEdges)
    monkeypatch.setattr(graph, "LARGEST_DENSE", LARGEST_DENSE)
    return large, build_graphs(similarities(unit_of(tokens)), 0.2, 1e-5)


def test_edges_degrees_and_probe_equal_the_dense_graph_s(
    without_a_matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = features()
    tokens[[5, 100]] = 0  # like nothing, not even themselves
    tokens[7] = 40 * np.eye(24)[0] - 20  # isolated, or nearly
    large, dense = both(tokens, monkeypatch)
    np.testing.assert_array_equal(large.degree, dense.degree)
    np.testing.assert_array_equal(large.isolated, dense.isolated)
    assert large.finite.all()
    for mine, theirs in zip(large.probe(), dense.probe(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    vector = np.random.default_rng(1).standard_normal((1, len(tokens)))
    np.testing.assert_allclose(large.apply(vector), dense.apply(vector), rtol=0, atol=1e-12)
    taken = large.take(np.array([0]))
    np.testing.assert_array_equal(taken.apply(vector), large.apply(vector))
    (edges,) = large.edges.graphs
    assert isinstance(edges, PackedEdges if without_a_matrix == "packed" else ComputedEdges)


@pytest.mark.parametrize("count", [64, 65, 128, 199, 221])
def test_bits_are_the_edges_both_ways(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", TILE)
    unit = unit_of(features()[:count])
    packed = PackedEdges.of(Tiles(unit), 0, 0.2)
    edges = np.unpackbits(packed.bits, axis=0, bitorder="little")[:count].astype(bool)
    np.testing.assert_array_equal(edges, edges.T)
    rows = unit[0].numpy()
    np.testing.assert_array_equal(edges, rows @ rows.T > np.float32(0.2))


def test_edges_that_are_computed_multiply_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", TILE)
    edges = ComputedEdges(Tiles(unit_of(features())), 0, 0.2)
    vector = np.random.default_rng(2).standard_normal(len(features()))
    product = edges.product(torch.from_numpy(vector))
    assert isinstance(product, torch.Tensor)
    np.testing.assert_array_equal(product.numpy(), edges.product(vector))
    stacked = LargeEdges((edges, edges)).product(torch.from_numpy(np.stack([vector, 2 * vector])), 0.5)
    np.testing.assert_allclose(stacked[1].numpy(), product.numpy(), rtol=1e-12)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_cuts_equal_those_of_the_dense_graph(
    without_a_matrix: str, seed: int, binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = features(seed)
    large = tokencut(tokens, GRID, binary=binary)
    monkeypatch.undo()
    dense = tokencut(tokens, GRID, binary=binary)
    assert isinstance(large, TokenCut)
    assert isinstance(dense, TokenCut)
    assert large.is_cut
    assert (large.box, large.seed, large.tied.tolist()) == (dense.box, dense.seed, dense.tied.tolist())
    np.testing.assert_array_equal(large.mask, dense.mask)
    np.testing.assert_allclose(large.eigenvector, dense.eigenvector, rtol=0, atol=1e-9 / dense.gap)
    assert large.eigenvalue == pytest.approx(dense.eigenvalue, abs=1e-9)


def test_batches_are_cut_as_single_images(without_a_matrix: str) -> None:
    batch = np.stack([features(seed) for seed in range(3)])
    assert [cut.box for cut in tokencut(batch, GRID)] == [tokencut(tokens, GRID).box for tokens in batch]  # type: ignore[union-attr]


@pytest.mark.parametrize("k", [1, 20])
def test_lost_equals_that_of_the_dense_similarities(
    without_a_matrix: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = features(4)
    large = lost(tokens, GRID, k)
    monkeypatch.undo()
    dense = lost(tokens, GRID, k)
    assert (large.box, large.seed, large.tied.tolist()) == (dense.box, dense.seed, dense.tied.tolist())
    np.testing.assert_array_equal(large.mask, dense.mask)


def test_non_finite_features_and_complete_graphs_are_told(without_a_matrix: str) -> None:
    tokens = features()
    assert tokencut(np.ones_like(tokens), GRID).complete is True  # type: ignore[union-attr]
    tokens[3, 2] = np.nan
    with pytest.raises(ValueError, match="finite"):
        tokencut(tokens, GRID)


@pytest.mark.parametrize("seed", range(3))
def test_the_restarted_search_finds_the_dense_solver_s_vector(seed: int) -> None:
    graphs = build_graphs(similarities(unit_of(features(seed))), 0.2, 1e-5)
    restarted, dense = restarted_vector(graphs, 0), dense_vector(graphs, 0)
    assert restarted.eigenvalue == pytest.approx(dense.eigenvalue, abs=1e-10)
    assert restarted.gap == pytest.approx(dense.gap, abs=1e-10)
    sign = np.sign(restarted.y @ dense.y)
    np.testing.assert_allclose(sign * restarted.y, dense.y, rtol=0, atol=1e-9 / dense.gap)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_restarted_search_sees_equal_eigenvalues(count: int) -> None:
    """Cliques that are alike: of three there is a plane of vectors, of two a single one."""
    side = 30
    joined = np.kron(np.eye(count), np.ones((side, side)))
    n, eps = len(joined), 1e-5
    degree = (1 - eps) * joined.sum(1)[None] + eps * n
    known = np.ones((1, n), dtype=bool)
    graphs = Graphs(joined[None], 1 - eps, eps, degree, ~known, known, True)
    assert restarted_vector(graphs, 0).is_cut == dense_vector(graphs, 0).is_cut == (count == 2)


def test_what_the_search_does_not_find_is_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenvector, "second_vector", lambda apply, degree: None)
    vector = restarted_vector(build_graphs(similarities(unit_of(features())), 0.2, 1e-5), 0)
    assert not vector.is_cut


def test_large_graphs_that_lanczos_leaves_open_are_searched_again(
    without_a_matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eigenvector, "lanczos", lambda graphs: [None] * len(graphs.degree))
    tokens = features(1)
    (vector,) = cut_vectors(build_graphs(similarities(unit_of(tokens)), 0.2, 1e-5))
    assert vector.passes == 0
    monkeypatch.undo()
    dense = tokencut(tokens, GRID)
    assert isinstance(dense, TokenCut)
    mask = ((vector.y > vector.y.mean()) == (vector.y[dense.seed] > vector.y.mean())).reshape(GRID)
    assert component_of(mask, dense.seed)[1] == dense.box


def test_no_array_of_all_pairs_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graph, eigenvector, memory):
        monkeypatch.setattr(module, "LARGEST_DENSE", 1000)
    for module in (tiles, memory):
        monkeypatch.setattr(module, "TILE", 256)
    grid = (60, 61)
    tokens = features(0, grid)
    tracemalloc.start()
    try:
        found = tokencut(tokens, grid)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, TokenCut)
    assert found.is_cut
    assert peak < graph_bytes(*tokens.shape), "what a plan says is not exceeded"
    assert peak < 2 * len(tokens) ** 2, "two bytes a pair; a dense graph has 13"


def test_bytes_and_images_at_once() -> None:
    gigabytes = 10**9
    assert graph_bytes(47_600, 384, 4 * gigabytes) < gigabytes
    assert graph_bytes(200_000, 384, 4 * gigabytes) < 2 * gigabytes, "no bits: 5 GB of them would not fit"
    assert not packs(200_000, 4 * gigabytes)
    assert packs(47_600, 4 * gigabytes)
    sizes = [graph_bytes(tokens, 384, 64 * gigabytes) for tokens in (196, 784, 1850, LARGEST_DENSE)]
    assert sizes == sorted(sizes)
    for tokens in (784, LARGEST_DENSE, LARGEST_DRAWN, 47_600):
        at_once = images_at_once(tokens, 384, 64, 8 * gigabytes)
        assert 1 <= at_once <= 64
        assert at_once * graph_bytes(tokens, 384, 8 * gigabytes) <= 8 * gigabytes
    assert images_at_once(LARGEST_DENSE, 384, 4, 1000) == 1, "an image must be cut"
    assert peak_bytes(784, 384, 1) == graph_bytes(784, 384)


FOLDER = Path(__file__).parents[4] / "shared" / "golden" / "tokencut"


@pytest.mark.skipif(not (FOLDER / "index.json").is_file(), reason="../shared/golden/tokencut is absent")
def test_golden_boxes_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graph, eigenvector):
        monkeypatch.setattr(module, "LARGEST_DENSE", 0)
    cases = json.loads((FOLDER / "index.json").read_text())
    for case in [case for case in cases if case["cls"] in {"exact", "tie"}]:
        with np.load(FOLDER / case["file"]) as stored:
            data = dict(stored)
        if len(data["feats"]) > 900:  # a dozen of them take as long as all others
            continue
        grid = (int(data["grid_hw"][0]), int(data["grid_hw"][1]))
        cut = tokencut(data["feats"], grid, float(data["tau"]), float(data["eps"]), binary=bool(data["binary"]))
        assert isinstance(cut, TokenCut)
        assert cut.seed == data["canonical_seed"], case["file"]
        assert cut.tied.tolist() == data["tie_tokens"].tolist(), case["file"]
        if case["cls"] == "exact":
            np.testing.assert_array_equal(cut.mask, data["ref_bipartition"], err_msg=case["file"])
