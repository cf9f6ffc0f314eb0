"""Features of batches of images that go through a frozen backbone as they are needed: every block in one pass.

A key names features, by the text of :class:`dinoskip.settings.read_points.ReadAt`: ("patches", block) are the tokens
(n·T, C) of n images, ("cls", block) their class tokens (n, C), ("mean", block) the means (n, C) of their tokens;
("mlp patches", block) are those of another facet than the block's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise
from dinoskip.models import Backbone
from dinoskip.models.backbone import Norm
from dinoskip.settings.read_points import ReadAt, usual_norm
from eval.labelled import Key

Grid = tuple[int, int]


def whole_patches(pixels: torch.Tensor, backbone: Backbone) -> torch.Tensor:
    """Pad normalised images (n, 3, H, W) to whole patches with zeros, half of them on each side, as DINOv2 does."""
    padding: list[int] = []
    for side in (pixels.shape[3], pixels.shape[2]):
        missing = -side % backbone.size_multiple
        padding += [missing // 2, missing - missing // 2]
    return torch.nn.functional.pad(pixels, padding)


def check_finite(read: Sequence[tuple[int, torch.Tensor]], backbone: Backbone) -> None:
    """Raise :class:`DataError` naming the first block of (block, features) whose features are not finite."""
    finite = torch.stack([features.isfinite().all() for _, features in read]).tolist()  # one read of the device a pass
    if not all(finite):
        block = read[finite.index(False)][0]
        raise DataError(f"{backbone.spec}: features of block {block} are not finite", "the weights diverged")


class FrozenFeatures:
    """Features of ``keys`` under a ``norm`` (none, final or layer), float32, of several facets in one pass.

    Facets that no norm of the network follows have none (:func:`dinoskip.settings.read_points.usual_norm`); all must be
    equally wide.

    Images whose sides patches do not divide are padded (:func:`whole_patches`); what is predicted on the padded grid is
    then spread over the image as it was.
    """

    def __init__(self, backbone: Backbone, keys: Iterable[Key], norm: Norm) -> None:
        self.backbone, self.keys, self.norm = backbone, sorted(set(keys)), norm
        self.blocks = sorted({block for _, block in self.keys})
        if self.blocks[-1] > backbone.depth:
            raise ConfigError(f"block {self.blocks[-1]} is beyond the {backbone.depth} blocks of {backbone.spec}")
        read = [ReadAt.parse(kind) for kind, _ in self.keys]
        self.facets = list(dict.fromkeys(one.facet for one in read))
        if any(one.of == "cls" for one in read) and not backbone.has_class_token:
            raise ConfigError(f"{backbone.spec} has no class token, which these heads read")
        self._input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)

    @property
    def dim(self) -> int:
        """Channels C of every key."""
        return self.backbone.width(self.facets[0])

    @property
    def device(self) -> torch.device:
        """Device that the features are computed on."""
        return self.backbone.device

    def __call__(self, images: Sequence[torch.Tensor]) -> tuple[Mapping[Key, torch.Tensor], Grid]:
        """Return the features of uint8 images (3, H, W) of one size, and the grid (h, w) of their tokens, T = h·w.

        Raises :class:`DataError` naming the block whose features are not finite.
        """
        height, width = images[0].shape[1:]
        pixels = whole_patches(self._input(images, height, width), self.backbone)
        norms = [usual_norm(facet, self.norm) for facet in self.facets]
        layers = self.backbone.layers(pixels, self.blocks, self.facets, norms)
        read = [(facet, block) for facet in self.facets for block in self.blocks]
        check_finite([(block, layers[facet][block].tokens) for facet, block in read], self.backbone)
        features: dict[Key, torch.Tensor] = {}
        for kind, block in self.keys:
            at = ReadAt.parse(kind)
            layer = layers[at.facet][block]
            tokens, cls = layer.tokens.float(), layer.cls
            if at.of == "cls":
                assert cls is not None
                features[kind, block] = cls.float()
            else:
                features[kind, block] = tokens.mean(1) if at.of == "mean" else tokens.flatten(0, 1)
        return features, layers[self.facets[0]][self.blocks[0]].grid
