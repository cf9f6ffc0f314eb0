from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from torchvision.transforms import RandomResizedCrop

from dinoskip.data import crops as crops_module
from dinoskip.data.crops import (
    CropConfig,
    central_box,
    crop_boxes,
    crop_draws,
    cut,
    cut_by_products,
    draw_boxes,
    resize_crop,
    short_side_size,
    write_crops,
)
from dinoskip.data.sprites import photo


def psnr(one: np.ndarray, two: np.ndarray) -> float:
    return -10 * math.log10(np.mean((one.astype(float) - two.astype(float)) ** 2) / 255**2 + 1e-12)


def boxes_of(config: CropConfig, height: int, width: int, seed: int, epoch: int, indices: list[int]) -> np.ndarray:
    sizes = np.array([(height, width)] * len(indices))
    return crop_boxes(config, sizes, crop_draws(config, seed, epoch, np.array(indices)))


def test_crops_are_pillows_bicubic_ones() -> None:
    """Each within 65 dB of Pillow's two passes, rows first; Pillow 13 does columns first for some tall crops."""
    image = photo("coffee").copy()
    picture = Image.fromarray(image)
    direct = []
    for boxes in boxes_of(CropConfig(), *image.shape[:2], 0, 0, list(range(6))).tolist():
        for view, (top, left, height, width) in enumerate(boxes):
            size = 224 if view < 2 else 96
            ours = resize_crop(torch.from_numpy(image), (top, left, height, width), size)
            assert ours.shape == (size, size, 3)
            assert ours.dtype == torch.uint8
            cut = picture.crop((left, top, left + width, top + height))
            bicubic = Image.Resampling.BICUBIC
            passes = np.asarray(cut.resize((size, height), bicubic).resize((size, size), bicubic))
            assert psnr(ours.numpy(), passes) >= 65
            assert np.abs(ours.numpy().astype(int) - passes).max() <= 1
            direct.append(psnr(ours.numpy(), np.asarray(cut.resize((size, size), bicubic))))
    assert np.mean(direct) >= 65
    assert min(direct) >= 45


def reference_box(draws: np.ndarray, height: int, width: int, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, one view, with given uniform numbers."""
    for area_, aspect_, top, left in draws:
        area = height * width * (scale[0] + area_ * (scale[1] - scale[0]))
        aspect = math.exp(math.log(3 / 4) + aspect_ * (math.log(4 / 3) - math.log(3 / 4)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10**6))
def test_boxes_follow_torchvision_and_stay_inside(height: int, width: int, seed: int) -> None:
    draws = np.random.default_rng(seed).random((6, 10, 4))
    scales = np.array([(0.4, 1.0)] * 3 + [(0.05, 0.4)] * 3)
    boxes = draw_boxes(draws, np.full(6, height), np.full(6, width), scales)
    for view, box in enumerate(boxes.tolist()):
        assert tuple(box) == reference_box(draws[view], height, width, tuple(scales[view]))
        top, left, h, w = box
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        assert min(h, w) >= 1


def test_fallback_is_the_central_crop() -> None:
    assert central_box(100, 1000) == (0, 433, 100, 133)
    assert central_box(1000, 90) == (440, 0, 120, 90)
    sides = np.array([10]), np.array([1000])
    boxes = draw_boxes(np.full((1, 10, 4), 0.5), *sides, np.array([(0.9, 1.0)]))  # no try fits so long an image
    assert boxes.tolist() == [list(central_box(10, 1000))]


def test_boxes_depend_on_position_alone() -> None:
    config = CropConfig()
    first = boxes_of(config, 300, 400, 7, 2, [5])[0]
    assert (boxes_of(config, 300, 400, 7, 2, [3, 5])[1] == first).all()
    for seed, epoch, index in ((8, 2, 5), (7, 3, 5), (7, 2, 6)):
        assert (boxes_of(config, 300, 400, seed, epoch, [index])[0] != first).any()


def test_areas_are_distributed_as_torchvisions() -> None:
    config = CropConfig()
    shares = np.prod(boxes_of(config, 300, 400, 0, 0, list(range(1000)))[..., 2:], axis=2) / (300 * 400)
    torch.manual_seed(0)
    blank = torch.empty(3, 300, 400)
    for ours, scale in ((shares[:, :2], [0.4, 1.0]), (shares[:, 2:], [0.05, 0.4])):
        theirs = [RandomResizedCrop.get_params(blank, scale, [3 / 4, 4 / 3]) for _ in range(2000)]
        expected = np.array([height * width for _, _, height, width in theirs]) / (300 * 400)
        np.testing.assert_allclose(
            np.quantile(ours, [0, 0.25, 0.5, 0.75, 1]), np.quantile(expected, [0, 0.25, 0.5, 0.75, 1]), atol=0.03
        )


def test_crop_of_its_own_size_is_a_copy_and_views_go_where_they_belong() -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    globals_, locals_ = torch.zeros(2, 16, 16, 3, dtype=torch.uint8), torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    write_crops(torch.from_numpy(image), [(1, 2, 16, 16), (0, 0, 20, 20), (3, 4, 8, 8)], globals_, locals_)
    assert (globals_[0].numpy() == image[1:17, 2:18]).all()
    assert (locals_[0].numpy() == image[3:11, 4:12]).all()
    assert globals_[1].any()


def test_configuration_is_checked() -> None:
    assert CropConfig().num_views == 10
    for bad in ({"global_scale": (0.5, 0.4)}, {"local_scale": (0, 0.4)}, {"num_global": 3}, {"local_size": 0}):
        with pytest.raises(ValidationError):
            CropConfig(**bad)


# --- on the device -----------------------------------------------------------------------------------


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
    monkeypatch.setattr(crops_module, "CHUNK_PIXELS", 20_000)  # in many pieces, also of single boxes
    assert torch.equal(cut_by_products(*arguments), ours)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 40))
def test_any_box_of_any_image(seed: int, size: int) -> None:
    """Also single pixels, enlargement, a box as large as the crop (a copy), the last pixel of the buffer."""
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


def test_sizes_are_torchvisions_for_every_image_up_to_500_pixels() -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    sizes = [(height, width) for height in range(1, 501) for width in range(1, height + 1)]
    wrong = [size for size in sizes if short_side_size(*size, 256) != tuple(_compute_resized_output_size(size, [256]))]
    assert not wrong
    assert short_side_size(300, 40, 256) == short_side_size(40, 300, 256)[::-1]
