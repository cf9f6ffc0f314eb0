from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from dinoskip.errors import ConfigError
from dinoskip.init import mimetic_
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors


@pytest.fixture(scope="module")
def model() -> VisionTransformer:
    made = create_model("vit_tiny_patch8", depth=2, img_size=32, reg_tokens=2)
    mimetic_(made)
    return made


def test_value_output_product_is_near_minus_identity(model: VisionTransformer) -> None:
    _, _, value, output = head_factors(model.blocks[0].attn)
    product = value @ output
    assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.01)
    noise = product + 0.4 * torch.eye(192, dtype=torch.float64)
    assert float(noise.std()) == pytest.approx(0.4 / 192**0.5, rel=0.05)
    # the square root of the spectrum on both sides
    assert torch.allclose(torch.linalg.svdvals(value), torch.linalg.svdvals(output), atol=1e-4)


def test_query_key_product_is_near_identity(model: VisionTransformer) -> None:
    query, key, _, _ = head_factors(model.blocks[0].attn)
    squares = query.mT @ query
    assert torch.allclose(squares, key.mT @ key, atol=1e-4)
    assert ((query * key).sum((-2, -1)) / 8).min() > 4
    assert not torch.allclose(query[0], query[1], atol=0.1)


def test_positions_are_sines_and_cosines(model: VisionTransformer) -> None:
    position = model.pos_embed[0].double()
    assert (position[:3] == 0).all()  # CLS and two registers
    grid = position[3:].reshape(4, 4, 4, 48)
    assert torch.allclose(grid[:, 2, 0, 0], torch.full((4,), 2.0, dtype=torch.float64).sin(), atol=1e-6)
    assert torch.allclose(grid[3, :, 3, 0], torch.full((4,), 3.0, dtype=torch.float64).cos(), atol=1e-6)
    assert torch.allclose(grid[:, :, 0::2].square() + grid[:, :, 1::2].square(), torch.ones_like(grid[:, :, ::2]))


def test_biases_are_zero_and_the_mlp_is_left_alone() -> None:
    made = create_model("vit_tiny_patch8", depth=1, img_size=16)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.01)
    mlp = {name: tensor.clone() for name, tensor in made.blocks[0].mlp.state_dict().items()}
    mimetic_(made, seed=3)
    assert (made.blocks[0].attn.qkv.bias == 0).all()
    assert (made.blocks[0].attn.proj.bias == 0).all()
    assert all(torch.equal(tensor, mlp[name]) for name, tensor in made.blocks[0].mlp.state_dict().items())


def test_width_that_sines_do_not_fit() -> None:
    made = create_model("vit_tiny_patch8", depth=1, img_size=16, embed_dim=66, num_heads=3)
    with pytest.raises(ConfigError, match="width divisible by 4, not 66"):
        mimetic_(made)
