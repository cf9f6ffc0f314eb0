"""From a study to its results: stages, their cache, and what runs them (docs/architecture.md).

Importing it checks that the packages ``eval`` and ``visualize`` are dinoskip's own: the names are common.
"""

import importlib.util
from pathlib import Path

import dinoskip
from dinoskip.errors import ConfigError

for _package in ("eval", "visualize"):
    _spec = importlib.util.find_spec(_package)
    _places = [Path(place).resolve() for place in (_spec.submodule_search_locations or ())] if _spec else []
    if Path(dinoskip.__file__).resolve().parent.parent / _package not in _places[:1]:
        raise ConfigError(
            f"{_package}: another package of this name ({_places[0] if _places else 'a module'}) hides dinoskip's",
            "run from another folder, or rename that one",
        )
