"""Readable networks, and the distance of features from a plain forward pass: ``python -m benchmarks.networks``.

Random weights, seed 0, float32, noise of one image; no network is needed but for transformers' classes. The plain pass
is the network's own, with a hook of ours on the module of each level or block. "Before" are plain ViTs alone, as
``adapter_for`` still says of what is read block by block. docs/backbones.md sums them up.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from dinoskip.errors import DinoskipError
from dinoskip.models import Backbone
from dinoskip.models.backbone import LevelBackbone, adapter_for
from dinoskip.runtime.randomness import torch_rng

TIMM = (
    "vit_small_patch16_224", "deit3_small_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224", "resnet50",
    "convnext_tiny", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "pvt_v2_b2", "davit_tiny",
    "xcit_small_12_p16_224", "cait_xs24_384", "convmixer_768_32", "coatnet_0_224", "efficientnet_b0",
)  # fmt: skip
TRANSFORMERS = (
    ("ViT", "ViTModel", "ViTConfig"), ("DINOv2", "Dinov2Model", "Dinov2Config"),
    ("DINOv3 ViT", "DINOv3ViTModel", "DINOv3ViTConfig"), ("Swin", "SwinModel", "SwinConfig"),
    ("ConvNeXt", "ConvNextModel", "ConvNextConfig"), ("DINOv3 ConvNeXt", "DINOv3ConvNextModel", "DINOv3ConvNextConfig"),
    ("BERT", "BertModel", "BertConfig"),
)  # fmt: skip
OTHERS = (
    "timm:vit_base_patch16_siglip_224", "timm:regnety_040", "timm:maxvit_tiny_tf_224", "timm:mobilenetv3_large_100",
    "timm:inception_v3", "timm:crossvit_9_240", "tv:resnet18", "tv:swin_t", "tv:convnext_tiny", "tv:vit_b_16",
)  # fmt: skip


def networks() -> dict[str, Callable[[], tuple[nn.Module, int]]]:
    """Name, and what makes the network and says the side of its images."""
    builders: dict[str, Callable[[], tuple[nn.Module, int]]] = {}
    for name in (*(f"timm:{model}" for model in TIMM), *OTHERS):
        builders[name] = lambda name=name: _of_library(*name.split(":"))  # type: ignore[misc]
        if name == f"timm:{TIMM[-1]}":
            for label, model, config in TRANSFORMERS:
                builders[f"transformers {label}"] = lambda model=model, config=config: (  # type: ignore[misc]
                    getattr(transformers, model)(getattr(transformers, config)()), 224
                )  # fmt: skip
    return builders


def _of_library(library: str, name: str) -> tuple[nn.Module, int]:
    if library == "tv":
        return torchvision.models.get_model(name, weights=None), 224
    model = timm.create_model(name, num_classes=0)
    return model, int(model.pretrained_cfg["input_size"][-1])


def plain_outputs(model: nn.Module, modules: dict[int, nn.Module], images: Tensor) -> dict[int, Tensor]:
    """Return the outputs of modules in one forward pass of the network's own."""
    kept: dict[int, Any] = {}
    handles = [
        module.register_forward_hook(lambda _, __, output, number=number: kept.update({number: output}))
        for number, module in modules.items()
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    firsts = {number: output[0] if isinstance(output, tuple) else output for number, output in kept.items()}
    return {number: out.to_tuple()[0] if hasattr(out, "to_tuple") else out for number, out in firsts.items()}


def as_tokens(output: Tensor, grid: tuple[int, int]) -> Tensor:
    """A map or tokens as (1, h*w, C)."""
    if output.ndim == 3:
        return output[:, output.shape[1] - grid[0] * grid[1] :]
    return (output if tuple(output.shape[1:3]) == grid else output.permute(0, 2, 3, 1)).flatten(1, 2)


def line(name: str, make: Callable[[], tuple[nn.Module, int]]) -> tuple[str, str, str, str]:
    """Name, before, now, and the largest difference from the plain network as a share of its largest feature."""
    torch.manual_seed(0)
    model, side = make()
    model.eval()
    try:
        adapter_for(model, name)
        before = "read"
    except DinoskipError:
        before = "refused"
    try:
        backbone = Backbone.from_model(model, name, image_size=side)
    except DinoskipError as error:
        return name, before, f"refused: {error.message.removeprefix(f'{name}: ')}", ""
    levels = isinstance(backbone, LevelBackbone)
    images = torch.randn(1, 3, side, side, generator=torch_rng(0, "networks", name))
    read = backbone.layers(images, backbone.numbers)
    modules = {
        number: model.get_submodule(backbone.reader.levels[number - 1].name)
        if isinstance(backbone, LevelBackbone) else backbone.adapter.blocks[number - 1]
        for number in backbone.numbers
    }  # fmt: skip
    worst = 0.0
    for number, output in plain_outputs(model, modules, images).items():
        plain = as_tokens(output, read[number].grid)
        worst = max(worst, float((read[number].tokens - plain).abs().max() / plain.abs().max()))
    strides = list(dict.fromkeys(backbone.stride(number) for number in backbone.numbers))
    cells = ", ".join(map(str, strides))
    size = f"{backbone.depth} levels" if levels else f"{backbone.depth} blocks"
    return name, before, f"{size}; {cells} pixels a cell", f"{worst:.1g}"


def main() -> None:
    """Print the lines of networks whose name has the argument in it, of all without one."""
    print("| network | before | now | largest difference |\n|---|---|---|---|")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, make in networks().items():
        if wanted not in name:
            continue
        print("| " + " | ".join(line(name, make)) + " |")
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
