"""From a picture to a network's input, in one callable: what torchvision's and torch's data sets take as transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dinoskip.io.images import rgb_array
from dinoskip.io.resize import centre_crop, resize


@dataclass(frozen=True)
class ImageTransform:
    """Resizes a picture in 8 bits, bicubic with antialiasing, then (x / 255 - mean) / std.

    Bit for bit what feature stores are made of. ``mode`` is ``square`` (size × size, aspect ignored) or ``center_crop``
    (short side to size / 0.875, then the centre). It can be pickled, so DataLoader workers may have it.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mode: Literal["square", "center_crop"] = "square"

    def __call__(self, image: Image.Image | NDArray[np.uint8] | Tensor) -> Tensor:
        """Return float32 (3, size, size) on the CPU.

        Takes a picture of Pillow (any mode; turned upright by its EXIF orientation), a uint8 array (H, W, 3) or a uint8
        tensor (3, H, W). Raises ValueError for any other.
        """
        if isinstance(image, Image.Image):
            image = rgb_array(image)
        if isinstance(image, np.ndarray):  # HWC memory seen as CHW: torch's fast resampling wants channels last
            pixels = torch.from_numpy(np.require(image, requirements=["C", "W"])).movedim(-1, 0)
        else:
            pixels = image
        if pixels.dtype != torch.uint8 or pixels.ndim != 3 or len(pixels) != 3:
            raise ValueError(
                f"{pixels.dtype} {tuple(pixels.shape)}: neither a uint8 array (H, W, 3) nor a uint8 tensor (3, H, W)"
            )
        sized = centre_crop(pixels, self.size) if self.mode == "center_crop" else resize(pixels, self.size, self.size)
        mean, std = ((255 * torch.tensor(values)).view(3, 1, 1) for values in (self.mean, self.std))
        return sized.float().sub_(mean).div_(std).contiguous()
