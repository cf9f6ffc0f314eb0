from __future__ import annotations

from dinoskip.data.workers import wait_advice


def test_compute_bound_needs_no_advice() -> None:
    line = wait_advice(0.02, mode="crops", workers=1, cores=8)
    assert line == "compute-bound: steps wait for their images 2% of the time"


def test_waiting_names_what_can_help_and_nothing_else() -> None:
    line = wait_advice(0.38, mode="crops", workers=2, cores=8)
    assert line.startswith("data waits: 38% of the time")
    assert "more workers: 2 of 8 processors read" in line
    assert "mode decode" in line
    assert "\n" not in line
    full = wait_advice(0.38, mode="decode", workers=8, cores=8)
    assert "more workers" not in full
    assert "mode decode" not in full
    assert "data pack" in full
    assert "workers" not in wait_advice(0.38, mode="resident")
    plain = "data waits: 38% of the time steps wait for their images"
    assert wait_advice(0.38, mode=None, workers=2, cores=8) == f"{plain} (try more workers: 2 of 8 processors read)"
    assert wait_advice(0.38, mode=None, workers=8, cores=8) == plain
