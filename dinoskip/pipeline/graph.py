"""Nodes, their keys, and the plan: what is cached, what must run, and why.

The key of a node is the sha256 of {stage, stage version, the settings it reads, the output hash of every
input}. Files outside the study enter by the hash of their content. Modification times never do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.io.files import hash_of
from dinoskip.pipeline.artifacts import Artifacts, Record
from dinoskip.runtime.console import log
from dinoskip.settings.config import Config, flatten
from dinoskip.settings.keys import settings_for_key, with_defaults

State = Literal["cached", "run", "waiting", "damaged"]
SettingsOf = Callable[[Config], dict[str, Any]]
"""The part of a configuration that is in a record: :func:`settings_for_key`, or every setting of it."""
NAMED = 3  # inputs that a waiting node is said to wait for


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a node that stay the objects that they were validated as."""

    def plain(self) -> dict[str, Any]:
        """Settings as plain containers, which are hashed."""
        return self.recorded(settings_for_key)

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Settings as plain containers, of configurations what ``settings_of`` gives; None is left out."""
        values = {part.name: _plain(getattr(self, part.name), settings_of) for part in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def _plain(value: Any, settings_of: SettingsOf) -> Any:
    if isinstance(value, Config):
        return settings_of(value)
    return {name: _plain(part, settings_of) for name, part in value.items()} if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Node:
    """One stage of one variant: what it is, what it reads, what it needs.

    ``settings`` is all that the stage function may read of the configuration and is part of the key, as are those of
    the data that it reads, ``dataset``; ``runtime`` (paths, workers) is not. ``external`` returns content hashes of
    files outside the study, and ``changed`` the names of those that were written to since. ``order_only`` are nodes
    whose output it reads without any effect on its own, so that they are no part of the key either. ``every`` gives
    ``plain`` with all defaults: with it, an output that an earlier version made under another key is found, and stays.
    """

    id: str
    stage: str
    settings: Mapping[str, Any] | NodeSettings
    inputs: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    external: Callable[[], Mapping[str, str]] | None = None
    changed: Callable[[], Sequence[str]] | None = None
    variant: str = ""
    version: int = 1
    order_only: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)
    every: Callable[[], Mapping[str, Any]] | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """All settings as plain containers."""
        settings = self.settings.plain() if isinstance(self.settings, NodeSettings) else dict(self.settings)
        return {**settings, **self.dataset}

    @property
    def needs(self) -> dict[str, str]:
        """Roles and nodes that must be there before this one runs: ``inputs`` and ``order_only``."""
        return {**self.inputs, **self.order_only}


@dataclass(frozen=True)
class PlannedNode:
    """A node in a plan. ``key`` is None while an input's output is not known yet.

    ``damaged`` is a finished training of which a file is not as it was published: it is not trained again unasked.
    """

    node: Node
    state: State
    reason: str
    key: str | None


def record_of(node: Node, outputs: Mapping[str, str], external: Mapping[str, str]) -> Record:
    """Everything the key is made of, in readable form (kept to explain the next plan)."""
    return Record(
        stage=node.stage,
        version=node.version,
        settings=node.plain,
        inputs={role: outputs[source] for role, source in sorted(node.inputs.items())},
        external=dict(external),
    )


def key_of(record: Record) -> str:
    """The content key of a record."""
    return hash_of(record.plain())


def order(nodes: Sequence[Node], readers: Mapping[str, Collection[str]] | None = None) -> list[Node]:
    """Topological order that keeps the given order where it may.

    ``readers`` says of some nodes which others read their output: the first of those comes right after such a node and
    the others follow, so that few of these outputs need to be there at once.
    """
    readers = readers or {}
    by_id = {node.id: node for node in nodes}
    if len(by_id) != len(nodes):
        raise ValueError("node ids are not unique")
    done: dict[str, Node] = {}

    def visit(node: Node, path: tuple[str, ...]) -> None:
        if node.id in done:
            return
        if node.id in path:
            raise ValueError(f"cycle: {' → '.join((*path, node.id))}")
        for source in node.needs.values():
            visit(by_id[source], (*path, node.id))
        done[node.id] = node

    for node in nodes:
        if node.id in readers:
            continue
        visit(node, ())
        for source in node.needs.values():
            if node.id in readers.get(source, ()):
                for other in readers[source]:
                    visit(by_id[other], ())
    for node in nodes:
        visit(node, ())
    return list(done.values())


class Planner:
    """Decides node by node; the runner asks again after each stage, when an output hash has become known.

    ``readers`` are as of :func:`order`. ``trainings`` are the stages whose finished outputs are made again only with
    ``retrain``, which compares all their bytes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        artifacts: Artifacts,
        readers: Mapping[str, Collection[str]] | None = None,
        *,
        trainings: Collection[str] = (),
        retrain: bool = False,
    ) -> None:
        self.nodes, self.readers = order(nodes, readers), readers or {}
        self.artifacts, self.trainings, self.retrain = artifacts, trainings, retrain
        self.made: set[str] = set()  # nodes that this run has made
        self._every: dict[str, Mapping[str, Any]] = {}
        self._told: set[str] = set()  # what has been said of changed files
        self.outputs: dict[str, str] = {}  # node id -> output hash, once known
        self.keys: dict[str, str] = {}  # node id -> key, once its inputs are known
        self._external: dict[str, Mapping[str, str]] = {}

    def external(self, node: Node) -> Mapping[str, str]:
        """Hashes of the files outside the study that ``node`` reads (computed once)."""
        if node.external is None:
            return {}
        if node.id not in self._external:
            self._external[node.id] = node.external()
        return self._external[node.id]

    def step(self, node: Node) -> PlannedNode:
        """State of one node; also remembers its output hash if it is cached."""
        external = self.external(node)  # also of a node that must wait: missing data is said before anything runs
        waiting = [source for source in node.inputs.values() if source not in self.outputs]
        if waiting:
            return self._waiting(node, waiting)
        record = record_of(node, self.outputs, external)
        key = self.keys[node.id] = self._adopted(node, record) or key_of(record)
        self.outputs.pop(node.id, None)
        training = node.stage in self.trainings
        contents = training and self.retrain and node.id not in self.made
        standing = self.artifacts.standing(node.id, key, contents=contents)
        self.tell_changed(standing.changed)
        if standing.output is not None and not standing.damage:
            self.outputs[node.id] = standing.output
            return PlannedNode(node, "cached", "", key)
        if standing.damage and training and not self.retrain:
            if standing.output is not None:  # what was made of it before is as good as it was
                self.outputs[node.id] = standing.output
            return PlannedNode(node, "damaged", _joined(standing.damage), key)
        released = self.artifacts.released(node.id, key)
        if released is not None:
            self.outputs[node.id] = released
            return PlannedNode(node, "cached", "removed after use", key)
        order_only = [source for source in node.order_only.values() if source not in self.outputs]
        if order_only:
            return self._waiting(node, order_only)
        reason = f"damaged: {_joined(standing.damage)}" if standing.damage else self._reason(node, record)
        return PlannedNode(node, "run", reason, key)

    def _adopted(self, node: Node, record: Record) -> str | None:
        """The key of an output of the same settings that an earlier version made, if this one has made none."""
        key = key_of(record)
        if node.every is None or self.artifacts.is_there(node.id, key):
            return None
        training = node.stage in self.trainings
        return self.artifacts.made_as(node.id, record, self._every_setting(node), any_version=training)

    def _every_setting(self, node: Node) -> Mapping[str, Any]:
        """The node's settings with all defaults (computed once), or as they are."""
        if node.id not in self._every:
            self._every[node.id] = node.plain if node.every is None else node.every()
        return self._every[node.id]

    def tell_changed(self, lines: Iterable[str]) -> None:
        """Warn once of each volatile file that is not as it was published."""
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                log.warning("%s; a log or note, for which nothing is made again", line)

    @staticmethod
    def _waiting(node: Node, waiting: list[str]) -> PlannedNode:
        first, rest = sorted(set(waiting))[:NAMED], len(set(waiting)) - NAMED
        more = f" and {rest} more" if rest > 0 else ""
        return PlannedNode(node, "waiting", f"after {', '.join(first)}{more}", None)

    def plan(self) -> list[PlannedNode]:
        """State of every node, in order of execution."""
        steps = [self.step(node) for node in self.nodes]
        pending = {step.node.id for step in steps if step.state != "cached"}
        for i, step in enumerate(steps):
            again = sorted(pending & set(self.readers.get(step.node.id, ())))
            if step.state == "cached" and step.reason and again:
                steps[i] = replace(step, reason=f"{step.reason}, made again for {again[0]}")
        return steps

    def _reason(self, node: Node, record: Record) -> str:
        last = self.artifacts.last_record(node.id)
        if last is None:
            return "never run"
        (key, before), every = last, self._every_setting(node)
        filled = replace(before, settings=with_defaults(before.settings, every, record.settings))
        reasons = differences(filled, replace(record, settings=dict(every)))
        if not reasons and key != key_of(record):
            return "its output is missing, and an earlier version made it under another key"
        if not reasons:
            return "its output is missing or incomplete"
        return "; ".join(reasons[:3]) + (f" and {len(reasons) - 3} more" if len(reasons) > 3 else "")


