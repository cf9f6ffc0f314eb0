from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dinoskip.models import DINOHead

SIZES = {"hidden_dim": 32, "bottleneck_dim": 8}


def reference(head: DINOHead, x: torch.Tensor) -> torch.Tensor:
    """torch's own weight_norm on a plain linear layer, as facebookresearch/dino builds it."""
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, head.last_v.shape[0], bias=False), dim=0)
    with torch.no_grad():
        last.parametrizations.weight.original0.copy_(head.last_g)
        last.parametrizations.weight.original1.copy_(head.last_v)
    hidden = F.gelu(head.mlp[0](x))
    hidden = F.gelu(head.mlp[2](hidden))
    out: torch.Tensor = last(F.normalize(head.mlp[4](hidden), dim=-1, p=2))
    return out


@pytest.mark.parametrize("norm_last_layer", [True, False])
def test_equals_the_weight_normed_reference(norm_last_layer: bool) -> None:
    head = DINOHead(16, 40, norm_last_layer=norm_last_layer, **SIZES)
    if not norm_last_layer:
        with torch.no_grad():
            head.last_g.uniform_(0.5, 2)
    x = torch.randn(5, 16)
    assert torch.allclose(head(x), reference(head, x), atol=1e-6)


def test_fixed_gain_bounds_logits_and_is_no_parameter() -> None:
    head = DINOHead(16, 40, **SIZES)
    with torch.no_grad():
        head.last_v.mul_(100)
    assert head(torch.randn(50, 16)).abs().max() <= 1 + 1e-6
    assert "last_g" not in dict(head.named_parameters())
    assert torch.equal(head.state_dict()["last_g"], torch.ones(40, 1))
    assert head.last_layer_parameters() == [head.last_v]


def test_trained_gain_is_a_parameter_of_the_last_layer() -> None:
    head = DINOHead(16, 40, norm_last_layer=False, **SIZES)
    assert [id(p) for p in head.last_layer_parameters()] == [id(head.last_v), id(head.last_g)]
    head(torch.randn(3, 16)).sum().backward()
    assert head.last_g.grad is not None


def test_states_of_both_kinds_fit_each_other() -> None:
    student = DINOHead(16, 40, norm_last_layer=False, **SIZES)
    teacher = DINOHead(16, 40, **SIZES)
    teacher.load_state_dict(student.state_dict(), strict=True)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    first = DINOHead(16, 40, **SIZES, seed=3)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        second = DINOHead(16, 40, **SIZES, seed=3)
    finally:
        torch.set_default_dtype(torch.float32)
    other = DINOHead(16, 40, **SIZES, seed=4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name].float())
    assert not torch.equal(first.last_v, other.last_v)
    assert all((m.bias == 0).all() for m in first.mlp if isinstance(m, nn.Linear))
    assert float(first.mlp[0].weight.detach().std()) == pytest.approx(0.02, rel=0.2)
