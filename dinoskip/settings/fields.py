"""Types and validators of the fields that sections of a study share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from dinoskip.settings.config import Config, OneOrSeveral, as_tuple
from dinoskip.settings.read_points import Facet

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A validator: one value at least."""
    if not values:
        raise ValueError("must name one at least")
    return values


Names = Annotated[tuple[Name, ...], BeforeValidator(as_tuple)]
"""Keys of a study's ``data``."""


Facets = Annotated[OneOrSeveral[Facet], AfterValidator(not_empty)]
"""Where blocks are read (docs/concepts/read_points.md)."""
READ_AT = "where blocks are read: one or several (docs/concepts/read_points.md); what is shown is of the first"


class StudyName(Config):
    """The name of a study on its own."""

    name: Name
