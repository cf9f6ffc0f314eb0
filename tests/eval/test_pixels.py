"""Features of pixels: against numbers written out, and that they show what they should on scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.features.transform import Transform
from eval.pixels import PIXEL_FEATURES, RANDOM_CHANNELS, PixelTokens, colours, pixel_tokens, random_patch


class Files:
    def __init__(self, *paths: Path) -> None:
        self.paths = paths

    def path(self, index: int) -> Path:
        return self.paths[index]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    rng = np.random.default_rng(0)
    for name, (height, width) in {"a": (16, 24), "b": (20, 16)}.items():
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    return Files(tmp_path / "a.png", tmp_path / "b.png")


def test_colours_by_hand() -> None:
    images = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    made = colours(images, 2).numpy()
    assert made.shape == (2, 6, 90)
    patch = images[1, :, 2:4, 4:6].reshape(3, -1).double().numpy()  # the last of 2 × 3 patches
    whole = images[1].reshape(3, -1).double().numpy()
    first = np.concatenate([patch.mean(1), patch.std(1), whole.mean(1), whole.std(1)])
    products = [first[i] * first[j] for i in range(12) for j in range(i, 12)]
    assert np.allclose(made[1, -1], [*first, *products], atol=1e-5)


def test_a_random_patch_sees_its_own_pixels_alone() -> None:
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    before = random_patch(images, 4)
    images[:, :, 4:, 4:] += 1  # the last patch
    after = random_patch(images, 4)
    assert before.shape == (1, 4, RANDOM_CHANNELS)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])
    assert torch.equal(after, random_patch(images, 4))  # the same draw each time


def test_tokens_follow_the_transform(files: Files) -> None:
    for name, tokens in pixel_tokens(files, [1, 0], Transform(mode="square", size=16), 8).items():
        assert tokens.shape[:2] == (2, 4), name
        assert np.array_equal(tokens[np.array([1, 0])], np.stack([tokens.of(1), tokens.of(0)]))
    native = PixelTokens(PIXEL_FEATURES["colours"], files, [0, 1], Transform(mode="native"), 8)
    assert [len(native.of(i)) for i in range(2)] == [2 * 3, 3 * 2]  # 20 pixels are padded to 24


def test_standardised_channels_have_mean_0_and_variance_1(files: Files) -> None:
    tokens = PixelTokens(PIXEL_FEATURES["colours"], files, [0, 1], Transform(mode="native"), 8)
    standard = tokens.standardised()
    every = np.concatenate([standard(0), standard(1)]).astype(np.float64)
    assert np.allclose(every.mean(0), 0, atol=1e-5)
    raw = np.concatenate([tokens.of(0), tokens.of(1)]).astype(np.float64).var(0)
    assert np.allclose(every.var(0), raw / (raw + 1e-6), atol=1e-4)  # a constant channel stays near 0
    assert (every.std(0) > 0.99).sum() > 75
