"""torchvision's Mask R-CNN on the map of one block of any backbone, by a simple feature pyramid (Li et al. 2022).

A plain ViT has one map. The pyramid makes of it maps of strides 4, 8, 16 and 32: by transposed convolutions where they
are finer, by max pooling where they are coarser, each followed by convolutions of 1 × 1 and 3 × 3 with LayerNorm.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip.models.backbone import LevelBackbone
from dinoskip.models.levels import HookedLevels
from dinoskip_detection.config import DetectionConfig

STRIDES = (4, 8, 16, 32)  # of ViTDet's simple pyramid (Li et al. 2022, section 3), as a ResNet's FPN has them
_ANCHORS = (32, 64, 128, 256, 512)  # sides in pixels, of the four maps and of the coarsest one, every second cell
_ASPECTS = (0.5, 1.0, 2.0)  # of torchvision's fasterrcnn_resnet50_fpn, as the sides above


class SimplePyramid(nn.Module):
    """Maps (B, ``channels``, ·, ·) of strides 4, 8, 16, 32 and 64 of one map (B, ``width``, h, w) of a stride 2^k."""

    def __init__(self, width: int, stride: int, channels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for target in STRIDES:
            layers: list[nn.Module] = []
            width_now = width
            for step in range(max(0, round(math.log2(stride / target)))):
                layers += [LayerNorm2d(width_now), nn.GELU()] if step else []
                layers.append(nn.ConvTranspose2d(width_now, width_now := max(8, width_now // 2), 2, 2))
            if target > stride:
                layers.append(nn.MaxPool2d(target // stride))
            layers += [nn.Conv2d(width_now, channels, 1, bias=False), LayerNorm2d(channels)]
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), LayerNorm2d(channels)]
            self.levels.append(nn.Sequential(*layers))

    def forward(self, features: Tensor) -> OrderedDict[str, Tensor]:
        """The maps by name, the finest first."""
        maps = OrderedDict((str(i), level(features)) for i, level in enumerate(self.levels))
        maps["pool"] = F.max_pool2d(maps[str(len(STRIDES) - 1)], 1, 2)
        return maps


class BlockMap:
    """Reads the map (B, C, h, w) of one block, with gradients for a network that is fine-tuned.

    Images come with a grid of cells of 2^k pixels, the power of two nearest to the block's stride: RoIAlign knows no
    other. For a patch of 14 pixels they are shrunk by 14 / 16 first.
    """

    def __init__(self, backbone: Backbone, block: int, config: DetectionConfig) -> None:
        self.backbone, self.block, self.norm, self.trained = backbone, block, config.norm, config.fine_tune
        stride = backbone.stride(block)
        self.stride = 2 ** round(math.log2(stride))
        self.scale = stride / self.stride
        self.multiple = math.lcm(STRIDES[-1], backbone.size_multiple * self.stride // stride)
        if self.trained and isinstance(backbone, LevelBackbone) and isinstance(backbone.reader, HookedLevels):
            raise ConfigError(f"{backbone.spec}: fine_tune is for networks of timm, transformers and weights files")

    def __call__(self, images: Tensor) -> Tensor:
        """The map of normalised images (B, 3, H, W), sides multiples of ``multiple``."""
        if self.scale != 1:
            size = [round(side * self.scale) for side in images.shape[2:]]
            images = F.interpolate(images, size=size, mode="bilinear", antialias=self.scale < 1)
        tokens, (h, w) = self._with_gradients(images) if self.trained else self._frozen(images)
        return tokens.float().transpose(1, 2).reshape(len(images), -1, h, w)

    def _frozen(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        read = self.backbone.layers(images, [self.block], norm=self.norm)[self.block]
        return read.tokens, read.grid

    def _with_gradients(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        images = images.to(self.backbone.dtype)
        if isinstance(self.backbone, LevelBackbone):
            level = self.backbone.reader.read(images, [self.block - 1])[self.block - 1]
            tokens, grid, final = level.tokens, level.grid, None
        else:
            adapter, patch = self.backbone.adapter, self.backbone.patch_size
            grid = images.shape[2] // patch, images.shape[3] // patch
            adapter.check_size(*images.shape[2:])
            tokens, context = adapter.embed(images)
            for index in range(self.block):
                tokens = adapter.run_block(index, tokens, context)
            final = adapter.final_norm(tokens) if self.norm == "final" else None
            tokens = (tokens if final is None else final)[:, self.backbone.num_prefix_tokens :]
        # eps as Backbone.normed has it, so that both read the same.
        return (F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) if self.norm == "layer" else tokens), grid


class MapPyramid(nn.Module):
    """Backbone for Mask R-CNN: the feature map of a block, and the pyramid made from it.

    The network that gives the map is not part of the module's weights.
    """

    def __init__(self, read: Callable[[Tensor], Tensor], width: int, stride: int, channels: int) -> None:
        super().__init__()
        self.read, self.out_channels = read, channels
        self.pyramid = SimplePyramid(width, stride, channels)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """The pyramid's maps (B, C, h, w) by name, of normalised images (B, 3, H, W)."""
        maps: OrderedDict[str, Tensor] = self.pyramid(self.read(images))
        return maps


def detector(backbone: Backbone, block: int, config: DetectionConfig, classes: int, *, masks: bool) -> FasterRCNN:
    """Mask R-CNN on a block, for ``classes`` classes and the background; without ``masks`` it is Faster R-CNN.

    The network's own weights are not in it.
    """
    read, width = BlockMap(backbone, block, config), config.channels
    finest = [str(i) for i in range(len(STRIDES))]
    parts: dict[str, Any] = {
        "backbone": MapPyramid(read, backbone.width("out", block), read.stride, width),
        "min_size": config.short_side,
        "max_size": config.long_side,
        "image_mean": list(backbone.mean),
        "image_std": list(backbone.std),
        "size_divisible": read.multiple,
        "rpn_anchor_generator": AnchorGenerator(tuple((side,) for side in _ANCHORS), (_ASPECTS,) * len(_ANCHORS)),
        "box_roi_pool": MultiScaleRoIAlign(finest, 7, 2),
        "box_head": TwoMLPHead(width * 7**2, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes + 1),
    }
    if not masks:
        return FasterRCNN(**parts).to(backbone.device)
    return MaskRCNN(
        **parts,
        mask_roi_pool=MultiScaleRoIAlign(finest, 14, 2),
        mask_head=MaskRCNNHeads(width, (width,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(width, width, classes + 1),
    ).to(backbone.device)


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups of AdamW: weight decay for matrices and kernels alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
