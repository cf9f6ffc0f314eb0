"""Settings that a published protocol gives by its name, and what result rows say of those that are not its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from pydantic import model_validator

from dinoskip.settings.config import Config, Distinct, Positive, dump
from dinoskip.settings.tasks import TaskOption

LearningRates = Distinct[Positive]
"""One head each."""


class ProtocolConfig(Config):
    """Settings of which ``protocol``, a field of every subclass, gives all that are not given themselves.

    ``protocols`` are what each differs in from the defaults. ``unsaid`` are settings that result rows say elsewhere, or
    not at all.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    unsaid: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _of_the_protocol(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("protocol", cls.model_fields["protocol"].default)
        return {**cls.protocols.get(name, {}), **given} if isinstance(name, str) else given

    @classmethod
    def _declared(cls) -> type[Self]:
        """The class that declares the settings, of which a study's section is a subclass."""
        return next(base for base in reversed(cls.__mro__) if "protocol" in getattr(base, "model_fields", {}))

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings as plain containers, without those that a study's section adds."""
        names = self._declared().model_fields
        return {name: value for name, value in dump(self).items() if name in names}

    @property
    def label(self) -> str:
        """Protocol in result rows: its name and every setting that differs from it."""
        return ", ".join([self.protocol, *self.changed])  # type: ignore[attr-defined]

    @property
    def changed(self) -> list[str]:
        """``epochs 20`` and the like for every setting that is not the protocol's."""
        declared = self._declared()
        base = declared(protocol=self.protocol)  # type: ignore[call-arg, attr-defined]
        values = {name: getattr(self, name) for name in declared.model_fields if name not in self.unsaid}
        return [
            f"{name.replace('_', ' ')} {_text(value)}" for name, value in values.items() if value != getattr(base, name)
        ]


def protocol_option(task: str, section: type[ProtocolConfig], page: str, more: str = "") -> TaskOption:
    """The flag that stands for the protocol of a task, whose settings are ``section`` and ``page`` of docs is about."""
    default = section.model_fields["protocol"].default
    about = f"{', '.join(section.protocols)} ({page}; default: {default}){more}"
    return TaskOption("--protocol", "NAME", f"evaluate.{task}.protocol={{}}", about)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
