from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dinoskip.data import device_crops
from dinoskip.data.config import CropConfig
from dinoskip.data.crops import crop_boxes, crop_draws
from dinoskip.data.device_crops import cut, cut_by_products
from dinoskip.data.sprites import photo
from tests.helpers.crops import psnr


def packed(images: list[np.ndarray]) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """All pixels in one buffer; the first pixel and the size of each image."""
    sizes = np.array([image.shape[:2] for image in images])
    areas = sizes.prod(axis=1)
    return torch.from_numpy(np.concatenate([image.reshape(-1, 3) for image in images])), areas.cumsum() - areas, sizes


def photos() -> list[np.ndarray]:
    return [photo("coffee")[:180, :260], photo("rocket")[:300, :200], photo("china")[40:400, 30:500]]


@pytest.mark.parametrize(("group", "size"), [(slice(0, 2), 112), (slice(2, None), 48)])
def test_products_give_the_workers_crops_but_for_rounding_and_pillows(
    group: slice, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = photos()
    pixels, first, sizes = packed(images)
    config = CropConfig()
    boxes = crop_boxes(config, sizes, crop_draws(config, 3, 0, np.arange(3)))[:, group]
    views = boxes.shape[1]
    arguments = (pixels, np.repeat(first, views), np.repeat(sizes[:, 1], views), boxes.reshape(-1, 4), size)
    ours, workers = cut_by_products(*arguments), cut(*arguments)
    assert ours.shape == workers.shape == (3 * views, 3, size, size)
    gap = (ours.int() - workers.int()).abs()
    assert gap.max() <= 1
    assert (gap > 0).float().mean() < 0.002
    bicubic = Image.Resampling.BICUBIC
    for crop, number, (top, left, height, width) in zip(
        ours, np.repeat(np.arange(3), views), arguments[3], strict=True
    ):
        picture = Image.fromarray(images[number][top : top + height, left : left + width])
        pillows = picture.resize((size, height), bicubic).resize((size, size), bicubic)
        assert psnr(crop.permute(1, 2, 0).numpy(), np.asarray(pillows)) >= 65
    monkeypatch.setattr(device_crops, "CHUNK_PIXELS", 20_000)  # in many pieces, also of single boxes
    assert torch.equal(cut_by_products(*arguments), ours)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 40))
def test_any_box_of_any_image(seed: int, size: int) -> None:
    """Boxes include single pixels, enlargement, a box as large as the crop (a copy), the last pixel of the buffer."""
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (*rng.integers(1, 90, 2), 3), dtype=np.uint8) for _ in range(4)]
    pixels, first, sizes = packed(images)
    extent = rng.integers(1, sizes + 1)
    if min(sizes[0]) >= size:
        extent[0] = size
    corner = rng.integers(0, sizes - extent + 1)
    corner[3] = (sizes - extent)[3]
    boxes = np.concatenate([corner, extent], axis=1)
    ours = cut_by_products(pixels, first, sizes[:, 1], boxes, size)
    workers = cut(pixels, first, sizes[:, 1], boxes, size)
    gap = (ours.int() - workers.int()).abs()
    assert gap.max() <= 2  # in pure noise the first pass's roundings can add up
    expected = 0.01 * gap.numel()
    assert int((gap > 0).sum()) <= expected + 4 * expected**0.5, "about one pixel in a hundred, of few pixels too"
    if min(sizes[0]) >= size:
        top, left = corner[0]
        own = images[0][top : top + size, left : left + size]
        assert (ours[0].permute(1, 2, 0).numpy() == own).all()


def test_precision_setting_is_left_as_it_was() -> None:
    pixels, first, sizes = packed([photo("coffee")[:40, :40]])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        cut_by_products(pixels, first, sizes[:, 1], np.array([(0, 0, 40, 40)]), 16)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_on_a_gpu_they_are_the_workers_crops_and_nothing_waits() -> None:
    pixels, first, sizes = packed(photos())
    config = CropConfig()
    boxes = crop_boxes(config, sizes, crop_draws(config, 3, 0, np.arange(3)))[:, 0]
    expected = cut(pixels, first, sizes[:, 1], boxes, 224)
    there = pixels.cuda()
    cut(there, first, sizes[:, 1], boxes, 224)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = cut(there, first, sizes[:, 1], boxes, 224)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (ours.cpu().int() - expected.int()).abs().max() <= 1
