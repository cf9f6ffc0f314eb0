"""From YAML (``extends``, ``a.b=value`` overrides) to validated, frozen models; all problems at once, a line each."""

from __future__ import annotations

import copy
import importlib
import io
import sys
import types
import typing
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.io.files import read_regular
from dinoskip.io.texts import decoded_text
from dinoskip.plugins import ByName, order_of


class Config(BaseModel):
    """Base of every configuration class: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")
    meant: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Replacements for keys that it does not have and that are often tried."""
    key_version: ClassVar[int] = 1
    """Part of keys: raised where a default, or what a setting means, is changed so that results change."""


def implementation(place: str) -> Any:
    """Return the class or function that a settings class configures, by its place ``package.module:name``.

    It is imported when something is built: settings alone load no torch.
    """
    module, _, name = place.partition(":")
    return attrgetter(name)(importlib.import_module(module))


V = TypeVar("V")


def no_duplicates(values: tuple[V, ...]) -> tuple[V, ...]:
    """A validator: no value may come twice."""
    if len(set(values)) != len(values):
        raise ValueError("a value is given twice")
    return values


def as_tuple(value: object) -> object:
    """A validator: one value in place of a list of one; nothing is an empty list."""
    return () if value is None else (value,) if isinstance(value, str | int | float) else value


Distinct = Annotated[tuple[V, ...], AfterValidator(no_duplicates)]
"""Values of which none comes twice."""
OneOrSeveral = Annotated[Distinct[V], BeforeValidator(as_tuple)]
"""The same, or one value on its own."""
Positive = Annotated[float, Field(gt=0)]
Block = Annotated[int, Field(ge=1)]
Multiscale = Annotated[tuple[Block, ...], Field(min_length=2), AfterValidator(no_duplicates)]
"""Blocks that are evaluated together: two or more, all different."""

C = TypeVar("C", bound=Config)
Tree = dict[str, Any]
_MISSING = object()
_MAX_KEYS = 10_000  # values in one file: an alias bomb is refused, not unfolded
_MAX_DEPTH = 32  # lists and mappings in one another
_MAX_BYTES = 2**20  # of one file
_MAX_FILES = 100  # that one configuration extends
# Mappings in which another key than `kind` says which settings they may have.
_TAG_OF = {"init": "name", "optimizer": "name", "pretrain": "objective"}


@dataclass
class RawConfig:
    """A merged configuration tree, and for every dotted key the place it came from."""

    tree: Tree = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def place(self, dotted: str) -> str:
        """``file:line`` of a key, or of its nearest parent that has one."""
        while dotted:
            if dotted in self.places:
                return self.places[dotted]
            dotted = dotted.rpartition(".")[0]
        return self.places.get("", "config")


def _plain(node: Any, file: str, prefix: str, places: dict[str, str], depth: int = 0) -> Any:
    """Copy a ruamel tree to plain containers and record where each key stands."""
    where = places.get(prefix, file)
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None:
        raise ConfigError(f"{where}: {prefix or 'the file'}: the YAML tag {tag} is not allowed")
    if len(places) > _MAX_KEYS:
        raise ConfigError(f"{file}: refused: more than {_MAX_KEYS} values, aliases written out")
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{file}: refused: lists and mappings more than {_MAX_DEPTH} deep in one another")
    lines = getattr(node, "lc", None)
    if isinstance(node, dict):
        copy: Tree = {}
        for key, value in node.items():
            dotted = f"{prefix}.{key}" if prefix else str(key)
            line = None if lines is None else (lines.data or {}).get(key)  # None for keys merged in (<<)
            places[dotted] = f"{file}:{line[0] + 1}" if line else where
            copy[str(key)] = _plain(value, file, dotted, places, depth + 1)
        return copy
    if isinstance(node, list):
        for index in range(len(node)):
            places[f"{prefix}.{index}"] = where if lines is None else f"{file}:{lines.item(index)[0] + 1}"
        return [_plain(value, file, f"{prefix}.{index}", places, depth + 1) for index, value in enumerate(node)]
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, int) and not -(2**63) <= node < 2**63:
        raise ConfigError(f"{where}: {prefix or 'the value'}: the number does not fit in 64 bits")
    if isinstance(node, str) and "\0" in node:  # where it names a file, the system would take the part before it
        raise ConfigError(f"{where}: {prefix or 'the value'}: a zero byte is in no name and no text")
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    raise ConfigError(f"{where}: {prefix or 'the value'}: a value of type {type(node).__name__} is not allowed")


