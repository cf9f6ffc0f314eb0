"""Settings that are part of a stage's key, and the test whether a record of earlier settings equals today's."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from dinoskip.plugins import content_of
from dinoskip.settings.config import Config, Tree

ONCE_UNNAMED = MappingProxyType({"objective": "dino"})
"""Values of settings that a record does not name: until version 0.2 a training by DINO did not name its objective."""


def settings_for_key(config: Config, without: Collection[str] = ()) -> Tree:
    """The settings that are part of a stage's key: those that are not at their default, but for the fields named.

    So a setting that is added later, with a default that keeps results, leaves all keys as they were. A default that is
    changed changes results under the same key: the class then gets another ``key_version``, or the stage or the task
    another version (``tests/settings/test_defaults.py`` asks for it). What names a class (``name``, ``kind``,
    ``objective``) is always part.
    """
    return _settings(config, without, every=False)


def every_setting(config: Config, without: Collection[str] = ()) -> Tree:
    """:func:`settings_for_key` with every default written out."""
    return _settings(config, without, every=True)


def _settings(config: Config, without: Collection[str], *, every: bool) -> Tree:
    kind, tree = type(config), Tree()
    for name, field_info in kind.model_fields.items():
        value = getattr(config, name)
        if name in without or field_info.exclude:
            continue
        at_default = not field_info.is_required() and value == field_info.get_default(call_default_factory=True)
        if every or not at_default or _names_its_class(field_info) or _has_another_version(value):
            tree[name] = _value_for_key(value, every=every)
    if kind.key_version != Config.key_version:
        tree["key_version"] = kind.key_version
    if (content := content_of(kind)) is not None:
        tree["plugin"] = content
    return tree


def _names_its_class(field_info: FieldInfo) -> bool:
    """Whether a field can have one value alone, by which a class is found."""
    return typing.get_origin(field_info.annotation) is Literal and len(typing.get_args(field_info.annotation)) == 1


def _has_another_version(value: Any) -> bool:
    """Whether a class of settings at their default has a ``key_version`` that is to be in the key nevertheless."""
    return isinstance(value, Config) and (
        type(value).key_version != Config.key_version
        or any(_has_another_version(getattr(value, name)) for name in type(value).model_fields)
    )


def _value_for_key(value: Any, *, every: bool) -> Any:
    if isinstance(value, Config):
        return _settings(value, (), every=every)
    if isinstance(value, Mapping):
        return {name: _value_for_key(part, every=every) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value_for_key(part, every=every) for part in value]
    return to_jsonable_python(value)


def with_defaults(old: Mapping[str, Any], every: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings with those that they lack, where these are at their default today (:data:`ONCE_UNNAMED`, too).

    ``old`` were recorded with some defaults or none, by an earlier version perhaps. ``every`` are all settings of today
    (:func:`every_setting`), ``changed`` those that are not at their default (:func:`settings_for_key`). A setting that
    is not at its default today stays absent, so that the result differs from ``every``.
    """
    filled = dict(old)
    for name, value in every.items():
        if name in old:
            filled[name] = _filled(old[name], value, changed.get(name))
        elif name not in changed or ONCE_UNNAMED.get(name) == value:
            filled[name] = value
    return filled


def _filled(old: Any, every: Any, changed: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(every, Mapping):
        return with_defaults(old, every, changed if isinstance(changed, Mapping) else {})
    if isinstance(old, list | tuple) and isinstance(every, list | tuple) and len(old) == len(every):
        parts = changed if isinstance(changed, list | tuple) else [None] * len(every)
        return [_filled(*part) for part in zip(old, every, parts, strict=True)]
    return old
