"""Networks that a file's tensors tell although nothing names them: ResNets, Swin, ConvNeXt and their kin, hybrid ViTs.

A file is of a network here if all tensors of the network are in it with their shapes, in any wrapping, under timm's,
the authors' or torchvision's names. Only networks of one's own are listed that no other of equal shapes computes
otherwise; any other is named by hand: ``timm:NAME,file=FILE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor

from dinoskip.errors import WeightsError
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.from_timm import load_timm, network_rules
from dinoskip.models.from_torchvision import load_torchvision
from dinoskip.models.wrappings import BATCHES, HEADS, NotInFile, find_tower, found_under

ADVICE = "name its architecture: timm:NAME,file=FILE or tv:NAME,file=FILE (,prefix=PREFIX), or hf:FOLDER"


@dataclass(frozen=True)
class KnownKind:
    """Networks that share the name of a tensor, ``anchor``; ``names`` are specs without options.

    ``telling`` are ends of names whose shapes the library would change to fit (Swin's windows), so they are compared
    before.
    """

    what: str
    anchor: str
    names: tuple[str, ...]
    telling: str = ""


def _all(library: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{library}:{name}" for name in names)


_SIZES = ("tiny", "small", "base", "large")
_RESNETS = [f"resnet{layers}" for layers in (18, 34, 50, 101, 152)] + ["resnet50d", "resnet101d", "seresnet50"]
_RESNETS += [f"wide_resnet{layers}_2" for layers in (50, 101)]
_RESNETS += [f"resnext{shape}" for shape in ("50_32x4d", "101_32x8d", "101_64x4d")]
_CONVNEXTS = ("atto", "femto", "pico", "nano", *_SIZES, "xlarge")
_CONVNEXTS_V2 = ("atto", "femto", "pico", "nano", "tiny", "base", "large", "huge")
_BIAS = "relative_position_bias_table"
_SWINS = [*(f"swin_{size}_patch4_window7_224" for size in _SIZES), "swin_base_patch4_window12_384"]
_SWINS += ["swin_large_patch4_window12_384"]
_HYBRIDS = ("vit_small_r26_s32_224", "vit_base_r50_s16_224", "vit_large_r50_s32_224")
KINDS = (
    KnownKind("a ResNet", "layer1.0.conv1.weight", _all("timm", *_RESNETS)),
    KnownKind("a Swin Transformer", f"layers.0.blocks.0.attn.{_BIAS}", _all("timm", *_SWINS), _BIAS),
    KnownKind("a ConvNeXt", "stages.0.0.gamma", _all("timm", *(f"convnext_{size}" for size in _CONVNEXTS))),
    KnownKind("a ConvNeXt", "stages.0.blocks.0.gamma", _all("timm", *(f"convnext_{size}" for size in _CONVNEXTS))),
    KnownKind("a ConvNeXt V2", "stages.0.0.grn.gamma", _all("timm", *(f"convnextv2_{size}" for size in _CONVNEXTS_V2))),
    KnownKind(
        "a ConvNeXt V2",
        "stages.0.blocks.0.mlp.grn.weight",
        _all("timm", *(f"convnextv2_{size}" for size in _CONVNEXTS_V2)),
    ),
    KnownKind("a hybrid ViT", "patch_embed.backbone.stem.conv.weight", _all("timm", *_HYBRIDS)),
    KnownKind("a hybrid ViT", "patch_embed.backbone.conv.weight", _all("timm", "vit_tiny_r_s16_p8_224")),
    KnownKind("a Swin Transformer V2", "layers.0.blocks.0.attn.cpb_mlp.0.weight", ()),  # windows are in no shape
    KnownKind("torchvision's Swin", f"features.1.0.attn.{_BIAS}", _all("tv", "swin_t", "swin_s", "swin_b"), _BIAS),
    KnownKind(
        "torchvision's ConvNeXt",
        "features.1.0.layer_scale",
        _all("tv", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large"),
    ),
    KnownKind(
        "torchvision's ViT",
        "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
        _all("tv", "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"),
    ),
    KnownKind(
        "torchvision's DenseNet",
        "features.denseblock1.denselayer1.norm1.weight",
        _all("tv", "densenet121", "densenet161", "densenet169", "densenet201"),
    ),
)
_CHILDREN = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
"""Modules by number in ``nn.Sequential(*list(resnet50.children())[:-1])``, with ReLU and pooling between them."""
_NUMBERED = "4.0.conv1.weight"


def load_known(content: Any, path: Path, role: str | None, prefix: str | None, refusal: WeightsError) -> LoadedModel:
    """The network of ``KINDS`` in what a file holds, built and said.

    Raises ``refusal``, with advice, where there is none; :class:`WeightsError` that says what kind it is where no
    network of that kind has its shapes, or several.
    """
    for kind in (*KINDS, KnownKind("a ResNet", _NUMBERED, KINDS[0].names)):
        try:
            tower = find_tower(content, path, role, prefix, (kind.anchor,))
        except NotInFile:
            continue
        tensors = tower.tensors if kind.anchor != _NUMBERED else _renumbered(tower.tensors)
        fitting = [name for name in kind.names if fits(name, tensors, kind.telling)]
        if len(fitting) != 1:
            reason = f"of none of {len(kind.names)} tried" if kind.names else "of which its tensors do not tell which"
            raise WeightsError(f"{path}: {kind.what}, {reason}", f"name it: timm:NAME,file={path}")
        library, _, name = fitting[0].partition(":")
        load = load_timm if library == "timm" else load_torchvision
        loaded = load(name, file=str(path), tensors=tensors)
        said = f"{path.name}: {fitting[0]}, whose tensors are all in it{found_under(tower.taken)}"
        return replace(loaded, read_as=said, why={"images": "assumed; ,mean= and ,std= for others"})
    raise WeightsError(refusal.message, refusal.hint if refusal.hint and "grid" in refusal.hint else ADVICE)


def _renumbered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    numbers = {name: name.partition(".") for name in tensors}
    return {
        f"{_CHILDREN[first]}.{rest}" if (first := parts[0]) in _CHILDREN else name: tensors[name]
        for name, parts in numbers.items()
        for rest in (parts[2],)
    }


@cache
def _shapes(spec: str) -> tuple[Any, dict[str, torch.Size]]:
    """A network of a name here without storage, and the shapes of its tensors but for a classifier's."""
    library, _, name = spec.partition(":")
    with torch.device("meta"):
        if library == "timm":
            model = timm.create_model(name, pretrained=False, num_classes=0)
        else:
            model = torchvision.models.get_model(name, weights=None)
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items() if not key.endswith(BATCHES)}
    return model, {key: shape for key, shape in shapes.items() if library == "timm" or not HEADS.match(key)}


def fits(spec: str, tensors: Mapping[str, Tensor], telling: str = "") -> bool:
    """Whether all tensors of the network ``spec`` are among ``tensors``, under its own or its authors' names.

    Nothing else may be in the parts that it has, heads aside.
    """
    model, shapes = _shapes(spec)
    given = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    if telling:
        wanted = sorted(tuple(shape) for name, shape in shapes.items() if name.endswith(telling))
        if wanted != sorted(tuple(tensor.shape) for name, tensor in given.items() if name.endswith(telling)):
            return False
    if spec.startswith("timm:"):
        try:
            given = network_rules(model)(given, model)
        except (KeyError, RuntimeError, AttributeError, ValueError):
            return False
    parts = {name.partition(".")[0] for name in shapes}
    others = [
        name for name in given.keys() - shapes.keys()
        if name.partition(".")[0] in parts and not HEADS.match(name) and not name.endswith(BATCHES)
    ]  # fmt: skip
    return not others and all(name in given and given[name].shape == shape for name, shape in shapes.items())
