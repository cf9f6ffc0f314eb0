"""Symmetric matrices on a CPU, of which one triangle is written and read: half the work, half the memory.

They are BLAS's ``ssyrk`` and ``dsymv``. ``scipy.linalg.blas`` has the same routines, but keeps the interpreter lock and
so would make worker threads wait for each other. Here they are called through the pointers that SciPy publishes for
compiled code, without the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@cache
def _routine(name: str, arguments: int) -> Callable[..., Any]:
    """Return a routine of BLAS; its arguments are all pointers, as Fortran has them."""
    capsule = cython_blas.__pyx_capi__[name]
    signature = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    open_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(open_capsule(capsule, signature))


_UPPER, _STEP, _ZERO = b"U", ctypes.byref(ctypes.c_int(1)), ctypes.byref(ctypes.c_double(0.0))
_TRANSPOSED, _ONE32, _ZERO32 = b"T", ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))


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
    _routine("dsymv", 10)(_UPPER, count, alpha, a, count, x, _STEP, _ZERO, y, _STEP)
    return out


def inner_products(rows: F32, out: F32) -> None:
    """Write the inner products of ``rows`` (n, C) into the lower triangle of ``out`` (n, n), both C-contiguous float32.

    What is above the diagonal of ``out`` stays: NumPy's product does the same work, and then mirrors it.
    """
    n, channels = rows.shape
    if out.shape != (n, n) or not all(array.flags.c_contiguous for array in (rows, out)):
        raise ValueError(f"an array {out.shape} does not fit products of rows {rows.shape}, or they are not contiguous")
    if rows.dtype != np.float32 or out.dtype != np.float32:
        raise ValueError("inner products are of float32")
    count, depth = ctypes.byref(ctypes.c_int(n)), ctypes.byref(ctypes.c_int(channels))
    a, c = (array.__array_interface__["data"][0] for array in (rows, out))
    _routine("ssyrk", 10)(_UPPER, _TRANSPOSED, count, depth, _ONE32, a, depth, _ZERO32, c, count)
