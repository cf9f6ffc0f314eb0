"""Building and configuration; what every initialisation must do is in tests/conformance/test_initialisations.py."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from timm.layers import DropPath
from torch import nn

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.init import ModelConfig, build_model, trunc_normal_
from dinoskip.init.assign import assign
from dinoskip.init.build import initialise
from dinoskip.init.config import SkiplessInit, TruncNormalInit, init_for_skipless
from dinoskip.models import create_model
from dinoskip.settings.config import RawConfig, dump, validate
from dinoskip.settings.keys import settings_for_key

TINY = {"name": "vit_tiny_patch8", "depth": 2, "img_size": 16}


@torch.no_grad()
def test_default_statistics() -> None:
    model = build_model(ModelConfig(name="vit_tiny_patch8", depth=2, img_size=32), 0)
    block = model.blocks[0]
    for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
        assert layer.weight.std() == pytest.approx(0.02, rel=0.03)
        assert (layer.bias == 0).all()
    assert model.pos_embed.std() == pytest.approx(0.02, rel=0.05)
    assert model.cls_token.std() == pytest.approx(0.02, rel=0.2)
    bound = (3 * 8 * 8) ** -0.5
    weight = model.patch_embed.proj.weight
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.03)
    assert model.patch_embed.proj.bias.abs().max() <= bound
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in model.modules() if isinstance(m, nn.LayerNorm))


@torch.no_grad()
def test_default_covers_timms_parts() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16, reg_tokens=2, init_values=0.3, num_classes=4)
    trunc_normal_(model, 1)
    assert (model.blocks[0].ls1.gamma == torch.tensor(0.3)).all()
    assert 0 < model.reg_token.abs().max() < 1e-5
    assert model.head.weight.std() == pytest.approx(0.02, rel=0.2)


def test_a_parameter_without_a_rule_is_named() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16)
    model.register_parameter("mystery", nn.Parameter(torch.zeros(2)))
    with pytest.raises(ConfigError, match="parameter mystery of a Vit"):
        trunc_normal_(model)


def test_model_is_ready_to_train() -> None:
    model = build_model(ModelConfig(**TINY, skip=False, init=SkiplessInit()), 0)
    assert model.training
    assert all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    model(torch.randn(1, 3, 16, 24)).sum().backward()


def test_default_dtype_does_not_matter() -> None:
    config = ModelConfig(**TINY, skip=False, init=SkiplessInit())
    first = build_model(config, 0).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        second = build_model(config, 0).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_shared_parts_are_the_same_whatever_the_initialisation() -> None:
    default = build_model(ModelConfig(**TINY), 5).state_dict()
    skipless = build_model(ModelConfig(**TINY, skip=False, init=SkiplessInit()), 5).state_dict()
    for name in ("patch_embed.proj.weight", "pos_embed", "cls_token"):
        assert torch.equal(default[name], skipless[name])


@pytest.mark.parametrize("skip", [True, False])
def test_drop_path(skip: bool) -> None:
    config = ModelConfig(**TINY, skip=skip)
    rates = [m.drop_prob for m in build_model(config, 0, drop_path=0.2).modules() if isinstance(m, DropPath)]
    assert rates == (pytest.approx([0.2, 0.2]) if skip else [])  # the first of two blocks has rate 0
    assert not [m for m in build_model(config, 0).modules() if isinstance(m, DropPath)]


def test_what_stays_unset_is_an_error() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16)
    model.register_buffer("unset", torch.full((2,), torch.nan))
    with pytest.raises(WeightsError, match="left 1 tensors unset or not finite: unset"):
        initialise(model, TruncNormalInit(), 0)


def test_assigning_twice_or_wrongly_is_an_error() -> None:
    model = nn.Linear(2, 3)
    ones = torch.ones(3, 2)
    assert assign(model, [("weight", ones)]) == {"weight"}
    for wrong in ([("weight", ones), ("weight", ones)], [("wieght", ones)], [("weight", ones.T)]):
        with pytest.raises(ValueError, match="assigned twice, unknown or of another shape"):
            assign(model, wrong)


def test_configuration() -> None:
    config = validate(ModelConfig, RawConfig({"skip": False, "init": {"name": "skipless", "alpha": 2, "c": [2, 3]}}))
    assert isinstance(config.init, SkiplessInit)
    assert config.init.c == (2.0, 3.0)
    assert validate(ModelConfig, RawConfig(dump(config))) == config
    with pytest.raises(ConfigError) as caught:
        validate(ModelConfig, RawConfig({"init": {"name": "skipless", "alfa": 2}, "drop_path": 1.0}))
    assert Counter(caught.value.problems) == Counter(
        [
            "config: init.alfa: unknown key (did you mean alpha?)",
            "config: drop_path: should be less than 1, was given 1.0",
        ]
    )
    with pytest.raises(ConfigError, match=r"'skiples' is none of .*did you mean skipless\?"):
        validate(ModelConfig, RawConfig({"init": {"name": "skiples"}}))


@pytest.mark.parametrize(("name", "alpha"), [("vit_small_patch16", 1.8), ("vit_base_patch16", 2.0)])
def test_a_skipless_run_without_an_initialisation_takes_the_papers(
    name: str, alpha: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "dinoskip"):
        config = init_for_skipless(validate(ModelConfig, RawConfig({"name": name, "skip": False})))
    assert isinstance(config.init, SkiplessInit)
    assert config.init.alpha == alpha
    assert "model.skip=false without model.init: initialised as in the paper" in caplog.text
    assert len(caplog.records) == 1


def test_the_default_can_be_asked_for_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = validate(ModelConfig, RawConfig({"skip": False, "init": {"name": "default"}}))
    with caplog.at_level("INFO", "dinoskip"):
        assert init_for_skipless(asked) == asked
        assert "it hardly learns" in caplog.text
        assert asked == validate(ModelConfig, RawConfig({"skip": False, "init": {"name": "trunc_normal"}}))
        caplog.clear()
        for other in ({}, {"skip": "attention"}, {"skip": False, "init": {"name": "skipless", "alpha": 1.0}}):
            config = validate(ModelConfig, RawConfig(other))
            assert init_for_skipless(config) == config
        assert not caplog.records


@pytest.mark.parametrize(("how", "gains"), [("suo", (2.0, 1.0)), ("orthogonal", (1.0, 1.0))])
@torch.no_grad()
def test_mlps_of_a_default_start_may_be_those_of_the_skipless_one(how: str, gains: tuple[float, float]) -> None:
    """Table 1's plain skipless rows may have them: the paper does not say. Attention and all else start as before."""
    config = ModelConfig(**TINY, skip=False, init=TruncNormalInit(mlp=how))  # type: ignore[arg-type]
    state, plain = (build_model(one, 3).state_dict() for one in (config, ModelConfig(**TINY, skip=False)))
    ours = build_model(ModelConfig(**TINY, skip=False, init=SkiplessInit(mlp=how)), 3).state_dict()  # type: ignore[arg-type]
    for name, tensor in state.items():
        assert torch.equal(tensor, (ours if ".mlp." in name else plain)[name]), name
    for layer, gain in zip(("fc1", "fc2"), gains, strict=True):
        values = torch.linalg.svdvals(state[f"blocks.1.mlp.{layer}.weight"].double())
        assert torch.allclose(values, torch.tensor(gain, dtype=torch.float64), atol=1e-5)


def test_the_default_mlp_is_not_in_keys() -> None:
    assert settings_for_key(TruncNormalInit()) == {"name": "trunc_normal"}
    assert settings_for_key(TruncNormalInit(mlp="suo")) == {"name": "trunc_normal", "mlp": "suo"}
