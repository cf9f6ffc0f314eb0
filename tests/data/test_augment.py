from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import functional as pillow
from torchvision.transforms.v2 import functional as v2

from benchmarks.plain_augment import plain_augment
from dinoskip.data import augment as module
from dinoskip.data.augment import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREY,
    HUE,
    JITTER,
    MEAN,
    ORDER,
    ORDERS,
    PARAMETERS,
    SATURATION,
    SIGMA,
    SOLARISE,
    STD,
    augment,
    augment_together,
    blur_weights,
    rotate_hue,
    view_parameters,
)
from dinoskip.data.config import AugmentConfig
from tests.helpers.crops import crops, vectors

OFF = AugmentConfig(flip=0, jitter=0, grey=0, blur=(0, 0, 0), solarise=(0, 0, 0))


def to_bytes(normalised: torch.Tensor) -> np.ndarray:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return ((normalised * std + mean) * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def pictures(batch: torch.Tensor) -> list[Image.Image]:
    return [Image.fromarray(item.permute(1, 2, 0).numpy()) for item in batch]


def difference(ours: np.ndarray, theirs: list[Image.Image]) -> np.ndarray:
    return np.stack([np.abs(a.astype(int) - np.asarray(b).astype(int)) for a, b in zip(ours, theirs, strict=True)])


JITTERS = [
    (BRIGHTNESS, pillow.adjust_brightness, (0.6, 1.4)),
    (CONTRAST, pillow.adjust_contrast, (0.6, 1.4)),
    (SATURATION, pillow.adjust_saturation, (0.8, 1.2)),
    (HUE, pillow.adjust_hue, (-0.1, 0.1)),
]


@pytest.mark.parametrize(("column", "reference", "ends"), JITTERS, ids=["brightness", "contrast", "saturation", "hue"])
def test_each_jitter_is_pillows(column: int, reference: object, ends: tuple[float, float]) -> None:
    batch = crops()
    strengths = np.linspace(*ends, len(batch))
    parameters = vectors(len(batch), JITTER=1)
    parameters[:, column] = torch.from_numpy(strengths)
    theirs = [reference(image, float(s)) for image, s in zip(pictures(batch), strengths, strict=True)]  # type: ignore[operator]
    gap = difference(to_bytes(augment(batch, parameters)), theirs)
    if column == HUE:  # Pillow's hue has 8 bits, steps of 1.4 degrees
        assert gap.mean() < 1.2
        assert np.quantile(gap, 0.99) <= 5
        exact = [v2.adjust_hue(item, float(s)) for item, s in zip(batch / 255.0, strengths, strict=True)]
        ours = rotate_hue(batch / 255.0, torch.from_numpy(strengths).float())
        torch.testing.assert_close(ours, torch.stack(exact), atol=1e-5, rtol=0)
    else:
        assert gap.max() <= 2


@pytest.mark.parametrize("order", [0, 5, 11, 23])
def test_jitter_keeps_each_images_order(order: int) -> None:
    batch = crops(3) / 255.0
    values = {BRIGHTNESS: 1.35, CONTRAST: 0.65, SATURATION: 1.2, HUE: 0.08}
    parameters = vectors(3, JITTER=1)
    for column, value in values.items():
        parameters[:, column] = value
    parameters[1, ORDER] = order  # its neighbours have another
    expected = batch[1]
    functions = {BRIGHTNESS: v2.adjust_brightness, CONTRAST: v2.adjust_contrast, SATURATION: v2.adjust_saturation,
                 HUE: v2.adjust_hue}  # fmt: skip
    for operation in ORDERS[order] + BRIGHTNESS:
        expected = functions[operation](expected, values[operation])
    ours = module.jitter(batch.clone(), parameters.numpy())[1]
    torch.testing.assert_close(ours, expected, atol=2e-3, rtol=0)  # torchvision's luma weights have four digits


def test_flip_grey_and_solarise_are_pillows() -> None:
    batch = crops()
    same = to_bytes(augment(batch, vectors(6)))
    assert (same == batch.permute(0, 2, 3, 1).numpy()).all()
    flipped = to_bytes(augment(batch, vectors(6, FLIP=1)))
    assert (flipped == same[:, :, ::-1]).all()
    grey = difference(
        to_bytes(augment(batch, vectors(6, GREY=1))), [i.convert("L").convert("RGB") for i in pictures(batch)]
    )
    assert grey.max() <= 1
    inverted = difference(
        to_bytes(augment(batch, vectors(6, SOLARISE=1))), [ImageOps.solarize(i) for i in pictures(batch)]
    )
    assert inverted.max() == 0


@pytest.mark.parametrize("picture", ["photograph", "noise", "black and white"])
def test_blur_is_pillows_at_every_sigma_also_at_borders(picture: str) -> None:
    sigmas = np.linspace(0.1, 2, 39, dtype=np.float32)
    rng = np.random.default_rng(0)
    batch = {
        "photograph": crops(1, 64)[0].permute(1, 2, 0).numpy(),
        "noise": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8),
        "black and white": 255 * rng.integers(0, 2, (64, 64, 3), dtype=np.uint8),
    }[picture]
    parameters = vectors(len(sigmas))
    parameters[:, SIGMA] = torch.from_numpy(sigmas)
    ours = augment(torch.from_numpy(batch).permute(2, 0, 1).expand(len(sigmas), -1, -1, -1), parameters)
    moments = (torch.tensor(values).view(3, 1, 1) for values in (STD, MEAN))
    levels = (255 * (ours * next(moments) + next(moments))).permute(0, 2, 3, 1).numpy()
    pillows = [np.asarray(Image.fromarray(batch).filter(ImageFilter.GaussianBlur(float(s)))) for s in sigmas]
    assert np.abs(levels - np.stack(pillows)).max() < 3


