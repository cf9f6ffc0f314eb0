"""Features of batches of images that go through a frozen backbone as they are needed: every block in one pass.

A key names features: ("patches", block) are the tokens (n·T, C) of n images, ("cls", block) their class tokens (n, C),
("mean", block) the means (n, C) of their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise
from dinoskip.models import Backbone
from dinoskip.models.backbone import Norm
from eval.labelled import Key

Grid = tuple[int, int]


class FrozenFeatures:
    """Features of ``keys`` under a ``norm`` (none, final or layer), float32.

    Images whose sides patches do not divide are padded with zeros (after normalisation) on all sides, as DINOv2 does;
    what is predicted on the padded grid is then spread over the image as it was.
    """

    def __init__(self, backbone: Backbone, keys: Sequence[Key], norm: Norm) -> None:
        self.backbone, self.keys, self.norm = backbone, tuple(keys), norm
        self.blocks = sorted({block for _, block in keys})
        if self.blocks[-1] > backbone.depth:
            raise ConfigError(f"block {self.blocks[-1]} is beyond the {backbone.depth} blocks of {backbone.spec}")
        if any(kind == "cls" for kind, _ in keys) and not backbone.has_class_token:
            raise ConfigError(f"{backbone.spec} has no class token, which these heads read")
        self._input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)

    @property
    def dim(self) -> int:
        """Channels C of every key."""
        return self.backbone.width()

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.backbone.device

    def __call__(self, images: Sequence[torch.Tensor]) -> tuple[Mapping[Key, torch.Tensor], Grid]:
        """Return the features of uint8 images (3, H, W) of one size, and the grid (h, w) of their tokens, T = h·w.

        Raises :class:`DataError` naming the block whose features are not finite.
        """
        height, width = images[0].shape[1:]
        pixels = self._input(images, height, width)
        padding: list[int] = []
        for side in (width, height):
            missing = -side % self.backbone.patch_size
            padding += [missing // 2, missing - missing // 2]
        try:
            layers = self.backbone.layers(torch.nn.functional.pad(pixels, padding), self.blocks, norm=self.norm)
        except ValueError as error:  # a norm or size that this backbone does not have
            raise ConfigError(f"{self.backbone.spec}: {error}") from error
        finite = torch.stack([layers[block].tokens.isfinite().all() for block in self.blocks])
        if not all(good := finite.tolist()):  # one read of the device a pass
            raise DataError(
                f"{self.backbone.spec}: features of block {self.blocks[good.index(False)]} are not finite",
                "the weights diverged",
            )
        features: dict[Key, torch.Tensor] = {}
        for kind, block in self.keys:
            tokens, cls = layers[block].tokens.float(), layers[block].cls
            if kind == "cls":
                assert cls is not None
                features[kind, block] = cls.float()
            else:
                features[kind, block] = tokens.mean(1) if kind == "mean" else tokens.flatten(0, 1)
        return features, layers[self.blocks[0]].grid
