"""Preconditioned optimizers on two gloo ranks: replicas stay bit-equal, shards step as the whole does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from dinoskip.distributed import World, on_main, whole
from dinoskip.files import load_tensors, save_tensors
from dinoskip.optim import (
    EcsConfig,
    KLShampooConfig,
    MuonConfig,
    OptimizerConfig,
    SoapConfig,
    build_optimizer,
    set_rates,
)
from dinoskip.optim.preconditioned import PreconditionedOptimizer, owners
from dinoskip.training.checkpoint import load_optimizer_tensors, optimizer_tensors
from tests.helpers.ranks import on_ranks

CONFIGS: dict[str, OptimizerConfig] = {
    "soap": SoapConfig(precondition_frequency=2, split_qkv=True),
    "ecs": EcsConfig(precondition_frequency=3, max_precond_dim=5),
    "klsoap": KLShampooConfig(precondition_frequency=2, klsoap=True),
    "muon": MuonConfig(),
}
SHAPES = {"a.weight": (9, 9), "b.weight": (9, 9), "qkv.weight": (12, 4), "c.weight": (5, 3, 2, 2), "d.bias": (7,)}


def model_of() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    module = nn.Module()
    for name, shape in SHAPES.items():
        part = nn.Module()
        part.register_parameter(name.split(".")[1], nn.Parameter(torch.randn(shape, generator=generator)))
        module.add_module(name.split(".")[0], part)
    return module


def trained(here: World, out: str, kind: str, sharded: bool) -> None:
    """Seven steps with one resume in the middle from what rank 0 saved; rank 0 also writes the state."""
    config, saved = CONFIGS[kind], Path(f"{out}.saved")
    module = model_of()
    if sharded and here.size > 1:
        fully_shard(module)
    optimizer = build_optimizer(module, config)
    for step in range(7):
        if step == 4 and isinstance(optimizer, PreconditionedOptimizer):
            flat = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
            on_main(lambda flat=flat: save_tensors(saved, flat))
            optimizer = build_optimizer(module, config)
            load_optimizer_tensors(optimizer, load_tensors(saved), saved)
        generator = torch.Generator().manual_seed(10 + step)
        set_rates(optimizer, 1e-2, 0.1)
        for name, parameter in module.named_parameters():
            gradient = torch.randn(SHAPES[name], generator=generator)
            if isinstance(parameter, DTensor):
                gradient = torch.distributed.tensor.distribute_tensor(
                    gradient, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
            parameter.grad = None if name == "b.weight" and step == 1 else gradient
        optimizer.step()
    tensors = {name: whole(parameter.detach()).clone() for name, parameter in module.named_parameters()}
    if isinstance(optimizer, PreconditionedOptimizer):
        state = optimizer_tensors(optimizer)  # collective
        tensors |= {f"state.{name}": value for name, value in state.items() if here.is_main}
        owned = sum(value.numel() for one in optimizer.state.values() for key, value in one.items() if key != "step")
        tensors["owned"] = torch.tensor([owned])
    save_tensors(Path(f"{out}.{here.rank}"), tensors)


def all_trained(here: World, folder: str) -> None:
    for kind in CONFIGS:
        for way in ("replicas", "shards"):
            trained(here, f"{folder}/{kind}-{way}-{here.size}", kind, way == "shards")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks, two and one leave, every optimizer both ways: the ranks are started once for all."""
    path = tmp_path_factory.mktemp("ranks")
    for size in (2, 4):
        on_ranks(size, path, all_trained, str(path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have: LAPACK rounds otherwise with more
    all_trained(World(0, 1, torch.device("cpu")), str(path))
    torch.set_num_threads(threads)
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_replicas_and_checkpoints_have_the_same_bits_on_one_two_and_four_ranks(folder: Path, kind: str) -> None:
    alone = load_tensors(folder / f"{kind}-replicas-1.0")
    everything = alone.pop("owned", torch.zeros(1))
    for size in (2, 4):
        ranks = [load_tensors(folder / f"{kind}-replicas-{size}.{rank}") for rank in range(size)]
        assert sum(one.pop("owned", torch.zeros(1)) for one in ranks) == everything, "each tensor is on one rank"
        assert ranks[0].keys() == alone.keys()
        for rank, tensors in enumerate(ranks):
            assert SHAPES.keys() <= tensors.keys()
            for name, value in tensors.items():
                assert torch.equal(value, alone[name]), f"{name}: rank {rank} of {size}"
        if kind != "muon":
            saved = [load_tensors(folder / f"{kind}-replicas-{n}.saved") for n in (1, size)]
            assert saved[0].keys() == saved[1].keys()
            assert all(torch.equal(value, saved[1][name]) for name, value in saved[0].items())


@pytest.mark.parametrize("kind", CONFIGS)
def test_shards_step_as_the_whole_does(folder: Path, kind: str) -> None:
    alone = load_tensors(folder / f"{kind}-shards-1.0")
    for size in (2, 4):
        ranks = [load_tensors(folder / f"{kind}-shards-{size}.{rank}") for rank in range(size)]
        for name, value in ranks[0].items():
            if name != "owned":
                assert all(torch.equal(value, one[name]) for one in ranks if name in one), f"{name}: the ranks differ"
                # Newton-Schulz runs in bfloat16 and sums in another order over shards.
                tolerance = 2e-3 if kind == "muon" else 1e-6
                torch.testing.assert_close(value, alone[name], rtol=0, atol=tolerance, msg=name)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20), st.integers(1, 5))
def test_the_work_is_shared_out_evenly(costs: list[float], ranks: int) -> None:
    chosen = owners(costs, [0.0] * ranks)
    load = [sum(c for c, owner in zip(costs, chosen, strict=True) if owner == rank) for rank in range(ranks)]
    assert max(load) <= sum(costs) / ranks + max(costs)
    assert chosen == owners(costs, [0.0] * ranks)
