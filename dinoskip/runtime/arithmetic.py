"""Rounding of the CPU's kernels: set when dinoskip is imported, recorded with every run.

Unless told otherwise, MKL rounds by where an array lies in memory on some processors (AMD's; Intel's with SSE4.2
alone): a matrix has one QR decomposition alone and another in a stack, so other bits on another number of ranks. MKL
reads ``MKL_CBWR`` once a process, at its first computation; processes inherit it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from pathlib import Path
from typing import Literal

Precision = Literal["fp32", "tf32", "bf16"]
"""Of the passes of a frozen network: float32, float32 with TF32's 10 bits in products on CUDA, or bfloat16 autocast."""
VARIABLE, EQUAL_BITS = "MKL_CBWR", "AUTO,STRICT"
_BRANCHES = {1: "off", 2: "AUTO", 3: "COMPATIBLE", 4: "SSE2", 6: "SSSE3", 7: "SSE4_1", 8: "SSE4_2", 9: "AVX",
             10: "AVX2", 12: "AVX512", 14: "AVX512_E1"}  # fmt: skip
_STRICT = 0x10000  # these numbers are mkl_types.h's


def ask_for_equal_bits() -> None:
    """Set ``MKL_CBWR=AUTO,STRICT`` for this process and those it starts, unless the variable is set."""
    os.environ.setdefault(VARIABLE, EQUAL_BITS)


def arithmetic() -> dict[str, str]:
    """Return what decides how sums are rounded: the processor, and what MKL, torch and oneDNN were told or chose.

    MKL itself is asked: what another library made it do before the variable was set is told as it is. "off": it rounds
    by where arrays lie; "no MKL": torch has none.
    """
    import torch  # heavy

    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return {
        "processor": _processor(),
        VARIABLE: _mkl_mode(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so", has_mkl),
        "ATEN_CPU_CAPABILITY": torch.backends.cpu.get_cpu_capability(),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "no cap"),
    }


def kernels() -> str:
    """Return which kernels NumPy's BLAS, and torch where it is loaded, use: ``openblas SkylakeX, torch AVX512``.

    They decide the last bits of products and eigenvectors. The copies of BLAS that other packages bring are not named:
    whether they are loaded depends on what a process did before, and rows must not.
    """
    from threadpoolctl import threadpool_info  # commands that print text import this module

    blas = {
        f"{library['internal_api']} {library.get('architecture', '')}".strip()
        for library in threadpool_info()
        if library["user_api"] == "blas" and not _is_of_another_package(Path(library["filepath"]))
    }
    torch = sys.modules.get("torch")  # importing it for this alone would take seconds
    dispatched = [] if torch is None else [f"torch {torch.backends.cpu.get_cpu_capability()}"]
    return ", ".join([*sorted(blas), *dispatched])


def _is_of_another_package(library: Path) -> bool:
    """Whether a wheel that is not NumPy's brought a library: it lies in ``NAME.libs``, on macOS in ``.dylibs``."""
    bundled = library.parent.name.endswith((".libs", ".dylibs"))
    return bundled and "numpy" not in {part.partition(".")[0] for part in library.parts}


def _processor() -> str:
    try:
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1] if named else platform.machine()


def _mkl_mode(library: Path, has_mkl: bool) -> str:
    try:
        mode = int(ctypes.CDLL(str(library)).mkl_serv_cbwr_get(-1))
    except (OSError, AttributeError):  # another library has it, or none
        return os.environ.get(VARIABLE, "off") if has_mkl else "no MKL"
    branch = _BRANCHES.get(mode & ~_STRICT, hex(mode))
    return f"{branch},STRICT" if mode & _STRICT else branch
