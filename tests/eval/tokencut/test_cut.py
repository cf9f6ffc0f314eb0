"""TokenCut against a brute-force reference: dense float64 graph, scipy's generalised eigh, flood fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eval.tokencut.eigenvector as eigenvector
from eval.tokencut.cut import TokenCut, TokenCuts, cut, each, split, to_pixels, tokencut
from eval.tokencut.eigenvector import cut_vectors, dense_vector, lanczos
from eval.tokencut.graph import Graphs, build_graphs, normalise, similarities

GRID = (9, 12)


@dataclass
class Brute:
    values: np.ndarray
    y: np.ndarray
    seeds: list[int]
    mask: np.ndarray
    boxes: list[tuple[int, int, int, int]]

    @property
    def clear(self) -> bool:
        """Whether rounding cannot change the answer: simple eigenvalue, no token at the mean."""
        margin = np.abs(self.y - self.y.mean()).min() / np.abs(self.y).max()
        return bool(self.values[2] - self.values[1] > 1e-7 and margin > 1e-7)


def brute_force(x: np.ndarray, grid: tuple[int, int], tau: float = 0.2, eps: float = 1e-5) -> Brute:
    unit = torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1).numpy()
    a = np.where(unit @ unit.T > np.float32(tau), 1.0, eps)
    d = np.diag(a.sum(axis=1))
    values, vectors = scipy.linalg.eigh(d - a, d)
    y = vectors[:, 1]
    seeds = np.flatnonzero(np.abs(y) >= np.abs(y).max() * (1 - 1e-8)).tolist()
    if y[seeds[0]] <= y.mean():
        y = -y
    return Brute(values, y, seeds, (y > y.mean()).reshape(grid), [flood_box(y > y.mean(), grid, s) for s in seeds])


def flood_box(side: np.ndarray, grid: tuple[int, int], seed: int) -> tuple[int, int, int, int]:
    side = (side if side[seed] else ~side).reshape(grid)
    todo, seen = [divmod(seed, grid[1])], set()
    while todo:
        r, c = todo.pop()
        if (r, c) in seen or not (0 <= r < grid[0] and 0 <= c < grid[1]) or not side[r, c]:
            continue
        seen.add((r, c))
        todo += [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
    rows, columns = [r for r, _ in seen], [c for _, c in seen]
    return min(columns), min(rows), max(columns) + 1, max(rows) + 1


def regions(seed: int, grid: tuple[int, int] = GRID, noise: float = 0.5, count: int = 3, dim: int = 16) -> np.ndarray:
    """Blocks of tokens around shared prototypes."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(grid, dtype=int)
    for label in range(1, count):
        r, c = rng.integers(grid[0]), rng.integers(grid[1])
        labels[r : r + rng.integers(1, grid[0] + 1), c : c + rng.integers(1, grid[1] + 1)] = label
    x = rng.standard_normal((count, dim))[labels.ravel()] + noise * rng.standard_normal((labels.size, dim))
    return x.astype(np.float32)


def graphs_of(*images: np.ndarray, tau: float = 0.2, **options: bool) -> Graphs:
    return build_graphs(similarities(normalise(torch.from_numpy(np.stack(images)))), tau, 1e-5, **options)


def same(cut: TokenCut | TokenCuts, expected: Brute) -> None:
    assert isinstance(cut, TokenCut)
    assert cut.box == expected.boxes[0]
    assert cut.seed == expected.seeds[0]
    assert (cut.mask == expected.mask).all()
    assert cut.mask.ravel()[cut.seed]
    assert cut.tied.tolist() == expected.seeds
    gap = expected.values[2] - expected.values[1]
    error = np.linalg.norm(cut.eigenvector - expected.y) / np.linalg.norm(expected.y)
    assert error < max(1e-9, 1e-9 / gap)
    assert cut.eigenvalue == pytest.approx(expected.values[1], abs=1e-9)
    assert cut.gap == pytest.approx(gap, abs=1e-3 * gap + 1e-9) or not cut.degenerate


@given(
    seed=st.integers(0, 10**6),
    grid=st.sampled_from([(9, 12), (1, 80), (80, 1), (7, 7), (10, 11)]),
    noise=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    count=st.integers(2, 4),
)
@settings(max_examples=80, deadline=None)
def test_equals_brute_force(seed: int, grid: tuple[int, int], noise: float, count: int) -> None:
    x = regions(seed, grid, noise, count)
    expected = brute_force(x, grid)
    if expected.clear:
        same(tokencut(x, grid), expected)


