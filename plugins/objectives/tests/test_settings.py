"""Settings that an objective refuses: one line each."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.pipeline.study import study_of
from dinoskip.settings.config import RawConfig, validate
from dinoskip.training import PretrainJob


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "ibot", "mask_ratios": [[0.5, 0.1]]}, r"pretrain.mask_ratios: must be pairs of shares"),
        ({"objective": "ibot", "crops": {"num_global": 1}}, r"pretrain: crops.num_global: must be 2"),
        ({"objective": "mae", "decoder_dim": 40}, r"pretrain.decoder_dim: "),
    ],
)
def test_settings_that_an_objective_refuses_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(PretrainJob, RawConfig({"pretrain": settings}))
    assert len(caught.value.problems) == 1


def test_mae_keeps_the_positions_with_which_weights_are_measured() -> None:
    calibrated = {"skip": False, "init": {"name": "calibrated"}}
    with pytest.raises(ConfigError, match=r"pretrain.positions: sincos replaces those .* take positions=learned"):
        validate(PretrainJob, RawConfig({"model": calibrated, "pretrain": {"objective": "mae"}}))
    validate(PretrainJob, RawConfig({"model": calibrated, "pretrain": {"objective": "mae", "positions": "learned"}}))
    tree = {"name": "x", "data": {"scenes": {"kind": "scenes"}}, "variants": {"model": [{"skip": True}, calibrated]}}
    with pytest.raises(ConfigError, match=r"pretrain.positions: sincos"):
        study_of(RawConfig({**tree, "pretrain": {"objective": "mae", "dataset": "scenes"}}))
