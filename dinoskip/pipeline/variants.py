"""Variants of a study: every combination of its changes to model and optimizer, or an existing backbone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import Field

from dinoskip.errors import ConfigError
from dinoskip.init.config import ModelConfig
from dinoskip.optim.config import OptimizerConfig
from dinoskip.settings.config import Config, Distinct, RawConfig, merge, validate
from dinoskip.settings.networks import Network, known_network, network_of_config
from dinoskip.settings.specs import split_spec, training_of
from dinoskip.training.supervised_config import with_defaults

C = TypeVar("C", bound=Config)


class VariantsConfig(Config):
    """Variants of a study: changes to ``model`` and ``optimizer``, every combination once, with each seed.

    A model entry may have a ``label`` (used in the variant's name) and, instead of model settings, a ``backbone``
    (a checkpoint's path, ``run:DIR``, ``timm:NAME``, ...) that is evaluated as it is.
    """

    model: tuple[dict[str, Any], ...] = Field(({},), description="changes to model, or a backbone each")
    optimizer: tuple[str | dict[str, Any], ...] = Field(({},), description="changes to optimizer, or a name each")
    seeds: Distinct[Annotated[int, Field(ge=0)]] = Field(
        (), description="of training: each combination is trained with each; default: seed alone"
    )


@dataclass(frozen=True)
class Variant:
    """One combination. Either ``model`` and ``optimizer`` (to be trained) or ``backbone`` (a spec) is set."""

    name: str
    model: ModelConfig | None = None
    optimizer: OptimizerConfig | None = None
    backbone: str | None = None
    trained: Mapping[str, Any] = field(default_factory=dict)
    """Training facts in a backbone's file: the fields ``epoch``, ``initialisation``, ``optimizer`` of rows."""
    seed: int = 0
    """Of its weights, its order of images and its crops."""
    family: str = ""
    """The name without the seed, of a variant that is trained with several."""
    shape: Network | None = None
    """Of a backbone, as far as it is known before it is opened."""

    @property
    def sweep(self) -> str:
        """The node that chooses its learning rate, if there is a sweep: its family's, made with the first seed."""
        return f"sweep/{self.family or self.name}"

    @property
    def depth(self) -> int | None:
        """Blocks of the model; None for a backbone, which is not opened to plan a study."""
        return None if self.model is None else self.model.blocks

    @property
    def network(self) -> Network | None:
        """The network of a trained variant, or of a backbone as far as it is known."""
        return self.shape if self.model is None else network_of_config(self.model)


class OneOptimizer(Config):
    """An optimizer's configuration on its own, to be validated by its ``name``."""

    optimizer: OptimizerConfig


def expand(varied: VariantsConfig, source: RawConfig, seed: int) -> tuple[tuple[Variant, ...], list[str]]:
    """Return all combinations of ``varied``, named, in order, and a line for each combination that is impossible.

    ``source`` is the study's: the changes lie over its ``model`` and ``optimizer``; ``seed`` is the study's.
    """
    problems: list[str] = []
    variants: list[Variant] = []
    optimizers = [
        labelled for entry in varied.optimizer if (labelled := _optimizer(source, entry, problems)) is not None
    ]
    unnamed = _unnamed(varied.model)
    for index, entry in enumerate(varied.model):
        settings = dict(entry)
        label = str(settings.pop("label", ""))
        place = f"variants.model.{index}"
        if "backbone" in settings:
            spec = settings.pop("backbone")
            if settings or not isinstance(spec, str):
                problems.append(f"{source.place(place)}: {place}: backbone stands alone (with label, if wanted)")
            else:
                trained, shape = training_of(spec), known_network(spec)
                variants.append(Variant(label or unnamed[spec], backbone=spec, trained=trained, seed=seed, shape=shape))
            continue
        model = _validated(ModelConfig, merge(source.tree.get("model", {}), settings), source, place, problems)
        if model is not None:
            name = label or _label(model)
            for short, config in optimizers:
                variants += _with_seeds(Variant(f"{name}-{short}", model, config, seed=seed), varied.seeds)
    problems += [f"{source.place('variants')}: variants: {text}" for text in _bad_names(variants)]
    return tuple(variants), problems


def _unnamed(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names of the backbones without a label, by spec; one that is not understood is its own: opening it says so."""
    specs = [str(entry["backbone"]) for entry in entries if "backbone" in entry and not entry.get("label")]
    try:
        return dict(zip(specs, backbone_names(specs), strict=True))
    except ConfigError:
        return {spec: _clean(spec) for spec in specs}


def confounds(variants: Sequence[Variant]) -> list[str]:
    """A line for each regularisation that only some of the variants compared can have."""
    models = {variant.name: variant.model for variant in variants if variant.model is not None}
    dropped = [name for name, model in models.items() if model.drop_path_in_training > 0]
    others = [name for name, model in models.items() if not model.keeps_skips]
    if not dropped or not others:
        return []
    rates = sorted({model.drop_path for name, model in models.items() if name in dropped})
    return [
        f"model.drop_path: {', '.join(f'{rate:g}' for rate in rates)} regularises {', '.join(dropped)} and cannot "
        f"{', '.join(others)}: the comparison is confounded; model.drop_path=0 removes it, as in the paper"
    ]


def _with_seeds(variant: Variant, seeds: Sequence[int]) -> list[Variant]:
    """``skip-soap-s0``, ``skip-soap-s1``, ... of ``skip-soap``; the variant as it is without seeds."""
    family = variant.name
    return [replace(variant, name=f"{family}-s{seed}", seed=seed, family=family) for seed in seeds] or [variant]


def backbone_names(specs: Sequence[str]) -> list[str]:
    """Short names of backbones, each once unless a spec comes twice: of its file, folder or model.

    Where several have the same, with the options in which they differ: ``vit_small_patch16_224-seed_1``.
    """
    parsed = [split_spec(spec) for spec in specs]
    names = [_short_name(kind, place) for kind, place, _ in parsed]
    full_names = []
    for at, (_, _, options) in enumerate(parsed):
        others = [
            parsed[other][2] for other, name in enumerate(names) if name == names[at] and specs[other] != specs[at]
        ]
        differing = [key for key in options if any(other.get(key) != options[key] for other in others)]
        told = [f"{key}_{Path(str(options[key])).stem if key == 'file' else options[key]}" for key in differing]
        full_names.append(_clean("-".join([names[at], *told]))[:60])
    return [
        name
        if all(known != name or spec == specs[at] for known, spec in zip(full_names, specs, strict=True))
        else _clean(specs[at])
        for at, name in enumerate(full_names)
    ]


def _short_name(kind: str, name: str) -> str:
    last = re.split(r"[/:]", name.rstrip("/"))[-1]
    if kind in {"weights", "dino", "file"}:
        last = last.rpartition(".")[0] or last
    return _clean(last)[:40]


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[-60:].lstrip("._-") or "backbone"


def _bad_names(variants: list[Variant]) -> Iterator[str]:
    names = [variant.name for variant in variants]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"{name!r} comes twice (give each model a label)"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            yield f"{name!r} is not usable as a folder name (give a label)"


def _optimizer(
    source: RawConfig, entry: str | Mapping[str, Any], problems: list[str]
) -> tuple[str, OptimizerConfig] | None:
    settings = {"name": entry} if isinstance(entry, str) else dict(entry)
    label = str(settings.pop("label", ""))
    base = source.tree.get("optimizer", {})
    if "name" in settings and isinstance(base, dict) and settings["name"] != base.get("name", "adamw"):
        base = {}  # another optimizer's settings do not carry over, but the recipe's do
        if source.tree.get("supervise"):
            base = with_defaults({})["optimizer"]
    tree = {"optimizer": {"name": "adamw", **merge(base, settings)}}
    box = _validated(OneOptimizer, tree, source, "", problems)
    return None if box is None else (label or box.optimizer.name, box.optimizer)


def _validated(model: type[C], tree: dict[str, Any], source: RawConfig, prefix: str, problems: list[str]) -> C | None:
    try:
        return validate(model, RawConfig(tree, source.places), prefix)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _label(model: ModelConfig) -> str:
    base = f"skip_{model.skip}" if isinstance(model.skip, str) else "skip" if model.skip else "skipless"
    if model.skip_weight is not None:
        how = "annealed" if model.skip_weight.fraction else "skip"
        base = f"{how}_{'to_' * (model.skip_weight.sublayers == 'linear')}{model.skip_weight.end:g}"
    default = "skipless" if model.last.skip is False else "trunc_normal"
    return base if model.init.name == default else f"{base}_{model.init.name}"


def loading() -> ModuleType:
    """:mod:`dinoskip.models.load`, which imports torch: for those that open networks, not for those that plan."""
    from dinoskip.models import load  # torch

    return load
