"""Part ``tasks``: every task and the gallery once on the GPU, by the tests that compare their rows with a CPU's."""

from __future__ import annotations

from benchmarks.gpu.device_tests import WHOLE, run_marked
from benchmarks.gpu.kit import Kit


def run(kit: Kit) -> None:
    """Run them; on a CPU they are collected alone."""
    run_marked(kit, "tests of every task", WHOLE, 3)
