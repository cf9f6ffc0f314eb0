"""Parts of other packages (plug-ins), found by entry point, or in single files that a user names.

A package declares its parts in its pyproject, one group a kind of part (:data:`GROUPS`)::

    [project.entry-points."dinoskip.tasks"]
    smoothness = "my_package.smoothness:TASK"

A single file needs no installation: ``plugins: [my_task.py]`` in a study, ``--plugin my_task.py`` of a command, or
:data:`FILES` in the environment. It declares the same as ``PARTS = {"tasks": {"smoothness": TASK}}``. **The file is
run**, and the sha256 of its content is part of the keys of what its parts compute.

A package's part is imported when it is asked for by name or when all parts of its kind are listed. Processes that are
started later find the files in the environment that they inherit.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from dinoskip.errors import ConfigError
from dinoskip.io.files import sha256_file
from dinoskip.runtime.console import log

T = TypeVar("T")
GROUPS = (
    "tasks", "objectives", "added_losses", "data_kinds", "labels", "initialisations", "optimizers", "layers",
    "stages", "commands", "papers",
)  # fmt: skip
"""Kinds of part; the entry-point group of each is ``dinoskip.`` and its name."""
FILES = "DINOSKIP_PLUGINS"
"""Environment variable with the files of plug-ins, separated as in PATH."""
PARTS = "PARTS"
"""Name of the table of parts in a file."""
LAST = 1000
"""Place of a part that has no ``order`` of its own, behind those that come with dinoskip."""


@dataclass(frozen=True)
class Plugin:
    """A part of another package: its group and name, where it comes from, and the function that imports it."""

    group: str
    name: str
    source: str
    load: Callable[[], Any]


# --- where they are ----------------------------------------------------------------------------------


def use_files(files: Iterable[str | Path]) -> None:
    """Name files of plug-ins, for this process and those that it starts.

    Raises :class:`ConfigError` for a file that is no plug-in.
    """
    for file in map(str, (Path(file).expanduser().resolve() for file in files)):
        if file not in _files():
            _of_file(Path(file))
            os.environ[FILES] = os.pathsep.join([*_files(), file])
            found.cache_clear()


def _files() -> list[str]:
    return [file for file in os.environ.get(FILES, "").split(os.pathsep) if file]


@cache
def found() -> Mapping[tuple[str, str], Plugin]:
    """All plug-ins, by group and name: those of installed packages, then those of named files.

    Raises :class:`ConfigError` for a file that is no plug-in, and where two parts of one group have one name.
    """
    installed = entry_points()  # read once: each call looks into every installed package
    every = [
        Plugin(group, entry.name, f"package {entry.dist.name if entry.dist else entry.module}", entry.load)
        for group in GROUPS
        for entry in sorted(installed.select(group=f"dinoskip.{group}"), key=lambda entry: entry.name)
    ]
    for file in _files():
        every += _of_file(Path(file))
    by_name: dict[tuple[str, str], Plugin] = {}
    for part in every:
        before = by_name.setdefault((part.group, part.name), part)
        if before.source != part.source:
            raise ConfigError(
                f"{before.source} and {part.source} both have a part {part.name!r} of dinoskip.{part.group}",
                "uninstall one of them, or rename its part",
            )
    return by_name


def _of_file(path: Path) -> list[Plugin]:
    """The parts that a file declares."""
    table = getattr(_module(path), PARTS, None)
    if not isinstance(table, Mapping) or not table or not all(isinstance(named, Mapping) for named in table.values()):
        raise ConfigError(
            f"{path}: is no plug-in: it has no table {PARTS}", f'end it with {PARTS} = {{"tasks": {{"NAME": TASK}}}}'
        )
    if unknown := sorted(set(table) - set(GROUPS)):
        raise ConfigError(f"{path}: {PARTS} has {unknown[0]!r}", f"groups are {', '.join(GROUPS)}")
    return [
        Plugin(group, str(name), str(path), _giving(part))
        for group, named in table.items()
        for name, part in named.items()
    ]


def _giving(part: Any) -> Callable[[], Any]:
    return lambda: part


def _module(path: Path) -> ModuleType:
    """Import a file by its own name, so that processes that are started later can import it, too."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", "name a Python file with --plugin or plugins")
    if not path.stem.isidentifier() or path.suffix != ".py":
        raise ConfigError(f"{path}: a plug-in is a Python file with a name that can be imported", "such as my_task.py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:  # whatever a stranger's file raises
        raise ConfigError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    if Path(module.__file__ or "").resolve() != path:
        raise ConfigError(f"{path}: there is another module {path.stem!r}, {module.__file__}", "rename the file")
    return module


# --- tables of parts ---------------------------------------------------------------------------------


@cache
def _part(plugin: Plugin, kind: type) -> Any:
    """The part of a plug-in, None for one that cannot be used: it is left out with one warning that names it."""
    try:
        part = plugin.load()
        problem = _problem(plugin.group, plugin.name, part, kind)
    except Exception as error:  # whatever a stranger's module raises
        problem = f"{type(error).__name__}: {error}"
    if problem:
        log.warning("plug-in %r of dinoskip.%s, %s, is left out: %s", plugin.name, plugin.group, plugin.source, problem)
        return None
    return part


def _problem(group: str, name: str, part: Any, kind: type) -> str | None:
    """Return the problem with a part, or None: it is of another kind, or its name is not that of its entry point."""
    if isinstance(part, type):
        if not issubclass(part, kind):
            return f"{part.__name__} is not derived from {kind.__name__}"
        own = _name_of(part) if issubclass(part, BaseModel) else name
    elif not isinstance(part, kind):
        return f"it is no {kind.__name__}"
    else:  # a layer's name is what its button says
        own = getattr(part, "name", name) if group in {"tasks", "labels", "stages"} else name
    return None if own == name else f"it calls itself {own!r}"


def _name_of(settings: type[BaseModel]) -> Any:
    """The name of a class of settings: the default of its field ``name``, ``kind`` or ``objective``."""
    fields = settings.model_fields
    return next((fields[key].default for key in ("name", "kind", "objective") if key in fields), None)


def order_of(part: Any, own: bool = False) -> int:
    """A part's place among those of its kind: its ``order``, else before (``own``) or behind those that have one."""
    order = getattr(part, "order", None)
    return order if isinstance(order, int) else 0 if own else LAST


def _usable(group: str, name: str, own: bool, kind: type) -> Any:
    plugin = found().get((group, name))
    if plugin is not None and own:
        raise ConfigError(f"{plugin.source}: dinoskip itself has a part {name!r} of dinoskip.{group}", "rename it")
    return None if plugin is None else _part(plugin, kind)


class Table(Mapping[str, T]):
    """Parts of one kind by name: our ``own`` and those of plug-ins, by their ``order`` where they have one.

    Without one, ours come first as they are written, then those of plug-ins by name. A plug-in's part is imported
    when it is asked for; one that cannot be used is not there.
    """

    def __init__(self, group: str, own: Mapping[str, T], kind: type) -> None:
        self.group, self.own, self.kind = group, own, kind

    def __getitem__(self, name: str) -> T:
        part = self._plugin(name)
        return self.own[name] if part is None else part

    def __iter__(self) -> Iterator[str]:
        names = [*self.own]
        names += [name for group, name in found() if group == self.group and self._plugin(name) is not None]
        return iter(sorted(names, key=lambda name: order_of(self[name], name in self.own)))

    def _plugin(self, name: str) -> Any:
        return _usable(self.group, name, name in self.own, self.kind)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def add_commands(commands: Any) -> None:
    """Have the commands of plug-ins add themselves to the parsers of ours.

    Help lists a command where its function says: behind the one that its attribute ``after`` names, else at the end.
    """
    added: Table[Callable[[Any], None]] = Table("commands", {}, FunctionType)
    for name, add in added.items():
        add(commands)
        listed = commands._choices_actions  # of argparse: what help lists, in its order
        places = [place for place, action in enumerate(listed) if action.dest == getattr(add, "after", None)]
        own = [action for action in listed if action.dest == name]
        if places and own:
            listed.remove(own[0])
            listed.insert(places[0] + 1, own[0])


@dataclass(frozen=True)
class ByName:
    """Marks a union of our own settings classes as one to which plug-ins of a ``group`` add theirs, of a ``kind``.

    A value whose ``key`` (``name``, ``kind``, ``objective``) names a plug-in's class is validated by that; ``made``
    turns it into the class that is wanted, such as one with a further field.
    """

    group: str
    kind: type[BaseModel]
    key: str
    made: Callable[[type[BaseModel]], type[BaseModel]] = lambda kind: kind

    def classes(self) -> list[type[BaseModel]]:
        """The classes of all plug-ins."""
        added: Table[type[BaseModel]] = Table(self.group, {}, self.kind)
        return [self.made(part) for part in added.values()]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate and dump by the class of the plug-in that a value names, if it names one."""
        own_names = {_name_of(one) for one in get_args(source)}

        def validated(value: Any, own: Callable[[Any], Any]) -> Any:
            name = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
            part = _usable(self.group, name, name in own_names, self.kind) if isinstance(name, str) else None
            return own(value) if part is None else self.made(part).model_validate(value)

        def dumped(value: Any, own: Callable[[Any], Any], info: core_schema.SerializationInfo) -> Any:
            return value.model_dump(mode=info.mode) if getattr(value, self.key, None) not in own_names else own(value)

        return core_schema.no_info_wrap_validator_function(
            validated,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(dumped, info_arg=True),
        )


# --- what keys say of them ---------------------------------------------------------------------------


def content_of(kind: type) -> str | None:
    """The sha256 of the plug-in's file in which a class, or one it is derived from, is declared; None of all others."""
    files = {Path(file).stem: file for file in _files()}
    return next((_sha256(files[base.__module__]) for base in kind.__mro__ if base.__module__ in files), None)


def content_of_part(group: str, name: str) -> str | None:
    """The sha256 of the file that declares a part; None of parts of packages."""
    plugin = found().get((group, name))
    return None if plugin is None or plugin.source not in _files() else _sha256(plugin.source)


@cache
def _sha256(file: str) -> str:
    return sha256_file(Path(file))
