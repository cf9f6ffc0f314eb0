"""Networks of torchvision, ``tv:``: read level by level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError, did_you_mean, first_line
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.export import load_strict
from dinoskip.models.timm_networks import offline_hint
from dinoskip.models.wrappings import find_network, found_under, held, read_content, refuse_unread, without_heads
from dinoskip.runtime.randomness import derive


def load_torchvision(name: str, **options: Any) -> LoadedModel:
    """Build ``tv:NAME``, a classifier of torchvision.

    Options: ``pretrained`` (true: torchvision's default weights), ``file`` (weights in torchvision's names, local, in
    any wrapping, of which ``role`` and ``prefix`` choose), ``seed`` of random weights; others go to torchvision's own
    function. A classifier that the file does not have (or that of another task) is left out: no feature depends on it.
    ``tensors`` are what a ``file`` that was read before holds.
    Raises :class:`ConfigError` for a name or option that torchvision does not know, :class:`WeightsError` for weights
    that cannot be had or do not fit.
    """
    spec, models = f"tv:{name}", torchvision.models.list_models(module=torchvision.models)
    if name not in models:
        raise ConfigError(f"{spec}: torchvision has no classifier {name!r}", did_you_mean(name, models))
    file, seed = options.pop("file", None), int(options.pop("seed", 0))
    role, prefix, tensors = (options.pop(key, None) for key in ("role", "prefix", "tensors"))
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
        path = Path(file).expanduser()
        said = _from_file(model, path, tensors, role, prefix)
        return LoadedModel(model, size=getattr(model, "image_size", None), read_as=said)
    return LoadedModel(model, size=getattr(model, "image_size", None))


_CLASSIFIERS = ("fc", "classifier", "head", "heads")
"""Names of torchvision's classifiers."""


def _from_file(
    model: nn.Module, path: Path, tensors: Mapping[str, Tensor] | None, role: str | None, prefix: str | None
) -> str:
    """Load a file's network, without its classifier unless that fits; return what is to be said of it."""
    names = [name for name in _CLASSIFIERS if isinstance(getattr(model, name, None), nn.Module)]
    skipped = tuple(f"{name}." for name in names)
    whole = model.state_dict()
    if tensors is None:
        content = read_content(path)
        if not isinstance(content, Mapping):
            raise WeightsError(f"{path}: it holds a {type(content).__name__}, not named tensors")
        refuse_unread(content, path)
        own = [name for name in whole if not name.startswith(skipped)]
        network = find_network(content, own, path, role, prefix)
        if network is None:
            raise WeightsError(
                f"{path}: not the weights of torchvision's {type(model).__name__}, in whatever wrapping; it holds: "
                f"{held(content)}",
                f"`dinoskip models show {path}` says what it is, where its tensors tell",
            )
        tensors, taken = network.tensors, network.taken
    else:
        taken = ""
    classifier = [name for name in whole if name.startswith(skipped)]
    fits = all(name in tensors and tensors[name].shape == whole[name].shape for name in classifier)
    if not fits:
        for name in names:
            setattr(model, name, nn.Identity())
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(skipped)}
    expected = model.state_dict()
    load_strict(model, without_heads(tensors, expected), path)
    return f"{path.name}: {len(expected)} tensors{found_under(taken)}" + (
        "" if fits else "; its classifier is left out"
    )


def _pretrained(model: nn.Module, name: str) -> None:
    weights = torchvision.models.get_model_weights(name).DEFAULT
    try:
        model.load_state_dict(weights.get_state_dict(check_hash=True, weights_only=True))
    except Exception as error:
        reason = f"tv:{name}: pretrained weights cannot be loaded: {first_line(error)}"
        raise WeightsError(reason, offline_hint(f"tv:{name}")) from error
