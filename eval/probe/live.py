"""Probes on images that go through the backbone as they are needed: augmented crops to train, windows to score.

One forward pass a step gives the tokens of every block to every head. Shapes: n images of T tokens, C channels, crops
of S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.features.transform import Normalise
from dinoskip.io.images import read_image
from dinoskip.io.resize import resize
from dinoskip.models import Backbone
from dinoskip.runtime.randomness import numpy_rng, torch_rng
from dinoskip.settings.read_points import ReadAt
from eval.frozen import check_finite, whole_patches
from eval.labelled import EPS, Constants, Key, LabelledTokens
from eval.prefetch import prefetched, threads_of
from eval.probe.config import ProbeConfig
from eval.probe.crops import augmented, scaled_size
from eval.probe.loaders import ScoredBatch, TrainingBatch, of_one_size, upsampling
from eval.probe.targets import Targets, make_targets, masked
from eval.probe.windows import blended_classes, blending, window_starts

Grid = tuple[int, int]
_SHOWN = 8  # whole images a forward pass, when they are scored; windows: those of one image
_VIEWS = 16  # windows a forward pass


class RunningNorm:
    """BatchNorm's statistics of every key: a batch's own while training, their running mean in use.

    As ``nn.BatchNorm2d`` in its defaults (momentum 0.1, eps 1e-5, running variance unbiased, from mean 0 and variance
    1), without scale and shift. Not ``active``: tokens stay as they are.
    """

    def __init__(self, active: bool) -> None:
        self.active = active
        self._running: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}

    def training(self, key: Key, tokens: torch.Tensor) -> torch.Tensor:
        """Normalise (m, C) by its own statistics, and take them into the running ones."""
        if key not in self._running:
            self._running[key] = (torch.zeros_like(tokens[0]), torch.ones_like(tokens[0]))
        if not self.active:
            return tokens
        variance, mean = torch.var_mean(tokens, 0, correction=0)
        for running, new in zip(
            self._running[key], (mean, variance * (len(tokens) / max(len(tokens) - 1, 1))), strict=True
        ):
            running.lerp_(new, 0.1)  # torch's default momentum of BatchNorm
        return (tokens - mean) * (variance + EPS).rsqrt()

    def constants(self) -> Constants:
        """Mean and 1 / deviation in use, each (C,)."""
        eps = EPS if self.active else 0.0
        return {key: (mean, (variance + eps).rsqrt()) for key, (mean, variance) in self._running.items()}


class LiveTokenLoader:
    """Images of a data set through a frozen backbone, see :class:`eval.probe.loaders.TokenLoader`.

    ``keys`` are (norm, block); ``data`` are the data set's labels (:meth:`eval.labelled.LabelledTokens.labels_of`).
    ``statistics`` are shared by the loader that is trained on and the one that is scored. Memory: tokens of one batch.
    """

    def __init__(
        self,
        backbone: Backbone,
        dataset: SegmentationDataset,
        data: LabelledTokens,
        keys: Sequence[Key],
        recipe: ProbeConfig,
        statistics: RunningNorm,
        *,
        seed: int,
        workers: int = 0,
    ) -> None:
        self.backbone, self.dataset, self.data = backbone, dataset, data
        self.keys, self.recipe, self.seed = keys, recipe, seed
        self.statistics, self.device = statistics, backbone.device
        self.workers = threads_of(workers)
        self._input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)

    def constants(self) -> Constants:
        return self.statistics.constants()

    # --- training ---------------------------------------------------------------------------------------

    def batches(self, planned: Iterable[TrainingBatch]) -> Iterator[tuple[Mapping[Key, torch.Tensor], Targets]]:
        for batch, (images, targets) in prefetched(planned, self._crops, self.workers):
            size = self.recipe.size
            tokens, _ = self._tokens(self._input(images, size, size))
            normalised = {key: self._normalised(key, x, batch.step) for key, x in tokens.items()}
            yield normalised, targets.to(self.device)

    def _crops(self, batch: TrainingBatch) -> tuple[list[torch.Tensor], Targets]:
        recipe = self.recipe
        images, labels = [], []
        for row in batch.rows.tolist():
            rng = numpy_rng(self.seed, "probe-augment", self.dataset.ids[row], batch.epoch)
            image, label = augmented(self._image(row), self.data.checked_label(row), recipe, rng)
            images.append(image)
            labels.append(masked(label, recipe.mask))
        multiple = self.backbone.size_multiple
        cells = -(-recipe.size // multiple) * multiple // self.backbone.patch_size
        rows = range(len(labels))
        return images, make_targets(labels.__getitem__, rows, self.data.num_classes, (cells, cells), recipe.refine)

    def _normalised(self, key: Key, tokens: torch.Tensor, step: int) -> torch.Tensor:
        """Drop channels of (n, T, C) (``nn.Dropout2d``) and normalise; (n·T, C)."""
        if self.recipe.dropout:
            rng = torch_rng(self.seed, "probe-dropout", step, *key)
            kept = torch.rand(len(tokens), 1, tokens.shape[2], generator=rng) >= self.recipe.dropout
            tokens = tokens * (kept / (1 - self.recipe.dropout)).to(tokens.device, non_blocking=True)
        return self.statistics.training(key, tokens.flatten(0, 1))

    # --- scoring ----------------------------------------------------------------------------------------

    def scored_batches(self, rows: NDArray[np.int64]) -> Iterator[ScoredBatch]:
        per, constants = _SHOWN if self.recipe.stride is None else 1, self.constants()
        jobs = [np.arange(at, min(at + per, len(rows))) for at in range(0, len(rows), per)]
        for positions, read in prefetched(jobs, lambda job: self._read(rows[job].tolist()), self.workers):
            views = torch.cat([view for view, _, _ in read])
            tokens, grid = self._all_tokens(views)
            count, labels = len(views) // len(read), [label for _, label, _ in read]
            normalised = {key: (x - constants[key][0]) * constants[key][1] for key, x in tokens.items()}
            for places in of_one_size(labels, per):
                together = np.stack([labels[i] for i in places])
                # A list as index would be copied to a GPU with the host waiting for it.
                where = torch.tensor(places).to(self.device, non_blocking=True)
                flipped = {key: x.view(-1, count, *x.shape[1:])[where].flatten(0, 2) for key, x in normalised.items()}
                classes = self._to_classes(grid, together.shape[1:], read[places[0]][2])
                yield ScoredBatch(positions[places], together, flipped, classes)

    def _image(self, row: int) -> torch.Tensor:
        return torch.from_numpy(read_image(self.dataset.path(row))).permute(2, 0, 1)

    def _read(self, rows: Sequence[int]) -> list[tuple[torch.Tensor, NDArray[np.uint8], Grid]]:
        """Return for each image its views uint8 (windows, 3, h, w), its label, and the size it was brought to."""
        read = []
        for row in rows:
            image, side = self._image(row), self.recipe.size
            size = (side, side) if self.recipe.stride is None else scaled_size(image.shape[1], image.shape[2], side)
            sized = resize(image, *size)
            views = [sized[:, down, across] for down in self._spans(size[0]) for across in self._spans(size[1])]
            read.append((torch.stack(views), self.data.checked_label(row), size))
        return read

    def _spans(self, size: int) -> list[slice]:
        """Return the spans of the windows along a side of ``size`` pixels."""
        window = min(self.recipe.size, size)
        starts = window_starts(size, window, self.recipe.stride or window)
        return [slice(start, start + window) for start in starts]

    def _to_classes(self, grid: Grid, label: tuple[int, ...], size: Grid) -> Callable[[torch.Tensor], torch.Tensor]:
        stride = self.recipe.stride
        if stride is None:
            return upsampling(grid, label)
        windows = tuple(len(self._spans(side)) for side in size)
        rows, columns = (
            blending(pixels, side, self.recipe.size, stride, cells, self.device)
            for pixels, side, cells in zip(label, size, grid, strict=True)
        )
        return lambda logits: blended_classes(logits[0].reshape(*logits.shape[1:3], *windows, *grid), rows, columns)[
            None
        ]

    # --- the backbone -----------------------------------------------------------------------------------

    def _all_tokens(self, views: torch.Tensor) -> tuple[dict[Key, torch.Tensor], Grid]:
        """Tokens (m, T, C) of uint8 views (m, 3, h, w), a bounded number at a time."""
        size = (views.shape[2], views.shape[3])
        parts = [self._tokens(self._input(list(chunk), *size)) for chunk in torch.split(views, _VIEWS)]
        return {key: torch.cat([tokens[key] for tokens, _ in parts]) for key in self.keys}, parts[0][1]

    def _tokens(self, pixels: torch.Tensor) -> tuple[dict[Key, torch.Tensor], Grid]:
        """Tokens float32 (n, T, C) of every key for pixels (n, 3, H, W), and their grid.

        Logits on a padded grid (:func:`eval.frozen.whole_patches`) are then spread over the sides as they were.
        """
        read = {(kind, block): ReadAt.parse(kind) for kind, block in self.keys}
        blocks, facets = {block for _, block in read}, dict.fromkeys(at.facet for at in read.values())
        layers = self.backbone.layers(whole_patches(pixels, self.backbone), blocks, list(facets))
        normed = {key: self.backbone.normed(layers[at.facet][key[1]].tokens, at.of) for key, at in read.items()}
        check_finite([(block, x) for (_, block), x in normed.items()], self.backbone)
        return {key: x.float() for key, x in normed.items()}, next(iter(next(iter(layers.values())).values())).grid
