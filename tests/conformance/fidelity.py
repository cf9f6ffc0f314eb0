"""The statement of a fidelity check: claim, place, expected and actual value.

``record`` asserts, prints the line, and appends it as JSON to the file named by the environment variable
DINOSKIP_FIDELITY, if that is set; docs/fidelity.md and docs/fidelity.csv are made of such a file.
"""

from __future__ import annotations

import json
import math
import operator
import os

import torch
from torch import Tensor

from dinoskip.runtime.randomness import torch_rng

CUTTING = "Cutting the Skip"
ALWAYS = "Always Skip Attention"
CONDITIONED = "Conditioned Initialization for Attention"
QUANTIZATION = "The Quantization Benefits of Residual-Free Transformers"
PAPERS = (CUTTING, ALWAYS, CONDITIONED, QUANTIZATION)
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


def record(
    paper: str, equation: str, what: str, expected: float | str, got: float | Tensor, tolerance: float = 0.0
) -> None:
    """Check one number against a paper and note it down.

    ``expected`` is a number, met within ``tolerance`` (absolute), or a bound: "<= 4", "> 100", or a range "1.06..1.10".
    ``equation`` is the place in the paper: an equation, a proposition, a figure, a section.
    """
    assert paper in PAPERS, paper
    got = float(got.detach() if isinstance(got, Tensor) else got)
    passed = math.isfinite(got) and _holds(expected, got, tolerance)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    line = {
        "paper": paper, "equation": equation, "what": what, "expected": expected, "got": got, "tolerance": tolerance,
        "passed": passed, "test": test,
    }  # fmt: skip
    print(f"{paper}, {equation}: {what}: expected {expected} ± {tolerance:g}, got {got:.8g}")
    if path := os.environ.get("DINOSKIP_FIDELITY"):
        with open(path, "a", encoding="utf-8") as out:
            out.write(json.dumps(line, ensure_ascii=False, allow_nan=True) + "\n")
    assert passed, f"{paper}, {equation}: {what}: expected {expected} ± {tolerance:g}, got {got!r}"


def _holds(expected: float | str, got: float, tolerance: float) -> bool:
    if not isinstance(expected, str):
        return abs(got - expected) <= tolerance
    if ".." in expected:
        low, high = (float(part) for part in expected.split(".."))
        return low - tolerance <= got <= high + tolerance
    sign, bound = expected.split()
    slack = tolerance if sign.startswith("<") else -tolerance
    return bool(_COMPARE[sign](got, float(bound) + slack))


def normal(*shape: int, seed: int | str = 0) -> Tensor:
    """Independent standard normals, float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch_rng(0, "fidelity", seed))


def kappa(matrix: Tensor) -> Tensor:
    """Condition number of one matrix or of each of a batch."""
    values = torch.linalg.svdvals(matrix)
    return values[..., 0] / values[..., -1]


def column_major(jacobian: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """d vec(Y)/d vec(X) of matrices with column-major vec, from jacrev's layout ``rows`` × ``columns``."""
    return jacobian.reshape(*rows, *columns).permute(1, 0, 3, 2).reshape(math.prod(rows), math.prod(columns))