@given(
    seed=st.integers(0, 10**6), tau=st.sampled_from([0.0, 0.2, 0.5]), cells=st.sampled_from([(1, 3), (2, 2), (3, 4)])
)
@settings(max_examples=40, deadline=None)
def test_tiny_grids_equal_brute_force(seed: int, tau: float, cells: tuple[int, int]) -> None:
    x = np.random.default_rng(seed).standard_normal((cells[0] * cells[1], 4)).astype(np.float32)
    expected = brute_force(x, cells, tau)
    if expected.clear:
        same(tokencut(x, cells, tau), expected)


@pytest.mark.parametrize("alone", [1, 2, 5])
def test_isolated_tokens(alone: int) -> None:
    x = np.zeros((108, 32), dtype=np.float32)
    x[:, 0] = 1
    x[:, 20:] = 0.3 * np.random.default_rng(0).standard_normal((108, 12))
    for number, token in enumerate(range(5, 5 + 20 * alone, 20)):  # each has a direction of its own
        x[token] = 0
        x[token, 1 + number] = 1
    expected = brute_force(x, GRID)
    cut = tokencut(x, GRID)
    same(cut, expected)
    assert isinstance(cut, TokenCut)
    assert len(cut.tied) == alone
    assert cut.ambiguous == (alone > 1)
    assert cut.passes > 0  # isolated tokens are twins, so Lanczos decides without the dense solver
    assert cut.gap == pytest.approx(expected.values[2] - expected.values[1], rel=1e-3)


@pytest.mark.parametrize("zeros", [1, 2, 30])
def test_zero_tokens_have_no_edge_even_to_themselves(zeros: int) -> None:
    x = regions(3, noise=0.3)
    x[np.arange(zeros) * 3] = 0
    same(tokencut(x, GRID), brute_force(x, GRID))


def test_disconnected_parts() -> None:
    x = np.zeros((108, 3), dtype=np.float32)
    labels = np.repeat([0, 1, 2], [54, 33, 21])
    x[np.arange(108), labels] = 1
    x += np.float32(0.01) * np.random.default_rng(1).random((108, 3), dtype=np.float32)
    same(tokencut(x, GRID), brute_force(x, GRID))


def test_similarity_equal_to_tau_is_no_edge() -> None:
    x = np.array([[1, 0], [0.5, np.sqrt(0.75)], [1, 0]], dtype=np.float32)
    unit = normalise(torch.from_numpy(x))
    tau = float(unit[0] @ unit[1])
    below = float(np.nextafter(np.float32(tau), np.float32(0)))
    assert graphs_of(x, tau=tau).dense(0)[0].tolist() == [1, 1e-5, 1]
    assert graphs_of(x, tau=below).dense(0)[0].tolist() == [1, 1, 1]


def test_object_at_the_border_and_component_of_the_seed() -> None:
    x = regions(0, noise=0.0)
    x[:] = [1.0] + [0.0] * 15
    grid = x.reshape(*GRID, 16)
    grid[6:, 9:] = grid[0, 0:2] = [0.0, 1.0] + [0.0] * 14  # one object in two parts: 9 cells and 2 cells
    cut = tokencut(x, GRID)
    assert isinstance(cut, TokenCut)
    assert cut.mask.sum() == 11
    assert cut.seed == 0  # all 11 are tied; the lowest wins
    assert cut.box == (0, 0, 2, 1)
    assert cut.ambiguous


def test_diagonal_cells_are_not_connected() -> None:
    x = np.tile(np.array([1.0, 0.0], dtype=np.float32), (108, 1))
    x.reshape(*GRID, 2)[[2, 3], [4, 5]] = [0.0, 1.0]
    cut = tokencut(x, GRID)
    assert isinstance(cut, TokenCut)
    assert cut.box == (4, 2, 5, 3)
    assert cut.component.sum() == 1


@pytest.mark.parametrize("x", [np.ones((108, 4)), np.zeros((108, 4)), np.eye(108), np.tile(np.eye(3), (36, 1))])
def test_without_a_second_eigenvector_there_is_no_cut(x: np.ndarray) -> None:
    """Complete, nothing joined by zero rows or by isolated ones, three equal cliques: no box, where there was one."""
    cut = tokencut(x, GRID)
    assert isinstance(cut, TokenCut)
    assert (cut.is_cut, cut.degenerate, cut.ambiguous, cut.seed, cut.box) == (False, True, False, -1, (-1, -1, -1, -1))
    assert np.isnan(cut.eigenvector).all()
    assert not cut.mask.any()
    assert not cut.component.any()
    assert cut.tied.size == 0
    assert cut.complete == (x == 1).all()
    assert to_pixels(cut.box, 16, (144, 192)) == (-1, -1, -1, -1)


