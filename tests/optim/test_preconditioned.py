"""Preconditioned optimizers on two gloo ranks: replicas stay bit-equal, shards step as the whole does."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dinoskip.io.files import load_tensors, save_tensors
from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import (
    SOAP,
    EcsConfig,
    KLShampooConfig,
    MuonConfig,
    OptimizerConfig,
    SoapConfig,
    build_optimizer,
    set_rates,
)
from dinoskip.optim.batched import along, as_matrix, refresh_flops, row_blocks, step_flops
from dinoskip.optim.preconditioned import PreconditionedOptimizer, owners
from dinoskip.runtime.distributed import World, on_main, whole
from dinoskip.training.checkpoint import load_optimizer_tensors, optimizer_tensors
from tests.helpers.ranks import on_ranks

CONFIGS: dict[str, OptimizerConfig] = {
    "soap": SoapConfig(precondition_frequency=2, split_qkv=True),
    "ecs": EcsConfig(precondition_frequency=3, max_precond_dim=5, stagger=True),
    "klsoap": KLShampooConfig(precondition_frequency=2, klsoap=True),
    "muon": MuonConfig(),
}
STEPS = 7
SHAPES = {  # in a stack the second of the first two begins where no vector register would
    "a.weight": (33, 33),
    "b.weight": (33, 33),
    "qkv.weight": (12, 4),
    "c.weight": (5, 3, 2, 2),
    "d.bias": (7,),
}


def model_of() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    module = nn.Module()
    for name, shape in SHAPES.items():
        part = nn.Module()
        part.register_parameter(name.split(".")[1], nn.Parameter(torch.randn(shape, generator=generator)))
        module.add_module(name.split(".")[0], part)
    return module


def trained(here: World, out: str, kind: str, sharded: bool) -> None:
    """All steps, with a resume in the middle from what rank 0 saved, four replicas from what two saved.

    Every rank writes its parameters, rank 0 the state too.
    """
    config, saved = CONFIGS[kind], Path(f"{out}.saved")
    module = model_of()
    if sharded and here.size > 1:
        fully_shard(module)
    optimizer = build_optimizer(module, config)
    for step in range(STEPS):
        if step == 4 and isinstance(optimizer, PreconditionedOptimizer):
            flat = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
            on_main(lambda flat=flat: save_tensors(saved, flat))
            optimizer = build_optimizer(module, config)
            source = Path(str(saved).replace("replicas-4", "replicas-2"))
            load_optimizer_tensors(optimizer, load_tensors(source), source)
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


SEVERAL = [(2,), pytest.param((2, 4), marks=pytest.mark.slow)]
"""Numbers of ranks beside one; processes that import and compile take most of the time, so that of four is slow."""


@pytest.fixture(scope="module", params=SEVERAL, ids=["two", "two and four"])
def sizes(request: pytest.FixtureRequest) -> tuple[int, ...]:
    chosen: tuple[int, ...] = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(sizes: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of several ranks and of one, with every optimizer both ways: the ranks are started once for all."""
    path = tmp_path_factory.mktemp("ranks")
    for size in sizes:
        on_ranks(size, path, all_trained, str(path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have: LAPACK rounds otherwise with more
    all_trained(World(0, 1, torch.device("cpu")), str(path))
    torch.set_num_threads(threads)
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_replicas_and_checkpoints_have_the_same_bits_on_one_and_several_ranks(
    folder: Path, sizes: tuple[int, ...], kind: str
) -> None:
    alone = load_tensors(folder / f"{kind}-replicas-1.0")
    everything = alone.pop("owned", torch.zeros(1))
    for size in sizes:
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


def spanned(basis: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The float64 matrix of the basis's directions, each with the ``factor``'s energy along it.

    It does not depend on signs, nor on how close directions of equal energy are turned among themselves.
    """
    directions = basis.double()
    energy = (directions * (factor @ directions)).sum(0)
    return directions * energy @ directions.mT


@pytest.mark.parametrize("kind", CONFIGS)
def test_shards_step_as_the_whole_does(folder: Path, sizes: tuple[int, ...], kind: str) -> None:
    alone = load_tensors(folder / f"{kind}-shards-1.0")
    for size in sizes:
        ranks = [load_tensors(folder / f"{kind}-shards-{size}.{rank}") for rank in range(size)]
        for name, value in ranks[0].items():
            if name != "owned":
                assert all(torch.equal(value, one[name]) for one in ranks if name in one), f"{name}: the ranks differ"
                # Newton-Schulz runs in bfloat16 and sums in another order over shards.
                tolerance = 2e-3 if kind == "muon" else 1e-6
                expected = alone[name]
                if "basis" in name:
                    factor = alone[name.replace("basis", "factor")].double()
                    value, expected = spanned(value, factor), spanned(expected, factor)
                    rounding = len(factor) * torch.finfo(torch.float32).eps  # of a product, once a step
                    tolerance = STEPS * rounding * float(torch.linalg.matrix_norm(factor, 2))
                torch.testing.assert_close(value, expected, rtol=0, atol=tolerance, msg=name)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20), st.integers(1, 5))
def test_the_work_is_shared_out_evenly(costs: list[float], ranks: int) -> None:
    chosen = owners(costs, [0.0] * ranks)
    load = [sum(c for c, owner in zip(costs, chosen, strict=True) if owner == rank) for rank in range(ranks)]
    assert max(load) <= sum(costs) / ranks + max(costs)
    assert chosen == owners(costs, [0.0] * ranks)


def counted(optimizer: torch.optim.Optimizer) -> int:
    """Floating-point operations of the matrix products of one step; torch does not count in-place ones by itself."""

    def in_place(out: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...], *_: Any, **__: Any) -> int:
        return 2 * math.prod(left) * right[-1]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place}) as counter:
        optimizer.step()
    return counter.get_total_flops()


@pytest.mark.parametrize("config", [SoapConfig(precondition_frequency=3), EcsConfig(precondition_frequency=3)])
def test_the_operations_of_a_step_are_those_that_are_counted(config: OptimizerConfig) -> None:
    module = model_of()
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    optimizer = build_optimizer(module, config)
    assert isinstance(optimizer, PreconditionedOptimizer)
    optimizer.step()
    pieces = [slot.piece for parameter in module.parameters() for slot in optimizer.slots[parameter]]
    if isinstance(config, SoapConfig):
        optimizer.step()  # the first only started the factors
    plain, refresh = counted(optimizer), counted(optimizer)
    assert plain == sum(sum(step_flops(piece)) for piece in pieces) > 0
    products = [refresh_flops(piece, eigh=isinstance(config, EcsConfig))[0] for piece in pieces]
    assert refresh - plain == sum(products) > 0  # without LAPACK's, which torch does not count


def test_at_64_ranks_a_rank_owns_little() -> None:
    with torch.device("meta"):
        backbone = create_model("vit_small_patch16")
        student = nn.ModuleDict({"backbone": backbone, "head": DINOHead(backbone.embed_dim, 65536)})
    optimizer = build_optimizer(student, SoapConfig())
    assert isinstance(optimizer, PreconditionedOptimizer)
    whole_state = sum(share.state_bytes for share in optimizer.shares(1))
    for ranks in (1, 8, 64):
        shares = optimizer.shares(ranks)
        assert sum(share.state_bytes for share in shares) == whole_state
        assert sum(share.update_bytes for share in shares) == 4 * sum(p.numel() for p in student.parameters())
        assert max(share.state_bytes for share in shares) <= 1.5e9 / ranks + 200e6
    assert (
        max(share.flops for share in shares) <= 0.1 * 16 * 100e9
    )  # of 16 images of 2 x 224 + 8 x 96, over 100 GFLOP each


def test_staggered_shapes_take_turns() -> None:
    own = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    optimizer = build_optimizer(own.items(), SoapConfig(precondition_frequency=4, stagger=True))
    assert isinstance(optimizer, PreconditionedOptimizer)
    refreshed: dict[str, list[int]] = {name: [] for name in SHAPES}
    before: dict[str, torch.Tensor] = {}
    for step in range(9):
        generator = torch.Generator().manual_seed(step)
        for parameter in own.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        for name, parameter in own.items():
            basis = optimizer.bases(parameter)[0]
            if basis is not None:
                if step and not torch.equal(basis, before[name]):
                    refreshed[name].append(step)
                before[name] = basis.clone()
    expected = {"a.weight": [4, 8], "b.weight": [4, 8], "qkv.weight": [3, 7], "c.weight": [2, 6], "d.bias": []}
    assert refreshed == expected


def test_tf32_reaches_the_rotations_and_nothing_else() -> None:
    """The device is a fake CUDA one, whose products ask for the setting as real ones do.

    ``ecs`` begins with identity bases.
    """
    products: dict[str, set[bool]] = defaultdict(set)

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            products[func.__name__].add(torch.backends.cuda.matmul.allow_tf32)
            return func(*args, **(kwargs or {}))

    for tf32 in (True, False):
        products.clear()
        with FakeTensorMode():
            parameter = nn.Parameter(torch.zeros(6, 9, device="cuda"))
            parameter.grad = torch.zeros(6, 9, device="cuda")
            optimizer = SOAP([parameter], variant="ecs", max_precond_dim=9, tf32=tf32)
            with Recorder():
                optimizer.step()
        assert products["bmm.default"] == {tf32}
        assert products["baddbmm_.default"] == {False}


def test_kernels_become_matrices_and_tokens_stay() -> None:
    assert as_matrix((384, 3, 16, 16)) == (384, 768)
    assert as_matrix((1, 197, 384)) == (1, 197, 384)
    assert as_matrix((1, 1, 8)) == (1, 1, 8)
    assert as_matrix((5, 1, 3, 3)) == (5, 9)


def test_row_blocks_must_be_equal() -> None:
    pieces = row_blocks((12, 4), (True, True), 3)
    assert [piece.dims for piece in pieces] == [(4, 4)] * 3
    assert [piece.label("basis_0") for piece in pieces] == ["piece0_basis_0", "piece1_basis_0", "piece2_basis_0"]
    for shape in ((10, 4), (12,)):
        with pytest.raises(ValueError, match="3 blocks of rows"):
            row_blocks(shape, (True,) * len(shape), 3)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_along_contracts_one_dimension_of_every_member(core: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(core) - 1))
    generator = torch.Generator().manual_seed(math.prod(core))
    stack = torch.randn(2, *core, generator=generator, dtype=torch.float64)
    matrices = torch.randn(2, core[at], core[at], generator=generator, dtype=torch.float64)
    for i, result in enumerate(along(stack, matrices, at)):
        expected = torch.tensordot(stack[i], matrices[i], dims=[[at], [0]]).movedim(-1, at)
        torch.testing.assert_close(result, expected)
