"""Settings under their names of version 0.1, read for one version more, each with a line that says the new name."""

from __future__ import annotations

from typing import Any

from dinoskip.config import RawConfig
from dinoskip.console import log

RENAMED = {
    "evaluate.datasets": "evaluate.probe.datasets",
    "evaluate.discover": "evaluate.tokencut.datasets",
    "evaluate.discover_split": "evaluate.tokencut.split",
    "evaluate.discover_facet": "evaluate.tokencut.facet",
    "evaluate.retrieval": "evaluate.retrieve.datasets",
    "evaluate.knn": "evaluate.knn.datasets",  # where it is no mapping
    "evaluate.knn_k": "evaluate.knn.k",
    "evaluate.knn_size": "evaluate.knn.size",
    "supervised": "supervise",
}
_MISSING = object()


def rename(source: RawConfig) -> RawConfig:
    """``source`` with old keys under their new names; a line is logged for each. A new key wins over its old one."""
    for old, new in RENAMED.items():
        value = _take(source.tree, old)
        if value is _MISSING:
            continue
        log.warning("%s: %s is now called %s", source.place(old), old, new)
        _put(source.tree, new, value)
        moved = {key: place for key, place in source.places.items() if key == old or key.startswith(f"{old}.")}
        for key, place in moved.items():
            source.places.setdefault(new + key.removeprefix(old), place)
    return source


def current_override(text: str) -> str:
    """``a.b=value`` under the key's new name."""
    dotted, equals, value = text.partition("=")
    for old, new in RENAMED.items():
        listed = old != "evaluate.knn" or not value.strip().startswith("{")
        if listed and (dotted == old or (old == "supervised" and dotted.startswith(f"{old}."))):
            current = new + dotted.removeprefix(old)
            log.warning("command line: %s is now called %s", dotted, current)
            return f"{current}{equals}{value}"
    return text


def _take(tree: dict[str, Any], dotted: str) -> Any:
    *parents, last = dotted.split(".")
    node: Any = tree
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node or (dotted == "evaluate.knn" and isinstance(node[last], dict)):
        return _MISSING
    return node.pop(last)


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    node = tree
    for part in parents:
        node = node.setdefault(part, {})
    node.setdefault(last, value)
