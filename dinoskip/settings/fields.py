"""Types and validators of the fields that sections of a study share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dinoskip.settings.config import Config, OneOrSeveral, as_tuple
from dinoskip.settings.read_points import Facet

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A validator: one value at least."""
    if not values:
        raise ValueError("must name one at least")
    return values


@dataclass(frozen=True)
class OneOf:
    """Marks a string that must be one of ``names``, which are asked for when a value is read: plug-ins have some."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse other values as a ``Literal`` would."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str) -> str:
        names = self.names()
        if not names:
            raise ValueError("is of a plug-in, and none that has such a name is installed")
        if value not in names:
            expected = ", ".join(f"'{name}'" for name in names)
            raise PydanticCustomError("literal_error", "should be {expected}", {"expected": expected})
        return value


Names = Annotated[tuple[Name, ...], BeforeValidator(as_tuple)]
"""Keys of a study's ``data``."""


Facets = Annotated[OneOrSeveral[Facet], AfterValidator(not_empty)]
"""Facets at which blocks are read (docs/concepts/read_points.md)."""
READ_AT = "where blocks are read: one or several (docs/concepts/read_points.md); what is shown is of the first"


class StudyName(Config):
    """The name of a study on its own."""

    name: Name
