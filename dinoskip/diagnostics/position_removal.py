"""Position taken out of patch features, as two published methods do: a treatment, to be measured before and after.

RASA (valeoai/Franca ``rasa_head.py`` @24f8c60) takes out the plane that a linear position probe reads, round by round.
INSID3 (visinf/INSID3 ``insid3.py`` @c1f9622) takes out the leading directions of the features of a flat image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class RasaRound(NamedTuple):
    """``prediction`` (..., 2) of row and column in 0..1; ``removed`` and ``kept`` (..., C) add up to the input."""

    prediction: Tensor
    removed: Tensor
    kept: Tensor


@torch.no_grad()
def rasa_round(features: Tensor, weight: Tensor) -> RasaRound:
    """One round for features (..., C) and a probe's ``weight`` (2, C), without bias and before its sigmoid."""
    basis = torch.linalg.qr(weight.to(features.dtype).T).Q  # (C, 2), of the plane of the two rows
    removed = features @ basis @ basis.T
    return RasaRound((features @ weight.to(features.dtype).T).sigmoid(), removed, features - removed)


@torch.no_grad()
def insid3_debiased(features: Tensor, flat: Tensor, components: int = 500) -> Tensor:
    """Unit features (..., C) without the leading ``components`` directions of other features ``flat`` (n, C).

    These, of unit length and centred, are the patches of an image of one colour, all zeros before its normalisation.
    Rows have unit length.
    """
    return without_directions(features, insid3_directions(flat, components))


@torch.no_grad()
def insid3_directions(flat: Tensor, components: int) -> Tensor:
    """The leading orthonormal directions (components or fewer, C) of features ``flat`` (n, C) of a flat image."""
    unit = F.normalize(flat, dim=-1)
    directions: Tensor = torch.linalg.svd(unit - unit.mean(0), full_matrices=False).Vh[:components]
    return directions


@torch.no_grad()
def without_directions(features: Tensor, directions: Tensor) -> Tensor:
    """Unit features (..., C) without orthonormal ``directions`` (k, C), and of unit length again."""
    rows = F.normalize(features, dim=-1)
    return F.normalize(rows - rows @ directions.T @ directions, dim=-1)
