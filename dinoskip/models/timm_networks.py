"""Networks of timm, built with random weights from a seed, and as ``model.name: timm:NAME`` says, to be trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath
from torch import nn

from dinoskip.errors import ConfigError, WeightsError, did_you_mean, first_line
from dinoskip.models.family_blocks import skip_blocks, start_gains_
from dinoskip.models.graying import TokenGraying
from dinoskip.models.hf_client import hub_client
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.runtime.randomness import derive
from dinoskip.settings.vit_config import GrayingConfig, VitConfig


def network_of(config: VitConfig, *, seed: int = 0, drop_path_rate: float = 0.0, **_: Any) -> Any:
    """The network of a name of timm's as ``config`` says, without classifier; started as timm does, from ``seed``.

    Raises :class:`ConfigError` for what timm cannot build, drop path where it has none, and skips of other values in
    networks whose blocks are not known (:mod:`dinoskip.models.family_blocks`).
    """
    assert config.timm_name is not None
    model = built_for(config.timm_name, config.img_size, seed, drop_path_rate)
    if not config.has_all_skips:
        kept = (float(config.skip in (True, "attention")), float(config.skip in (True, "mlp")))
        setting, blocks = config.skip_weight, skip_blocks(model)
        weights = [kept] * len(blocks) if setting is None else setting.weights(setting.first, len(blocks))
        weigh_skips_(model, weights)
        for block, (attention, mlp) in zip(blocks, weights, strict=True):
            start_gains_(block, attention, mlp)
    if config.graying is not None:
        gray_(model, config.graying)
    return model


def gray_(model: Any, setting: GrayingConfig) -> None:
    """Let a network's patch embedding (or stem) see grayed images, in place; names of parameters stay as they are.

    A patch has as many pixels a side as the embedding goes on by: 4 in Swin and PVT v2 (whose windows overlap), 16 in
    CaiT and XCiT. Raises :class:`ConfigError` for a network without one.
    """
    embedding = getattr(model, "patch_embed", None) or getattr(model, "stem", None)
    if embedding is None:
        raise ConfigError(f"model.graying: a {type(model).__name__} has no patch embedding or stem of its own")
    stride = math.prod(part.stride[0] for part in embedding.modules() if isinstance(part, nn.Conv2d))
    model.graying = TokenGraying(stride, setting.kind, setting.epsilon)
    embedding.register_forward_pre_hook(partial(_gray, model.graying))


def _gray(graying: TokenGraying, embedding: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return graying(inputs[0]), *inputs[1:]


def built_for(name: str, size: int, seed: int, drop_path_rate: float = 0.0) -> Any:
    """timm's network ``name`` without classifier for images of ``size`` pixels, which say so of themselves."""
    options: dict[str, Any] = {"num_classes": 0}
    if drop_path_rate:
        options["drop_path_rate"] = drop_path_rate
    model = build_timm(name, seed, {**options, "img_size": size})
    dropping = [module for module in model.modules() if isinstance(module, DropPath)]
    if drop_path_rate and not dropping:
        raise ConfigError(f"model.drop_path: timm:{name} has none", "write drop_path: 0")
    for module in dropping if not drop_path_rate else ():
        module.drop_prob = 0.0  # Swin's own default is 0.1
    described = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "input_size": (3, size, size)}
    model.pretrained_cfg = {"architecture": name, **described}  # of what it is trained on here
    return model


def refuse_unknown(name: str) -> str:
    """Architecture in a name of timm's, ``vit_small_patch16_224`` of ``vit_small_patch16_224.dino``.

    Raises :class:`ConfigError` where timm has none of it; names with a slash are of the Hub, which is not asked.
    """
    architecture = name.split("/")[-1].split(".")[0]
    if "/" not in name and not timm.is_model(architecture):
        raise ConfigError(f"timm has no model {architecture!r}", did_you_mean(architecture, timm.list_models()))
    return architecture


def build_timm(name: str, seed: int, options: Mapping[str, Any]) -> Any:
    """The network of this name, its weights drawn from ``seed``; :class:`ConfigError` if timm cannot build it."""
    architecture = refuse_unknown(name)
    try:
        with torch.random.fork_rng(devices=[]):  # random weights are the same in every process
            torch.manual_seed(derive(seed, "timm", architecture))
            with hub_client() if name.startswith("hf-hub:") else nullcontext():
                return _any_size(name, options)
    except Exception as error:
        reason = first_line(error)
        wrong = isinstance(error, TypeError | AssertionError) or reason.startswith(("Unknown model", "Invalid pretr"))
        if wrong or "/" not in name:
            hint = "check the name, its tag and the options"
            raise ConfigError(f"timm:{name}: timm cannot build it: {reason}", hint) from error
        message = f"timm:{name}: its description cannot be fetched: {reason}"
        raise WeightsError(message, offline_hint(f"timm:{name}")) from error


def _any_size(name: str, options: Mapping[str, Any]) -> Any:
    """The network with random weights, for images of any size where it has an option that says so.

    ViTs call it dynamic_img_size, Swin strict_img_size; networks of convolutions take any size as they are, and no
    ``img_size`` for which they are built.
    """
    sized = {"img_size": options["img_size"]} if "img_size" in options else {}
    others = {option: value for option, value in options.items() if option != "img_size"}
    for ours in ({"dynamic_img_size": True, **sized}, {"strict_img_size": False, **sized}, sized, {}):
        try:
            return timm.create_model(name, pretrained=False, **{**ours, **others})
        except TypeError as error:  # an option that this architecture does not have
            if not any(option in str(error) for option in ours):
                raise
    raise AssertionError("the last try has no option of ours")


def offline_hint(spec: str) -> str:
    """Return advice for weights of a network of timm or torchvision that cannot be downloaded."""
    return (
        f"they are downloaded once, which needs network; for a file that you have write {spec},file=FILE "
        f"(.safetensors or .pth), for random weights {spec},pretrained=false"
    )