def test_a_crop_smaller_than_the_filter_is_blurred_as_pillow_does() -> None:
    batch = crops(3, 8)
    ours = to_bytes(augment(batch, vectors(3, SIGMA=15)))
    theirs = [image.filter(ImageFilter.GaussianBlur(15)) for image in pictures(batch)]
    assert difference(ours, theirs).max() <= 3


def test_blur_keeps_means_and_has_the_gaussians_variance() -> None:
    flat = torch.full((1, 3, 16, 16), 77, dtype=torch.uint8)
    assert (to_bytes(augment(flat, vectors(1, SIGMA=2.0))) == 77).all()  # borders and weights
    for sigma in (0.3, 1.0, 1.41, 1.42, 2.0, 5.0, 20.0):
        weights = blur_weights(np.array([sigma]))[0].astype(np.float64)
        np.testing.assert_allclose(weights[0] + 2 * weights[1:].sum(), 1, rtol=1e-6)
        np.testing.assert_allclose(6 * (weights * np.arange(len(weights)) ** 2).sum(), sigma**2, rtol=1e-5)
    assert blur_weights(np.zeros(2)).tolist() == [[1, 0], [1, 0]]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(6)))
def test_every_image_is_a_function_of_its_own_crop_and_vector(seed: int, order: list[int]) -> None:
    batch = crops(6, 32)
    config = AugmentConfig(blur=(0.5, 0.5, 0.5), solarise=(0.5, 0.5, 0.5))
    parameters = torch.from_numpy(view_parameters(config, 2, seed, 0, np.arange(6))[:, 1])
    together = augment(batch, parameters)
    assert torch.isfinite(together).all()
    assert torch.equal(augment(batch[order], parameters[order]), together[order])
    alone = torch.cat([augment(batch[i : i + 1], parameters[i : i + 1]) for i in range(6)])
    assert torch.equal(alone, together)
    strided = batch.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(augment(strided, parameters), together)


