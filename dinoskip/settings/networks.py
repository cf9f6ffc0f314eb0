"""Width, patch and depth of a backbone as far as its name, its header or its description tells, without opening it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError, DataError, WeightsError
from dinoskip.io.files import TensorFile, read_json, read_tensor_header
from dinoskip.settings.config import implementation
from dinoskip.settings.flops import network_flops
from dinoskip.settings.specs import declared_weights, run_weights, split_spec
from dinoskip.settings.vit_config import DEPTH, LARGER, MLP_RATIO, PATCHES, SHAPES, WIDTHS, VitConfig, layout_of

_SIZE_AND_PATCH = re.compile(rf"({'|'.join(WIDTHS)})_patch(\d+)")  # in names of timm and others
_LETTER_AND_PATCH = re.compile(r"vit(t|s|b|l|h|g)(\d+)")  # in names of the authors of DINO: dinov2_vits14
_LETTERS = {name[0]: name for name in WIDTHS if name != "mini"}


@dataclass(frozen=True)
class Network:
    """Channels, side of a patch in pixels, blocks, hidden channels of an MLP a channel.

    ``guessed``: the depth is the usual one of a name, not what a header, a description or an option says.
    """

    width: int
    patch: int
    depth: int
    mlp_ratio: float = MLP_RATIO
    guessed: bool = field(default=False, compare=False)

    def tokens(self, height: int, width: int) -> int:
        """Patches of an image, rounded up."""
        return math.ceil(height / self.patch) * math.ceil(width / self.patch)

    def flops(self, tokens: int) -> int:
        """Operations of a forward pass of one image of so many patches."""
        return network_flops(self.width, self.patch, self.depth, tokens, self.mlp_ratio)


@dataclass(frozen=True)
class LevelNetwork(Network):
    """A network of timm's that is read level by level, built for ``size`` pixels; its levels on average are a block.

    ``width`` is such that tokens of ``patch`` pixels and ``depth`` levels have as many numbers as all levels together.
    """

    name: str = ""
    size: int = 224

    def flops(self, tokens: int) -> int:
        """Operations of a forward pass of one image of so many patches, from that of its own size, by the area."""
        whole = int(implementation("dinoskip.models.network_facts:flops_of")(self.name, self.size, self.size))
        return round(whole * tokens / (self.size / self.patch) ** 2)


def _of_timm(name: str, size: int) -> Network:
    """Describe timm's network by building it without storage, which imports torch."""
    facts = implementation("dinoskip.models.network_facts:facts_of")(name, size)
    patch, depth = facts.multiple, len(facts.strides)
    values = sum(width * (patch / stride) ** 2 for width, stride in zip(facts.widths, facts.strides, strict=True))
    return LevelNetwork(round(values / depth), patch, depth, name=name, size=size)


def network_of_config(model: VitConfig) -> Network:
    """The network of a model's configuration."""
    if model.timm_name is not None:
        return _of_timm(model.timm_name, model.img_size)
    width, patch = SHAPES[model.name]
    return Network(width, patch, model.blocks, layout_of(model.name)[2])


def known_network(spec: str) -> Network | None:
    """The network of a backbone's spec; None where nothing tells it before it is opened."""
    with suppress(ConfigError, WeightsError, DataError, OSError):  # said when it is opened
        kind, place, options = split_spec(spec)
        if kind in {"run", "weights"}:
            file = run_weights(place, options.get("role")) if kind == "run" else Path(place)
            return network_of_config(declared_weights(file)[0])
        file = Path(str(options.get("file") or place))
        if kind in {"file", "dino", "timm", "hub"}:
            if file.suffix == ".safetensors":
                return _of_tensors(read_tensor_header(file))
            if file.suffix and file.is_file():
                return _of_torch_file(file, options) or _of_name(place, options)
        if kind == "hf" and (Path(place) / "config.json").is_file():
            return _of_description(read_json(Path(place) / "config.json"))
        named = _SIZE_AND_PATCH.search(place)
        plain = named is not None and int(named[2]) >= min(PATCHES)  # not Swin and its kin
        if kind == "timm" and not plain and re.fullmatch(r"[a-z]\w+(\.\w+)?", place):
            return _of_timm(place.partition(".")[0], int(options.get("image_size", 224)))
        return _of_name(place, options)
    return None


def _of_name(name: str, options: Mapping[str, Any]) -> Network | None:
    """Read size and patch off a name such as ``vit_small_patch14_dinov2`` or ``dinov2_vits14``."""
    if named := _SIZE_AND_PATCH.search(name):
        size, patch = named[1], int(named[2])
    elif named := _LETTER_AND_PATCH.search(name):
        size, patch = _LETTERS[named[1]], int(named[2])
    else:
        return None
    usual, _, mlp_ratio = LARGER.get(size, (DEPTH, 0, MLP_RATIO))
    depth, patch = int(options.get("depth", usual)), int(options.get("patch_size", patch))
    return Network(WIDTHS[size], patch, depth, mlp_ratio, "depth" not in options) if depth > 0 < patch else None


def _of_tensors(header: TensorFile) -> Network | None:
    """Read the shapes of tensors under timm's, the authors' or OpenAI's names."""
    embeddings = [
        shape for name, shape in header.shapes.items()
        if re.search(r"(patch_embed\.proj|patch_embeddings\.projection|\bconv1)\.weight$", name) and len(shape) == 4
    ]  # fmt: skip
    numbers = [
        int(found[1]) for name in header.shapes
        if (found := re.search(r"\b(?:blocks|layer|layers|resblocks)\.(?:\d+\.)?(\d+)\.", name))
    ]  # fmt: skip
    if len(embeddings) != 1 or embeddings[0][2] != embeddings[0][3] or not numbers:
        return None
    return Network(embeddings[0][0], embeddings[0][2], max(numbers) + 1)


def _of_torch_file(file: Path, options: Mapping[str, Any]) -> Network | None:
    """Read the shapes of the ViT in a torch file, whatever it is wrapped in; this imports torch."""
    with suppress(WeightsError):
        built = implementation("dinoskip.models.from_file:architecture_of")(
            file, options.get("role"), options.get("prefix"), options.get("grid")
        )
        return Network(built["embed_dim"], built["patch_size"], built["depth"], built["mlp_ratio"])
    return None


def _of_description(described: Mapping[str, Any]) -> Network | None:
    """Read the ``config.json`` of transformers."""
    vision = described.get("vision_config", described)
    width, patch, depth = (vision.get(key) for key in ("hidden_size", "patch_size", "num_hidden_layers"))
    if not all(isinstance(value, int) and value > 0 for value in (width, patch, depth)):
        return None
    return Network(width, patch, depth, vision.get("intermediate_size", MLP_RATIO * width) / width)
