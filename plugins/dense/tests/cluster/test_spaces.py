"""Clusterings: the one map that scores clusters, k-means, and STEGO's centres against autograd one block at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from dinoskip.errors import ConfigError, DataError
from dinoskip.runtime.randomness import numpy_rng, torch_rng
from dinoskip_dense.cluster import Clustering, ClusteringConfig, cosine_clusterings, kmeans_clustering

CPU = torch.device("cpu")


def blobs(seed: int, images: int = 6, patches: int = 20, channels: int = 8, groups: int = 4) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    centres = 6 * rng.standard_normal((groups, channels))
    owner = rng.integers(0, groups, (images, patches))
    tokens = centres[owner] + rng.standard_normal((images, patches, channels))
    return (tokens * 10.0 ** rng.uniform(-1, 1, channels)).astype(np.float32), owner


def clusters_of(clustering: Clustering, tokens: np.ndarray) -> np.ndarray:
    return clustering.scores(torch.from_numpy(tokens)).argmax(-1).numpy()


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = set(zip(one.ravel().tolist(), other.ravel().tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize(
    "settings", [{"scale": "unit"}, {"scale": "standard"}, {"scale": "standard", "pca": 3}, {"scale": "none"}]
)
def test_well_separated_groups_are_found(settings: dict) -> None:
    tokens, owner = blobs(0)
    if settings["scale"] in {"unit", "none"}:
        tokens = (tokens / tokens.std((0, 1))).astype(np.float32)
    clustering = kmeans_clustering(tokens, 4, ClusteringConfig(restarts=5, **settings), 0, 1)
    assert same_partition(clusters_of(clustering, tokens), owner)
    again = kmeans_clustering(tokens, 4, ClusteringConfig(restarts=5, **settings), 0, 1)
    torch.testing.assert_close(clustering.weight, again.weight, rtol=0, atol=0)


def test_scores_find_the_nearest_centre_of_reduced_patches() -> None:
    """Leopart's way by scikit-learn: standardised, then reduced, then the nearest of k-means' centres."""
    tokens, _ = blobs(3, groups=9)
    flat = tokens.reshape(-1, 8).astype(np.float64)
    config = ClusteringConfig(protocol="leopart", pca=4, points=10**6)
    clustering = kmeans_clustering(tokens, 5, config, 0, 2)
    chosen = clusters_of(clustering, tokens).ravel()
    reduced = PCA(4).fit_transform(StandardScaler().fit_transform(flat))
    centres = np.stack([reduced[chosen == k].mean(0) for k in range(5)])
    nearest = ((reduced[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
    assert (nearest == chosen).mean() > 0.98  # k-means has converged: its centres are the means


def test_centres_are_learnt_as_if_every_block_were_alone() -> None:
    tokens = {block: blobs(block, channels=5)[0] for block in (1, 2, 3)}
    config = ClusteringConfig(protocol="stego", steps=25, batch_size=2)
    together = cosine_clusterings(tokens, 4, config, 7, CPU)
    for block, stored in tokens.items():
        centres = torch.randn(4, 5, generator=torch_rng(7, "clusters", block)).requires_grad_()
        optimizer = torch.optim.Adam([centres], lr=5e-3)
        order = np.concatenate([rng.permutation(6) for rng in [numpy_rng(7, "clusters", "order", 6)] for _ in range(9)])
        for step in range(25):
            batch = torch.from_numpy(stored[np.sort(order[2 * step : 2 * step + 2])]).flatten(0, 1)
            unit, normed = (torch.nn.functional.normalize(one, dim=1) for one in (batch, centres))
            cosines = unit @ normed.T
            hard = torch.nn.functional.one_hot(cosines.argmax(1), 4)
            loss = -(hard * cosines).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wanted = torch.nn.functional.normalize(centres.detach(), dim=1)
        torch.testing.assert_close(together[block].weight, wanted.T, rtol=0, atol=2e-6)


def test_what_cannot_be_clustered_is_one_line() -> None:
    tokens, _ = blobs(0, images=1, patches=3)
    with pytest.raises(ConfigError, match="4 were asked of 3 patches"):
        kmeans_clustering(tokens, 4, ClusteringConfig(), 0, 1)
    with pytest.raises(ConfigError, match="pca: 50 components were asked of 8 channels"):
        kmeans_clustering(tokens, 2, ClusteringConfig(protocol="leopart"), 0, 1)
    tokens[0, 0, 0] = np.nan
    for fit in (
        lambda: kmeans_clustering(tokens, 2, ClusteringConfig(), 0, 1),
        lambda: cosine_clusterings({1: tokens}, 2, ClusteringConfig(protocol="stego", steps=2), 0, CPU),
    ):
        with pytest.raises(DataError, match="not finite"):
            fit()
