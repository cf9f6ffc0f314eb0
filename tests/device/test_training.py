"""DINO steps on each device: what they compute, against a CPU; what they wait for, compile, and keep in memory.

The bounds are a few times what the order of summation alone does on a CPU, where images of a batch were swapped. In
float32 SOAP's bases of directions without gradient are rounding: its moves are compared with float64 gradients, on a
CPU alone (its own state is float32 whatever the parameters are), and its losses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import pytest
import torch

from dinoskip.runtime.precision import exact_products
from dinoskip.training import compilation
from tests.helpers.devices import DEVICES, peak_bytes, waits
from tests.helpers.dino_steps import OPTIMIZERS, DinoSteps, relative

STEPS = 6
CPU = torch.device("cpu")
# Of 1e-12 by the order of summation. On CUDA torch's weight norm of float64 is as exact as float32 (3e-8 of the head's
# output, 2e-6 of AdamW's moves on an H100, 2026-11-27); everything before the head agrees to 1e-13.
DOUBLE_MOVES = {"cpu": 1e-8, "cuda": 1e-5}
FLOAT_MOVES = 0.01  # AdamW, of 2e-4: the sign of a gradient that is rounding alone moves a weight as far as any other
FLOAT_LOSS = {"adamw": 1e-4, "soap": 0.02}  # of 1e-6 and 0.003
BF16_MOVES, BF16_LOSS = 0.15, 0.1  # of 0.06 and 0.04 on a CPU
PEAK = 8.0e6  # bytes of an eager float32 step with AdamW beyond what lies there: half as much again as on a CPU


@pytest.fixture(autouse=True)
def _no_code_generation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch trace and partition on a CPU as ever, but compile no C++, which takes minutes."""
    if "cuda" not in request.node.callspec.params.values():
        monkeypatch.setattr(compilation, "BACKEND", "aot_eager")


@cache
def reference(optimizer: str, double: bool = False) -> DinoSteps:
    """Eager steps on a CPU."""
    steps = DinoSteps(CPU, optimizer, double=double)
    steps.take(STEPS)
    return steps


def largest_difference(steps: DinoSteps, other: DinoSteps) -> float:
    return max(abs(a - b) for a, b in zip(steps.losses, other.losses, strict=True))


@pytest.mark.parametrize(
    ("device", "optimizer"),
    [*itertools.product(["cpu"], OPTIMIZERS), pytest.param("cuda", "adamw", marks=pytest.mark.gpu)],
)
def test_moves_in_float64_are_those_of_a_cpu(device: str, optimizer: str) -> None:
    steps = DinoSteps(torch.device(device), optimizer, double=True, swapped=True)
    steps.take(STEPS)
    wanted = reference(optimizer, double=True)
    assert wanted.losses[-1] < wanted.losses[0]
    assert relative(steps.moves(), wanted.moves()) < DOUBLE_MOVES[device]
    assert largest_difference(steps, wanted) < DOUBLE_MOVES[device]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", DEVICES)
def test_steps_in_float32_follow_those_of_a_cpu(device: str, optimizer: str) -> None:
    there = torch.device(device)
    with exact_products(there):
        steps = DinoSteps(there, optimizer, swapped=True)
        steps.take(STEPS)
    assert largest_difference(steps, reference(optimizer)) < FLOAT_LOSS[optimizer]
    if optimizer == "adamw":
        assert relative(steps.moves(), reference(optimizer).moves()) < FLOAT_MOVES


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", DEVICES)
def test_steps_in_bfloat16_follow_those_in_float32(device: str, optimizer: str) -> None:
    steps = DinoSteps(torch.device(device), optimizer, bf16=True)
    steps.take(STEPS)
    assert 0 < largest_difference(steps, reference(optimizer)) < BF16_LOSS
    if optimizer == "adamw":
        assert relative(steps.moves(), reference(optimizer).moves()) < BF16_MOVES


@pytest.mark.slow  # on a CPU tests/training/test_compilation.py shows it
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("soap", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_steps_follow_and_nothing_is_compiled_after_the_second(device: str, optimizer: str) -> None:
    steps = DinoSteps(torch.device(device), optimizer, bf16=True, compiled=True)
    assert steps.compiler is not None
    steps.take(2)
    made = steps.compiler.graphs, torch._dynamo.utils.counters["stats"]["unique_graphs"]
    steps.take(STEPS - 2)
    assert (steps.compiler.graphs, torch._dynamo.utils.counters["stats"]["unique_graphs"]) == made
    assert made[0] == 3, "the student at two crop sizes, the teacher at one"
    assert steps.compiler.problem() is None
    assert largest_difference(steps, reference(optimizer)) < BF16_LOSS


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("device", DEVICES)
def test_a_step_waits_once_for_the_device(device: str, compiled: bool) -> None:
    """For loss and norms (``Step.gradients``), and nowhere else."""

    def prepared(there: torch.device) -> DinoSteps:
        steps = DinoSteps(there, bf16=True, compiled=compiled)
        steps.take(2)
        return steps

    assert waits(device, lambda there: prepared(there).step) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_two_steps_of_soap_wait_three_times(device: str) -> None:
    """Once a step as with any optimizer, and once for the refresh of the bases in the second of them."""

    def prepared(there: torch.device) -> Callable[[], None]:
        steps = DinoSteps(there, "soap", bf16=True)
        steps.take(2)

        def two() -> None:
            steps.step()
            steps.step()

        return two

    assert waits(device, prepared) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_a_step_is_bounded_and_does_not_grow(device: str) -> None:
    steps = DinoSteps(torch.device(device))
    steps.take(2)
    second = peak_bytes(device, steps.step)
    steps.take(5)
    assert peak_bytes(device, steps.step) <= 1.01 * second
    assert 0.2 * PEAK < second < PEAK
