from __future__ import annotations

from typing import Any

import pytest
import torch

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, conditioned_
from dinoskip.models import create_model
from dinoskip.models.vit import head_factors


def tiny(**options: Any) -> Any:
    return create_model("vit_tiny_patch8", depth=2, img_size=16, **options)


@pytest.mark.parametrize("skip", [False, "mlp"])
def test_shared_values_without_the_attention_skip_are_refused_and_the_model_left_alone(skip: Any) -> None:
    model = tiny(skip=skip)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match='v="shared" needs the attention\'s skip'):
        conditioned_(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    conditioned_(model, v="blocked")
    with pytest.raises(ConfigError, match='config: init conditioned: v="shared" needs the attention\'s skip'):
        validate(ModelConfig, RawConfig({"skip": skip, "init": {"name": "conditioned"}}))
    validate(ModelConfig, RawConfig({"skip": skip, "init": {"name": "conditioned", "v": "blocked"}}))


@pytest.mark.parametrize("options", [{"skip": "attention"}, {"init_values": 0.1}])
def test_skips_and_layer_scale_are_fine(options: dict[str, Any]) -> None:
    """And only query, key and value change."""
    model = tiny(**options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert conditioned_(model) is model
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"blocks.{index}.attn.qkv.weight" for index in range(2)}


def test_every_head_reads_the_same_coordinates() -> None:
    model = tiny()
    conditioned_(model)
    x = torch.randn(5, 192, dtype=torch.float64)
    _, _, value, _ = head_factors(model.blocks[1].attn)
    heads = (x @ value).unflatten(1, (3, 64))
    assert torch.equal(heads, x[:, None, :64].expand(5, 3, 64))


def test_wrong_option() -> None:
    with pytest.raises(ConfigError, match="v='shred' is none of shared, blocked"):
        conditioned_(tiny(), v="shred")  # type: ignore[arg-type]