STRONG = AugmentConfig(
    jitter=0.9, brightness=1, contrast=1, saturation=1, hue=0.5, grey=0.3, blur=(0.7, 0.7, 0.7), blur_sigma=(0.1, 5),
    solarise=(0.4, 0.4, 0.4),
)  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((8, 31, 48, 96)), st.sampled_from((AugmentConfig(), STRONG)))
def test_bits_are_those_of_all_operations_on_whole_batches(seed: int, size: int, config: AugmentConfig) -> None:
    parameters = torch.from_numpy(view_parameters(config, 3, seed, 0, np.arange(4)).reshape(12, PARAMETERS))
    rng = np.random.default_rng(seed)
    noise, flat, extreme = (torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in (
        (3, 3, size, size), (2, 3, 1, 1), (2, 3, size, size)
    ))  # fmt: skip
    batch = torch.cat([crops(5, size), noise, flat.expand(-1, -1, size, size), 255 * (extreme % 2)])
    expected = plain_augment(batch, parameters)
    assert torch.equal(augment(batch, parameters), expected)
    assert torch.equal(augment_together(batch, parameters.numpy()), expected)
    as_workers_give_them = batch.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(augment(as_workers_give_them, parameters), expected)


@pytest.mark.parametrize("pixels", [1, 3 * 32 * 32, 1 << 30])
def test_bits_do_not_depend_on_how_many_crops_are_done_at_a_time(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = crops(6, 32).repeat(4, 1, 1, 1)
    parameters = torch.from_numpy(view_parameters(STRONG, 1, 0, 0, np.arange(24))[:, 0])
    monkeypatch.setattr(module, "CPU_CHUNK_PIXELS", pixels)
    assert torch.equal(augment(batch, parameters), plain_augment(batch, parameters))


def test_turning_the_hue_happens_in_place() -> None:
    images = crops(2, 16) / 255.0
    before = images.clone()
    assert rotate_hue(images, torch.tensor([0.1, -0.2])) is images
    assert not torch.equal(images, before)


def test_input_is_left_as_it_was_and_lengths_must_agree() -> None:
    batch = crops(2, 32)
    copy = batch.clone()
    augment(batch, vectors(2, FLIP=1, JITTER=1, SIGMA=1))
    assert torch.equal(batch, copy)
    with pytest.raises(ValueError, match="2 crops but 3"):
        augment(batch, vectors(3))
    assert augment(torch.empty(0, 3, 8, 8, dtype=torch.uint8), vectors(0)).shape == (0, 3, 8, 8)


def test_drawn_parameters_have_dinos_frequencies() -> None:
    config = AugmentConfig()
    drawn = view_parameters(config, 4, 3, 0, np.arange(3000))
    assert drawn.shape == (3000, 4, PARAMETERS)
    share = (drawn > 0).mean(axis=0)
    expected = {
        FLIP: [0.5] * 4,
        JITTER: [0.8] * 4,
        GREY: [0.2] * 4,
        SIGMA: [1, 0.1, 0.5, 0.5],
        SOLARISE: [0, 0.2, 0, 0],
    }
    for column, values in expected.items():
        np.testing.assert_allclose(share[:, column], values, atol=0.035)
    flat = drawn.reshape(-1, PARAMETERS)
    for column, low, high in ((BRIGHTNESS, 0.6, 1.4), (CONTRAST, 0.6, 1.4), (SATURATION, 0.8, 1.2), (HUE, -0.1, 0.1)):
        assert low <= flat[:, column].min() < low + 0.01
        assert high >= flat[:, column].max() > high - 0.01
    assert set(np.unique(flat[:, ORDER])) == set(range(24))
    sigma = flat[flat[:, SIGMA] > 0, SIGMA]
    assert 0.1 <= sigma.min() < 0.15
    assert 1.95 < sigma.max() <= 2
    assert (view_parameters(config, 4, 3, 0, np.array([9, 4])) == drawn[[9, 4]]).all()
    assert (view_parameters(config, 4, 3, 1, np.array([9])) != drawn[9]).any()
    assert not view_parameters(OFF, 4, 3, 0, np.arange(9))[..., [FLIP, JITTER, GREY, SIGMA, SOLARISE]].any()


@pytest.mark.gpu
def test_gpu_gives_the_same_and_never_waits() -> None:
    batch = crops(6, 64)
    parameters = torch.from_numpy(view_parameters(AugmentConfig(), 2, 0, 0, np.arange(6))[:, 0])
    expected = augment(batch, parameters)
    there = batch.cuda()
    augment(there, parameters)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = augment(there, parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(ours.cpu(), expected, atol=2e-3, rtol=0)
