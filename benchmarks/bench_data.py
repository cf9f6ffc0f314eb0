"""Claim: decoding once, cropping in uint8 and augmenting in batches beats the per-image pipeline of public DINO code.

Both make 2×224 + 8×96 crops from JPEG files on one thread. The baseline is made as the public pipeline is: torchvision
transforms on Pillow images, one crop at a time, collated as float32. What it costs is compared with what a worker of
ours does for an image: decode and cut; the same through the DataLoader, with one worker process and its transport
counted; decode only (mode decode); and with all on one CPU thread, augmentation too. Times are of processors, not of
the clock, rounds of all of them alternate, and of each the least is taken. Crops are compared with Pillow's, made from
Pillow's own decoding.

    python -m benchmarks.bench_data [--images FOLDER] [--rounds 5]
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageFilter
from torchvision import transforms

from dinoskip.data import ImageFolder
from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.crops import crop_boxes, crop_draws, resize_crop
from dinoskip.data.loader import BatchSplit
from dinoskip.data.sprites import photo
from dinoskip.data.train_loader import TrainLoader, ViewRecipe

BATCH = 16
BATCHES = 3  # a round
Mode = Literal["crops", "decode"]


def bundled(folder: Path) -> ImageFolder:
    """Write stretches of the bundled photographs as JPEGs of ImageNet's usual size, 500×375."""
    for number in range(BATCH):
        name = ("coffee", "rocket", "china", "flower")[number % 4]
        image = Image.fromarray(photo(name)).resize((500, 375), Image.Resampling.BICUBIC, box=(number, 0, 560, 400))
        image.save(folder / f"{number:02}.jpg", quality=92)
    return ImageFolder.open(folder)


class Blur:
    """Pillow's Gaussian blur, with probability ``p``."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the image, blurred with probability ``p``."""
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2)))


def per_image_pipeline(
    large: int = 224, small: int = 96, num_local: int = 8
) -> Callable[[Image.Image], list[torch.Tensor]]:
    """Views of an image as public code makes them, two of ``large`` pixels, then ``num_local`` of ``small``."""
    colour = [
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        transforms.RandomGrayscale(0.2),
    ]
    normal = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    bicubic = transforms.InterpolationMode.BICUBIC

    def view(size: int, scale: tuple[float, float], *extra: Callable) -> transforms.Compose:
        crop = transforms.RandomResizedCrop(size, scale=scale, interpolation=bicubic)
        return transforms.Compose([crop, *colour, *extra, *normal])

    first = view(large, (0.4, 1.0), Blur(1.0))
    second = view(large, (0.4, 1.0), Blur(0.1), transforms.RandomSolarize(128, 0.2))
    local = view(small, (0.05, 0.4), Blur(0.5))
    return lambda image: [first(image), second(image), *(local(image) for _ in range(num_local))]


def baseline(images: ImageFolder, batches: int) -> None:
    pipeline = per_image_pipeline()
    for _ in range(batches):
        views = []
        for index in range(BATCH):
            with Image.open(images.path(index % len(images))) as image:
                views.append(pipeline(image.convert("RGB")))
        for column in zip(*views, strict=True):
            torch.stack(column)


def ours(images: ImageFolder, mode: Mode, *, augmented: bool = False) -> Callable[[int], None]:
    """Batches without a worker; every call goes on with the next epoch."""
    loader = TrainLoader(
        images, ViewRecipe(CropConfig(), AugmentConfig(), mode), BatchSplit(BATCH), seed=0, cache=False
    )
    epochs = itertools.count()

    def work(batches: int) -> None:
        for _ in range(batches):
            batch = next(loader.epoch(next(epochs)))
            if augmented:
                loader.views(batch)

    return work


def seconds(work: Callable[[int], None], batches: int) -> float:
    """Core time of this process, an image; other processes do not count."""
    start = time.process_time()
    work(batches)
    return (time.process_time() - start) / batches / BATCH


