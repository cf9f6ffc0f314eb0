"""Hours of a study's training: that the command runs, and counts operations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.gpu_hours import main
from dinoskip.pipeline.estimate.cards import REACHED

ROOT = Path(__file__).parents[2]


def test_the_study_of_a_gpu_day(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "configs" / "results" / "gpu_day.yaml")
    monkeypatch.setattr(sys, "argv", ["gpu_hours", config, "--card", "h100", "--images", "126689"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 12 + 1  # three networks, two optimizers, two seeds; the released network is not trained
    hours = 113.4e9 * 126689 * 300 / (REACHED["bf16"] * 1e12) / 3600
    counted = [float(line.rpartition(" GPU hours")[0].split()[-1]) for line in lines[1:]]
    assert counted[:-1] == pytest.approx([hours] * 12, rel=0.01)
    assert counted[-1] == pytest.approx(12 * hours, rel=0.02)
