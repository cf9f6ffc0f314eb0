"""Constants of the code beside those that are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

import pytest


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a tree that is no mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def value_of(owner: Any, key: str) -> Any:
    for name in key.split("."):
        owner = getattr(owner, name)
    return owner


def check(value: Any, published: Any) -> None:
    if isinstance(value, float):
        assert value == pytest.approx(published, rel=1e-9)
    else:
        assert (list(value) if isinstance(published, list) else value) == published


def check_in_code(place: str, published: Any) -> None:
    """``place`` is ``module:NAME``, or ``module:function.argument`` for a default."""
    module, _, path = place.partition(":")
    name, _, argument = path.partition(".")
    value = getattr(import_module(module), name)
    check(signature(value).parameters[argument].default if argument else value, published)
