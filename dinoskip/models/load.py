"""Loading of backbones: ``load_backbone`` turns a spec into a :class:`Backbone`.

``dinoskip:NAME``              a network that comes with the package: ``skip`` or ``skipless``
``FILE`` or ``FOLDER``         a checkpoint of any ViT or of a usual ResNet, Swin or ConvNeXt (see ``from_file``); a run
                               or a folder of transformers or timm
``run:DIR``                    newest checkpoint of a run, its teacher, or student where it has none (or ``role=...``)
``weights:FILE.safetensors``   a weights file of ours, or any other as by its path alone
``dino:FILE.pth``              the same as the path alone
``timm:NAME``                  any network of timm; ``pretrained=false`` needs no network
``tv:NAME``                    any network of torchvision; ``pretrained=false`` needs no network
``hub:REPO:NAME``              the DINO authors' own code through torch.hub; REPO is theirs or a local folder
``hf:NAME_OR_DIR``             a ViT, Swin or ConvNeXt of Hugging Face transformers
``python:FILE.py:FUNCTION``    what a function of your own file returns; the file is run

Any of them may end in ``,key=value``: the options of its loader, ``mean`` and ``std`` of its images, and ``pos_embed``,
or, of networks that are read level by level, ``layers=NAME+NAME`` and ``image_size`` (:meth:`Backbone.from_model`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from dinoskip.errors import ConfigError
from dinoskip.io.files import read_tensor_header
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.backbone import Backbone, LayerFeatures, level_backbone, takes_apart
from dinoskip.models.export import build_from_weights
from dinoskip.models.from_file import load_vit_file
from dinoskip.models.from_hf import load_hf
from dinoskip.models.from_hub import load_hub
from dinoskip.models.from_python import load_python
from dinoskip.models.from_timm import load_timm
from dinoskip.models.from_torchvision import load_torchvision
from dinoskip.models.image_statistics import three_numbers, whose
from dinoskip.models.timm_networks import refuse_unknown
from dinoskip.models.vit import can_resize
from dinoskip.models.wrappings import read_content
from dinoskip.results.rows import normalisation_of
from dinoskip.runtime.console import log
from dinoskip.settings.specs import authors_positions, run_weights, split_spec

__all__ = ["Backbone", "LayerFeatures", "load_backbone"]


def _load_run(folder: str, *, role: str | None = None) -> LoadedModel:
    model, info = build_from_weights(run_weights(folder, role))
    return LoadedModel(model, info)


_LOADERS: dict[str, Callable[..., LoadedModel]] = {
    "run": _load_run,
    "weights": load_vit_file,
    "dino": load_vit_file,
    "file": load_vit_file,
    "timm": load_timm,
    "tv": load_torchvision,
    "hub": load_hub,
    "hf": load_hf,
    "python": load_python,
}
_FILE_OPTIONS = {"role", "prefix", "heads", "act", "grid"}
_OF_ALL = ("mean", "pos_embed", "std")
RULES = {"timm": "timm", "dino": "DINO", "bicubic": "MAE"}
"""Whose rule of resizing positions each is."""
_OPTIONS = {"run": {"role"}, "weights": {"grid"}, "dino": _FILE_OPTIONS, "file": _FILE_OPTIONS}  # others check theirs


def load_backbone(
    spec: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    **kw: Any,
) -> Backbone:
    """Load a frozen backbone, see the module's docstring for ``spec``; a path may be a ``Path``.

    ``kw`` are options too; those written in the spec win. ``role`` ("teacher" | "student") for ``run:`` and files,
    which also take ``prefix``, ``heads``, ``act`` and ``grid`` (:func:`dinoskip.models.from_file.load_vit_file`);
    ``pretrained``, ``seed`` of random weights and ``file`` (local weights, of which ``role`` and ``prefix`` choose) for
    ``timm:``, ``tv:`` and ``hub:``, besides whatever timm's factory or the hub's entry point takes; ``pretrained``,
    ``seed`` and ``revision`` for ``hf:``. ``mean`` and ``std`` (one number or three, of pixels in 0..1) normalise
    images; unless given, what the network or files beside it say, else ImageNet's. ``pos_embed`` ("timm" |
    "dino" | "bicubic"): how positions are interpolated; unless given, what weights of ours say of themselves, their
    authors' rule for names of timm (:func:`dinoskip.settings.specs.authors_positions`), what names of tensors tell of
    other files ("dino" if nothing), "timm" elsewhere. ``layers`` (names, or one string of them joined by +) reads any
    network level by level; ``image_size`` is the side of the picture from which its grids are read, and for
    timm and torchvision the size that it is built for.
    What is concluded of a file that does not say it is logged in one line, and in ``info["read_as"]``.
    Raises :class:`ConfigError` for a spec or model that is not understood and :class:`WeightsError` for weights that
    are missing, damaged, do not fit or cannot be downloaded.
    """
    spec = os.fspath(spec)
    kind, name, written = split_spec(spec)
    options = kw | written
    pos_embed = str(options.pop("pos_embed")) if "pos_embed" in options else None
    mean, std = (three_numbers(options.pop(key, None), key, spec) for key in ("mean", "std"))
    layers, size = options.pop("layers", None), options.pop("image_size", None)
    if isinstance(layers, str):
        layers = layers.split("+")
    unknown = options.keys() - _OPTIONS.get(kind, options.keys())
    if unknown:
        known = ", ".join(sorted({*_OPTIONS[kind], *_OF_ALL}))
        raise ConfigError(f"{spec}: unknown options: {', '.join(sorted(unknown))}", f"options of {kind}: {known}")
    if size is not None and kind in ("timm", "tv"):
        options["img_size" if kind == "timm" else "image_size"] = size
    loaded = _LOADERS[kind](name, **options)
    about: dict[str, Any] = {"info": loaded.info, "mean": mean or loaded.mean, "std": std or loaded.std}
    if layers is None and takes_apart(loaded.model):
        rule = loaded.positions or authors_positions(kind, name)
        chosen = rule if pos_embed is None and rule != "timm" and can_resize(loaded.model) else pos_embed
        backbone = Backbone(loaded.model, spec, pos_embed=chosen, **about)
    elif pos_embed is not None:
        raise ConfigError(f"{spec}: pos_embed is of plain ViTs", "leave it out")
    else:
        backbone = level_backbone(loaded.model, spec, layers or loaded.layers, size or loaded.size, **about)
    if loaded.read_as:
        why = {**loaded.why, **({"positions": "as asked"} if pos_embed else {})}
        why |= {"images": "as asked"} if mean or std else {}
        _conclude(backbone, loaded.read_as, why)
    return backbone.to(device, dtype)


def refuse_unreadable(timm_name: str, files: Iterable[Path]) -> None:
    """Refuse a name that timm has not, unless empty (:class:`ConfigError`), and files that hold no weights.

    Of files only headers and shapes are read (:class:`WeightsError`); folders are passed over.
    """
    if timm_name:
        refuse_unknown(timm_name)
    for path in filter(Path.is_file, files):
        if path.suffix == ".safetensors":
            read_tensor_header(path)
        else:
            read_content(path, shapes_only=True)


def _conclude(backbone: Backbone, read_as: str, why: dict[str, str]) -> None:
    """Say in one line, and keep, what was concluded of a file: the network, its positions, its images."""
    source = {key: f" ({text})" if text else "" for key, text in why.items()}
    text = read_as
    if backbone.positions in RULES:
        text += f"; positions resized as {RULES[backbone.positions]} does{source.get('positions', '')}"
    named = whose(backbone.mean, backbone.std)
    images = normalisation_of(backbone.mean, backbone.std) + (f", {named}" if named else "")
    text += f"; image mean / std {images}{source.get('images', '')}"
    backbone.info["read_as"] = text
    log.info("%s", text)
