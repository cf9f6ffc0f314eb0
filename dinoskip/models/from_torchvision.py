"""Networks of torchvision, ``tv:``: read level by level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from dinoskip.errors import ConfigError, WeightsError, did_you_mean, first_line
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.export import load_strict
from dinoskip.models.timm_networks import offline_hint
from dinoskip.models.wrappings import read_content
from dinoskip.randomness import derive


def load_torchvision(name: str, **options: Any) -> LoadedModel:
    """Build ``tv:NAME``, a classifier of torchvision.

    Options: ``pretrained`` (true: torchvision's default weights), ``file`` (weights in torchvision's names, local),
    ``seed`` of random weights; others go to torchvision's own function. Raises :class:`ConfigError` for a name or
    option that torchvision does not know, :class:`WeightsError` for weights that cannot be had or do not fit.
    """
    spec, models = f"tv:{name}", torchvision.models.list_models(module=torchvision.models)
    if name not in models:
        raise ConfigError(f"{spec}: torchvision has no classifier {name!r}", did_you_mean(name, models))
    file, seed = options.pop("file", None), int(options.pop("seed", 0))
    pretrained = bool(options.pop("pretrained", True)) and file is None
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "torchvision", name))
            model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{spec}: torchvision cannot build it: {error}", "check the options") from error
    if pretrained:
        _pretrained(model, name)
    elif file is not None:
        path = Path(file)
        content = read_content(path)
        if not isinstance(content, dict):
            raise WeightsError(f"{path}: it holds a {type(content).__name__}, not named tensors")
        load_strict(model, content, path)
    return LoadedModel(model, size=getattr(model, "image_size", None))


def _pretrained(model: nn.Module, name: str) -> None:
    weights = torchvision.models.get_model_weights(name).DEFAULT
    try:
        model.load_state_dict(weights.get_state_dict(check_hash=True, weights_only=True))
    except Exception as error:
        reason = f"tv:{name}: pretrained weights cannot be loaded: {first_line(error)}"
        raise WeightsError(reason, offline_hint(f"tv:{name}")) from error