def _parse(text: str, file: str, *, round_trip: bool) -> Any:
    from ruamel.yaml import YAML  # only where a file is read: dinoskip --help reads none
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning

    parser = YAML(typ="rt" if round_trip else "safe", pure=True)
    parser.allow_duplicate_keys = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            _check_nesting(YAML(typ="safe", pure=True).parse(io.StringIO(text)), file)
            return parser.load(io.StringIO(text))
    except ConfigError:
        raise
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else str(error.problem)
        raise ConfigError(f"{file}:{line}: {key}: this key is given twice", "keep one of them") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # the parser raises nearly anything on a file that is not YAML: AssertionError, ...
        raise ConfigError(f"{file}: not valid YAML: {(str(error).splitlines() or [type(error).__name__])[0]}") from None


def _check_nesting(events: Iterable[Any], file: str) -> None:
    """Refuse deep nesting while it is scanned: building it takes time that grows with its square."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind in ("SequenceStartEvent", "MappingStartEvent")
        depth -= kind in ("SequenceEndEvent", "MappingEndEvent")
        if depth > _MAX_DEPTH:
            line = event.start_mark.line + 1
            raise ConfigError(f"{file}:{line}: refused: lists and mappings more than {_MAX_DEPTH} deep in one another")


def merge(base: Any, over: Any, key: str = "") -> Any:
    """Lay ``over`` on ``base``: mappings key by key, all else replaced.

    A mapping that becomes another ``kind``, an ``init`` or ``optimizer`` of another ``name``, or a ``pretrain`` of
    another ``objective``, is replaced whole.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        tag = _TAG_OF.get(key, "kind")
        if tag in over and over[tag] != base.get(tag, over[tag]):
            return over
        return {**base, **{part: merge(base[part], new, part) if part in base else new for part, new in over.items()}}
    return over


def read_yaml(path: str | Path, not_inherited: Collection[str] = ()) -> RawConfig:
    """Read a YAML file and the files it ``extends`` (relative to it), later ones over earlier ones.

    ``not_inherited`` are dotted keys that count in the file alone in which they stand.
    """
    return _read_yaml(Path(path), not_inherited, (), [])


def _read_yaml(
    path: Path,
    not_inherited: Collection[str],
    above: tuple[Path, ...],
    already: list[Path],
) -> RawConfig:
    """:func:`read_yaml` of a file that the files ``above`` extend; ``already`` counts the files read."""
    already.append(path)
    if len(already) > _MAX_FILES:
        raise ConfigError(f"{already[0]}: refused: it extends more than {_MAX_FILES} files")
    if not path.exists():
        names = [file.name for file in path.parent.glob("*.yaml")]
        hint = did_you_mean(path.name, names, before=str(path).removesuffix(path.name))
        raise ConfigError(f"{path}: no such configuration file", hint)
    if path.is_dir():
        made = path / "command.json"
        hint = f"the command in {made} names the file that made it" if made.is_file() else ""
        raise ConfigError(f"{path}: a folder, where a YAML file is needed", hint)
    if path.resolve() in above:
        raise ConfigError(f"{path}: extends itself")
    try:
        text = decoded_text(read_regular(path, _MAX_BYTES))
    except DataError as error:
        raise ConfigError(error.message) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    result = RawConfig()
    this_file = RawConfig()
    loaded = _parse(text, str(path), round_trip=True)
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"{path}:1: a configuration is a mapping of keys to values, this is a {type(loaded).__name__}"
        )
    this_file.tree = _plain(loaded, str(path), "", this_file.places)
    extends = this_file.tree.pop("extends", [])
    for name in extends if isinstance(extends, list) else [extends]:
        place = this_file.places.get("extends", str(path))
        if not isinstance(name, str) or Path(name).is_absolute() or not name.endswith((".yaml", ".yml")):
            raise ConfigError(f"{place}: extends: {name!r} must be a relative path to a .yaml file")
        base = _read_yaml(path.parent / name, not_inherited, (*above, path.resolve()), already)
        for key in not_inherited:
            _remove(base.tree, key)
        result.tree = merge(result.tree, base.tree)
        result.places.update(base.places)
    result.tree = merge(result.tree, this_file.tree)
    result.places.update(this_file.places)
    result.places[""] = str(path)
    return result


