"""Claim: decoding once, cropping in uint8 and augmenting in batches beats the per-image pipeline of public DINO code.

Both make 2×224 + 8×96 augmented, normalised crops from JPEG files on one thread. The baseline is made as the public
pipeline is: torchvision transforms on Pillow images, one crop at a time, collated as float32. Two ratios are printed:
all on the CPU, and the part a data worker does when the device augments (the baseline's workers do everything).

    python benchmarks/bench_data.py [--images FOLDER] [--count 48]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms

from dinoskip.data import AugmentConfig, CropConfig, ImageFolder, TrainLoader
from dinoskip.data.sprites import photo

BATCH = 16


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
        """Blur or not."""
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2)))


class Solarise:
    """Pillow's solarisation, with probability ``p``."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        """Solarise or not."""
        return ImageOps.solarize(image) if random.random() < self.p else image


def per_image_pipeline() -> Callable[[Image.Image], list[torch.Tensor]]:
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

    first = view(224, (0.4, 1.0), Blur(1.0))
    second = view(224, (0.4, 1.0), Blur(0.1), Solarise(0.2))
    local = view(96, (0.05, 0.4), Blur(0.5))
    return lambda image: [first(image), second(image), *(local(image) for _ in range(8))]


def baseline(images: ImageFolder, batches: int) -> None:
    pipeline = per_image_pipeline()
    for _ in range(batches):
        views = []
        for index in range(BATCH):
            with Image.open(images.path(index % len(images))) as image:
                views.append(pipeline(image.convert("RGB")))
        for column in zip(*views, strict=True):
            torch.stack(column)


def ours(images: ImageFolder, batches: int, *, augmented: bool) -> None:
    loader = TrainLoader(images, CropConfig(), AugmentConfig(), seed=0, batch_size=BATCH, cache=False)
    for epoch in range(batches):
        batch = next(loader.epoch(epoch))
        if augmented:
            loader.views(batch)


def milliseconds(work: Callable[[int], None], batches: int, repeats: int = 3) -> float:
    """Least core time an image over some repeats, after one batch to warm up; other processes do not count."""
    work(1)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work(batches)
        times.append((time.process_time() - start) / batches / BATCH * 1e3)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs; default: bundled photographs at 500×375")
    parser.add_argument("--count", type=int, default=48, help="images a repeat")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        images = ImageFolder.open(arguments.images) if arguments.images else bundled(Path(folder))
        batches = max(1, arguments.count // BATCH)
        slow = milliseconds(lambda n: baseline(images, n), batches)
        all_here = milliseconds(lambda n: ours(images, n, augmented=True), batches)
        worker = milliseconds(lambda n: ours(images, n, augmented=False), batches)
    print(f"per-image pipeline (torchvision on Pillow)  {slow:6.2f} ms an image   1.0")
    print(f"dinoskip, all on one CPU thread             {all_here:6.2f} ms an image   {slow / all_here:.1f}")
    print(f"dinoskip, a worker's part (decode, crop)    {worker:6.2f} ms an image   {slow / worker:.1f}")


if __name__ == "__main__":
    main()
