"""A finished training of an earlier version is not taken for one with an added loss."""

from __future__ import annotations

import pytest

from tests.pipeline.test_old_keys import Places, is_another_training, study

__all__ = ["study"]


@pytest.mark.parametrize("change", ["pretrain.centering=sinkhorn", "pretrain.koleo={}"])
def test_an_added_loss_is_another_training(
    change: str, study: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_another_training(change, study, monkeypatch, capsys)
