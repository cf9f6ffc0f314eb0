"""Requirements on every optimizer: round trip by name, bit-equal resume, missing, zero and odd gradients, bf16."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dinoskip.optim import (
    AdamWConfig,
    EcsConfig,
    KLShampooConfig,
    MuonConfig,
    OptimizerConfig,
    SoapConfig,
    build_optimizer,
    set_rates,
)
from dinoskip.optim.preconditioned import PreconditionedOptimizer
from dinoskip.settings.config import RawConfig, validate
from dinoskip.training.checkpoint import load_optimizer_tensors, optimizer_tensors

CONFIGS: dict[str, OptimizerConfig] = {
    "adamw": AdamWConfig(lr=1e-2),
    "soap": SoapConfig(lr=1e-2, precondition_frequency=3),
    "soap reference shapes": SoapConfig(lr=1e-2, precondition_frequency=2, as_matrix=False, precondition_1d=True),
    "soap merged, split, normalised": SoapConfig(
        lr=1e-2, precondition_frequency=2, merge_dims=True, max_precond_dim=20, split_qkv=True, normalize_grads=True
    ),
    "ecs": EcsConfig(lr=1e-2, precondition_frequency=3),
    "ecs in blocks": EcsConfig(lr=1e-2, precondition_frequency=3, max_precond_dim=6),
    "klshampoo": KLShampooConfig(lr=1e-2, precondition_frequency=3),
    "klsoap": KLShampooConfig(lr=1e-2, precondition_frequency=2, klsoap=True, damping=True, max_precond_dim=20),
    "muon": MuonConfig(lr=1e-2),
}
SHAPES = {
    "blocks.0.attn.qkv.weight": (24, 8),
    "blocks.0.attn.qkv.bias": (24,),
    "blocks.0.fc.weight": (12, 12),
    "blocks.1.fc.weight": (12, 12),
    "blocks.1.fc.bias": (12,),
    "blocks.2.fc.weight": (12, 12),
    "cls_token": (1, 1, 8),
    "patch_embed.proj.weight": (8, 3, 2, 2),
    "head.last_v": (10, 10),
    "scale": (),
}
LATE = "head.last_v"  # its first gradient comes at step 3
GAP = "blocks.1.fc.weight"  # has none at step 5


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> OptimizerConfig:
    return CONFIGS[request.param]


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def take(optimizer: torch.optim.Optimizer, own: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        set_rates(optimizer, 1e-2 / (1 + step), 0.1 + 0.01 * step)
        for name, parameter in own.items():
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            missing = (name == LATE and step < 3) or (name == GAP and step == 5)
            parameter.grad = None if missing else gradient
        optimizer.step()


def tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize(
    ("dtype", "by_name"), [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)], ids=str
)
def test_resumes_bit_equal_at_any_step(config: OptimizerConfig, dtype: torch.dtype, by_name: bool) -> None:
    steps, ahead = 8, 3  # a refresh comes at least every third
    own = parameters(dtype)
    optimizer = build_optimizer(own.items(), config)
    saved = []
    for step in range(steps + 1):
        values = {name: value.detach().clone() for name, value in own.items()}
        saved.append((values, tensors(optimizer), None if by_name else copy.deepcopy(optimizer.state_dict())))
        take(optimizer, own, range(step, step + 1))
    for step, (values, flat, state) in enumerate(saved[:-1]):
        fresh = {name: nn.Parameter(value.clone()) for name, value in values.items()}
        again = build_optimizer(fresh.items(), config)
        if state is None:
            load_optimizer_tensors(again, flat, Path("there"))
        else:
            again.load_state_dict(state)
        assert_equal(tensors(again), flat)
        end = min(step + ahead, steps)
        take(again, fresh, range(step, end))
        assert_equal({name: value.detach() for name, value in fresh.items()}, saved[end][0])
        assert_equal(tensors(again), saved[end][1])


def test_the_state_of_stacked_optimizers_is_float32_before_and_after_loading(config: OptimizerConfig) -> None:
    own = parameters(torch.bfloat16)
    optimizer = build_optimizer(own.items(), config)
    if not isinstance(optimizer, PreconditionedOptimizer):
        pytest.skip("torch's own optimizers keep moments in the parameter's dtype")
    take(optimizer, own, range(4))
    again = build_optimizer(parameters(torch.bfloat16).items(), config)
    again.load_state_dict(optimizer.state_dict())
    for one in (optimizer, again):
        assert {v.dtype for name, v in optimizer_tensors(one).items() if not name.endswith(".step")} == {torch.float32}


def test_loading_takes_copies(config: OptimizerConfig) -> None:
    own = parameters()
    optimizer = build_optimizer(own.items(), config)
    take(optimizer, own, range(4))
    again = build_optimizer(parameters().items(), config)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = tensors(again)
    take(optimizer, own, range(4, 7))
    assert_equal(tensors(again), before)


def test_a_missing_gradient_leaves_parameter_and_state_alone(config: OptimizerConfig) -> None:
    own = parameters()
    optimizer = build_optimizer(own.items(), config)
    first = own[LATE].detach().clone()
    take(optimizer, own, range(3))
    assert torch.equal(own[LATE], first)
    assert not optimizer.state.get(own[LATE])
    take(optimizer, own, range(3, 5))
    before = {key: torch.as_tensor(value).clone() for key, value in optimizer.state[own[GAP]].items()}
    value = own[GAP].detach().clone()
    take(optimizer, own, range(5, 6))
    assert torch.equal(own[GAP], value)
    assert_equal({key: torch.as_tensor(one) for key, one in optimizer.state[own[GAP]].items()}, before)
    take(optimizer, own, range(6, 9))
    assert not torch.equal(own[GAP], value)
    assert not torch.equal(own[LATE], first)


def test_company_does_not_matter(config: OptimizerConfig) -> None:
    """A parameter moves as it would alone, whatever it is stacked with.

    Square ones are compared: the first basis of others is partly arbitrary, so any rounding would change them. For the
    same reason ``ecs`` must not merge the sides of a square one into a single long one.
    """
    if isinstance(config, EcsConfig):
        config = config.model_copy(update={"max_precond_dim": min(config.max_precond_dim, 99)})
    own = parameters()
    take(build_optimizer(own.items(), config), own, range(8))
    for name in (LATE, GAP, "blocks.2.fc.weight"):
        alone = {name: parameters()[name]}
        optimizer = build_optimizer(alone.items(), config)
        for step in range(8):
            generator = torch.Generator().manual_seed(100 + step)
            gradients = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
            set_rates(optimizer, 1e-2 / (1 + step), 0.1 + 0.01 * step)
            missing = (name == LATE and step < 3) or (name == GAP and step == 5)
            alone[name].grad = None if missing else gradients[name]
            optimizer.step()
        torch.testing.assert_close(alone[name], own[name], rtol=0, atol=2e-5)


def test_zero_gradients_do_nothing_but_decay(config: OptimizerConfig) -> None:
    own = parameters()
    before = {name: value.detach().clone() for name, value in own.items()}
    optimizer = build_optimizer(own.items(), config)
    for _ in range(7):
        for parameter in own.values():
            parameter.grad = torch.zeros_like(parameter)
        set_rates(optimizer, 1e-3, 0.0)
        optimizer.step()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter.detach(), before[name], rtol=0, atol=0, msg=name)


def test_gradients_and_parameters_need_not_be_contiguous(config: OptimizerConfig) -> None:
    plain, odd = parameters(), parameters()
    for name, parameter in odd.items():
        if parameter.ndim == 2:
            odd[name] = nn.Parameter(parameter.detach().t().contiguous().t())
        elif parameter.ndim == 4:
            odd[name] = nn.Parameter(parameter.detach().contiguous(memory_format=torch.channels_last))
    both = [(own, build_optimizer(own.items(), config)) for own in (plain, odd)]
    for step in range(5):
        for own, optimizer in both:
            generator = torch.Generator().manual_seed(step)
            for parameter in own.values():
                gradient = torch.randn(parameter.shape, generator=generator)
                if own is odd and isinstance(optimizer, PreconditionedOptimizer) and parameter.ndim > 1:
                    gradient = gradient.transpose(0, -1).contiguous().transpose(0, -1)
                elif own is odd:  # torch's fused AdamW wants the parameter's own layout, in which autograd writes
                    gradient = torch.empty_like(parameter).copy_(gradient)
                parameter.grad = gradient
            optimizer.step()
    for name in plain:
        torch.testing.assert_close(odd[name], plain[name], rtol=0, atol=1e-4, msg=name)


def test_other_parameters_are_a_clear_error(config: OptimizerConfig) -> None:
    own = parameters()
    optimizer = build_optimizer(own.items(), config)
    take(optimizer, own, range(2))
    state, flat = optimizer.state_dict(), tensors(optimizer)
    fewer = {name: value for name, value in parameters().items() if name != "blocks.0.fc.weight"}
    more = {**parameters(), "blocks.9.fc.weight": nn.Parameter(torch.zeros(12, 12))}
    for other in (fewer, more):
        with pytest.raises(ValueError, match=r"group|other parameters: blocks\.[09]\.fc\.weight"):
            build_optimizer(other.items(), config).load_state_dict(state)
    with pytest.raises(Exception, match=r"entries fit no parameter, such as blocks\.0\.fc\.weight"):
        load_optimizer_tensors(build_optimizer(fewer.items(), config), flat, Path("there"))


def test_settings_survive_yaml(config: OptimizerConfig) -> None:
    from dinoskip.training.objectives import PretrainJob

    job = validate(PretrainJob, RawConfig({"optimizer": config.model_dump(mode="json")}))
    assert job.optimizer == config


def test_a_closure_is_called_with_gradients_on(config: OptimizerConfig) -> None:
    own = parameters()
    optimizer = build_optimizer(own.items(), config)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([p.square().sum() for p in own.values()]).sum()
        loss.backward()
        return loss.detach()

    losses: list[Any] = [float(optimizer.step(closure)) for _ in range(6)]
    assert losses[-1] < losses[0]
