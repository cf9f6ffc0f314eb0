"""Defaults of all settings, one line a class: run to write ``defaults.json`` anew when one is added or changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from dinoskip.pipeline.study import Study
from dinoskip.settings.config import Config, models_of

STORED = Path(__file__).with_name("defaults.json")


def classes(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[type[Config]]:
    """All configuration classes that a study can have, those of plug-ins included."""
    if model in seen:
        return
    seen.add(model)
    if issubclass(model, Config):
        yield model
    for field in model.model_fields.values():
        for inner in models_of(field):
            yield from classes(inner, seen)


def defaults() -> dict[str, dict[str, Any]]:
    """Class -> setting -> its default, and the class's ``key_version``; settings without a default are left out."""
    found: dict[str, dict[str, Any]] = {}
    for kind in classes(Study, set()):
        own = {
            name: to_jsonable_python(field.get_default(call_default_factory=True))
            for name, field in kind.model_fields.items()
            if not field.is_required()
        }
        found[f"{kind.__module__}.{kind.__qualname__}"] = {"key_version": kind.key_version, "defaults": own}
    return dict(sorted(found.items()))


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(own, sort_keys=True)}" for name, own in defaults().items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
