"""Object-DINO on the images of a feature set: queries, keys and values of every head, in passes of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dinoskip.errors import DataError
from dinoskip.features import FeatureSet
from dinoskip.features.transform import Normalise, load_pixels
from dinoskip.io.files import write_json
from dinoskip.models import Backbone
from dinoskip.results.rows import EvalResult
from dinoskip.settings.config import dump
from eval.resumed import ResumedArrays, degeneracy
from eval.tokencut.config import ObjectDinoConfig
from eval.tokencut.cut import LEAST_TOKENS, to_pixels
from eval.tokencut.object_dino import object_dino

FACETS = ("query", "key", "value")


def read_heads(network: Backbone, pixels: Tensor) -> list[Tensor]:
    """Queries, keys and values (blocks, heads, N, d), float32, of one normalised image (1, 3, H, W).

    Raises :class:`dinoskip.errors.ConfigError` for a network whose blocks do not have them.
    """
    layers = network.layers(pixels, network.numbers, FACETS)
    parts = []
    for facet in FACETS:
        tokens = torch.cat([layers[facet][block].tokens for block in network.numbers]).float()
        parts.append(tokens.view(*tokens.shape[:2], network.num_heads, -1).transpose(1, 2))
    return parts


class HeadBoxes:
    """Boxes int64 (N, 4) in pixels of every image by Object-DINO, and which images have no cut.

    Files of a stopped run lie in ``out/object_dino``; the next run with the same features and settings continues it.
    """

    def __init__(
        self, features: FeatureSet, network: Backbone, config: ObjectDinoConfig, eps: float, out: Path
    ) -> None:
        self.features, self.network, self.config, self.eps = features, network, config, eps
        self.files = files = ResumedArrays(
            features, [dump(config), eps, network.weights_hash, network.beside_weights], out / "object_dino"
        )
        count = len(features)
        self.boxes = files.array("boxes", np.int64, (count, 4))
        self.degenerate, self.complete, self.ties = (
            files.array(name, np.bool_, (count,)) for name in ("degenerate", "complete", "ties")
        )
        files.begin()

    def find(self, paths: Sequence[Path]) -> None:
        """Box every image that is not done; ``paths`` are in the features' order.

        An image of fewer than 3 tokens is boxed whole. Raises :class:`DataError` naming an image that cannot be cut.
        """
        with torch.inference_mode():
            for i in self.files.one_by_one("Object-DINO"):
                self._find(i, paths[i])

    def _find(self, i: int, path: Path) -> None:
        features, network = self.features, self.network
        height, width = features.image_size(i)
        grid = features.grid(i)
        if math.prod(grid) < LEAST_TOKENS:
            self.boxes[i] = (0, 0, width, height)
            return
        pixels = load_pixels(features.transform, path, network.size_multiple)
        to_input = Normalise(network.mean, network.std, network.device, network.dtype)
        rows, columns = grid
        batch = to_input([pixels], rows * network.patch_size, columns * network.patch_size)
        try:
            (query, key, value) = read_heads(network, batch)
            cut = object_dino(query, key, value, grid, self.config, eps=self.eps).cut
        except ValueError as error:
            raise DataError(f"{path}: {network.spec}: {error}") from error
        self.boxes[i] = to_pixels(cut.box, network.patch_size, (height, width))
        self.degenerate[i], self.complete[i], self.ties[i] = cut.degenerate, cut.complete, cut.ambiguous

    def row(self, template: EvalResult) -> EvalResult:
        """``template`` as the row of all blocks' queries, keys and values by this method, without its value."""
        return replace(
            template,
            block="+".join(map(str, self.network.numbers)),
            facet="+".join(FACETS),
            norm="none",
            protocol=str(self.config),
            **degeneracy(self.degenerate, self.complete, ambiguous=self.ties),
        )

    def write(self, path: Path) -> None:
        """Write the boxes as ``{id: {blocks: [x1, y1, x2, y2]}}`` and remove what only a stopped run needs."""
        label = "+".join(map(str, self.network.numbers))
        write_json(path, {name: {label: box} for name, box in zip(self.features.ids, self.boxes.tolist(), strict=True)})
        self.files.finish()
