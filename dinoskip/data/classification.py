"""Labelled images for a classifier: augmented, erased and mixed for training, a centre crop for validation.

Training (Liu et al. 2022, ConvNeXt; Xu et al. 2024, weight selection; both by timm): random-resized crop, flip and
RandAugment in the workers, which hand over bytes; normalisation, random erasing, mixup and cutmix where the network is.
All of it is timm's, draw for draw, but for two choices of ours that make an image's pixels independent of workers,
ranks, micro-batches and resumes: draws come from (seed, epoch, image), and mixup or cutmix is drawn for every pair of
neighbours in the epoch's order, where timm draws once for all images on a GPU. One image sees the same distribution.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.auto_augment import RandAugment
from torch import Tensor

from dinoskip.data.config import ClassAugmentConfig
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.loader import BatchLoader, BatchSplit, ReadImage
from dinoskip.io.resize import centre_crop
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.randomness import derive, numpy_rng

# Defaults of timm's RandomErasing: min_area, max_area and min_aspect.
_ERASED = (0.02, 1 / 3)  # share of an image's area
_ERASED_ASPECT = (math.log(0.3), math.log(1 / 0.3))  # drawn evenly in the logarithm, upright as often as flat
_NO_BOX = (0, 0, 0, 0)  # a slice of no pixel: images without a box take the same path


def transform_of(config: ClassAugmentConfig) -> Any:
    """timm's transform: a PIL image to uint8 (3, size, size), by the global generators."""
    policy = f"rand-m{config.rand_magnitude}-mstd{config.rand_std:g}-inc1" if config.rand_magnitude else None
    transform = create_transform(
        config.size, is_training=True, scale=config.scale, hflip=config.flip, color_jitter=0.0, auto_augment=policy,
        interpolation="bicubic", use_prefetcher=True,
    )  # fmt: skip
    for operation in (op for step in transform.transforms if isinstance(step, RandAugment) for op in step.ops):
        if operation.name == "PosterizeIncreasing":
            operation.aug_fn = posterise
    return transform