def test_two_equal_cliques_are_cut_at_the_lowest_index() -> None:
    cut = tokencut(np.tile(np.eye(2), (54, 1)), GRID)
    assert isinstance(cut, TokenCut)
    assert (cut.is_cut, cut.seed, cut.ambiguous) == (True, 0, True)
    assert len(cut.tied) == 108


def test_scale_of_tokens_does_not_matter() -> None:
    x = regions(5)
    scaled = x * 2.0 ** np.random.default_rng(5).integers(-30, 30, (108, 1))
    assert tokencut(x, GRID).box == tokencut(scaled, GRID).box
    assert tokencut(x, GRID).box == tokencut(x * np.float32(1e30), GRID).box  # squares beyond float32


def test_batch_equals_single_images_for_numpy_and_torch() -> None:
    batch = np.stack([regions(seed) for seed in range(5)])
    cuts = tokencut(torch.from_numpy(batch).requires_grad_(), GRID)
    assert isinstance(cuts, TokenCuts)
    singles = [tokencut(one.astype(np.float64), GRID) for one in batch]
    assert [cut.box for cut in cuts] == [one.box for one in singles] == [tuple(box) for box in cuts.box.tolist()]
    np.testing.assert_array_equal(cuts.mask, np.stack([one.mask for one in singles]))
    np.testing.assert_array_equal(cuts.seed, [one.seed for one in singles])
    np.testing.assert_allclose(cuts.eigenvector, np.stack([one.eigenvector for one in singles]), atol=1e-9)


@pytest.mark.parametrize(
    ("x", "grid", "message"),
    [
        (np.ones((2, 4)), (1, 2), "at least 3"),
        (np.ones((0, 4)), (0, 0), "do not fit"),
        (np.ones((6, 4)), (2, 4), "do not fit"),
        (np.ones((2, 6, 4)), (2, 2), "do not fit"),
        (np.ones(6), (2, 3), "shape"),
        (np.full((6, 4), np.nan), (2, 3), "finite"),
        (np.full((6, 4), 1e300), (2, 3), "finite"),
        (np.ones((6, 4)) * 1j, (2, 3), "real"),
    ],
)
def test_bad_input_is_a_value_error(x: np.ndarray, grid: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokencut(x, grid)


def test_token_without_any_affinity_is_a_value_error() -> None:
    x = regions(1)
    x[7] = 0
    with pytest.raises(ValueError, match="token 7 has degree 0"):
        tokencut(x, GRID, eps=0.0)


def test_weighted_graph_equals_its_dense_solution() -> None:
    x = regions(8)
    graphs = graphs_of(x, binary=False)
    (fast,), slow = lanczos(graphs), dense_vector(graphs, 0)
    assert fast is not None
    assert min(np.abs(fast.y - slow.y).max(), np.abs(fast.y + slow.y).max()) < 1e-9
    assert tokencut(x, GRID, binary=False).box == flood_box(slow.y > slow.y.mean(), GRID, int(np.abs(slow.y).argmax()))


@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.3, 1.0]))
@settings(max_examples=20, deadline=None)
def test_error_bound_of_lanczos_holds(seed: int, noise: float) -> None:
    graphs = graphs_of(regions(seed, (12, 15), noise))
    (fast,), slow = lanczos(graphs), dense_vector(graphs, 0)
    if fast is None or slow.gap < 1e-6:
        return
    error = min((np.abs(fast.y - sign * slow.y) for sign in (1, -1)), key=np.max)
    assert (error <= 2 * fast.error + 1e-12).all()


def test_undecided_cut_goes_to_the_dense_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = graphs_of(regions(2))
    assert cut_vectors(graphs)[0].passes > 0
    monkeypatch.setattr(eigenvector, "_decides", lambda *_: False)
    assert cut_vectors(graphs)[0].passes == 0