class ThroughLoader:
    """Core time an image of this process and one worker together, the worker's start left out."""

    def __init__(self, images: ImageFolder, mode: Mode) -> None:
        self.loader = TrainLoader(
            images, ViewRecipe(CropConfig(), AugmentConfig(), mode), BatchSplit(BATCH), seed=0, workers=1
        )
        self.epochs = itertools.count()
        self.work(1)
        iterator: Any = self.loader._loader._iterator
        self.clock = ~iterator._workers[0].pid << 3 | 2  # Linux's number of another process's processor clock

    def work(self, batches: int) -> None:
        """Take batches, epoch after epoch to the end, so that nothing is prepared for later."""
        while batches > 0:
            batches -= sum(1 for _ in self.loader.epoch(next(self.epochs)))

    def seconds(self, batches: int) -> float:
        """OnlineMetric at least ``batches``, in whole epochs."""
        start = time.process_time() + time.clock_gettime(self.clock)
        epochs = -(-batches // self.loader.steps_per_epoch)
        self.work(batches)
        taken = time.process_time() + time.clock_gettime(self.clock) - start
        return taken / epochs / self.loader.steps_per_epoch / BATCH


def psnr_to_pillow(images: ImageFolder, count: int) -> np.ndarray:
    """Peak signal-to-noise ratios, in decibels, of every crop of ``count`` images against Pillow's, float64 (N, 2).

    First against Pillow's resize as it comes: from version 13 on it does some tall crops column by column first, and
    rounding between the passes then falls otherwise. Second against the same resize asked for rows first, then columns.
    """
    config, ratios = CropConfig(), []
    for index in range(min(count, len(images))):
        with Image.open(images.path(index)) as opened:
            picture = opened.convert("RGB")
        pixels = torch.from_numpy(images.read(index))
        draws = crop_draws(config, 0, 0, np.array([index]))
        for view, box in enumerate(crop_boxes(config, np.array([pixels.shape[:2]]), draws)[0].tolist()):
            top, left, height, width = box
            size = config.global_size if view < 2 else config.local_size
            cut = picture.crop((left, top, left + width, top + height))
            bicubic = Image.Resampling.BICUBIC
            direct, rows_first = cut.resize((size, size), bicubic), cut.resize((size, height), bicubic)
            ours = resize_crop(pixels, box, size).numpy()
            ratios.append([decibels(ours, theirs) for theirs in (direct, rows_first.resize((size, size), bicubic))])
    return np.array(ratios)


def decibels(ours: np.ndarray, theirs: Image.Image) -> float:
    """Peak signal-to-noise ratio of two 8-bit pictures."""
    error = np.mean((ours.astype(np.float64) - np.asarray(theirs)) ** 2)
    return 10 * math.log10(255**2 / max(float(error), 1e-9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs; default: bundled photographs at 500×375")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of 48 images each (default: 5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        images = ImageFolder.open(arguments.images) if arguments.images else bundled(Path(folder))
        crops, decode = ours(images, "crops"), ours(images, "decode")
        everything = ours(images, "crops", augmented=True)
        through, plain = ThroughLoader(images, "crops"), ThroughLoader(images, "decode")
        rows: dict[str, Callable[[], float]] = {
            "per-image pipeline (torchvision on Pillow)": lambda: seconds(lambda n: baseline(images, n), BATCHES),
            "decode and crop": lambda: seconds(crops, BATCHES),
            "decode and crop, through the DataLoader": lambda: through.seconds(BATCHES),
            "decode only": lambda: seconds(decode, BATCHES),
            "decode only, through the DataLoader": lambda: plain.seconds(BATCHES),
            "decode, crop and augment on one thread": lambda: seconds(everything, BATCHES),
        }
        taken: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(arguments.rounds + 1):  # the first warms up
            for name, measure in rows.items():
                taken[name].append(measure())
        ratios = psnr_to_pillow(images, 48)
        through.loader.close()
        plain.loader.close()
    least = {name: min(times[1:]) for name, times in taken.items()}
    slow = next(iter(least.values()))
    for name, value in least.items():
        print(f"{name:44}{value * 1e3:6.2f} ms an image   {slow / value:5.1f} ×")
    for name, column in (("Pillow's resize", ratios[:, 0]), ("Pillow's, rows first", ratios[:, 1])):
        print(f"crops against {name}: PSNR {column.mean():.1f} dB in the mean, least {column.min():.1f} dB")


if __name__ == "__main__":
    main()
