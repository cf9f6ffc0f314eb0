"""A run with all added losses is compiled whole."""

from __future__ import annotations

from pathlib import Path

import torch

from dinoskip.data import ImageFolder
from dinoskip.training import pretrain
from tests.training.test_compilation import _no_code_generation, environment, images, job_of

__all__ = ["_no_code_generation", "images"]


def test_a_run_with_all_that_adds_is_compiled_without_a_break(images: ImageFolder, tmp_path: Path) -> None:
    added = {"koleo": {}, "gram": {"teacher": "ema"}, "paka": {"hidden_dim": 16, "out_dim": 8}, "centering": "sinkhorn"}
    pretrain(job_of(**added), images, tmp_path / "run", device="cpu")
    assert environment(tmp_path / "run")["uncompiled"] is None
    assert torch._dynamo.utils.counters["graph_break"] == {}