def _remove(tree: Tree, dotted: str) -> None:
    """Take a dotted key out of ``tree``, in place, where it is there."""
    *parents, last = dotted.split(".")
    node: Any = tree
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(last, None)


def _index(node: Tree | list[Any], part: str, where: str) -> Any:
    """A dotted key's part as an index into ``node``: a number for lists."""
    if isinstance(node, dict):
        return part
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(f"{where}: there is no item {part!r} in a list of {len(node)}")
    return int(part)


SPLIT_PLACE = "{split}"
"""Stands in paths of settings where the name of a split comes."""


def apply_overrides(source: RawConfig, overrides: Sequence[str]) -> RawConfig:
    """Set ``a.b=value`` (value in YAML spelling; list items by number) on a copy of ``source``.

    A value that begins with ``{split}`` is a path, quoted or not.
    """
    tree, places = copy.deepcopy(source.tree), dict(source.places)
    for text in overrides:
        dotted, equals, value = text.partition("=")
        dotted = dotted.strip()
        if not equals or not dotted:
            raise ConfigError(f"{text!r}: an override is written key=value, with dots between levels")
        where = f"command line: {dotted}"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(
                f"{where}: has letters that this locale ({sys.getfilesystemencoding()}) does not know",
                "set LC_ALL=C.UTF-8 or PYTHONUTF8=1",
            )
        is_path = value.strip().startswith(SPLIT_PLACE)  # a path by split, which YAML would take for a mapping
        parsed = value.strip() if is_path else _plain(_parse(value, where, round_trip=False), where, "", {})
        node: Any = tree
        *parents, last = dotted.split(".")
        if len(parents) > _MAX_DEPTH:
            raise ConfigError(f"command line: {_shown(dotted)}: more than {_MAX_DEPTH} levels")
        for part in parents:
            if isinstance(node, dict) and node.get(part) is None:
                node[part] = {}
            node = node[_index(node, part, where)]
            if not isinstance(node, dict | list):
                raise ConfigError(f"{where}: {part!r} is a value, not a mapping")
        node[_index(node, last, where)] = parsed
        for key in [key for key in places if key == dotted or key.startswith(dotted + ".")]:
            del places[key]
        places[dotted] = "command line"
    return RawConfig(tree, places)


# --- errors ------------------------------------------------------------------------------------------


def models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """All pydantic models that the value of a field may be of or contain, those of plug-ins included, by ``order``."""
    models = [(order, model) for part in (field.annotation, *field.metadata) for order, model in _ordered(part)]
    return [model for _, model in sorted(models, key=itemgetter(0))]


def _ordered(annotation: Any) -> list[tuple[int, type[BaseModel]]]:
    if isinstance(annotation, ByName):
        return [(order_of(model), model) for model in annotation.classes()]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(order_of(annotation, own=True), annotation)]
    if typing.get_origin(annotation) in {typing.Union, types.UnionType, typing.Annotated, list, tuple, dict}:
        return [found for part in typing.get_args(annotation) for found in _ordered(part)]
    return []


