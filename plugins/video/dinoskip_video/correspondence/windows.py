"""Features of the images of a set of pairs, a few at a time: each image goes through the network once.

Images that no chain of pairs joins are never needed together, so that only those of one group are held (of SPair-71k
one category): in memory while they fit, else in a file that is gone when the group is done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from dinoskip.errors import DataError
from dinoskip.features.transform import Normalise
from dinoskip.io.images import read_image
from dinoskip.io.resize import resize
from dinoskip.models import Backbone
from dinoskip.runtime.console import Progress
from dinoskip.runtime.environment import memory_limit
from dinoskip_video.correspondence.config import CorrespondenceConfig
from dinoskip_video.correspondence.matching import padded_size
from dinoskip_video.keypoints import KeypointDataset
from eval.places import Layer, Place, read_layers

BATCH = 4  # images a forward pass


def groups_of_pairs(dataset: KeypointDataset) -> list[list[int]]:
    """Return the pairs' numbers, in groups that share no image; in a group those of one target follow one another."""
    ends = np.array([(pair.source, pair.target) for pair in dataset.pairs]).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(dataset), len(dataset)))
    group = connected_components(graph, directed=False)[1]
    order = sorted(range(len(ends)), key=lambda i: (group[ends[i, 0]], ends[i, 1], i))
    groups: dict[int, list[int]] = {}
    for i in order:
        groups.setdefault(int(group[ends[i, 0]]), []).append(i)
    return list(groups.values())


def load_square(path: Path, config: CorrespondenceConfig) -> Tensor:
    """Decode an image to uint8 (3, S, S): squashed (bicubic), or in proportion (Lanczos) with black around it."""
    pixels = read_image(path)
    if not config.padded:
        return resize(torch.from_numpy(pixels).permute(2, 0, 1), config.size, config.size)
    high, wide = padded_size((int(pixels.shape[0]), int(pixels.shape[1])), config.size)
    small = np.asarray(Image.fromarray(pixels).resize((wide, high), Image.Resampling.LANCZOS))
    top, left = (config.size - high) // 2, (config.size - wide) // 2
    canvas = np.zeros((config.size, config.size, 3), np.uint8)
    canvas[top : top + high, left : left + wide] = small
    return torch.from_numpy(canvas).permute(2, 0, 1)


class FeatureWindow:
    """Tokens of images of a set, at the layers of places, float32 (h·w, C) each; all must be equally wide."""

    def __init__(
        self,
        backbone: Backbone,
        dataset: KeypointDataset,
        places: Mapping[str, Place],
        config: CorrespondenceConfig,
        workers: int = 0,
    ) -> None:
        self.backbone, self.dataset, self.places, self.config = backbone, dataset, places, config
        self.layers = list(dict.fromkeys(layer for place in places.values() for layer in place.layers))
        cells = config.size // backbone.patch_size
        self.grid = cells, cells
        self._input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
        self._workers = workers or BATCH

    @contextmanager
    def of(
        self, images: Sequence[int], folder: Path, progress: Progress
    ) -> Iterator[Callable[[int], dict[Layer, NDArray[np.float32]]]]:
        """Hold the features of ``images`` (their numbers); what is given returns the tokens of one, by layer.

        They lie in a file in ``folder`` if they take more than half of what a run may (DINOSKIP_MEMORY). Raises
        :class:`DataError` naming an image that cannot be read or whose features are not finite.
        """
        place = {image: number for number, image in enumerate(images)}
        shape = len(images), len(self.layers), self.grid[0] * self.grid[1], self.backbone.width(self.layers[0][0])
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder, ignore_cleanup_errors=True) as scratch:
            held: NDArray[np.float32]
            if 4 * int(np.prod(shape)) <= memory_limit() // 2:
                held = np.empty(shape, np.float32)
            else:
                held = np.memmap(Path(scratch) / "tokens", np.float32, "w+", shape=shape)
            for start in range(0, len(images), BATCH):
                batch = list(images[start : start + BATCH])
                held[start : start + len(batch)] = self._tokens(batch)
                progress.advance(len(batch))
            yield lambda image: dict(zip(self.layers, held[place[image]], strict=True))

    def _tokens(self, images: Sequence[int]) -> NDArray[np.float32]:
        """Float32 (images, layers, h·w, C)."""
        paths = [self.dataset.path(image) for image in images]
        with ThreadPoolExecutor(self._workers, thread_name_prefix="decode") as pool:
            pixels = list(pool.map(lambda path: load_square(path, self.config), paths))
        side = self.config.size
        with torch.inference_mode():
            read = read_layers(self.backbone, self._input(pixels, side, side), self.places)
        tokens = torch.stack([read[layer].float() for layer in self.layers], 1)
        finite = tokens.isfinite().flatten(2).all(2)
        if not bool(finite.all()):
            image, layer = (int(index) for index in (~finite).nonzero()[0])
            raise DataError(
                f"{paths[image]}: features of block {self.layers[layer][1]} are not finite", "the weights have diverged"
            )
        return np.asarray(tokens.cpu().numpy())
