"""Interpretation of a folder: its photographs, its layout, and the files that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Layout:
    """A layout that was recognised in a folder, or one of several.

    Args:
        name: what people call it.
        place: the folder where it begins, relative to the one looked at; '' if it is that one.
        settings: of the kind of data set that reads it, without its root; None if no kind does.
        photographs: names of the images that are photographs.
        shown: where these lie, for messages.
        marks: the evidence, for messages: two at least, but of plain photographs.
        advice: what to do for its labels, where no kind reads them as they are.
        root: the root of the kind, relative to the folder looked at, where that is not ``place``.
        labels: names of images that by the layout are label maps, whatever else says so.
        unlisted: those of the photographs that lie below it and that nothing of the layout names.
    """

    name: str
    place: str
    settings: Mapping[str, Any] | None
    photographs: tuple[str, ...]
    shown: str = ""
    marks: tuple[str, ...] = ()
    advice: str = ""
    root: str | None = None
    labels: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()

    @property
    def kind(self) -> str | None:
        """The kind of data set that reads it."""
        return None if self.settings is None else str(self.settings["kind"])

    @property
    def phrase(self) -> str:
        """The photographs that the layout takes, as text: ``VOC: 8 photographs of JPEGImages``."""
        where = f" of {self.shown}" if self.shown else ""
        return f"{self.name}: {len(self.photographs):,} {_plural('photograph', len(self.photographs))}{where}"


@dataclass(frozen=True)
class FolderReading:
    """A folder as it is read. ``maps`` counts its label maps; ``others`` images that are neither photographs nor those.

    ``passed`` says which other files are passed over, by extension; ``notes`` what one mark alone says.
    """

    root: Path
    layout: Layout
    maps: int = 0
    others: int = 0
    passed: str = ""
    notes: tuple[str, ...] = ()
    also: tuple[str, ...] = field(default=())

    @property
    def photographs(self) -> tuple[str, ...]:
        """Names of the photographs, relative to ``root``, in the order of listings."""
        return self.layout.photographs

    @property
    def settings(self) -> Mapping[str, Any] | None:
        """Settings of the kind that reads the labels, with its root; None if no kind does."""
        if self.layout.settings is None:
            return None
        place = self.layout.place if self.layout.root is None else self.layout.root
        kind, *rest = self.layout.settings.items()
        return MappingProxyType(dict([kind, ("root", str(self.root / place if place else self.root)), *rest]))

    @property
    def has_rest(self) -> bool:
        """Whether something beside label maps was left out, or is to be said otherwise."""
        return bool(self.others or self.passed or self.notes)

    @property
    def noteworthy(self) -> bool:
        """Whether something was left out, or is to be said otherwise."""
        return bool(self.maps) or self.has_rest

    @property
    def line(self) -> str:
        """The files taken, and those left, in one line."""
        parts = [self.layout.phrase]
        if self.maps:
            maps = _plural("label map", self.maps)
            parts.append(f"{self.maps:,} {maps} {'is not an image' if self.maps == 1 else 'are not images'}")
        if self.others:
            parts.append(f"{self.others:,} other {_plural('image', self.others)} left")
        if self.passed:
            parts.append(f"passed over: {self.passed}")
        if self.also:
            parts.append(f"also {', '.join(self.also)}")
        return "; ".join([*parts, *self.notes])


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
