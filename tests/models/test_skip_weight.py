"""Weighted skips: the formulas, both ends bit for bit, the golden cases, and what a weights file says of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.init import ModelConfig, build_model
from dinoskip.models import Backbone, Block, VitConfig, create_model, load_backbone, save_weights
from dinoskip.models.export import refuse_skipless_weights
from dinoskip.models.skip_weight import let_skips_change_, weigh_skips_
from dinoskip.models.timm_registry import save_timm_folder
from dinoskip.models.transformers_layout import save_transformers_folder
from dinoskip.models.vit import Vit
from dinoskip.optim import build_optimizer
from dinoskip.optim.config import AdamWConfig
from dinoskip.settings.config import dump
from dinoskip.settings.vit_config import SkipWeight
from tests.helpers.golden_next import GOLDEN, arrays, cases, golden

SMALL: dict[str, Any] = {"name": "vit_mini_patch8", "depth": 3, "img_size": 16}
ENDS = [(1.0, True), (0.0, False)]


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def network(changing: bool = False, **settings: Any) -> Any:
    """A network of three blocks, whose weights do not depend on its skips."""
    model = build_model(ModelConfig(**SMALL, **settings), 0)
    if changing:
        let_skips_change_(model.blocks)
    return model


def test_golden_folder_is_used() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("../shared/golden/next is absent")
    assert len(cases("dial")) == 7


@pytest.mark.parametrize("changing", [False, True])
@golden("dial")
def test_blocks_compute_what_is_recorded(case: dict[str, Any], changing: bool) -> None:
    recorded, setting = arrays(case), SkipWeight(end=case["end"], sublayers=case["schedule"])
    weights = setting.weights(setting.first, case["depth"])
    np.testing.assert_allclose(weights, recorded["skip_weights"], rtol=0, atol=1e-12)
    assert weights[-1][1] == case["end"]
    assert setting.product(case["depth"]) == pytest.approx(case["expected"]["product_of_weights"], abs=1e-12)
    model = Vit(
        img_size=8, patch_size=8, embed_dim=case["dim"], depth=case["depth"], num_heads=case["heads"], num_classes=0,
        mlp_ratio=case["mlp_ratio"], block_fn=Block, norm_layer=partial(nn.LayerNorm, eps=case["layernorm_eps"]),
    )  # fmt: skip
    model.load_state_dict({name: value for name, value in recorded.items() if name.startswith("blocks.")}, strict=False)
    if changing:
        let_skips_change_(model.blocks)
    weigh_skips_(model, weights)
    middles: list[Tensor] = []
    tokens, largest = recorded["tokens"], 0.0
    for block, after, out in zip(model.blocks, recorded["after_attention"], recorded["out"], strict=True):
        handle = block.norm2.register_forward_pre_hook(lambda _, inputs: middles.append(inputs[0]))
        tokens = block(tokens)
        handle.remove()
        for found, wanted in ((middles[-1], after), (tokens, out)):
            largest = max(largest, float((found.detach() - wanted).abs().max() / wanted.abs().max()))
    print(f"largest deviation {largest:.1e} of the largest value")
    assert largest < 5e-6


@golden("dialtime")
def test_weights_in_training_time_are_the_recorded_ones(case: dict[str, Any]) -> None:
    recorded = arrays(case)
    for number, given_ in enumerate(case["schedules"]):
        total = given_.pop("total_steps")
        weights = [SkipWeight(**given_).at(step, total) for step in range(total + 1)]
        np.testing.assert_allclose(weights, recorded[f"weight_{number}"], rtol=0, atol=1e-12)
        assert weights[-1] == given_["end"]


@given(
    end=st.floats(0, 1), start=st.floats(0, 1), fraction=st.floats(0, 1), depth=st.integers(1, 30),
    total=st.integers(1, 500), place=st.floats(0, 1), shape=st.sampled_from(["linear", "cosine"]),
)  # fmt: skip
def test_formulas(end: float, start: float, fraction: float, depth: int, total: int, place: float, shape: Any) -> None:
    """Written out as in SPEC: xiao7199/decayed_Identity_shortcuts by depth, ours in time, both together."""
    setting = SkipWeight(end=end, start=start, fraction=fraction, shape=shape, sublayers="linear")
    step, ramp = round(place * total), round(fraction * total)
    value = setting.at(step, total)
    if step >= ramp:
        assert value == end
    else:
        share = step / ramp if shape == "linear" else (1 - np.cos(np.pi * step / ramp)) / 2
        assert value == pytest.approx(start * (1 - share) + end * share, abs=1e-12)
    line = 1 - np.linspace(0, 1, 2 * depth) * (1 - value)
    weights = setting.weights(value, depth)
    np.testing.assert_allclose(weights, line.reshape(depth, 2), rtol=0, atol=1e-12)
    assert (weights[0][0], weights[-1][1]) == (1.0, value)


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("weight", "skip"), ENDS)
def test_both_ends_are_bit_equal_forwards_and_backwards(
    weight: float, skip: bool, training: bool, changing: bool
) -> None:
    plain, weighted = network(skip=skip), network(changing, skip_weight=weight)
    results = []
    for model in (plain, weighted):
        out = model.train(training)(images())
        out.square().sum().backward()
        results.append([out, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("changing", [False, True])
def test_a_weight_of_zero_leaves_the_addition_out(changing: bool) -> None:
    """0 x would carry what is not finite."""
    block = network(changing, skip_weight=0.0).blocks[0]
    block.norm1 = nn.Identity()
    block.attn = nn.Identity()
    x = torch.full((1, 2, 128), torch.inf)
    block.attn.forward = torch.zeros_like
    assert block(x).isfinite().all()


@pytest.mark.parametrize("sublayers", ["constant", "linear"])
@pytest.mark.parametrize("changing", [False, True])
def test_the_network_is_the_formula_in_float64(changing: bool, sublayers: str) -> None:
    model = network(changing, skip_weight={"end": 0.3, "sublayers": sublayers}).double().eval()
    weigh_skips_(model, model_weights := SkipWeight(end=0.3, sublayers=sublayers).weights(0.3, 3))  # type: ignore[arg-type]
    x = model.norm_pre(model._pos_embed(model.patch_embed(images().double())))
    for block, (first, second) in zip(model.blocks, model_weights, strict=True):
        normed = F.layer_norm(x, (128,), block.norm1.weight, block.norm1.bias, 1e-6)
        qkv = normed @ block.attn.qkv.weight.T + block.attn.qkv.bias
        q, k, v = qkv.view(*x.shape[:2], 3, 2, 64).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.mT / 8).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = first * x + mixed @ block.attn.proj.weight.T + block.attn.proj.bias
        normed = F.layer_norm(x, (128,), block.norm2.weight, block.norm2.bias, 1e-6)
        hidden = F.gelu(normed @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
        x = second * x + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    torch.testing.assert_close(model.forward_features(images().double()), model.norm(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("changing", [False, True])
def test_checkpointed_activations_give_the_same_gradients(changing: bool) -> None:
    gradients = []
    for again in (False, True):
        model = network(changing, skip_weight=0.4)
        model.set_grad_checkpointing(again)
        model.train()(images()).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_weights_that_change_are_no_state_and_move_with_the_network() -> None:
    model = network(changing=True, skip_weight={"end": 0, "fraction": 0.5})
    assert model.blocks[0].changing.tolist() == [1, 1]
    assert set(model.state_dict()) == set(create_model("vit_mini_patch8", depth=3, img_size=16).state_dict())
    weigh_skips_(model, [(0.25, 0.5)] * 3)
    assert model.double().blocks[2].changing.dtype == torch.float64
    assert model.blocks[2].changing.tolist() == [0.25, 0.5]
    assert model.blocks[2].skip_weights == (0.25, 0.5)


INITS: list[dict[str, Any]] = [
    {"name": "trunc_normal"}, {"name": "skipless"}, {"name": "mimetic"}, {"name": "residual_free"}, {"name": "mae"},
    {"name": "calibrated", "mixing_heads": 1},
]  # fmt: skip


@pytest.mark.parametrize("init", INITS, ids=lambda init: init["name"])
def test_first_weights_are_those_of_the_network_it_ends_as(init: dict[str, Any]) -> None:
    """The arms of a study thus begin alike, and the calibrated network is the one that remains."""
    seen = images(4) if init["name"] == "calibrated" else None
    skipless, annealed = (
        build_model(ModelConfig(**SMALL, init=init, **one), 0, images=seen)  # type: ignore[arg-type]
        for one in ({"skip": False}, {"skip_weight": {"end": 0, "fraction": 0.6}})
    )
    assert annealed.blocks[0].skip_weights == (1, 1)
    assert skipless.blocks[0].skip_weights == (0, 0)
    mine, others = annealed.state_dict(), skipless.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)


def test_conditioned_heads_that_need_a_skip_are_refused_where_it_goes() -> None:
    with pytest.raises(ValidationError, match="init conditioned"):
        ModelConfig(init={"name": "conditioned"}, skip_weight={"end": 0, "fraction": 0.6})  # type: ignore[arg-type]
    ModelConfig(init={"name": "conditioned"}, skip_weight=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip": False, "skip_weight": 0.5}, "leave it out, or take skip=true"),
        ({"skip": "mlp", "skip_weight": 0.5}, "leave it out, or take skip=true"),
        ({"skip_weight": 1.5}, "less than or equal to 1"),
        ({"skip_weight": {"end": -0.1}}, "greater than or equal to 0"),
        ({"skip_weight": {"fraction": 2}}, "less than or equal to 1"),
        ({"skip_weight": True}, "valid dictionary"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        VitConfig(**settings)


def test_layer_scale_goes_with_a_weight_but_not_with_zero() -> None:
    kept = create_model("vit_mini_patch8", depth=2, img_size=16, init_values=1e-5, skip_weight=SkipWeight(end=0.5))
    assert kept.blocks[1].skip_weights == (0.5, 0.5)
    with pytest.raises(ConfigError, match="LayerScale without a skip"):
        create_model("vit_mini_patch8", depth=2, init_values=1e-5, skip_weight=SkipWeight(sublayers="linear"))


@pytest.mark.parametrize(
    ("weight", "drop_path"),
    [(0.5, 0.1), (0.0, 0.0), ({"end": 0, "fraction": 0.5}, 0.0), ({"start": 0, "end": 1, "fraction": 1}, 0.0)],
)  # fmt: skip
def test_drop_path_only_where_skips_stay(weight: Any, drop_path: float) -> None:
    assert ModelConfig(skip_weight=weight, drop_path=0.1).drop_path_in_training == drop_path


def test_settled_and_dumped() -> None:
    annealed = ModelConfig(skip_weight={"end": 0, "fraction": 0.6})  # type: ignore[arg-type]
    assert (annealed.first.skip, annealed.last.skip) == (True, False)
    assert annealed.settled(0.25).skip_weight == SkipWeight(end=0.25)
    assert annealed.settled(0.25).skip is True
    by_depth = VitConfig(skip_weight=SkipWeight(sublayers="linear"))
    assert by_depth.last.skip_weight == SkipWeight(end=0, sublayers="linear")
    assert "skip_weight" not in dump(VitConfig())
    assert dump(VitConfig(skip_weight=0.7))["skip_weight"] == {"end": 0.7, "sublayers": "constant"}  # type: ignore[arg-type]
    assert ModelConfig.model_validate(dump(annealed)) == annealed


@pytest.mark.parametrize("weight", [0.4, {"end": 0.2, "sublayers": "linear"}])
def test_weights_files_say_it_everywhere(weight: Any, tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, skip_weight=weight)
    model, file = build_model(config, 0).eval(), tmp_path / "w.safetensors"
    save_weights(file, model.state_dict(), config, {})
    with torch.no_grad():
        wanted = model.forward_features(images())
        assert torch.equal(load_backbone(f"weights:{file}").model.forward_features(images()), wanted)
        save_timm_folder(tmp_path / "timm", model.state_dict(), config, {})
        loaded = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
        assert torch.equal(loaded.forward_features(images()), wanted)
    with pytest.raises(ConfigError, match="transformers has no ViT with skip_weight"):
        save_transformers_folder(tmp_path / "hf", model.state_dict(), config)
    with pytest.raises(WeightsError, match="weights of a network with skip_weight"):
        refuse_skipless_weights(file, "this")
    facts = Backbone.from_model(model).beside_weights
    assert any(fact.startswith("skip weights [(") for fact in facts)


@pytest.mark.parametrize(("weight", "skip"), ENDS)
def test_features_at_the_ends_have_the_keys_they_always_had(weight: float, skip: bool) -> None:
    keys = [Backbone.from_model(network(**one)).beside_weights for one in ({"skip": skip}, {"skip_weight": weight})]
    assert keys[0] == keys[1]


def test_layer_scale_is_timms_and_is_not_decayed(tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, layer_scale=0.3, skip_weight=0.5)  # type: ignore[arg-type]
    model = build_model(config, 0).eval()
    assert all(torch.allclose(block.ls2.gamma, torch.tensor(0.3)) for block in model.blocks)
    x = images().double()
    tokens = model.double().norm_pre(model._pos_embed(model.patch_embed(x)))
    for block in model.blocks:
        tokens = 0.5 * tokens + block.ls1.gamma * block.attn(block.norm1(tokens))
        tokens = 0.5 * tokens + block.ls2.gamma * block.mlp(block.norm2(tokens))
    torch.testing.assert_close(model.forward_features(x), model.norm(tokens), rtol=1e-12, atol=1e-12)
    groups = build_optimizer(model, AdamWConfig()).param_groups
    decayed = {name for group in groups if group["weight_decay"] for name in group["names"]}
    assert decayed
    assert not any("gamma" in name for name in decayed)


@pytest.mark.parametrize("weight", [None, 0.5])
def test_layer_scale_stands_in_weights_files(weight: float | None, tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, layer_scale=1.0, skip_weight=weight)  # type: ignore[arg-type]
    model = build_model(config, 0).eval()
    save_timm_folder(tmp_path / "timm", model.state_dict(), config, {})
    with torch.no_grad():
        wanted = model.forward_features(images())
        loaded = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
        assert torch.equal(loaded.forward_features(images()), wanted)
        ours = load_backbone(f"weights:{tmp_path / 'timm' / 'model.safetensors'}").model
        assert torch.equal(ours.forward_features(images()), wanted)
    assert "layer_scale" not in dump(VitConfig())


@pytest.mark.parametrize("settings", [{"skip": False}, {"skip": "mlp"}, {"skip_weight": {"end": 0, "fraction": 0.6}}])
def test_layer_scale_without_skips_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="layer_scale: without a skip connection it erases the signal"):
        VitConfig(layer_scale=1e-5, **settings)
