"""Part ``data``: images a second into DINO's views by each data path, and by a pipeline of Pillow and torchvision."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, get_args

import torch
from PIL import Image

from benchmarks.bench_data import per_image_pipeline
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.photographs import jpegs
from benchmarks.gpu.steps import sizes
from dinoskip.data import ImageFolder
from dinoskip.data.ahead import ViewsAhead
from dinoskip.data.config import AugmentConfig, CropConfig, DataPath
from dinoskip.data.loader import Batch, BatchSplit
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.runtime.distributed import World

SECONDS = 6.0  # that a path is measured


def run(kit: Kit) -> None:
    """Measure each path."""
    with kit.scratch() as root:
        images = ImageFolder.open(jpegs(root / "jpeg", 8 if kit.tiny else 4096).root)
        workers = 1 if kit.tiny else World(0, 1, kit.device).readers(0)
        for mode in get_args(DataPath):
            if kit.has(10):
                with kit.attempt(mode):
                    measure(kit, images, mode, workers)
        if kit.has(10):
            with kit.attempt("Pillow and torchvision"):
                by_image(kit, images, workers)


def repeated(kit: Kit, take: Callable[[], object], warm: int) -> float:
    """Calls a second, after some to warm up."""
    for _ in range(1 if kit.tiny else warm):
        take()
    kit.sync()
    seen, began = 0, time.perf_counter()
    while time.perf_counter() - began < (0.5 if kit.tiny else SECONDS):
        take()
        seen += 1
    kit.sync()
    return seen / (time.perf_counter() - began)


def measure(kit: Kit, images: ImageFolder, mode: DataPath, workers: int) -> None:
    """A data path of dinoskip's, as training takes its views, and the device's part of it."""
    size, batch = sizes(kit), 4 if kit.tiny else 64
    crops = CropConfig(global_size=size.large, local_size=size.small, num_local=size.num_local)
    recipe, split = ViewRecipe(crops, AugmentConfig(), mode), BatchSplit(batch)
    start, loader = kit.taken(
        lambda: TrainLoader(images, recipe, split, seed=0, workers=workers, device=kit.device, cache=False)
    )
    source: Iterator[Batch] = itertools.chain.from_iterable(loader.epoch(epoch) for epoch in itertools.count())
    ahead = ViewsAhead(loader.views, kit.device) if kit.cuda else None

    def take() -> None:
        if ahead is None:
            loader.views(next(source))
        else:
            ahead.take(source)
            ahead.begin(source)

    try:
        rate = repeated(kit, take, 12)
        held = next(source)
        part = kit.ms(lambda: loader.views(held), 5)
        readers = 0 if mode == "resident" else workers
        kit.say(f"data path {mode}", images_s=batch * rate, workers=readers, start_s=start, device_part_ms=part)
    finally:
        loader.close()


class PerImage(torch.utils.data.Dataset[list[torch.Tensor]]):
    """Views of each image by a pipeline on Pillow images."""

    def __init__(self, images: ImageFolder, pipeline: Callable[[Image.Image], list[torch.Tensor]]) -> None:
        self.images, self.pipeline = images, pipeline

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        with Image.open(self.images.path(index)) as image:
            return self.pipeline(image.convert("RGB"))


def by_image(kit: Kit, images: ImageFolder, workers: int) -> None:
    """The same views by Pillow and torchvision through a DataLoader."""
    size, batch = sizes(kit), 4 if kit.tiny else 64
    dataset = PerImage(images, per_image_pipeline(size.large, size.small, size.num_local))

    def batches() -> Generator[Any]:
        while True:
            yield from torch.utils.data.DataLoader(dataset, batch, num_workers=workers, pin_memory=kit.cuda)

    source = batches()
    rate = repeated(kit, lambda: next(source), 3)
    source.close()
    kit.say("data path, Pillow and torchvision", images_s=batch * rate, workers=workers)
