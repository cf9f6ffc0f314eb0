"""Our packages ``eval`` and ``visualize`` for commands, whatever else is called so where the user stands."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import dinoskip

COMMON = ("eval", "visualize")


def claim_common_names() -> None:
    """Import ``eval`` and ``visualize`` from beside the package ``dinoskip``, before a folder of the user's is found.

    ``python -m dinoskip`` and torchrun search the current folder first, and people have folders of these names. A
    command runs no code of theirs, so nothing else needs the names. One that is imported already is left as it is:
    :mod:`dinoskip.pipeline` says so if it is not ours.
    """
    for name in COMMON:
        place = Path(dinoskip.__file__).resolve().parent.parent / name
        if name in sys.modules or not (place / "__init__.py").is_file():
            continue
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
