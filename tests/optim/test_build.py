from __future__ import annotations

import pytest
import torch
from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import SOAP, KLShampoo, MuonAdamW, MuonConfig, SoapConfig, build_optimizer, set_rates
from dinoskip.optim.config import EcsConfig, KLShampooConfig
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.keys import settings_for_key
from dinoskip.training.objectives import PretrainJob


def _student() -> nn.Module:
    return nn.ModuleDict({"backbone": create_model("vit_tiny_patch16", depth=2, img_size=32), "head": DINOHead(192, 8)})


def _named(optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    return {name: group for group in optimizer.param_groups for name in group["names"]}


@pytest.mark.parametrize(
    ("config", "kind"),
    [(SoapConfig(), SOAP), (EcsConfig(), SOAP), (KLShampooConfig(), KLShampoo), (MuonConfig(), MuonAdamW)],
)
def test_every_trainable_parameter_is_in_one_group_with_its_decay(config: object, kind: type) -> None:
    model = _student()
    optimizer = build_optimizer(model, config)  # type: ignore[arg-type]
    assert type(optimizer) is kind
    assert sorted(name for group in optimizer.param_groups for name in group["names"]) == sorted(
        name for name, p in model.named_parameters() if p.requires_grad
    )
    set_rates(optimizer, 0.25, 0.5)
    for name, group in _named(optimizer).items():
        assert group["lr"] == 0.25
        assert group["weight_decay"] == (0.0 if name.endswith("bias") or "norm" in name else 0.5)


def test_a_groups_learning_rate_is_scaled() -> None:
    optimizer = build_optimizer(_student(), SoapConfig())
    optimizer.param_groups[0]["lr_scale"] = 0.1
    set_rates(optimizer, 2.0, 0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 2.0]


def test_qkv_is_split_by_option_and_only_qkv() -> None:
    named = _named(build_optimizer(_student(), SoapConfig(split_qkv=True)))
    assert {name for name, group in named.items() if group["blocks"] == 3} == {
        f"backbone.blocks.{block}.attn.qkv.weight" for block in range(2)
    }
    assert all(group["blocks"] == 1 for group in _named(build_optimizer(_student(), SoapConfig())).values())


def test_muon_takes_hidden_matrices_and_adamw_the_rest() -> None:
    named = _named(build_optimizer(_student(), MuonConfig()))
    muon = {name for name, group in named.items() if "momentum" in group}
    assert "backbone.blocks.0.attn.qkv.weight" in muon
    assert "head.mlp.0.weight" in muon
    for name in ("backbone.patch_embed.proj.weight", "backbone.pos_embed", "backbone.cls_token", "head.last_v"):
        assert name in named
        assert name not in muon
    classifier = _named(build_optimizer(create_model("vit_tiny_patch16", depth=1, num_classes=3), MuonConfig()))
    assert "momentum" not in classifier["head.weight"]
    assert "momentum" in classifier["blocks.0.mlp.fc1.weight"]


def test_muon_moves_a_matrix_as_torchs_own() -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    pair = [nn.Parameter(weight.clone()) for _ in range(2)]
    ours = build_optimizer([("a.weight", pair[0])], MuonConfig(lr=1e-2, weight_decay=0.1))
    torchs = torch.optim.Muon([pair[1]], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for p, optimizer in zip(pair, (ours, torchs), strict=True):
            p.grad = weight.clone()
            optimizer.step()
    assert torch.equal(*pair)
    assert not torch.equal(pair[0].detach(), weight)


def test_patch_embedding_is_a_matrix_and_a_large_side_has_no_basis() -> None:
    model = nn.ParameterDict({"patch": nn.Parameter(torch.zeros(8, 3, 4, 4)), "last": nn.Parameter(torch.zeros(70, 8))})
    optimizer = build_optimizer(model, SoapConfig(max_precond_dim=64))
    assert isinstance(optimizer, SOAP)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert [one if one is None else len(one) for one in optimizer.bases(model["patch"])] == [8, 48]
    assert [one if one is None else len(one) for one in optimizer.bases(model["last"])] == [None, 8]


def test_names_and_keys_are_checked_and_adamw_is_meant_without_a_name() -> None:
    def job(**settings: object) -> PretrainJob:
        return validate(PretrainJob, RawConfig({"optimizer": settings}))

    assert job(lr=0.25).optimizer.name == "adamw"
    assert job(name="soap", precondition_frequency=7).optimizer == SoapConfig(precondition_frequency=7)
    for wrong, message in (
        ({"name": "saop"}, "did you mean soap"),
        ({"name": "soap", "precondition_freq": 3}, "did you mean precondition_frequency"),
        ({"name": "muon", "betas": [0.9, 1.0]}, "optimizer.betas"),
    ):
        with pytest.raises(ConfigError, match=message):
            job(**wrong)


def test_settings_that_came_later_leave_the_keys_of_what_was_published_alone() -> None:
    for config in (SoapConfig(), EcsConfig(), KLShampooConfig()):
        key = settings_for_key(config)
        assert {"stagger", "tf32"}.isdisjoint(key)
        assert settings_for_key(config.model_copy(update={"tf32": True})) == {**key, "tf32": True}
