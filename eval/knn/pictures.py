"""A few scored images beside the training images that are nearest to them: a picture a block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.features import FeatureStore
from dinoskip.io.files import atomic_path
from eval.knn.tokens import class_tokens

NEIGHBOURS = "neighbours"
_IMAGES = 6  # scored images drawn, spread evenly over the split
_NEAREST = 5  # of each scored image: with it a line of 716 pixels
_SIDE = 112  # pixels of a cell
_BORDER = 5  # pixels
_GAP = 14  # pixels between an image and its neighbours
_QUALITY = 88  # of JPEG: a twentieth of the bytes of PNG, and no eye sees which
_ROWS = 2**16  # training features compared at once: 96 MiB of float32 at 384 channels
_SAME, _OTHER = (0, 158, 115), (213, 94, 0)  # green and vermilion, told apart by colour-blind readers (Okabe and Ito)


def nearest_images(
    train: FeatureStore, val: FeatureStore, block: int, images: Sequence[int], k: int
) -> NDArray[np.int64]:
    """Positions (n, k) of the training images whose class tokens at ``block`` have the largest cosine, falling.

    ``images`` are positions (n,) in ``val``. Equal cosines are in the order of the training images. Raises
    :class:`DataError` for a store without class tokens.
    """
    queries = torch.nn.functional.normalize(class_tokens(val, [block])[0][list(images)], dim=-1)
    cosines = torch.cat(
        [
            queries @ torch.nn.functional.normalize(class_tokens(train, [block], slice(at, at + _ROWS))[0], dim=-1).T
            for at in range(0, len(train), _ROWS)
        ],
        dim=1,
    )
    order: NDArray[np.int64] = np.argsort(-cosines.numpy(), axis=1, kind="stable")[:, :k]
    return order


class _Cells:
    """The images of a split by position in its store, small and square, and their classes; each is decoded once."""

    def __init__(self, store: FeatureStore, folder: LabelledFolder) -> None:
        places = {name: index for index, name in enumerate(folder.names)}
        self._folder, self._places = folder, [places[name] for name in store.ids]
        self._cells: dict[int, Image.Image] = {}

    def class_of(self, image: int) -> int:
        return int(self._folder.labels[self._places[image]])

    def cell(self, image: int) -> Image.Image:
        if image not in self._cells:
            pixels = self._folder.read(self._places[image])
            self._cells[image] = ImageOps.fit(Image.fromarray(pixels), (_SIDE, _SIDE))
        return self._cells[image]


def write_neighbours(
    train: tuple[FeatureStore, LabelledFolder], val: tuple[FeatureStore, LabelledFolder], out: Path
) -> None:
    """Write ``out/block{b}.jpg`` of every block: six lines, each of a scored image and its five nearest training ones.

    A neighbour of the image's own class is framed in green, one of another in vermilion. Raises :class:`DataError` for
    an image that cannot be read.
    """
    memory, scored = _Cells(*train), _Cells(*val)
    images = np.unique(np.linspace(0, len(val[0]) - 1, _IMAGES).round().astype(int)).tolist()
    k, step = min(_NEAREST, len(train[0])), _SIDE + _BORDER
    out.mkdir(exist_ok=True)
    for block in val[0].blocks:
        sheet = Image.new("RGB", ((k + 1) * step + _GAP - _BORDER, len(images) * step - _BORDER), "white")
        near = nearest_images(train[0], val[0], block, images, k)
        for line, (image, neighbours) in enumerate(zip(images, near.tolist(), strict=True)):
            sheet.paste(scored.cell(image), (0, line * step))
            for place, neighbour in enumerate(neighbours, start=1):
                frame = _SAME if memory.class_of(neighbour) == scored.class_of(image) else _OTHER
                framed = ImageOps.expand(ImageOps.crop(memory.cell(neighbour), _BORDER), _BORDER, frame)
                sheet.paste(framed, (place * step + _GAP, line * step))
        with atomic_path(out / f"block{block}.jpg") as temporary:
            sheet.save(temporary, "JPEG", quality=_QUALITY)
