"""The command settings: every setting of studies and runs, with default, range and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import to_json

from dinoskip.cli.arguments import Args, command, json_option, print_json, print_table
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.pipeline.study import Study
from dinoskip.settings.config import models_of
from dinoskip.settings.fields import OneOf

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Setting(NamedTuple):
    """One setting. ``of`` is the type that has it, where there are several to choose from by a key of theirs."""

    key: str
    of: str
    default: str
    range: str
    meaning: str


def add_commands(commands: Any) -> None:
    parser = command(commands, "settings", settings, "list all settings, with default, range and meaning")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="a section or setting, such as probe or online.knn, or words to look for",
    )
    json_option(parser, "the list")


def settings_of(kind: Any, key: str = "", choice: str = "") -> list[Setting]:
    """All settings of a configuration type, those of sections inside included."""
    rows = []
    for name, field in kind.model_fields.items():
        inner, at = models_of(field), f"{key}.{name}".strip(".")
        at += ".NAME" if get_origin(field.annotation) is dict else ""
        rows += _once([settings_of(section, at, _tag_of(section) if len(inner) > 1 else choice) for section in inner])
        if not inner and not (choice and field.default == choice):
            default = "required"
            if not field.is_required():
                default = to_json(field.get_default(call_default_factory=True)).decode()
            rows.append(Setting(at, choice, default, ", ".join(_range_of(field)), field.description or ""))
    return rows


def keys_of(kind: Any, place: str = "") -> list[str]:
    """The dotted keys of a configuration type at ``place``."""
    return list(dict.fromkeys(row.key for row in settings_of(kind, place)))


def _tag_of(section: Any) -> str:
    """The value by which a configuration type is chosen among several; empty if there is none."""
    tags = [section.model_fields.get(key) for key in ("name", "kind", "objective")]
    return next((tag.default for tag in tags if tag is not None and isinstance(tag.default, str)), "")


def _once(choices: list[list[Setting]]) -> list[Setting]:
    """The settings of all choices; those that every one of several has alike come once, and first."""
    alike = [{row._replace(of="") for row in rows} for rows in choices]
    common = set.intersection(*alike) if len(alike) > 1 else set()
    first = [plain for row in choices[0] if (plain := row._replace(of="")) in common] if common else []
    return first + [row for rows in choices for row in rows if row._replace(of="") not in common]


def _range_of(field: FieldInfo) -> Iterator[str]:
    """Yield the values that a field allows: its bounds, and its choices."""
    bounds = [bound for part in (field.metadata, *_metadata(field.annotation)) for bound in _bounds(part)]
    yield from dict.fromkeys(bounds)
    choices = [json_text(choice) for choice in _choices(field.annotation)]
    if choices:
        yield " | ".join(dict.fromkeys(choices))


def _metadata(annotation: Any) -> Iterator[list[Any]]:
    for part in get_args(annotation):
        metadata = getattr(part, "__metadata__", ())
        for constraint in metadata:
            yield getattr(constraint, "metadata", [constraint])
        yield from _metadata(part)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for constraint in metadata:
        for name, sign in SIGNS.items():
            if getattr(constraint, name, None) is not None:
                yield f"{sign} {getattr(constraint, name)}"


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, OneOf):
        yield from annotation.names()
    elif annotation is bool:
        yield from (True, False)
    elif annotation is NoneType:
        yield None
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def json_text(value: Any) -> str:
    """A value as it is written in YAML."""
    return value if isinstance(value, str) else to_json(value).decode()


def matching(rows: list[Setting], words: list[str]) -> list[Setting]:
    """The settings in whose text all ``words`` are; those of the section or name that one word gives come first.

    A dotted word that gives a section or name, such as ``evaluate.probe``, gives that alone.
    """
    mentioning = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words)]
    if len(words) != 1:
        return mentioning
    asked = words[0].strip(".").split(".")
    named = [row for row in rows if _has(row.key.split("."), asked)]
    if named and len(asked) > 1:
        return named
    return named + [row for row in mentioning if row not in named]


def _has(path: list[str], asked: list[str]) -> bool:
    return any(path[start : start + len(asked)] == asked for start in range(len(path)))


def settings(args: Args) -> int:
    every = settings_of(Study)
    rows = matching(every, args.words)
    if not rows:
        known = sorted({part for row in every for part in row.key.split(".")})
        near = did_you_mean(args.words[-1], known) if args.words else ""
        raise ConfigError(f"settings: nothing has {' '.join(args.words)} in its name or meaning", near)
    if args.json:
        print_json([row._asdict() for row in rows])
        return 0
    print_table(rows, Setting._fields)
    return 0
