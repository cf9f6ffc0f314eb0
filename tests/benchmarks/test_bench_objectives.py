"""The benchmark's two formulations of each objective are the same first step."""

from __future__ import annotations

import re

import pytest

from benchmarks import bench_objectives as bench


@pytest.mark.slow
@pytest.mark.parametrize("objective", bench.PLAIN)
def test_both_formulations_have_the_same_loss(objective: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench.measure(objective, "vit_mini_patch8", 2, 32, 1)
    plain, ours = re.findall(r"losses (\S+) (\S+)", capsys.readouterr().out)[0]
    assert float(ours) == pytest.approx(float(plain), rel=1e-5)
