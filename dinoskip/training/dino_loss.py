"""DINO's loss (Caron et al. 2021, arXiv:2104.14294, eq. 3), with its gradient made in the same pass.

Autograd on the plain formulation keeps several float32 tensors of the size of all student scores: with 10 views of
64 images and 65,536 prototypes, 168 MB each. Here a few rows are taken at a time through softmax, loss and gradient,
and only the gradient is kept, in the dtype of the scores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Scores in work at a time: on a CPU what stays in its cache, on a GPU what fills it.
CHUNK_CPU, CHUNK_GPU = 1 << 20, 1 << 24


class LossOutcome(NamedTuple):
    """The loss and what the teacher's part leaves; all in at least float32."""

    loss: Tensor  # scalar, differentiable once in the student's scores
    batch_center: Tensor  # (K,) mean of the teacher's scores
    entropy: Tensor  # scalar, mean entropy of the teacher's targets in nats: 0 = one-hot, ln K = uniform


def dino_loss(
    student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float
) -> LossOutcome:
    """Mean cross-entropy over all (teacher view, student view) pairs of different views, and over images.

    ``student`` (V*B, K) and ``teacher`` (2*B, K) are scores, view-major, the two global views first; ``center`` (K,).
    The targets are ``softmax((teacher - center) / teacher_temp)``. Each student view's log-softmax is taken once and
    meets the sum of its targets: a global view the other global view's, a local view both. Scores in bfloat16 are
    worked on in float32, float64 in float64. The gradient is given once: a second backward pass is an error.
    Call it outside autocast.
    """
    return LossOutcome(*_Loss.apply(student, teacher, center, student_temp, teacher_temp))


def _cross_entropy(target: Tensor, scores: Tensor, probabilities: Tensor, mass: int) -> Tensor:
    """Sum of -target * log softmax(scores), where each row of ``target`` sums to ``mass``.

    The softmax is at hand, and gives each row's log-sum-exp through its largest element: no second pass of exp.
    """
    normaliser = scores.amax(-1) - probabilities.amax(-1).log()
    return mass * normaliser.sum() - torch.dot(target.flatten(), scores.flatten())


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, out = teacher.shape[0] // 2, student.shape[1]
        views, teachers = student.reshape(-1, batch, out), teacher.reshape(2, batch, out)
        work = torch.promote_types(student.dtype, torch.float32)
        terms = batch * (2 * len(views) - 2)
        # A tensor of one dimension, unlike a scalar, lifts bfloat16 scores to the work dtype in the same kernel.
        temp = student.new_full((1,), student_temp, dtype=work)
        scale = 1 / (student_temp * terms)
        gradient = torch.empty_like(views) if ctx.needs_input_grad[0] else None
        loss, entropy, total = (student.new_zeros(shape, dtype=work) for shape in ((), (), (out,)))
        step = max(1, (CHUNK_CPU if student.device.type == "cpu" else CHUNK_GPU) // out)
        for low in range(0, batch, step):
            rows = slice(low, low + step)
            scores = teachers[:, rows].to(work)
            total += scores.sum((0, 1))
            scores = (scores - center.to(work)) / teacher_temp
            targets = F.softmax(scores, dim=-1)
            entropy += _cross_entropy(targets, scores, targets, 1)
            both = targets.sum(0)
            for index, view in enumerate(views):
                target, mass = (targets[1 - index], 1) if index < 2 else (both, 2)
                scores = view[rows] / temp
                probabilities = F.softmax(scores, dim=-1)
                loss += _cross_entropy(target, scores, probabilities, mass)
                if gradient is not None:
                    torch.sub(probabilities.mul_(mass * scale), target, alpha=scale, out=gradient[index, rows])
        ctx.gradient = None if gradient is None else gradient.view_as(student)
        loss, entropy, total = loss / terms, entropy / (2 * batch), total / (2 * batch)
        ctx.mark_non_differentiable(total, entropy)
        return loss, total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        if ctx.gradient is None:
            raise RuntimeError("dino_loss gives its gradient once; compute the loss anew for another backward pass")
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad_loss), None, None, None, None
