"""Settings at their default are no part of keys: a default that changes asks for another version."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from dinoskip.settings.config import Config
from dinoskip.settings.keys import every_setting, settings_for_key, with_defaults
from tests.settings.defaults import STORED, defaults


def test_a_default_that_was_changed_has_another_version() -> None:
    """Raise ``key_version``, or the version of the stage or task; then run ``python -m tests.settings.defaults``."""
    stored, today = json.loads(STORED.read_text()), json.loads(json.dumps(defaults()))
    changed = [
        f"{name}.{key}: {value} → {today[name]['defaults'].get(key)}"
        for name, own in stored.items()
        if name in today and today[name]["key_version"] == own["key_version"]
        for key, value in own["defaults"].items()
        if key in today[name]["defaults"] and today[name]["defaults"][key] != value
    ]
    assert len(stored) > 60
    assert not changed


class Loss(Config):
    weight: float = 0.1
    classes: int = 3


class Recipe(Config):
    objective: Literal["dino"] = "dino"
    epochs: int
    rate: float = 0.5
    loss: Loss | None = None
    losses: tuple[Loss, ...] = ()


class Changed(Recipe):
    key_version = 2


class LossOfAnotherMeaning(Loss):
    key_version = 2


class WithLoss(Config):
    loss: Loss = LossOfAnotherMeaning()


def test_a_key_has_what_is_not_at_its_default_and_the_name() -> None:
    assert settings_for_key(Recipe(epochs=3)) == {"objective": "dino", "epochs": 3}
    assert settings_for_key(Recipe(epochs=3, rate=0.1), without={"epochs"}) == {"objective": "dino", "rate": 0.1}
    assert settings_for_key(Recipe(epochs=3, loss=Loss()))["loss"] == {}, "on, with the defaults of its class"
    assert settings_for_key(Recipe(epochs=3, losses=(Loss(), Loss(classes=4))))["losses"] == [{}, {"classes": 4}]
    assert settings_for_key(Changed(epochs=3)) == {"objective": "dino", "epochs": 3, "key_version": 2}
    assert settings_for_key(WithLoss()) == {"loss": {"key_version": 2}}, "also of what is at its default"


RECORDED = (
    {"epochs": 3, "rate": 0.5},  # before there were losses, and a second objective
    {"epochs": 3, "objective": "dino", "rate": 0.5, "loss": None, "losses": []},
    {"objective": "dino", "epochs": 3},
)


@pytest.mark.parametrize("old", RECORDED)
def test_what_a_record_lacks_is_at_its_default(old: dict[str, object]) -> None:
    for today, same in (
        (Recipe(epochs=3), True),
        (Recipe(epochs=4), False),
        (Recipe(epochs=3, rate=0.1), False),
        (Recipe(epochs=3, loss=Loss()), False),
        (Recipe(epochs=3, losses=(Loss(),)), False),
    ):
        every = every_setting(today)
        assert (with_defaults(old, every, settings_for_key(today)) == every) == same, today


class Dino(Config):
    objective: Literal["dino"] = "dino"
    dim: int = 8


class Ibot(Config):
    objective: Literal["ibot"] = "ibot"
    dim: int = 8
    patch_dim: int = 8


def test_a_record_of_no_objective_is_of_dino_and_of_none_that_extends_it() -> None:
    def same(today: Config, old: dict[str, object]) -> bool:
        every = every_setting(today)
        return with_defaults(old, every, settings_for_key(today)) == every

    assert same(Dino(), {"dim": 8})
    assert not same(Ibot(), {"dim": 8})
    assert same(Ibot(), {"dim": 8, "objective": "ibot"})


def test_what_parts_of_a_list_lack_is_at_its_default() -> None:
    today = Recipe(epochs=3, losses=(Loss(), Loss(classes=4)))
    every, changed = every_setting(today), settings_for_key(today)
    for losses, same in (
        ([{"weight": 0.1}, {"weight": 0.1, "classes": 4}], True),
        ([{}, {"classes": 4}], True),
        ([{"classes": 4}, {"classes": 4}], False),
        ([{}, {}], False),
        ([{}], False),
    ):
        assert (with_defaults({"epochs": 3, "losses": losses}, every, changed) == every) == same, losses


def test_a_record_that_says_more_is_another() -> None:
    today = Recipe(epochs=3)
    old = {"epochs": 3, "gone": 1}
    assert with_defaults(old, every_setting(today), settings_for_key(today)) != every_setting(today)
