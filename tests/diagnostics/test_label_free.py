"""DSE, RankMe and position bias: golden cases, closed forms, and what they say of networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dinoskip.diagnostics.dse import Clusters, clusters_of, dse, effective_rank_of, k_means, random_order
from dinoskip.diagnostics.label_free import choices, dse_curve, label_free, turned_images
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.models import Backbone
from tests.helpers.golden_next import arrays, golden


@golden("dse")
def test_golden_dse(case: dict[str, Any]) -> None:
    given, expected = arrays(case), case["expected"]
    if case["name"].startswith("checkpoints") or "inter" in given:
        curve = dse_curve(*(given[name].tolist() for name in ("inter", "intra", "dim")))
        assert curve.weight == pytest.approx(expected["lambda"], abs=1e-9)
        np.testing.assert_allclose(curve.values, given["dse"].numpy(), rtol=0, atol=1e-9)
        assert curve.peaks == given["peaks"].tolist()
        assert curve.chosen == given["chosen"].tolist()
        return
    labels = Clusters(given["local_labels"], given["global_labels"])
    found = dse(given["features"], labels, given["permutations"], case["images_per_group"],
                normalise=case["normalised"])  # fmt: skip
    values = {
        "spread": found.spread, "code_inter": found.inter, "code_intra_image": found.intra_image,
        "code_intra_batch": found.intra_batch, "code_dim": found.dim, "code_dse": found.dse,
        "paper_inter": found.paper_inter, "paper_intra": found.paper_intra, "paper_dim": found.paper_dim,
    }  # fmt: skip
    for name in values.keys() & expected.keys():
        assert values[name] == pytest.approx(expected[name], rel=2e-5), name


@golden("posbias")
def test_golden_position_bias(case: dict[str, Any]) -> None:
    given, expected = arrays(case), case["expected"]
    found = position_bias(given["features"], tuple(case["grid"]), case["folds"], case["ridge"])
    for name in ("r2_row", "r2_column", "r2"):
        assert getattr(found, name) == pytest.approx(expected[name], abs=1e-4)
    for name in ("position_share", "image_share", "position_share_corrected"):
        assert getattr(found, name) == pytest.approx(expected[name], abs=1e-6)
    torch.testing.assert_close(found.predictions.float(), given["predictions"], rtol=0, atol=2e-4)


def test_k_means_finds_clusters_that_lie_apart_and_is_the_same_each_time() -> None:
    rng = torch.Generator().manual_seed(0)
    centres = 20 * torch.randn(4, 6, generator=rng, dtype=torch.float64)
    truth = torch.arange(40) % 4
    points = centres[truth] + torch.randn(40, 6, generator=rng, dtype=torch.float64)
    labels = k_means(points, 4)
    assert len({(a, b) for a, b in zip(truth.tolist(), labels.tolist(), strict=True)}) == 4
    assert labels.equal(k_means(points, 4))
    assert len(k_means(points[:3], 5).unique()) == 3


def test_dse_is_higher_for_tight_clusters_in_more_dimensions() -> None:
    rng = torch.Generator().manual_seed(1)
    centres = torch.randn(3, 16, generator=rng)
    values = []
    for width in (0.05, 0.8):
        x = centres[torch.arange(16) % 3] + width * torch.randn(8, 16, 16, generator=rng)
        values.append(dse(x, clusters_of(x, 3, 6), random_order(8, 16)).dse)
    assert values[0] > values[1] + 0.1


def test_effective_rank_of_equal_directions_is_their_number_and_of_one_is_one() -> None:
    assert effective_rank_of(torch.eye(5)) == pytest.approx(5)
    assert effective_rank_of(torch.ones(5, 4)) == pytest.approx(1)


def test_features_that_are_places_are_read_off_and_features_of_images_are_not() -> None:
    grid = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).flatten(0, 1)
    found = position_bias(grid.expand(6, -1, -1), (4, 4))
    assert found.r2 == pytest.approx(1, abs=1e-2)
    assert (found.position_share, found.image_share) == pytest.approx((1, 0))
    own = torch.arange(6.0)[:, None, None].expand(-1, 16, 2)
    found = position_bias(own, (4, 4))
    assert found.r2 <= 0
    assert (found.position_share, found.image_share) == pytest.approx((0, 1))


def test_turned_images_are_the_same_pixels_at_other_places() -> None:
    images = torch.rand(12, 3, 8, 8)
    turned = turned_images(images)
    assert turned.equal(turned_images(images))
    assert not turned.equal(images)
    assert turned.flatten(1).sort().values.equal(images.flatten(1).sort().values)


def test_every_block_of_a_network_is_measured() -> None:
    config = ModelConfig(name="vit_mini_patch8", depth=2, img_size=32, drop_path=0.0)  # type: ignore[call-arg]
    backbone = Backbone.from_model(build_model(config, 0))
    rows = label_free(backbone, torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert [row.block for row in rows] == [1, 2]
    assert all(np.isfinite(list(vars(row).values())).all() for row in rows)
    assert all(1 <= row.rankme <= 10 and 1 <= row.rankme_patches <= 10 for row in rows)


def test_each_measure_chooses_an_epoch() -> None:
    def rows(dim: float, rank: float, position: float) -> list[dict[str, float]]:
        row = {
            "inter": 1.0 + dim,
            "intra": 0.5,
            "dim": dim,
            "rankme": rank,
            "rankme_patches": rank,
            "position_r2_turned": position,
        }
        return [{"block": 1, **dict.fromkeys(row, 0.0)}, {"block": 2, **row}]

    by_epoch = {0: rows(9, 9, -9), 1: rows(0.1, 2, 0.5), 2: rows(0.3, 5, 0.4), 3: rows(0.2, 3, 0.1)}
    assert choices(by_epoch) == {"DSE": 2, "RankMe": 2, "RankMe of patches": 2, "position": 3}
    assert choices({0: by_epoch[0], 1: by_epoch[1]}) == {}
