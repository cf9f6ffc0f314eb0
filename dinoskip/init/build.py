"""All initialisations in one union; a model configuration and a seed give a model, each parameter assigned once."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.init.assign import Assignments, assign, plain_blocks
from dinoskip.init.config import (
    NEEDS_NO_SKIP,
    CalibratedInit,
    Init,
    ModelConfig,
)
from dinoskip.init.default import default_tensors
from dinoskip.models.build import from_config
from dinoskip.models.family_blocks import skip_blocks
from dinoskip.models.skip_weight import weigh_skips_


def build_model(
    config: ModelConfig,
    seed: int,
    *,
    images: Tensor | None = None,
    drop_path: float = 0.0,
    device: str | torch.device = "cpu",
) -> VisionTransformer:
    """Build a model and initialise it: float32, train mode, the same bits for the same arguments.

    Built without storage, filled with NaN, then every parameter assigned exactly once: by ``config.init`` what it
    speaks of, by the default (:func:`dinoskip.init.trunc_normal_`; of networks of timm, theirs) the rest; of skips that
    change in training the last weight counts, and the model has the first. ``images`` (B, 3, S, S), normalised, are
    for the initialisation that needs some (:func:`needs_images`). ``drop_path`` is the last block's rate; it applies
    only where a skip is kept. Raises :class:`WeightsError` if anything was left unset, :class:`ConfigError` if the
    initialisation does not suit the model, or lacks its images.
    """
    if config.timm_name is not None:
        model = from_config(config.last, drop_path_rate=drop_path, seed=seed).float()
    else:
        with torch.device("meta"):
            model = from_config(config.last, drop_path_rate=drop_path, weight_init="skip").float()
        model.to_empty(device=device)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(torch.nan)  # an integer buffer cannot hold NaN and would fail here rather than stay unset
    initialise(model, config.init, seed, images, keep_others=config.timm_name is not None)
    if config.reparametrise is not None:
        reparametrise_(model, **config.reparametrise.model_dump())
    if config.skip_weight is not None:
        weigh_skips_(model, config.skip_weight.weights(config.skip_weight.first, len(skip_blocks(model))))
    return model.to(device)


def tensors_of(init: Init, model: nn.Module, seed: int, images: Tensor | None = None) -> Assignments:
    """Return the tensors that an initialisation assigns. Raises :class:`ConfigError` if images it needs are missing."""
    if not isinstance(init, CalibratedInit):
        return init.tensors(model, seed)
    if images is None:
        raise ConfigError(f"initialisation {init.name} is measured on images, and there are none")
    return init.tensors(model, seed, images)


def initialise(
    model: nn.Module, init: Init, seed: int, images: Tensor | None = None, *, keep_others: bool = False
) -> None:
    """Assign every parameter once: ``init``'s own, then the default for all others. None may stay NaN.

    With ``keep_others`` the others keep the values that they have.
    """
    drawn = assign(model, tensors_of(init, model, seed, images))
    if not keep_others:
        assign(model, default_tensors(model, seed, without=drawn))
    state = [*model.named_parameters(), *model.named_buffers()]
    unset = [name for name, tensor in state if not bool(tensor.isfinite().all())]
    if unset:
        raise WeightsError(f"initialisation {init.name} left {len(unset)} tensors unset or not finite: {unset[0]}, ...")


@torch.no_grad()
def reparametrise_(model: nn.Module, k1: float = 1.0, k2: float = 1.0, c1: float = 1.0, c2: float = 1.0) -> nn.Module:
    """Scale the weights of every block without changing the function, in place; returns the model.

    Adam's step of a weight is about the learning rate, whatever the weight's size: it then moves the function less.
    qkv.weight × ``k1`` with norm1 / k1, fc1.weight × ``k2`` with norm2 / k2: exact but for rounding, with and without
    skips. proj × ``c1`` and fc2 × ``c2`` (weight and bias): the LayerNorm that follows divides by them, but for its
    epsilon, where nothing is added in between. Raises :class:`ConfigError` for factors that are not above 0, for c1 and
    c2 with skips, and for blocks outside the papers.
    """
    if min(k1, k2, c1, c2) <= 0:
        raise ConfigError(f"reparametrise_: k1={k1}, k2={k2}, c1={c1}, c2={c2} must be above 0")
    for block in plain_blocks(model, "reparametrise_"):
        for factor, skip, name in ((c1, block.skips_attention, "c1"), (c2, block.skips_mlp, "c2")):
            if factor != 1 and skip:
                raise ConfigError(f"reparametrise_: {name}={factor:g} {NEEDS_NO_SKIP}", f"leave {name} out")
        parts = (("norm1", "attn.qkv", "attn.proj", k1, c1), ("norm2", "mlp.fc1", "mlp.fc2", k2, c2))
        for norm, reader, writer, inner, outer in parts:
            for parameter in model.get_submodule(f"{block.prefix}.{norm}").parameters():
                parameter.div_(inner)
            block.layers[reader].weight.mul_(inner)
            for parameter in block.layers[writer].parameters():
                parameter.mul_(outer)
    return model
