"""Mean and deviation of images that a network was trained with: as given in a spec, or as files beside weights say."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json

Statistics = tuple[Sequence[float], Sequence[float]]
IMAGENET: Statistics = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
HALF: Statistics = (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD)
"""0.5 for both: Inception's, timm's augreg ViTs, SigLIP."""
CLIP: Statistics = (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
_NAMED = {
    "ImageNet's": IMAGENET,
    "CLIP's": CLIP,
}


def three_numbers(value: Any, name: str, spec: str) -> tuple[float, float, float] | None:
    """The option ``mean`` or ``std`` of a spec, of pixels in 0..1: one number for all channels, or three.

    In a spec three are joined by + or commas (``mean=0.48+0.46+0.41``), in Python they are a sequence. None stays None.
    Raises :class:`ConfigError` for anything else, a mean outside of 0..1 and a deviation that is not in (0, 1].
    """
    if value is None:
        return None
    parts = re.split(r"[+,\s]+", value.strip()) if isinstance(value, str) else value
    try:
        numbers = [float(part) for part in (parts if isinstance(parts, Sequence) else [parts])]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{spec}: {name}={value}: is neither a number nor three", f"write {name}=0.5 or {name}=R+G+B")
    if any(not 0 <= number <= 1 or (number == 0 and name == "std") for number in numbers):
        bounds = "not in 0..1" if name == "mean" else "not above 0 and at most 1"
        raise ConfigError(f"{spec}: {name}={value}: is {bounds}", "pixels are in 0..1: divide numbers of 0..255 by 255")
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue


def whose(mean: Sequence[float], std: Sequence[float]) -> str:
    """Whose statistics these are, of those that have a name here; "" for any other."""
    same = (name for name, known in _NAMED.items() if tuple(map(tuple, known)) == (tuple(mean), tuple(std)))
    return next(same, "")


def beside(path: Path) -> Statistics | None:
    """Return the image statistics of ``open_clip_config.json`` beside a weights file; None if it cannot be read."""
    described = path.parent / "open_clip_config.json"
    if not described.is_file():
        return None
    try:
        settings = read_json(described)["preprocess_cfg"]
        mean, std = (three_numbers(settings[name], name, str(described)) for name in ("mean", "std"))
    except (DataError, ConfigError, KeyError, TypeError):
        return None
    return (mean, std) if mean and std else None
