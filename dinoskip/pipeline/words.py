"""Names of networks on pages: ``skipless, calibrated, after 3 epochs`` instead of a variant's name in files.

Every page, figure and sentence takes them from here. Files, folders and CSV are keyed by the names of variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dinoskip.errors import ConfigError
from dinoskip.init.config import ModelConfig
from dinoskip.optim.config import printed
from dinoskip.pipeline.variants import Variant, backbone_names
from dinoskip.settings.shipped import SHIPPED
from dinoskip.settings.specs import split_spec

_SKIPS = {
    True: "with skips",
    False: "skipless",
    "attention": "skips around attention alone",
    "mlp": "skips around MLPs alone",
}
_INITIALISATIONS = {
    "trunc_normal": "default initialisation",
    "skipless": "paper's initialisation",
    "calibrated": "calibrated",
}
_VIT = re.compile(r"vit_([a-z]+?)_patch(\d+)(?:_|\.|$)")
_LETTERS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G"}
RANDOM = "random weights"


def words_of_model(model: ModelConfig) -> str:
    """``with skips``, ``skipless, calibrated, heads that mix``: skips and initialisation of a network."""
    weight = model.skip_weight
    if weight is None:
        parts = [_SKIPS[model.skip]]
    elif weight.fraction:
        parts = [f"skips fading to {weight.end:g}"]
    else:
        parts = [f"skips weighted {weight.end:g}"]
    name = model.init.name
    if name != "trunc_normal" or model.last.skip is not True:
        parts.append(_INITIALISATIONS.get(name, f"{name.replace('_', ' ')} initialisation"))
    if getattr(model.init, "mixing_heads", 0):
        parts.append("heads that mix")
    return ", ".join(parts)


def words_of_backbone(spec: str, label: str) -> str:
    """Return the name of a finished network on pages: its label, with ``(random weights)`` where ``pretrained=false``.

    Without a label of the user's own ``dinoskip:NAME`` has the words of its table, and a ViT of timm with random
    weights those of its shape, ``ViT-S/14 (random weights)``: a known name stands for known weights.
    """
    try:
        kind, name, options = split_spec(spec)
        chosen = label != backbone_names([spec])[0]
    except ConfigError:  # said when it is opened
        return label
    if options.get("pretrained") is False:
        found = _VIT.search(name)
        plain = found is not None and not chosen and kind == "timm" and found[1] in _LETTERS
        shape = f"ViT-{_LETTERS[found[1]]}/{found[2]}" if plain and found else label
        return f"{shape} ({RANDOM})"
    ours = next(
        (network.words for network in SHIPPED.values() if kind == "weights" and str(network.weights) == name), ""
    )
    return label if chosen or not ours else ours


def at_epoch(words: str, epoch: int) -> str:
    """A network at a moment of its training: ``skipless, calibrated, after 3 epochs``, ``..., before training``."""
    return f"{words}, before training" if epoch == 0 else f"{words}, after {epoch} epoch{'s' * (epoch != 1)}"


def variant_words(variants: Sequence[Variant]) -> dict[str, str]:
    """Words for every variant, by its name and, of several seeds, by their family; no two are the same.

    Skips and initialisation; then, of several that these do not tell apart, optimizer, blocks and size; then the name.
    """
    networks: dict[str, Variant] = {}
    for variant in variants:
        networks.setdefault(variant.family or variant.name, variant)
    words = {name: _first_words(variant) for name, variant in networks.items()}
    for told in _TOLD_APART:
        alike = {name for name in words if list(words.values()).count(words[name]) > 1}
        if told is _optimizer and len({_optimizer(variant) for variant in networks.values()} - {""}) > 1:
            alike = set(words)
        parts = {name: told(networks[name]) for name in alike}
        if len(set(parts.values())) > 1:
            words |= {name: f"{words[name]}, {part}" for name, part in parts.items() if part}
    taken = list(words.values())
    words = {name: f"{text} ({name})" if taken.count(text) > 1 else text for name, text in words.items()}
    seeds = {variant.name: f"{words[variant.family]}, seed {variant.seed}" for variant in variants if variant.family}
    return words | seeds


def _first_words(variant: Variant) -> str:
    if variant.model is not None:
        return words_of_model(variant.model)
    return words_of_backbone(variant.backbone or "", variant.name)


def _optimizer(variant: Variant) -> str:
    return printed(variant.optimizer.name) if variant.optimizer else ""


def _blocks(variant: Variant) -> str:
    return f"{variant.model.blocks} blocks" if variant.model else ""


def _size(variant: Variant) -> str:
    return variant.model.timm_name or variant.model.name if variant.model else ""


_TOLD_APART: tuple[Callable[[Variant], str], ...] = (_optimizer, _blocks, _size)