def _models_at(model: type[BaseModel], location: Sequence[Any]) -> list[type[BaseModel]]:
    """The models whose fields would have been legal at ``location``'s last element."""
    models = [model]
    for part in location[:-1]:
        inner = [
            sub
            for m in models
            if isinstance(part, str) and part in m.model_fields
            for sub in models_of(m.model_fields[part])
        ]
        if not inner:
            tagged = [m for m in models if part in _tags(m)]
            inner = tagged or models
        models = inner
    return models


def _near(key: str, models: Sequence[type[BaseModel]], place: str) -> str | None:
    """A hint for ``key``, which no field of ``models`` at ``place`` is: a section that has it, or the nearest name."""
    meant = next((m.meant[key] for m in models if issubclass(m, Config) and key in m.meant), None)
    if meant is not None:
        return f"write {meant}"
    fields = {name: field for m in models for name, field in m.model_fields.items()}
    inside = [name for name, field in fields.items() if any(key in sub.model_fields for sub in models_of(field))]
    if inside:
        return f"did you mean {' or '.join('.'.join(filter(None, (place, name, key))) for name in sorted(inside))}?"
    return did_you_mean(key, sorted(fields))


def _tags(model: type[BaseModel]) -> set[Any]:
    tags: set[Any] = set()
    for name in ("name", "kind", "objective"):
        if name in model.model_fields:
            tags.update(typing.get_args(model.model_fields[name].annotation))
    return tags


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sentence(error: Any, model: type[BaseModel], dotted: str) -> str:
    kind, context, given = error["type"], error.get("ctx", {}), error.get("input")
    key = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "extra_forbidden":
        hint = _near(key, _models_at(model, error["loc"]), dotted.rpartition(".")[0])
        return f"{dotted}: unknown key" + (f" ({hint})" if hint else "")
    if kind == "missing":
        return f"{dotted}: this key is required"
    if kind in {"union_tag_invalid", "literal_error"}:
        expected = str(context.get("expected_tags") or context.get("expected"))
        tag = str(context.get("tag", given))
        options = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
        hint = did_you_mean(tag, options)
        return f"{dotted}: {tag!r} is none of {', '.join(options)}" + (f" ({hint})" if hint else "")
    if kind == "union_tag_not_found":
        return f"{dotted}: needs a {context.get('discriminator')} key"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    given_text = "" if isinstance(given, dict | list) else f", was given {_shown(given)}"
    return f"{dotted}: {message}{given_text}"


def _dotted(error: Any, tree: Any) -> str:
    """The user's dotted key for the location of a pydantic error, without the union tags that pydantic puts in."""
    location = error["loc"]
    parts: list[str] = []
    node = tree
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(node, dict) and (part in node or (last and error["type"] != "value_error")):
            parts.append(str(part))
            node = node.get(part, _MISSING)
        elif isinstance(node, list) and isinstance(part, int):
            parts.append(str(part))
            node = node[part] if part < len(node) else _MISSING
    return ".".join(parts)


def validate(model: type[C], source: RawConfig, prefix: str = "") -> C:
    """Build ``model`` from ``source``; raise one :class:`ConfigError` that holds a line for every problem."""
    try:
        return model.model_validate(source.tree)
    except ValidationError as failure:
        lines = []
        for error in failure.errors(include_url=False):
            dotted = _dotted(error, source.tree)
            full = f"{prefix}.{dotted}".strip(".")
            lines.append(f"{source.place(full)}: {_sentence(error, model, full or 'config')}")
        unique = tuple(dict.fromkeys(lines))
        raise ConfigError("\n".join(unique), problems=unique) from None


def dump(config: Config) -> Tree:
    """The configuration as plain JSON-able containers, every default written out."""
    return config.model_dump(mode="json")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``; a list is one value."""
    flat: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
