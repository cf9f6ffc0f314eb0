"""A set of images decoded once, into one buffer on the device that trains. Its size is checked before anything is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.loader import candidates, too_small
from dinoskip.data.shards import Source
from dinoskip.errors import ConfigError, DataError
from dinoskip.runtime.console import Progress
from dinoskip.runtime.cores import available_cores

SHARE = 0.5  # of the free memory: the model, its optimizer and activations need the rest


@dataclass
class Resident:
    """``pixels`` uint8 (P, 3); ``first`` int64 (N,) and ``sizes`` int64 (N, 2), of each image or its substitute.

    ``bad`` are the images that could not be read, name → reason.
    """

    pixels: Tensor
    first: np.ndarray
    sizes: np.ndarray
    bad: dict[str, str] = field(default_factory=dict)


def load(images: Source, device: torch.device, *, seed: int, min_side: int, threads: int = 0) -> Resident:
    """Decode ``images`` into memory of ``device`` by ``threads`` threads (0: one a processor).

    Bad images are replaced as in every loader, and so are images with a side shorter than ``min_side``. Raises
    :class:`ConfigError` if the set needs more than half of the free memory.
    """
    threads = threads or available_cores()
    reasons: dict[int, str] = {}

    def measure(index: int) -> tuple[int, int]:
        try:
            return images.size(index)
        except DataError as error:
            reasons[index] = str(error)
            return 0, 0

    with ThreadPoolExecutor(threads) as pool:
        sizes = np.array(list(pool.map(measure, range(len(images)))), dtype=np.int64)
        for index in np.flatnonzero((sizes.min(axis=1) < min_side) & (sizes.min(axis=1) > 0)).tolist():
            reasons[index] = too_small(images.where(index), tuple(sizes[index].tolist()), min_side)
            sizes[index] = 0
        areas = sizes.prod(axis=1)
        first = areas.cumsum() - areas
        _refuse_large(images, 3 * int(areas.sum()), device)
        pixels = torch.empty(int(areas.sum()), 3, dtype=torch.uint8, device=device)

        def decode(index: int) -> None:
            if index in reasons:
                return
            try:
                image = images.read(index)
            except DataError as error:
                reasons[index] = str(error)
                return
            if image.shape[:2] != tuple(sizes[index]):
                reasons[index] = f"{images.where(index)}: its header gives another size than its pixels"
                return
            pixels[first[index] : first[index] + areas[index]].copy_(torch.from_numpy(image.reshape(-1, 3)))

        with Progress(f"images to {device}", len(images), "image") as progress:
            for _ in pool.map(decode, range(len(images))):
                progress.advance()
    slots = _slots(images, reasons, seed)
    return Resident(pixels, first[slots], sizes[slots], {images.names[index]: reasons[index] for index in reasons})


def _refuse_large(images: Source, needed: int, device: torch.device) -> None:
    free = free_memory(device)
    if needed > SHARE * free:
        raise ConfigError(
            f"{images.root}: {len(images)} images decode to {needed / 2**30:.2f} GiB, more than half of the "
            f"{free / 2**30:.2f} GiB free on {device}",
            "use mode decode or crops, or make the images smaller with dinoskip data pack",
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device; of the host without disturbing others."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _slots(images: Source, reasons: dict[int, str], seed: int) -> np.ndarray:
    """Return for every image the number of the one that stands for it, int64 (N,)."""
    slots = np.arange(len(images))
    for index in reasons:
        substitute = next((number for number in candidates(seed, index, len(images)) if number not in reasons), None)
        if substitute is None:
            raise DataError(
                f"{images.where(index)}: unreadable, as are the images drawn in its place: {reasons[index]}"
            )
        slots[index] = substitute
    return slots
