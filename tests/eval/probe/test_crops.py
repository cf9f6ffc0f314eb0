"""Augmented crops: image and label go together, and depend on (seed, image, visit) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import maximum_filter, minimum_filter

from dinoskip.runtime.randomness import numpy_rng
from eval.probe.config import ProbeConfig
from eval.probe.crops import augmented, distorted, scaled_size

RESIZED: dict[str, Any] = {"live": True, "size": 32}
SCALED: dict[str, Any] = {"protocol": "dinov2", "size": 32, "stride": 20, "distort": None}


def picture(height: int, width: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Patches of 8 × 8 pixels, each of one class, whose grey value says which: 40 · class."""
    coarse = np.random.default_rng(seed).integers(0, 6, (-(-height // 8), -(-width // 8)))
    label = coarse.repeat(8, 0).repeat(8, 1)[:height, :width].astype(np.uint8)
    return torch.from_numpy(np.stack([label * 40] * 3)), label


@settings(max_examples=40, deadline=None)
@given(
    changes=st.sampled_from([RESIZED, SCALED, {**SCALED, "scale": (0.3, 0.6)}]),
    size=st.tuples(st.integers(30, 90), st.integers(30, 90)),
    seed=st.integers(0, 999),
)
def test_labels_lie_where_their_pixels_do(changes: dict[str, Any], size: tuple[int, int], seed: int) -> None:
    recipe = ProbeConfig(**changes)
    image, label = augmented(*picture(*size, seed), recipe, numpy_rng(seed))
    assert image.dtype == torch.uint8
    assert label.shape == (32, 32)
    height, width = image.shape[1:]
    assert (label[height:] == 255).all()
    assert (label[:, width:] == 255).all()
    inside = label[:height, :width]
    assert inside.max() < 6
    seen = np.rint(image[0].numpy() / 40)
    flat = maximum_filter(inside, 5) == minimum_filter(inside, 5)  # one class as far as the bicubic kernel reaches
    flat[:2] = flat[-2:] = flat[:, :2] = flat[:, -2:] = False
    if flat.any():
        assert (seen == inside)[flat].mean() > 0.99  # enlarged, it reaches further, and may ring


def test_a_crop_is_a_function_of_seed_image_and_visit() -> None:
    image, label = picture(60, 80, 0)
    recipe = ProbeConfig(**{**SCALED, "distort": 0.1})

    def crop(*path: int | str) -> tuple[bytes, bytes]:
        one, two = augmented(image, label, recipe, numpy_rng(*path))  # type: ignore[arg-type]
        return one.numpy().tobytes(), two.tobytes()

    assert crop(0, "a", 1) == crop(0, "a", 1)
    assert len({crop(seed, name, visit) for seed in (0, 1) for name in "ab" for visit in (0, 1)}) == 8


def test_a_crop_that_one_class_fills_is_drawn_again() -> None:
    label = np.zeros((40, 150), np.uint8)
    label[:, 120:] = 1
    image = torch.zeros(3, 40, 150, dtype=torch.uint8)

    def mixed(limit: float) -> int:
        recipe = ProbeConfig(**{**SCALED, "scale": (1.0, 1.0), "cat_max_ratio": limit})
        return sum(len(np.unique(augmented(image, label, recipe, numpy_rng(i))[1])) > 1 for i in range(60))

    assert mixed(0.75) > 2 * mixed(1.0)


@pytest.mark.parametrize(
    ("given_size", "short", "wanted"),
    [
        ((375, 500), 512, (512, 683)),
        ((500, 333), 512, (769, 512)),
        ((100, 1000), 512, (205, 2048)),
        ((64, 64), 32, (32, 32)),
    ],
)
def test_scaled_size_is_mmsegmentations(given_size: tuple[int, int], short: int, wanted: tuple[int, int]) -> None:
    assert scaled_size(*given_size, short) == wanted


class Fixed:
    """A generator whose draws are given: which of brightness, contrast, saturation, hue; contrast last; strengths."""

    def __init__(self, use: list[bool], *, last: bool, **strengths: float) -> None:
        self.draws: list[Any] = [np.where(use, 0.0, 1.0), 0.0 if last else 1.0]
        self.strengths = [strengths.get(name, 1.0) for name in ("shift", "contrast", "saturation", "turn")]

    def random(self, *_: Any) -> Any:
        return self.draws.pop(0)

    def uniform(self, *_: Any) -> float:
        return self.strengths.pop(0)


def test_distortion_of_nothing_is_nothing_and_of_each_is_what_it_says() -> None:
    image = torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def change(place: int, **strengths: float) -> torch.Tensor:
        rng: Any = Fixed([i == place for i in range(4)], last=False, **strengths)
        return distorted(image, 0.5, rng)

    assert torch.equal(change(9), image)
    assert torch.equal(change(0, shift=20), (image.int() + 20).clamp(0, 255).to(torch.uint8))
    assert torch.equal(change(1, contrast=0.5), (image / 2).round().to(torch.uint8))
    pil = Image.fromarray(image.permute(1, 2, 0).numpy())
    hue, saturation, value = (np.asarray(x, dtype=float) for x in pil.convert("HSV").split())
    grey = Image.fromarray(change(2, saturation=0.6).permute(1, 2, 0).numpy()).convert("HSV")
    assert np.abs(np.asarray(grey.getchannel("S"), dtype=float) - 0.6 * saturation).max() <= 3
    assert np.abs(np.asarray(grey.getchannel("V"), dtype=float) - value).max() <= 1
    turned = Image.fromarray(change(3, turn=0.25).permute(1, 2, 0).numpy()).convert("HSV").getchannel("H")
    off = (np.asarray(turned, dtype=float) - hue - 64) % 256
    assert np.median(np.minimum(off, 256 - off)) <= 1
    assert not torch.equal(change(2, saturation=1.5), image)
