"""Where backbones come from: ``load_backbone`` turns a spec into a :class:`Backbone`.

``FILE`` or ``FOLDER``         a checkpoint of any ViT (see ``from_file``); a run, or a folder of transformers or timm
``run:DIR``                    newest checkpoint of a run, its teacher, or student where it has none (or ``role=...``)
``weights:FILE.safetensors``   a weights file of ours, or any other as by its path alone
``dino:FILE.pth``              the same as the path alone
``timm:NAME``                  any plain ViT of timm; ``pretrained=false`` needs no network
``hub:REPO:NAME``              the DINO authors' own code through torch.hub; REPO is theirs or a local folder
``hf:NAME_OR_DIR``             a ViT of Hugging Face transformers

Any of them may end in ``,key=value``: the options of its loader, and ``pos_embed``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dinoskip.errors import ConfigError, WeightsError, did_you_mean
from dinoskip.files import read_json
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.backbone import Backbone, LayerFeatures
from dinoskip.models.export import (
    CHECKPOINTS,
    build_from_weights,
    exported_weights,
    newest_checkpoint,
    weights_info,
)
from dinoskip.models.from_file import load_vit_file
from dinoskip.models.from_hf import load_hf
from dinoskip.models.from_hub import load_hub
from dinoskip.models.from_timm import load_timm
from dinoskip.models.wrappings import checked_role

__all__ = ["Backbone", "LayerFeatures", "load_backbone"]


def _load_weights(file: str) -> LoadedModel:
    return load_vit_file(file)


def run_weights(folder: str, role: str | None = None) -> Path:
    """The weights file of a run's newest checkpoint: a role's, else the one that it is for."""
    checkpoint = newest_checkpoint(folder)
    return exported_weights(checkpoint) if role is None else checkpoint / f"{checked_role(role)}.safetensors"


def _load_run(folder: str, *, role: str | None = None) -> LoadedModel:
    model, info = build_from_weights(run_weights(folder, role))
    return LoadedModel(model, info)


_LOADERS: dict[str, Callable[..., LoadedModel]] = {
    "run": _load_run,
    "weights": _load_weights,
    "dino": load_vit_file,
    "file": load_vit_file,
    "timm": load_timm,
    "hub": load_hub,
    "hf": load_hf,
}
_FILE_OPTIONS = {"role", "prefix", "heads", "act"}
_OPTIONS = {"run": {"role"}, "weights": set[str](), "dino": _FILE_OPTIONS, "file": _FILE_OPTIONS}  # others check theirs
_CHECKPOINT_FILES = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".safetensors")


def _value(text: str) -> Any:
    """An option's value: true/false/null in any case, a number, else the text itself."""
    lowered = text.lower()
    try:
        return json.loads("null" if lowered == "none" else lowered)
    except ValueError:
        return text


def _parse(rest: str, spec: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME,key=value,...``; commas before the first ``key=`` belong to the name."""
    name, *options = re.split(r",(?=\s*\w+\s*=)", rest)
    parsed: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        # a path stays as it is written, whatever it is called
        parsed[key.strip()] = value.strip() if key.strip() == "file" else _value(value.strip())
    if "," in name and spec.startswith(("timm:", "hub:", "hf:")):
        raise ConfigError(f"{spec}: option {name.split(',', 1)[1]!r} is not key=value")
    return name.strip(), parsed


def training_of(spec: str) -> dict[str, Any]:
    """What a spec's weights file says of its training: ``epoch``, ``initialisation``, ``optimizer``, where it does.

    Reads the header alone. Empty for backbones from elsewhere, and where there is no such file: opening it says so.
    """
    kind, place, options = split_spec(spec)
    try:
        if kind == "run":
            place = str(run_weights(place, options.get("role")))
        elif kind not in {"weights", "dino", "file"}:
            return {}
        info = weights_info(place)
    except (ConfigError, WeightsError):
        return {}
    named = {"epoch": "epoch", "initialisation": "init", "optimizer": "optimizer"}
    return {field: info[key] for field, key in named.items() if key in info}


def split_spec(spec: str) -> tuple[str, str, dict[str, Any]]:
    """Return a spec's kind, name and options; :class:`ConfigError` for one that is not understood."""
    kind, colon, rest = spec.partition(":")
    if kind not in _LOADERS:
        name, options = _parse(spec, spec)
        path = Path(name)
        if path.is_dir():
            return *_kind_of_folder(path), options
        if path.is_file() or path.suffix.lower() in _CHECKPOINT_FILES:
            return "file", name, options
    if not colon or kind not in _LOADERS or not rest:
        near = did_you_mean(kind, _LOADERS, after=":...")
        known = "the path of a checkpoint, run:DIR, weights:FILE.safetensors, timm:NAME, hub:REPO:NAME or hf:NAME"
        raise ConfigError(f"backbone {spec!r} is not understood", f"{near or ''} write {known}".lstrip())
    return kind, *_parse(rest, spec)


def _kind_of_folder(folder: Path) -> tuple[str, str]:
    """Kind and name of the spec that a folder stands for: a run, or what its ``config.json`` is written for."""
    if (folder / CHECKPOINTS).is_dir():
        return "run", str(folder)
    described = folder / "config.json"
    place = str(folder.resolve())
    if described.is_file():
        return ("timm", f"local-dir:{place}") if "architecture" in read_json(described) else ("hf", place)
    files = sorted(path.name for path in folder.iterdir() if path.suffix in _CHECKPOINT_FILES)
    hint = f"give one of its files: {folder / files[0]}" if files else "give a checkpoint file or a run"
    raise ConfigError(f"backbone {folder}: neither a run nor a folder with a config.json", hint)


def load_backbone(
    spec: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, **kw: Any
) -> Backbone:
    """Load a frozen backbone, see the module's docstring for ``spec``.

    ``kw`` are options too; those written in the spec win. ``role`` ("teacher" | "student") for ``run:`` and files,
    which also take ``prefix``, ``heads`` and ``act`` (:func:`dinoskip.models.from_file.load_vit_file`);
    ``pretrained``, ``seed`` of random weights and ``file`` (local weights) for ``timm:`` and ``hub:``, besides whatever
    timm's factory or the hub's entry point takes; ``pretrained``, ``seed`` and ``revision`` for ``hf:``. ``pos_embed``
    ("timm" | "dino"): how positions are interpolated; unless given, what weights of ours say of themselves, "dino" for
    other files that allow it, "timm" elsewhere.
    Raises :class:`ConfigError` for a spec or model that is not understood and :class:`WeightsError` for weights that
    are missing, damaged, do not fit or cannot be downloaded.
    """
    kind, name, written = split_spec(spec)
    options = kw | written
    pos_embed = str(options.pop("pos_embed")) if "pos_embed" in options else None
    unknown = options.keys() - _OPTIONS.get(kind, options.keys())
    if unknown:
        known = ", ".join([*sorted(_OPTIONS[kind]), "pos_embed"])
        raise ConfigError(f"{spec}: unknown options: {', '.join(sorted(unknown))}", f"options of {kind}: {known}")
    loaded = _LOADERS[kind](name, **options)
    backbone = Backbone(loaded.model, spec, loaded.info, mean=loaded.mean, std=loaded.std, pos_embed=pos_embed)
    return backbone.to(device, dtype)
