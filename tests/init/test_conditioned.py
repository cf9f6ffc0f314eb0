from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, conditioned_
from dinoskip.init.config import ConditionedInit
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors
from dinoskip.settings.config import RawConfig, validate


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
    """Only query, key and value change."""
    model = tiny(**options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert conditioned_(model) is model
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"blocks.{index}.attn.qkv.weight" for index in range(2)}


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"qk_norm": True, "scale_attn_norm": True}])
def test_norms_of_queries_and_keys_stay_and_the_matrices_below_are_conditioned(options: dict[str, Any]) -> None:
    """Secs. 3.3 and A.2: the initialisation works on top of norms; the network computes with them as before."""
    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=0, **options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    conditioned_(model, seed=3)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"blocks.{index}.attn.qkv.weight" for index in range(2)}
    plain = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=0)
    conditioned_(plain, seed=3)
    assert torch.equal(model.blocks[1].attn.qkv.weight, plain.blocks[1].attn.qkv.weight)
    query, key, value, _ = head_factors(model.blocks[0].attn)
    for head in (*query, *key, value[:, :64]):  # float32 weights: 1e-6
        singular = torch.linalg.svdvals(head)
        assert float(singular.max() / singular.min()) == pytest.approx(1, abs=1e-5)
    assert bool(model(torch.randn(1, 3, 32, 32)).isfinite().all())


def test_heads_of_two_queries_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"conditioned_ cannot initialise blocks\.0\.attn, .*two queries and two"):
        conditioned_(timm.create_model("vit_tiny_patch16_224", depth=1, attn_layer="diff"))


def test_every_head_reads_the_same_coordinates() -> None:
    model = tiny()
    conditioned_(model)
    x = torch.randn(5, 192, dtype=torch.float64)
    _, _, value, _ = head_factors(model.blocks[1].attn)
    heads = (x @ value).unflatten(1, (3, 64))
    assert torch.equal(heads, x[:, None, :64].expand(5, 3, 64))


def test_wrong_option() -> None:
    with pytest.raises(ConfigError, match="v: 'shred' is none of shared, blocked"):
        conditioned_(tiny(), v="shred")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_one_part_alone(part: str) -> None:
    """The paper's ablation: the other two start as the default network's, bit for bit."""
    shape = {"name": "vit_tiny_patch8", "depth": 2, "img_size": 16}
    models = {
        "default": build_model(ModelConfig(**shape), 0),
        "whole": build_model(ModelConfig(**shape, init=ConditionedInit()), 0),
        "one": build_model(ModelConfig(**shape, init=ConditionedInit(parts=(part,))), 0),
    }
    for index in range(2):
        rows = {name: model.blocks[index].attn.qkv.weight.tensor_split(3) for name, model in models.items()}
        for number, name in enumerate(("query", "key", "value")):
            assert torch.equal(rows["one"][number], rows["whole" if name == part else "default"][number])
    same = [n for n, p in models["default"].named_parameters() if torch.equal(p, models["one"].get_parameter(n))]
    assert len(same) == len(list(models["default"].parameters())) - 2


def test_parts_in_place_leave_the_others() -> None:
    model = build_model(ModelConfig(name="vit_tiny_patch8", depth=1, img_size=16, skip=False), 5)
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    conditioned_(model, parts=["key"], seed=1)  # without the value matrix no skip is needed
    after = model.blocks[0].attn.qkv.weight
    changed = [not torch.equal(a, b) for a, b in zip(before.tensor_split(3), after.tensor_split(3), strict=True)]
    assert changed == [False, True, False]
    with pytest.raises(ConfigError, match=r"parts\.0: 'q' is none of query, key, value"):
        conditioned_(model, parts=["q"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"init\.parts\.0: 'q' is none of query, key, value"):
        validate(ModelConfig, RawConfig({"init": {"name": "conditioned", "parts": ["q"]}}))
    assert validate(ModelConfig, RawConfig({"skip": False, "init": {"name": "conditioned", "parts": ["query"]}}))
