"""Probe recipes by name: what is given wins, the label says what was changed, impossible ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.settings.config import RawConfig, dump, validate
from eval.probe.config import PROTOCOLS, ProbeConfig


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_is_itself_and_survives_being_written_out(name: str) -> None:
    recipe = ProbeConfig(protocol=name)
    assert recipe.label == name
    assert {key: getattr(recipe, key) for key in PROTOCOLS[name]} == dict(PROTOCOLS[name])
    assert validate(ProbeConfig, RawConfig(dump(recipe))) == recipe


def test_dinov2_is_the_published_schedule() -> None:
    recipe = ProbeConfig(protocol="dinov2")
    assert (recipe.steps(20_210), recipe.batch_size, recipe.warmup * recipe.steps(20_210)) == (40_000, 16, 1_500)
    assert (recipe.trials, recipe.size, recipe.stride) == ([(1e-3, 1e-4)], 512, 341)
    assert recipe.resolution == "512 windows, stride 341, scored at label size"


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "paper"),
        ({"live": True}, "paper, live"),
        ({"protocol": "dinov2", "iterations": 200}, "dinov2, 200 iterations"),
        ({"protocol": "dinov2", "epochs": 2}, "dinov2, 2 epochs"),
        ({"iterations": 7, "size": 448, "seeds": 3}, "paper, 7 iterations"),
        ({"protocol": "leopart", "learning_rates": [0.1, 0.01]}, "leopart, learning rates 0.1 0.01"),
        ({"weight_decay": 0.01, "refine": 4}, "paper, weight decay 0.01, refine 4"),
        ({"protocol": "dinov2", "live": False, "stride": None, "refine": 2}, "dinov2, cached, refine 2, no stride"),
    ],
)
def test_label_says_what_is_not_the_protocols_own(changes: dict[str, Any], label: str) -> None:
    recipe = ProbeConfig(**changes)
    assert recipe.label == label
    assert ProbeConfig(**dump(recipe)).label == label


def test_every_rate_meets_every_decay() -> None:
    recipe = ProbeConfig(learning_rates=(0.1, 0.01), weight_decay=(1.0, 0.0))
    assert recipe.trials == [(0.01, 0.0), (0.01, 1.0), (0.1, 0.0), (0.1, 1.0)]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"protocol": "dinov4"}, "'dinov4' is none of paper, fast, dinov2, dinov3, leopart (did you mean dinov3?)"),
        ({"protocol": 3}, "protocol"),
        ({"stride": 100}, "sliding windows (stride) need live=true"),
        ({"protocol": "dinov2", "live": False}, "sliding windows (stride) need live=true"),
        ({"protocol": "dinov3", "live": False, "stride": None}, "dropout needs live=true"),
        ({"protocol": "leopart", "live": False, "mask": None}, "labels differ in size"),
        ({"protocol": "dinov2", "stride": 513}, "stride 513 leaves gaps"),
        ({"epochs": 1, "iterations": 1}, "give epochs or iterations"),
        ({"live": True, "scale": [0.5, 2.0]}, "covers at most all of the image"),
        ({"learning_rates": [1e-3, 1e-3]}, "given twice"),
        ({"epoch": 3}, "did you mean epochs?"),
    ],
)
def test_impossible_recipes_are_one_line(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        validate(ProbeConfig, RawConfig(tree))
    assert len(failure.value.problems) == 1
    assert message in failure.value.problems[0]