def _joined(lines: Sequence[str]) -> str:
    """The first lines and how many more there are."""
    more = f" and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return f"{'; '.join(lines[:NAMED])}{more}"


def refuse_damaged(steps: Sequence[PlannedNode], chosen: Collection[str]) -> None:
    """:class:`DataError` that names the damaged files of finished trainings that ``chosen`` nodes are, or need."""
    by_id = {step.node.id: step for step in steps}
    needed, left = set[str](), list(chosen)
    while left:
        if (name := left.pop()) not in needed and name in by_id:
            needed.add(name)
            left += by_id[name].node.needs.values()
    lines = [f"{step.node.id}: a finished training is damaged: {step.reason}" for step in steps
             if step.state == "damaged" and step.node.id in needed]  # fmt: skip
    if lines:
        hint = "put the file back, or give --retrain to train again in its place"
        problems = tuple(f"{line} ({hint})" for line in lines)
        raise DataError("; ".join(lines), hint, problems=problems)


def differences(old: Record, new: Record) -> list[str]:
    """Readable reasons why two records of a node have different keys."""
    reasons = [f"stage version: {old.version} → {new.version}"] if old.version != new.version else []
    before, after = flatten(old.settings), flatten(new.settings)
    reasons += [
        f"{name}: {before.get(name, 'unset')} → {after.get(name, 'unset')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    for kind, a, b in (("input", old.inputs, new.inputs), ("files", old.external, new.external)):
        reasons += [
            f"{kind} {role}: {'changed' if role in a and role in b else 'new' if role in b else 'gone'}"
            for role in sorted({*a, *b})
            if a.get(role) != b.get(role)
        ]
    return reasons


def only(nodes: Sequence[Node], stages: Collection[str], gathering: str) -> list[Node]:
    """The nodes of some stages and all that they need; those of the stage ``gathering`` with what is left to gather."""
    by_id = {node.id: node for node in nodes}
    kept: set[str] = set()
    left = [node.id for node in nodes if node.stage in stages]
    while left:
        needed = left.pop()
        if needed not in kept:
            kept.add(needed)
            left += by_id[needed].needs.values()
    chosen = []
    for node in nodes:
        if node.stage == gathering:
            inputs = {role: source for role, source in node.inputs.items() if source in kept}
            chosen.append(replace(node, inputs=inputs))
        elif node.id in kept:
            chosen.append(node)
    return chosen


def select(
    nodes: Sequence[Node],
    stages: Sequence[str],
    *,
    only: str | None = None,
    start: str | None = None,
    until: str | None = None,
    variants: Sequence[str] = (),
) -> set[str]:
    """Ids of the nodes that a command line asks for. Names that do not exist are a :class:`ConfigError`."""
    names = sorted({node.variant for node in nodes if node.variant})
    wanted = (("--only", only, stages), ("--from", start, stages), ("--until", until, stages))
    for flag, given, known in (*wanted, *(("--variant", variant, names) for variant in variants)):
        if given is not None and given not in known:
            raise ConfigError(f"{flag} {given}: is none of {', '.join(known)}", did_you_mean(given, known))
    first = stages.index(start) if start else 0
    last = stages.index(until) if until else len(stages) - 1
    inside = {node.id for node in nodes if (node.stage == only if only else first <= stages.index(node.stage) <= last)}
    of_variants = {node.id for node in nodes if not variants or node.variant in variants}
    shared = {source for node in nodes if node.id in of_variants for source in node.needs.values()}
    # of what variants share (composed data, learning rates of several seeds), what these need
    return inside & (of_variants | {node.id for node in nodes if node.id in shared and not node.variant})