def posterise(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keep the ``bits`` (0 to 8) highest bits of every channel: timm's operation, whose 0 bits Pillow 13 refuses."""
    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


# --- draws ---------------------------------------------------------------------------------------------


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside, Python's, NumPy's and torch's global CPU generators start from ``seed``; outside they are untouched."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # timm draws from it
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed a GPU too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def draw_erased(size: int, chance: float, rng: random.Random) -> tuple[int, int, int, int]:
    """Rectangle (top, left, height, width) to erase, of zeros for none: timm's RandomErasing, one rectangle."""
    if chance == 0 or rng.random() > chance:
        return _NO_BOX
    for _ in range(10):  # as many tries as timm's
        area, aspect = rng.uniform(*_ERASED) * size * size, math.exp(rng.uniform(*_ERASED_ASPECT))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < size and width < size:
            return rng.randint(0, size - height), rng.randint(0, size - width), height, width
    return _NO_BOX


def draw_mix(config: ClassAugmentConfig, rng: np.random.Generator) -> tuple[float, tuple[int, int, int, int]]:
    """Draw the mixing of a pair.

    Return the share of itself that an image keeps, and for cutmix the box (top, bottom, left, right) that it loses.

    The formulas of timm's Mixup: share ~ Beta(alpha, alpha); cutmix cuts a square of area 1 - share around a uniform
    centre, and its share is corrected to what is left where the square crosses the border. Mixup has a box of zeros.
    """
    if not config.mixes:
        return 1.0, _NO_BOX
    cut = config.mixup == 0 or (config.cutmix > 0 and rng.random() < 0.5)
    alpha, size = config.cutmix if cut else config.mixup, config.size
    share = float(rng.beta(alpha, alpha))
    if not cut:
        return share, _NO_BOX
    side = int(size * math.sqrt(1 - share))
    y, x = (int(rng.integers(size)) for _ in range(2))
    top, bottom = max(0, y - side // 2), min(size, y + (side + 1) // 2)
    left, right = max(0, x - side // 2), min(size, x + (side + 1) // 2)
    return 1.0 - (bottom - top) * (right - left) / size**2, (top, bottom, left, right)


# --- what happens where the network is -----------------------------------------------------------------


def normalise(pixels: Tensor) -> Tensor:
    """ImageNet normalisation of uint8 (B, 3, H, W), as float32 on its device."""
    mean, std = (  # copied without waiting for a GPU, as torch.tensor(..., device=...) would
        (255 * torch.tensor(values)).view(3, 1, 1).to(pixels.device, non_blocking=True)
        for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    )
    return pixels.float().sub_(mean).div_(std)


def _partner(values: Tensor) -> Tensor:
    """Exchange each pair's two entries; (B, ...) with even B."""
    return values.reshape(-1, 2, *values.shape[1:]).flip(1).reshape(values.shape)


def mix(images: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
    """Mix neighbours 2k and 2k + 1: images (B, 3, S, S), ``share`` float (B,), ``boxes`` int (B, 4); :func:`draw_mix`.

    A pair has one share and one box.
    """
    top, bottom, left, right = boxes.view(-1, 4, 1).unbind(1)
    places = torch.arange(images.shape[-1], device=images.device)
    rows, columns = (places >= top) & (places < bottom), (places >= left) & (places < right)
    inside = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)  # (B, 1, S, S)
    cut = (boxes != 0).any(1).view(-1, 1, 1, 1)
    keep = torch.where(cut, (~inside).to(images.dtype), share.to(images.dtype).view(-1, 1, 1, 1))
    return images * keep + _partner(images) * (1 - keep)


def soft_targets(labels: Tensor, classes: int, smoothing: float, share: Tensor | None = None) -> Tensor:
    """Smoothed one-hot targets float32 (B, classes); with ``share`` (B,) mixed with the neighbour's, as in timm.

    The true class has 1 - smoothing + smoothing / classes, every other smoothing / classes.
    """
    low = smoothing / classes
    targets = torch.full((len(labels), classes), low, device=labels.device)
    targets.scatter_(1, labels.view(-1, 1), 1 - smoothing + low)
    if share is None:
        return targets
    keep = share.view(-1, 1)
    return targets * keep + _partner(targets) * (1 - keep)


# --- training ------------------------------------------------------------------------------------------


class ClassTransform:
    """Makes micro-batches of labelled images; see :class:`dinoskip.data.loader.BatchTransform`.

    Tensors: ``images`` uint8 (B, 3, S, S), ``labels`` int64 (B,), ``holes`` int64 (B, 4) to erase with the normal
    ``noise`` float32 (sum of 3·height·width,) of all of them, ``share`` float32 (B,) and ``boxes`` int64 (B, 4).
    """

    def __init__(self, config: ClassAugmentConfig, labels: np.ndarray, classes: int, seed: int) -> None:
        self.config, self.labels, self.classes, self.seed = config, labels, classes, seed
        self._transform = transform_of(config)

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read the images of a micro-batch, augment them and draw what is erased and mixed."""
        size, count = self.config.size, len(indices)
        images, labels = torch.empty(count, 3, size, size, dtype=torch.uint8), np.empty(count, dtype=np.int64)
        holes, noise = [], [np.empty(0, dtype=np.float32)]
        for row, index in enumerate(indices.tolist()):
            number, image = read(index)
            labels[row] = self.labels[number]
            with drawing_from(derive(self.seed, "augment", epoch, index)):
                images[row] = torch.as_tensor(self._transform(Image.fromarray(np.asarray(image))))
            place = (self.seed, "erase", epoch, index)
            holes.append(draw_erased(size, self.config.erase, random.Random(derive(*place))))
            noise.append(numpy_rng(*place, "noise").standard_normal(3 * holes[-1][2] * holes[-1][3], dtype=np.float32))
        firsts = indices[::2].tolist() if self.config.mixes else []
        mixed = [draw_mix(self.config, numpy_rng(self.seed, "mix", epoch, index)) for index in firsts for _ in (0, 1)]
        mixed = mixed or [(1.0, _NO_BOX)] * count
        return {
            "images": images, "labels": torch.from_numpy(labels),
            "holes": torch.tensor(holes), "noise": torch.from_numpy(np.concatenate(noise)),
            "share": torch.tensor([share for share, _ in mixed]), "boxes": torch.tensor([box for _, box in mixed]),
        }  # fmt: skip

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Images float32 (B, 3, S, S), normalised, erased and mixed, and their soft targets float32 (B, classes)."""
        on_device = {name: data[name].to(device, non_blocking=True) for name in data if name != "holes"}
        images, noise, start = normalise(on_device["images"]), on_device["noise"], 0
        for row, (top, left, height, width) in enumerate(data["holes"].tolist()):
            end = start + 3 * height * width
            images[row, :, top : top + height, left : left + width] = noise[start:end].view(3, height, width)
            start = end
        share = on_device["share"] if self.config.mixes else None
        if share is not None:
            images = mix(images, share, on_device["boxes"])
        return [images, soft_targets(on_device["labels"], self.classes, self.config.label_smoothing, share)]


class ClassLoader(BatchLoader):
    """Labelled micro-batches; ``views`` gives [images, soft targets], see :class:`ClassTransform`.

    Args:
        folder: images and labels.
        config: the augmentation.
        split: how a global batch is cut.
        seed: what all order and augmentation derive from.
        options: those of :class:`dinoskip.data.loader.BatchLoader`.
    """

    batch_setting = "supervise.batch_size"

    def __init__(
        self, folder: LabelledFolder, config: ClassAugmentConfig, split: BatchSplit, *, seed: int, **options: Any
    ) -> None:
        transform = ClassTransform(config, folder.labels, len(folder.class_names), seed)
        super().__init__(folder, transform, split, seed=seed, min_side=1, **options)  # a small image is enlarged


# --- validation ----------------------------------------------------------------------------------------


def validation_batches(
    folder: LabelledFolder, indices: Sequence[int], size: int, batch: int, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (uint8 images (B, 3, size, size), labels int64 (B,)) of the given images, in order, the last batch smaller.

    Decoded by ``workers`` threads (0: one a core, up to 8), two batches ahead. Raises :class:`DataError` for an image
    that cannot be read: a measure over other images would not be the one that was asked for.
    """

    def load(index: int) -> Tensor:
        return centre_crop(torch.from_numpy(folder.read(index)).permute(2, 0, 1), size)

    waiting: deque[tuple[Sequence[int], list[Future[Tensor]]]] = deque()
    pool = ThreadPoolExecutor(workers or min(8, available_cores()), thread_name_prefix="decode")
    starts = range(0, len(indices), batch)
    try:
        for start in [*starts, None, None]:
            if start is not None:
                part = indices[start : start + batch]
                waiting.append((part, [pool.submit(load, index) for index in part]))
            if waiting and (len(waiting) > 2 or start is None):
                numbers, futures = waiting.popleft()
                images = torch.stack([future.result() for future in futures])
                yield images, torch.from_numpy(folder.labels[list(numbers)])
    finally:
        pool.shutdown(cancel_futures=True)
