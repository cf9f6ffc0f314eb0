"""DINO's loss as the reference states it: pair by pair, in plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def double_loop(student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Mean cross-entropy of all pairs of a teacher view and another student view; scores (V*B, K) and (2*B, K)."""
    batch = teacher.shape[0] // 2
    targets = torch.softmax((teacher - center) / teacher_temp, -1).split(batch)
    views = (student / student_temp).split(batch)
    total, pairs = torch.zeros((), dtype=student.dtype), 0
    for i, q in enumerate(targets):
        for v, s in enumerate(views):
            if v != i:
                total = total + (-q * torch.log_softmax(s, -1)).sum(-1).mean()
                pairs += 1
    return total / pairs
