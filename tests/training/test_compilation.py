"""Compiled runs: every network of a process, no graph break, nothing compiled after the first step, fall-backs said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dinoskip.data import ImageFolder
from dinoskip.data.train_loader import TrainLoader
from dinoskip.errors import Preempted
from dinoskip.io.files import read_json
from dinoskip.training import PretrainJob, compilation, pretrain
from dinoskip.training.compilation import Compiler
from tests.helpers.tiny import make_images, rows_of, tiny_job

GRAPHS = 3  # the student at two crop sizes, the teacher at one


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder.open(make_images(tmp_path_factory.mktemp("data") / "images"))


@pytest.fixture(autouse=True)
def _no_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch traces as ever; no C++ is compiled, which takes minutes, and one test alone partitions: twice the time."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.utils.counters.clear()


STEPS = 3


def job_of(depth: int = 1, skip: bool = True, **pretrain: Any) -> PretrainJob:
    """One epoch of three steps, with drop path where there are skips."""
    settings = {"epochs": 1, "warmup_epochs": 0, "batch_size": 16, "compile": True, **pretrain}
    tree = tiny_job(skip=skip, **settings).model_dump(mode="json")
    return PretrainJob.model_validate(tree | {"model": tree["model"] | {"depth": depth}})


def environment(run: Path) -> dict[str, Any]:
    return read_json(run / "env.json")


@pytest.mark.parametrize("networks", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_network_of_a_study_is_compiled(networks: int, images: ImageFolder, tmp_path: Path) -> None:
    """Several in one process: torch's limit would be passed at the third."""
    for number, skip in enumerate((True, False, True, False, True)[:networks]):
        pretrain(job_of(1 + number % 2, skip), images, tmp_path / str(number), device="cpu")
        written = environment(tmp_path / str(number))
        assert (written["compiled_graphs"], written["uncompiled"]) == (GRAPHS, None), number
    assert torch._dynamo.utils.counters["graph_break"] == {}


@pytest.mark.parametrize(
    "change", [{"accumulate": 2, "diagnose_every": 2}, pytest.param({"depth": 3}, marks=pytest.mark.slow)], ids=str
)
def test_nothing_is_compiled_after_the_first_step(
    change: dict[str, Any], images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[int] = []
    look = compilation.CompilerWatch.look

    def counting(self: Any) -> None:
        graphs.append(self._compiler.graphs)
        look(self)

    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    monkeypatch.setattr(compilation.CompilerWatch, "look", counting)
    pretrain(job_of(**change), images, tmp_path / "run", device="cpu")
    assert graphs == [GRAPHS] * STEPS
    assert torch._dynamo.utils.counters["graph_break"] == {}


@pytest.mark.slow
def test_a_resumed_run_is_compiled_and_ends_as_one_that_is_not(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = TrainLoader.views, []

    def stopped(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise Preempted("as if asked to")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(TrainLoader, "views", stopped)
        with pytest.raises(Preempted):
            pretrain(job_of(checkpoint_every_steps=1), images, tmp_path / "run", device="cpu")
    pretrain(job_of(checkpoint_every_steps=1), images, tmp_path / "run", device="cpu")
    assert environment(tmp_path / "run")["compiled_graphs"] == GRAPHS
    pretrain(job_of(compile=False), images, tmp_path / "plain", device="cpu")
    compiled, plain = ([row["loss"] for row in rows_of(tmp_path / name)] for name in ("run", "plain"))
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert "compiled_graphs" not in environment(tmp_path / "plain")


def test_a_fall_back_is_a_warning_and_stands_in_env_json(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        pretrain(job_of(), images, tmp_path / "limit", device="cpu")
    assert "forward passes were not compiled: torch gave up" in environment(tmp_path / "limit")["uncompiled"]
    assert caplog.text.count("forward passes were not compiled") == 1

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler\nat all")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: broken)
    pretrain(job_of(), images, tmp_path / "broken", device="cpu")
    assert environment(tmp_path / "broken")["uncompiled"].endswith("runs without it: RuntimeError: no C++ compiler")
    assert caplog.text.count("torch.compile failed") == 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


def test_counts_are_of_what_ran() -> None:
    compiler, module = Compiler(), Layer()  # torch before 2.15 compiles no nn.Sequential
    compiler._compile(module)
    for size in (2, 5, 2):
        module(torch.ones(size, 3))
    assert (compiler.graphs, compiler.entered, compiler.executed) == (2, 3, 3)
    assert compiler.problem() is None
