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

from dinoskip.data.config import CropConfig
from dinoskip.data.crops import central_box, crop_boxes, crop_draws, draw_boxes, num_views, resize_crop, write_crops
from dinoskip.data.sprites import photo
from tests.helpers.crops import psnr


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
    assert num_views(CropConfig()) == 10
    for bad in ({"global_scale": (0.5, 0.4)}, {"local_scale": (0, 0.4)}, {"num_global": 3}, {"local_size": 0}):
        with pytest.raises(ValidationError):
            CropConfig(**bad)
