"""A network of the user's own, ``python:FILE.py:FUNCTION``. The file is run: name only files that you trust."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.models.adapter import LoadedModel
from dinoskip.runtime.randomness import derive


def load_python(text: str, **options: Any) -> LoadedModel:
    """Run FILE and call FUNCTION, which returns the network; ``options`` go to it, but for ``seed`` of torch's random
    numbers while it is called.

    Modules beside the file can be imported by it. Raises :class:`ConfigError` for a file or function that is not there,
    that fails, or that returns no module.
    """
    spec, (file, _, name) = f"python:{text}", text.rpartition(":")
    path, seed = Path(file).expanduser(), int(options.pop("seed", 0))
    if not file or not name:
        raise ConfigError(f"{spec}: write python:FILE.py:FUNCTION", "the function returns the network")
    if not path.is_file():
        raise ConfigError(f"{spec}: there is no file {file}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "python", name))
        try:
            functions = _run(path)
            if name not in functions:
                raise ConfigError(f"{spec}: {file} has no function {name}", did_you_mean(name, functions))
            model = functions[name](**options)
        except ConfigError:
            raise
        except Exception as error:
            line = _line_of(error, path)
            raise ConfigError(f"{path}{line}: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{spec}: {name} returns a {type(model).__name__}, not a torch.nn.Module")
    return LoadedModel(model)


def _run(path: Path) -> dict[str, Any]:
    """Names that the file defines, its folder being importable while it runs."""
    located = importlib.util.spec_from_file_location(f"dinoskip_user_{path.stem}", path)
    if located is None or located.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(located)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        located.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return vars(module)


def _line_of(error: Exception, path: Path) -> str:
    """``:LINE`` of the file in which an error arose, where it did."""
    step, line = error.__traceback__, ""
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(path):
            line = f":{step.tb_lineno}"
        step = step.tb_next
    return line
