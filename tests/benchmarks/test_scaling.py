"""Basis of the estimate on paper: the calls of a step, counted in a run of two and four gloo processes (slow)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.scaling import Collective, collectives, reckon
from dinoskip.data.loader import Batch
from dinoskip.init.config import ModelConfig
from dinoskip.optim import AdamWConfig, OptimizerConfig, SoapConfig, build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.training import PretrainJob
from dinoskip.training.dino import DINO
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.objective import Engine, Step
from dinoskip.training.parallel import Strategy, shard, wrap
from tests.helpers.ranks import on_ranks

RANKS = [pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4)]
OPTIMIZERS: dict[str, OptimizerConfig] = {"adamw": AdamWConfig(), "soap": SoapConfig()}
CALLS = {  # torch's names of the calls; gloo has no reduce_scatter of its own
    "c10d::allreduce_": "all_reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
}


class Views:
    """A loader that has its views already."""

    def views(self, batch: Batch) -> list[Tensor]:
        return list(batch.data.values())


def objective() -> DINO:
    size = {"out_dim": 96, "hidden_dim": 32, "bottleneck_dim": 16, "batch_size": 8}
    config = DinoConfig(**size, epochs=2, warmup_epochs=0, freeze_last_layer=0)
    job = PretrainJob(model=ModelConfig(name="vit_tiny_patch16", depth=2, img_size=32), pretrain=config)
    return DINO(job, config, 8, torch.device("cpu"))


def batches() -> Iterator[Batch]:
    yield Batch(torch.arange(2), {"global": torch.randn(4, 3, 32, 32), "local": torch.randn(6, 3, 16, 16)})


def counted(here: World, out: str) -> None:
    """The calls of a step, by kind, and the bytes of those whose shapes gloo tells."""
    rows: dict[str, Any] = {}
    for strategy in ("ddp", "fsdp"):
        for name, config in OPTIMIZERS.items():
            dino = objective()
            shard(dino.teacher, here, strategy)
            forward = wrap(dino.student, here, strategy)
            optimizer = build_optimizer(dino.student, config)
            loader: Any = Views()
            engine = Engine(dino.student, forward, optimizer, loader, here, seed=0)
            for number in range(2):  # SOAP's first only starts its state; DDP rebuilds its buckets after it
                dino.step(Step(engine, number, batches()))
            with torch.profiler.profile(record_shapes=True) as profile:
                dino.step(Step(engine, 2, batches()))
            events = profile.events() or []
            calls = Counter(CALLS[event.name] for event in events if event.name.startswith("c10d::"))
            sent = Counter[str]()
            for event in events:
                if event.name in ("gloo:all_reduce", "gloo:broadcast"):
                    kind = event.name.removeprefix("gloo:")
                    sent[kind] += 4 * sum(math.prod(shape) for shape in event.input_shapes)
            rows[f"{strategy} {name}"] = {"calls": calls, "bytes": sent}
    if here.is_main:
        Path(out).write_text(json.dumps(rows))


@pytest.fixture(scope="module", params=RANKS)
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def rows(ranks: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("calls")
    on_ranks(ranks, folder, counted, str(folder / "rows.json"))
    return dict(json.loads((folder / "rows.json").read_text()))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_calls_of_a_step_are_those_of_real_processes(
    ranks: int, rows: dict[str, Any], strategy: Strategy, name: str
) -> None:
    student = objective().student
    expected = collectives(student, ranks, strategy, build_optimizer(student, OPTIMIZERS[name]))
    calls, sent = Counter[str](), Counter[str]()
    for call in expected:
        calls[call.kind] += call.calls
        sent[call.kind] += call.nbytes
    row = rows[f"{strategy} {name}"]
    assert row["calls"] == calls
    assert row["bytes"].get("broadcast", 0) == sent["broadcast"]
    if strategy == "ddp":  # with FSDP gloo's all_reduce does reduce_scatter too
        assert row["bytes"]["all_reduce"] == sent["all_reduce"]


def test_more_ranks_take_longer_to_exchange_and_less_to_compute() -> None:
    exchange = [Collective("all_reduce", 3, 10**8, "gradients").seconds(ranks) for ranks in (1, 2, 8, 64, 256)]
    assert exchange == sorted(exchange)
    assert exchange[0] == 0
    rows = [reckon("vit_small_patch16", SoapConfig(), "ddp", n, 512 // n, 10**8, tf32=False) for n in (1, 8, 64)]
    assert [row.images for row in rows] == [512] * 3
    assert rows[0].seconds > rows[1].seconds > rows[2].seconds
    assert rows[0].memory > rows[1].memory > rows[2].memory
    assert (rows[0].limit, rows[2].limit) == ("products", "optimizer")
    quick = reckon("vit_small_patch16", SoapConfig(), "ddp", 64, 8, 10**8, tf32=True)
    assert quick.optimizer < rows[2].optimizer
