"""Symmetric matrix times vector on a CPU by BLAS's ``dsymv``: it reads one triangle, and so half the memory.

``scipy.linalg.blas.dsymv`` is the same routine, but keeps the interpreter lock and so would make worker threads wait
for each other. Here it is called through the pointer that SciPy publishes for compiled code, without the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas

F64 = NDArray[np.float64]


@cache
def _dsymv() -> Callable[..., Any]:
    """Return the routine; its arguments are all pointers (uplo, n, alpha, a, lda, x, incx, beta, y, incy)."""
    capsule = cython_blas.__pyx_capi__["dsymv"]
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    open_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(open_capsule(capsule, name))


_UPPER, _STEP, _ZERO = b"U", ctypes.byref(ctypes.c_int(1)), ctypes.byref(ctypes.c_double(0.0))


def symmetric_product(matrix: F64, vector: F64, scale: float = 1.0) -> F64:
    """Return (n,): ``scale`` times the symmetric ``matrix`` (n, n) times ``vector`` (n,), both C-contiguous float64.

    Only the lower triangle of the matrix is read. Sums of integers below 2^53 are exact.
    """
    n = len(vector)
    if matrix.shape != (n, n) or not matrix.flags.c_contiguous or not vector.flags.c_contiguous:
        raise ValueError(f"a matrix {matrix.shape} does not fit a vector {vector.shape}, or they are not contiguous")
    if matrix.dtype != np.float64 or vector.dtype != np.float64:
        raise ValueError("a symmetric product is of float64")
    out = np.empty(n)
    count, alpha = ctypes.byref(ctypes.c_int(n)), ctypes.byref(ctypes.c_double(scale))
    a, x, y = (array.__array_interface__["data"][0] for array in (matrix, vector, out))
    # Rows are what Fortran calls columns, so the lower triangle is its upper one.
    _dsymv()(_UPPER, count, alpha, a, count, x, _STEP, _ZERO, y, _STEP)
    return out
