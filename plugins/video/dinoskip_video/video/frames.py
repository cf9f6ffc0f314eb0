"""Frames of a video through a backbone: sized, normalised, and the tokens of all blocks from one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from dinoskip.errors import DataError
from dinoskip.features.transform import Normalise
from dinoskip.io.images import read_image
from dinoskip.models import Backbone
from dinoskip_video.sequences import VideoSequence
from dinoskip_video.video.config import VideoConfig
from eval.places import Layer, Place, read_layers

BATCH = 4  # frames a forward pass
# Mean and deviation in eval_video_segmentation.py of DINO, where .228 is a slip for ImageNet's .229.
_AS_CODED = (0.485, 0.456, 0.406), (0.228, 0.224, 0.225)


def load_frame(path: Path, size: tuple[int, int]) -> Tensor:
    """Decode a frame to uint8 (3, height, width): bilinear without antialiasing, by OpenCV, as the script does."""
    return torch.from_numpy(cv2.resize(read_image(path), size[::-1], interpolation=cv2.INTER_LINEAR)).permute(2, 0, 1)


class FramePasses:
    """Passes frames through ``backbone``, to be read at ``places``."""

    def __init__(self, backbone: Backbone, places: Mapping[str, Place], config: VideoConfig, workers: int) -> None:
        self.backbone, self.places, self.config = backbone, places, config
        mean, std = _AS_CODED if config.protocol == "dino-as-coded" else (backbone.mean, backbone.std)
        self._input = Normalise(mean, std, backbone.device, backbone.dtype)
        self._workers = workers or BATCH

    def tokens(self, sequence: VideoSequence, size: tuple[int, int]) -> Iterator[dict[Layer, Tensor]]:
        """Yield the tokens (T, C) of every layer for each frame, sized to ``size``; a batch is decoded ahead.

        Raises :class:`DataError` naming a frame that cannot be read or whose features are not finite.
        """
        with ThreadPoolExecutor(self._workers, thread_name_prefix="decode") as pool:
            starts = range(0, len(sequence), BATCH)
            ahead = [pool.submit(load_frame, path, size) for path in sequence.frames[:BATCH]]
            for start in starts:
                images, paths = [read.result() for read in ahead], sequence.frames[start + BATCH : start + 2 * BATCH]
                ahead = [pool.submit(load_frame, path, size) for path in paths]
                layers = self._layers(images, size)
                for at in range(len(images)):
                    frame = {layer: tokens[at] for layer, tokens in layers.items()}
                    for (_, block), tokens in frame.items():
                        if not bool(tokens.isfinite().all()):
                            raise DataError(
                                f"{sequence.frames[start + at]}: features of block {block} are not finite",
                                "the weights have diverged",
                            )
                    yield frame

    def _layers(self, images: Sequence[Tensor], size: tuple[int, int]) -> dict[Layer, Tensor]:
        with torch.inference_mode():
            return read_layers(self.backbone, self._input(images, *size), self.places)


def checked_label(sequence: VideoSequence, index: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the label map of a frame; :class:`DataError` if it is not of the video's size."""
    label = sequence.label(index)
    if label.shape != shape:
        raise DataError(f"{sequence.annotations[index]}: {label.shape} pixels, other frames of the video have {shape}")
    return label