def test_graphs_whose_weights_are_all_equal_are_told_without_solving(monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = regions(1)
    whole = np.ones_like(nearly) + 0.01 * nearly
    missing = whole.copy()
    missing[7] = -1
    graphs = graphs_of(whole, nearly, missing, np.zeros_like(whole), 2 * whole)
    assert graphs.facts.complete == [True, False, False, False, True]
    assert graphs.facts.unjoined == [False, False, False, True, False]
    weighted = build_graphs(torch.ones(1, 60, 60), 0.2, 1e-5, binary=False)
    assert weighted.facts.complete == [False]
    assert not cut_vectors(weighted)[0].is_cut, "all weights are 1: the eigenvalue is multiple"

    def none_of_these(*_: object) -> None:
        raise AssertionError("solved")

    monkeypatch.setattr(eigenvector, "dense_vector", none_of_these)
    monkeypatch.setattr(eigenvector, "lanczos", none_of_these)
    only = [*cut_vectors(graphs_of(whole, np.zeros_like(whole))), *cut_vectors(graphs_of(np.eye(108)))]
    assert [vector.is_cut for vector in only] == [False] * 3
    assert [vector.eigenvalue for vector in only] == pytest.approx([1.0, 1.0, 108e-5 / (1 + 107e-5)])


def graph_of(joined: np.ndarray) -> Graphs:
    """The graph whose tokens are joined as a bool matrix (n, n) says."""
    return build_graphs(torch.from_numpy(joined.astype(np.float32))[None], 0.2, 1e-5)


def copies(count: int, size: int, seed: int, links: str) -> np.ndarray:
    """A random graph so many times over, in a random order: by itself, in a ring, or each joined alike to a hub."""
    rng = np.random.default_rng(seed)
    own = rng.random((size, size)) < 0.3
    joined = np.kron(np.eye(count), own | own.T | np.eye(size, dtype=bool))
    if links == "ring":
        to_next = rng.random((size, size)) < 0.05
        joined += np.kron(np.roll(np.eye(count), 1, axis=1), to_next)
    elif links == "hub":
        to_hub = np.tile(rng.random((8, size)) < 0.1, (1, count))
        joined = np.block([[joined, to_hub.T], [np.zeros_like(to_hub), np.ones((8, 8))]])
    order = rng.permutation(len(joined))
    return ((joined + joined.T) > 0)[order][:, order]


@pytest.mark.parametrize("links", ["alone", "ring", "hub"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_equal_eigenvalues_of_a_symmetry_are_found(count: int, links: str) -> None:
    """One search of Krylov's kind meets one vector of an eigenvalue alone: what it does not see must not be a cut."""
    seen = 0
    for seed in range(4):
        graphs = graph_of(copies(count, 30, seed, links))
        (fast,), slow = lanczos(graphs), dense_vector(graphs, 0)
        assert slow.is_cut == (count == 2), "three alike have a plane of eigenvectors"
        assert cut_vectors(graphs)[0].is_cut == slow.is_cut
        assert (fast is not None) <= slow.is_cut
        seen += fast is not None
    assert seen >= (3 if count == 2 else 0), "a symmetry of two alone is not left to the dense solver"


@pytest.mark.parametrize(("n", "k"), [(9, 1), (50, 1), (60, 2), (200, 5)])
def test_closed_forms_of_a_clique_and_isolated_tokens(n: int, k: int) -> None:
    eps = 1e-5
    joined = np.eye(n)
    joined[k:, k:] = 1
    (vector,) = cut_vectors(graph_of(joined))
    d1, d2 = 1 + (n - 1) * eps, n - k + k * eps
    assert vector.eigenvalue == pytest.approx(eps * ((n - k) / d1 + k / d2), rel=1e-9)
    assert vector.is_cut
    third = n * eps / d1 if k > 1 else 1.0
    assert vector.eigenvalue + vector.gap == pytest.approx(third, rel=1e-4)


@pytest.mark.parametrize("n", [9, 60, 196])
def test_the_complete_graph_less_a_pair(n: int) -> None:
    """y is 1 and -1 on the pair and 0 elsewhere: those lie on the mean, background whichever way y is turned."""
    eps, joined = 1e-5, np.ones((n, n))
    joined[2, 4] = joined[4, 2] = 0
    (vector,) = cut_vectors(graph_of(joined))
    assert vector.eigenvalue == pytest.approx(1 - (1 - eps) / (n - 1 + eps), abs=1e-9)
    found = split(vector, (1, n))
    assert (found.is_cut, found.seed, found.box) == (True, 2, (2, 0, 3, 1))
    assert found.mask.sum() == 1
    assert found.ambiguous


@pytest.mark.parametrize("n", [7, 20, 61, 100])
def test_rings_have_no_cut_and_opened_ones_have(n: int) -> None:
    joined = np.eye(n) + np.roll(np.eye(n), 1, axis=1)
    (ring,) = cut_vectors(graph_of(joined + joined.T))
    assert not ring.is_cut
    assert ring.eigenvalue == pytest.approx(1 - (1 + 2 * np.cos(2 * np.pi / n)) / 3, abs=3e-5 * n)
    joined[-1, 0] = 0
    (chain,) = cut_vectors(graph_of(joined + joined.T))
    assert chain.is_cut
    assert split(chain, (1, n)).seed == 0, "both ends are tied: the lowest index"


def test_small_eigenvalues_that_differ_well_are_no_tie() -> None:
    """Three cliques: both eigenvalues are of the order of eps, those of the graph of cliques."""
    eps, sizes = 1e-5, np.array([9, 12, 30])
    owner = np.repeat([0, 1, 2], sizes)
    (vector,) = cut_vectors(graph_of(owner[:, None] == owner))
    degrees = sizes + (sizes.sum() - sizes) * eps
    between = eps * np.outer(sizes, sizes)
    np.fill_diagonal(between, 0)
    values = scipy.linalg.eigh(np.diag(between.sum(1)) - between, np.diag(sizes * degrees), eigvals_only=True)
    assert (vector.eigenvalue, vector.eigenvalue + vector.gap) == pytest.approx(tuple(values[1:]), rel=1e-6)
    assert vector.gap < 1e-4
    assert vector.is_cut


def kernels_here() -> list[str]:
    """OpenBLAS's kernels that this processor can run."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    needs = {"Haswell": "avx2", "Zen": "avx2", "SkylakeX": "avx512vl"}
    return [kernel for kernel, flag in needs.items() if flag in flags]


@pytest.mark.slow
@pytest.mark.skipif(len(kernels_here()) < 2, reason="this processor runs one kind of kernels")
def test_cuts_are_equal_under_every_kernel() -> None:
    """OpenBLAS takes its kernels by the processor: no cut may depend on which. A process a kernel, each with torch."""
    code = (
        "import json, numpy as np\n"
        "from eval.tokencut.cut import tokencut\n"
        "rng = np.random.default_rng(0)\n"
        "found = []\n"
        "for n, spread in ((64, 0.01), (64, 0.5), (100, 1.0), (64, 0.0)):\n"
        "    for _ in range(6):\n"
        "        x = rng.integers(-3, 4, (n, 6)) * spread + rng.integers(0, 2, 6)\n"
        "        side = int(n**0.5)\n"
        "        cut = tokencut(x, (side, side))\n"
        "        found.append([cut.is_cut, cut.seed, cut.box, cut.ambiguous, int(cut.mask.sum())])\n"
        "print(json.dumps(found))\n"
    )
    outputs = set()
    for kernel in kernels_here():
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    (same,) = outputs
    kinds = {cut[0] for cut in json.loads(same)}
    assert kinds == {True, False}


def mixed_batch() -> list[np.ndarray]:
    """Images of one number of tokens whose graphs converge at different passes, or not by Lanczos at all."""
    kinds = ((1, 0.1, 2), (2, 0.5, 3), (3, 1.0, 4), (4, 2.0, 2))
    images = [regions(seed, GRID, noise, count) for seed, noise, count in kinds]
    alone = images[0].copy()
    alone[[3, 50]] = np.eye(2, 16, dtype=np.float32) * 9
    images += [np.ones_like(alone), np.zeros_like(alone), alone]
    images += [np.random.default_rng(9).standard_normal(alone.shape).astype(np.float32)]
    return images


def test_batch_of_graphs_equals_single_ones() -> None:
    images = mixed_batch()
    graphs = graphs_of(*images)
    passes = [one.passes if one else None for one in lanczos(graphs)]
    assert None in passes  # constant features: no Lanczos
    assert len(set(passes)) > 3  # so the batch was made smaller at least twice
    similarity = similarities(normalise(torch.from_numpy(np.stack(images))))
    cuts = cut(similarity, [GRID] * len(images), 0.2, 1e-5)
    for image, one in zip(images, cuts, strict=True):
        single = tokencut(image, GRID)
        assert isinstance(single, TokenCut)
        assert (one.box, one.seed, one.passes, one.degenerate) == (
            single.box,
            single.seed,
            single.passes,
            single.degenerate,
        )
        np.testing.assert_array_equal(one.mask, single.mask)
        np.testing.assert_allclose(one.eigenvector, single.eigenvector, atol=1e-9)
        assert one.gap == pytest.approx(single.gap, rel=1e-6, abs=1e-12)


def test_grids_of_one_number_of_tokens_share_a_batch() -> None:
    images, grids = [regions(1, (9, 12)), regions(2, (12, 9)), regions(3, (6, 18))], [(9, 12), (12, 9), (6, 18)]
    cuts = cut(similarities(normalise(torch.from_numpy(np.stack(images)))), grids, 0.2, 1e-5)
    assert [one.box for one in cuts] == [tokencut(x, grid).box for x, grid in zip(images, grids, strict=True)]


def test_several_taus_share_similarities() -> None:
    x = regions(7, noise=1.0)
    similarity = similarities(normalise(torch.from_numpy(x[None])))
    before = similarity.clone()
    for tau in (0.1, 0.3, 0.2):
        assert (
            cut(similarity, [GRID], tau, 1e-5)[0].box
            == tokencut(x, GRID, tau).box
            == brute_force(x, GRID, tau).boxes[0]
        )
    assert torch.equal(similarity, before)


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    batch = torch.from_numpy(np.stack([*mixed_batch(), *(regions(seed, noise=0.7) for seed in range(20))]))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32 must not reach the similarities
    try:
        fast, slow = tokencut(batch.cuda(), GRID), tokencut(batch, GRID)
    finally:
        torch.set_float32_matmul_precision(before)
    assert isinstance(fast, TokenCuts)
    assert isinstance(slow, TokenCuts)
    for one, other in zip(fast, slow, strict=True):
        assert (one.box, one.seed, one.degenerate) == (other.box, other.seed, other.degenerate)
        np.testing.assert_allclose(one.eigenvector, other.eigenvector, atol=1e-8)


@pytest.mark.parametrize(
    ("box", "expected"),
    [((0, 0, 2, 1), (0, 0, 32, 16)), ((1, 2, 4, 3), (16, 32, 50, 40)), ((3, 2, 4, 3), (48, 32, 50, 40))],
)
def test_pixels_are_clipped_to_the_image(box: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert to_pixels(box, 16, (40, 50)) == expected


def test_workers_stay_a_few_calls_ahead_of_what_is_taken() -> None:
    called: list[int] = []
    found = each(lambda i: called.append(i) or -i, 5000, workers=2)  # type: ignore[func-returns-value]
    assert next(found) == 0
    time.sleep(0.1)
    assert len(called) < 50
    assert list(found) == [-i for i in range(1, 5000)]
    assert list(each(str, 0)) == []


def test_what_a_worker_raises_ends_the_others() -> None:
    called: list[int] = []

    def one(i: int) -> None:
        called.append(i)
        if i == 3:
            raise ValueError("the fourth")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="the fourth"):
        list(each(one, 5000, workers=2))
    assert len(called) < 50
    assert torch.get_num_threads() == threads


def test_batches_as_torch_arrays_are_the_single_graphs() -> None:
    """A GPU has its graphs as torch arrays, several at once: some symmetric, one in parts, one complete."""
    joined = np.stack([copies(count, 30, seed, "alone") for count, seed in ((2, 0), (2, 1))])
    noisy = graphs_of(*(regions(seed, (6, 10)) for seed in range(3)))
    edges = np.concatenate([joined, noisy.edges, np.ones((1, 60, 60)), copies(3, 20, 5, "ring")[None]])
    singles = [cut_vectors(graph_of(one > 0))[0] for one in edges]
    similarity = torch.from_numpy(edges.astype(np.float32))
    host = build_graphs(similarity, 0.2, 1e-5)
    parts = (torch.from_numpy(np.ascontiguousarray(part)) for part in (host.edges, host.degree, host.isolated))
    on_device = Graphs(*(next(parts), host.weight, host.floor), *parts, torch.from_numpy(host.finite), binary=True)
    for one, other in zip(cut_vectors(on_device), singles, strict=True):
        assert (one.is_cut, one.complete) == (other.is_cut, other.complete)
        if one.is_cut:
            assert split(one, (6, 10)).box == split(other, (6, 10)).box
            assert one.gap == pytest.approx(other.gap, rel=1e-3)
    assert [vector.is_cut for vector in singles][-2:] == [False, False]
