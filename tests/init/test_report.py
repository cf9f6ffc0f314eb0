from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import timm
import torch

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, report
from dinoskip.init.config import SkiplessInit
from dinoskip.models.attention_sites import head_factors

TINY = {"name": "vit_tiny_patch8", "depth": 2, "img_size": 16}


def test_rows_of_an_initialised_model() -> None:
    model = build_model(ModelConfig(**TINY, skip=False, init=SkiplessInit()), 0)
    rows = report(model)
    assert [row.block for row in rows] == [1, 2]
    for row in rows:
        assert row.kappa_vo == pytest.approx(1.0, abs=1e-4)
        assert (row.vo_min, row.vo_max) == pytest.approx((9.0, 9.0), abs=1e-3)
        assert row.logit_diagonal == pytest.approx(15.8, abs=0.5)
        assert row.logit_spread == pytest.approx(3.05, abs=0.1)
        assert (row.fc1_gain, row.fc2_gain) == pytest.approx((2.0, 1.0), abs=1e-5)
        assert row.kappa_q < 1.4
        assert row.token_cosine is None
    json.dumps([asdict(row) for row in rows], allow_nan=False)


@torch.no_grad()
def test_rows_of_a_default_model_by_brute_force() -> None:
    model = build_model(ModelConfig(**TINY), 0)
    row = report(model)[1]
    query, key, value, output = head_factors(model.blocks[1].attn)
    products = [q @ k.T for q, k in zip(query, key, strict=True)]
    values = torch.linalg.svdvals(value @ output)
    assert row.kappa_vo == pytest.approx(float(values[0] / values[-1]))
    assert row.kappa_vo > 100
    assert row.logit_diagonal == pytest.approx(float(sum(p.trace() for p in products)) / 3 / 8)
    assert row.logit_spread == pytest.approx(float(sum(p.norm() for p in products)) / 3 / 8)
    assert row.fc1_gain == pytest.approx(
        float(torch.linalg.svdvals(model.blocks[1].mlp.fc1.weight).square().mean().sqrt())
    )


def test_rows_with_images() -> None:
    model = build_model(ModelConfig(**TINY, skip=False), 0).eval()
    rows = report(model, torch.randn(2, 3, 16, 24))
    assert rows[0].token_cosine is not None
    assert rows[1].token_cosine is not None
    assert rows[0].token_cosine < rows[1].token_cosine <= 1
    assert rows[1].effective_rank is not None
    assert 1 <= rows[1].effective_rank <= 7


def test_models_where_the_numbers_mean_nothing() -> None:
    with pytest.raises(ConfigError, match="attention of block 1 is not plain"):
        report(timm.create_model("vit_tiny_patch16_224", depth=1, qk_norm=True))
    with pytest.raises(ConfigError, match="a Linear is not supported"):
        report(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
