"""The cut vector of a graph of which products alone can be had, where Lanczos without restarts leaves it open.

Of an eigenvalue with several vectors Lanczos sees one. So there are two searches by ARPACK's restarted Lanczos, each
from a random start: the second is among vectors orthogonal to what the first found, and finds the third eigenvalue even
where that equals the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dinoskip.runtime.randomness import numpy_rng

F64 = NDArray[np.float64]
DIMENSIONS = 40  # of the space that is kept between restarts
RESTARTS = 25  # of each search: at most some 1,000 products, ten minutes for 50,000 tokens on one core
TOLERANCE = 2.5e-11  # residual over eigenvalue, which is at most 2 here: the bound that Lanczos without restarts has


class SecondVector(NamedTuple):
    """y (n,), y'Dy = 1, sign open, of (D - A) y = λ D y; its eigenvalue, the second, and the distance to the third."""

    y: F64
    eigenvalue: float
    gap: float


def second_vector(apply: Callable[[F64], F64], degree: F64) -> SecondVector | None:
    """Return the second generalised eigenvector of (D - A, D), None where one of the searches does not converge.

    ``apply`` multiplies the symmetric A with a vector (n,); ``degree`` (n,) are its row sums, positive.
    """
    n, s = len(degree), degree**-0.5
    known = [np.sqrt(degree / degree.sum())]

    def product(vector: F64) -> F64:
        vector = _without(known, vector.ravel())
        return _without(known, s * apply(s * vector) + vector)  # + 1: what is taken out, 0, is the smallest then

    tops = []
    for number in range(2):
        start = _without(known, numpy_rng(number, "tokencut", "restarted", n).standard_normal(n))
        try:
            values, vectors = eigsh(
                LinearOperator((n, n), matvec=product, dtype=np.float64),
                k=1, which="LA", v0=start, ncv=min(DIMENSIONS, n - 1), maxiter=RESTARTS, tol=TOLERANCE,
            )  # fmt: skip
        except ArpackNoConvergence:
            return None
        tops.append(float(values[0]) - 1)
        known.append(vectors[:, 0])
    return SecondVector(s * known[1], 1 - tops[0], max(tops[0] - tops[1], 0.0))


def _without(known: list[F64], vector: F64) -> F64:
    """Return a vector (n,) less its parts along orthonormal ``known`` ones."""
    for other in known:
        vector = vector - (other @ vector) * other
    return vector
