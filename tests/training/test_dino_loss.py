"""The loss with its own gradient, against the reference's double loop under autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dinoskip.training import dino as module
from dinoskip.training.dino import dino_loss
from tests.helpers.dino_reference import double_loop


def scores(views: int, batch: int, out: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Student, teacher and centre as a head gives them: inner products of unit vectors."""
    rng = torch.Generator().manual_seed(seed)
    student, teacher, center = (
        torch.rand(shape, generator=rng, dtype=torch.float64) * 2 - 1
        for shape in ((views * batch, out), (2 * batch, out), (out,))
    )
    return student.to(dtype).requires_grad_(), teacher.to(dtype), center.to(torch.promote_types(dtype, torch.float32))


@settings(max_examples=60, deadline=None)
@given(
    views=st.integers(2, 6),
    batch=st.integers(1, 5),
    out=st.integers(1, 9),
    temps=st.tuples(st.floats(0.02, 2), st.floats(0.02, 2)),
    rows=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_loss_gradient_centre_and_entropy_equal_the_double_loop(
    views: int, batch: int, out: int, temps: tuple[float, float], rows: int, seed: int
) -> None:
    student, teacher, center = scores(views, batch, out, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_CPU", rows * out)
        loss, mean, entropy = dino_loss(student, teacher, center, *temps)
    (gradient,) = torch.autograd.grad(loss / 3, student)
    expected = double_loop(student, teacher, center, *temps)
    (expected_gradient,) = torch.autograd.grad(expected / 3, student)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(mean, teacher.mean(0), rtol=1e-12, atol=1e-14)
    targets = torch.softmax((teacher - center) / temps[1], -1)
    torch.testing.assert_close(entropy, -torch.xlogy(targets, targets).sum(-1).mean(), rtol=1e-10, atol=1e-11)


def test_gradient_is_the_slope_of_the_loss() -> None:
    student, teacher, center = scores(4, 2, 5, seed=0)
    (gradient,) = torch.autograd.grad(dino_loss(student, teacher, center, 0.1, 0.05).loss, student)
    for index in range(0, student.numel(), 7):
        step = torch.zeros(student.numel(), dtype=torch.float64)
        step[index] = 1e-6
        up, down = (
            dino_loss(student.detach() + sign * step.view_as(student), teacher, center, 0.1, 0.05).loss
            for sign in (1, -1)
        )
        assert ((up - down) / 2e-6).item() == pytest.approx(gradient.flatten()[index].item(), rel=1e-6, abs=1e-9)


def test_float32_and_bfloat16_scores_agree_with_float64() -> None:
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 4e-3)):
        student, teacher, center = scores(10, 4, 3000, seed=1, dtype=dtype)
        outcome = dino_loss(student, teacher, center, 0.1, 0.04)
        assert {value.dtype for value in outcome} == {torch.float32}
        (gradient,) = torch.autograd.grad(outcome.loss, student)
        assert gradient.dtype == dtype
        exact = student.detach().double().requires_grad_()
        expected = double_loop(exact, teacher.double(), center.double(), 0.1, 0.04)
        (expected_gradient,) = torch.autograd.grad(expected, exact)
        # The scores are taken as they come: only the gradient is rounded to their dtype, the loss is float32's.
        assert outcome.loss.item() == pytest.approx(expected.item(), rel=2e-6)
        assert (gradient.double() - expected_gradient).norm() <= tolerance * expected_gradient.norm()


def test_extremes_of_loss_and_entropy() -> None:
    outcome = dino_loss(torch.zeros(20, 1000), torch.eye(4, 1000), torch.zeros(1000), 0.1, 0.001)
    assert outcome.loss.item() == pytest.approx(math.log(1000), rel=1e-5)
    assert outcome.entropy.item() == pytest.approx(0.0, abs=1e-5)
    flat = dino_loss(torch.zeros(20, 1000), torch.ones(4, 1000), torch.ones(1000), 0.1, 0.001)
    assert flat.entropy.item() == pytest.approx(math.log(1000), rel=1e-5)


def test_scores_that_are_not_finite_give_a_loss_that_is_not() -> None:
    for value in (math.nan, math.inf):
        student, teacher, center = scores(4, 2, 5, seed=0, dtype=torch.float32)
        with torch.no_grad():
            student[3, 2] = value
        assert not dino_loss(student, teacher, center, 0.1, 0.05).loss.isfinite()


def test_second_backward_pass_is_refused() -> None:
    student, teacher, center = scores(4, 2, 5, seed=0)
    loss = dino_loss(student, teacher, center, 0.1, 0.05).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="gives its gradient once"):
        loss.backward()


def test_compiled_callers_get_the_same() -> None:
    student, teacher, center = scores(4, 2, 5, seed=0)
    compiled = torch.compile(lambda s: dino_loss(s * 2, teacher, center, 0.1, 0.05).loss / 3, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(student), student)
    (expected,) = torch.autograd.grad(dino_loss(student * 2, teacher, center, 0.1, 0.05).loss / 3, student)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


class _Largest(TorchDispatchMode):
    """Sizes of the tensors that operations return, by dtype: the largest, and how many are as large as the scores."""

    def __init__(self, scores: int) -> None:
        super().__init__()
        self.scores, self.elements, self.as_large = scores, dict[torch.dtype, int](), set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements[tensor.dtype] = max(self.elements.get(tensor.dtype, 0), size)
                if size >= self.scores:
                    self.as_large.add(tensor.untyped_storage().data_ptr())
        return result


def test_no_float32_tensor_of_the_size_of_the_scores_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    views, batch, out = 10, 8, 512
    monkeypatch.setattr(module, "CHUNK_CPU", 4 * out)
    student, teacher, center = scores(views, batch, out, seed=2, dtype=torch.bfloat16)
    with _Largest(student.numel()) as made:
        dino_loss(student, teacher, center, 0.1, 0.04).loss.backward()
    assert made.elements[torch.float32] == 2 * 4 * out, "the targets of one chunk are the largest float32 tensor"
    assert made.elements[torch.bfloat16] == views * batch * out
    assert len(made.as_large - {student.untyped_storage().data_ptr()}) == 1, "one gradient, nothing else as large"


def test_no_gradient_is_made_where_none_is_asked_for() -> None:
    student, teacher, center = scores(10, 8, 512, seed=2, dtype=torch.bfloat16)
    with _Largest(student.numel()) as made:
        dino_loss(student.detach(), teacher, center, 0.1, 0.04)
    assert not made.as_large - {student.untyped_storage().data_ptr()}


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    student, teacher, center = scores(10, 64, 4096, seed=3, dtype=torch.float32)
    here = dino_loss(student, teacher, center, 0.1, 0.04)
    (gradient,) = torch.autograd.grad(here.loss, student)
    moved = student.detach().cuda().requires_grad_()
    there = dino_loss(moved, teacher.cuda(), center.cuda(), 0.1, 0.04)
    (moved_gradient,) = torch.autograd.grad(there.loss, moved)
    for ours, theirs in zip((*here, gradient), (*there, moved_gradient), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-4, atol=1e-8)
