from __future__ import annotations

from typing import Any

import pytest
import torch

from dinoskip.errors import ConfigError
from dinoskip.init import residual_free_, temperatures
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors


def tiny(**options: Any) -> Any:
    return create_model("vit_tiny_patch8", skip=False, depth=3, img_size=16, **options)


def test_value_output_is_the_forward_of_both_readings() -> None:
    """The readings differ by a factor that the next norm removes, not in direction."""
    products = []
    for reading in ("product", "factor"):
        model = tiny()
        residual_free_(model, reading=reading)  # type: ignore[arg-type]
        _, _, value, output = head_factors(model.blocks[0].attn)
        products.append(value @ output)
    assert torch.allclose(products[0] * 3, products[1], atol=1e-4)


def test_query_and_key_are_fresh_per_head_and_layer() -> None:
    model = tiny()
    residual_free_(model)
    queries = torch.cat([head_factors(block.attn)[0] for block in model.blocks])
    distances = torch.cdist(queries.flatten(1), queries.flatten(1)) + 100 * torch.eye(9, dtype=torch.float64)
    assert distances.min() > 5


def test_temperatures() -> None:
    assert temperatures(3, 2.0) == [0.5, 0.25, 0.125]
    assert temperatures(2, 2.0, first_layer=0) == [1.0, 0.5]
    assert temperatures(2, 2.0, mode="divide") == [2.0, 4.0]
    assert temperatures(4, 1.0) == [1.0] * 4
    with pytest.raises(ConfigError, match="beta=0 must be above 0"):
        temperatures(2, 0)
    with pytest.raises(ConfigError, match="mode 'times' is none of multiply, divide"):
        temperatures(2, mode="times")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reading": "both"}, "reading: 'both' is none of product, factor"),
        ({"alpha_qk": 0.0}, "alpha_qk: should be greater than 0"),
        ({"beta": -1.0}, "beta: should be greater than 0, was given -1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        residual_free_(tiny(), **options)


def test_layer_scale_is_refused() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16, init_values=0.1)
    with pytest.raises(ConfigError, match="residual_free_ cannot initialise block 1: it has LayerScale"):
        residual_free_(model)
