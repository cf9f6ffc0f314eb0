"""Augmentation, mixing and validation images of the classifier, against timm's own."""

from __future__ import annotations

import contextlib
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.data.mixup
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data.auto_augment import RandAugment
from timm.data.random_erasing import RandomErasing

from dinoskip.data import LabelledFolder
from dinoskip.data.classification import (
    ClassLoader,
    ClassTransform,
    draw_erased,
    draw_mix,
    drawing_from,
    mix,
    normalise,
    soft_targets,
    transform_of,
    validation_batches,
)
from dinoskip.data.config import ClassAugmentConfig
from dinoskip.data.loader import BatchSplit
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.resize import centre_crop
from tests.helpers.labelled import make_classes

SIZE = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> LabelledFolder:
    return LabelledFolder.open(make_classes(tmp_path_factory.mktemp("data") / "train", 6))


def loader(folder: LabelledFolder, workers: int = 0, seed: int = 3, **cut: int) -> ClassLoader:
    config = ClassAugmentConfig(size=SIZE, erase=0.6)
    return ClassLoader(folder, config, BatchSplit(12, **cut), seed=seed, workers=workers)


def epoch_views(one: ClassLoader, epoch: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [one.views(batch) for batch in one.epoch(epoch, start_step=start)]
    one.close()
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


# --- what is drawn -------------------------------------------------------------------------------------


class _Numpy:
    """NumPy as timm's Mixup sees it, its global generator replaced by a given one."""

    def __init__(self, rng: np.random.Generator, both: bool) -> None:
        chances = iter([0.0])  # timm first asks whether to mix at all; we always do
        self.random = self
        self.rand = lambda: next(chances, None) if not both else self._next(chances, rng)
        self.beta = rng.beta
        self.randint = lambda low, high, size=None: int(rng.integers(low, high))

    @staticmethod
    def _next(chances: Any, rng: np.random.Generator) -> float:
        found = next(chances, None)
        return float(rng.random()) if found is None else found

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 1.0), (0.8, 0.0), (0.0, 1.0)])
def test_a_pair_is_mixed_as_by_timm_with_the_same_draws(
    mixup: float, cutmix: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClassAugmentConfig(size=SIZE, mixup=mixup, cutmix=cutmix)
    theirs = timm.data.mixup.Mixup(mixup, cutmix, label_smoothing=0.1, num_classes=7)
    kinds = set()
    for seed in range(40):
        images, labels = torch.randn(2, 3, SIZE, SIZE), torch.randint(7, (2,))
        share, box = draw_mix(config, np.random.default_rng(seed))
        kinds.add(any(box))
        shares, boxes = torch.tensor([share, share]), torch.tensor([box, box])
        mixed, targets = mix(images, shares, boxes), soft_targets(labels, 7, 0.1, shares)
        with monkeypatch.context() as patch:
            patch.setattr(timm.data.mixup, "np", _Numpy(np.random.default_rng(seed), bool(mixup and cutmix)))
            expected, wanted = theirs(images.clone(), labels)
        torch.testing.assert_close(mixed, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(targets, wanted, rtol=1e-6, atol=1e-7)
    assert kinds == {True, False} if mixup and cutmix else len(kinds) == 1


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_erased_rectangles_are_timms(seed: int) -> None:
    images = torch.full((3, SIZE, SIZE), torch.nan)
    random.seed(seed)
    found = RandomErasing(0.5, mode="pixel", device="cpu")(images).isfinite()
    top, left, height, width = draw_erased(SIZE, 0.5, random.Random(seed))
    expected = torch.zeros(3, SIZE, SIZE, dtype=torch.bool)
    expected[:, top : top + height, left : left + width] = True
    assert torch.equal(found, expected)


def test_posterising_to_no_bits_is_black_as_pillow_before_13_had_it() -> None:
    config = ClassAugmentConfig(size=SIZE, rand_magnitude=10, rand_std=0)  # always 0 bits
    (chosen,) = [step for step in transform_of(config).transforms if isinstance(step, RandAugment)]
    (posterise,) = [operation for operation in chosen.ops if operation.name == "PosterizeIncreasing"]
    posterise.prob = 1.0
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(posterise(image)), np.zeros((7, 9, 3)))
    posterise.magnitude = 6  # two bits
    assert np.array_equal(np.asarray(posterise(image)), np.asarray(image) & 0b11000000)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_whose_augmentation_fails_is_named(
    folder: LabelledFolder, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ClassTransform, epoch: int, indices: np.ndarray, read: Any) -> Any:
        read(int(indices[0]))
        raise ValueError("bits must be between 1 and 8\nand more")

    monkeypatch.setattr(ClassTransform, "collate", fails)
    broken = loader(folder, workers=workers)
    first = folder.where(int(broken.indices(0, 0)[0]))
    with pytest.raises(DataError) as raised:
        next(broken.epoch(0))
    broken.close()
    assert str(raised.value) == f"{first}: its augmentation failed: ValueError: bits must be between 1 and 8"


def test_mixing_keeps_pairs_apart_and_targets_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    draws = [draw_mix(ClassAugmentConfig(size=SIZE), rng) for _ in range(5)]
    share = torch.tensor([one for one, _ in draws]).repeat_interleave(2)
    boxes = torch.tensor([box for _, box in draws]).repeat_interleave(2, 0)
    images, labels = torch.randn(10, 3, SIZE, SIZE), torch.arange(10)
    whole, targets = mix(images, share, boxes), soft_targets(labels, 10, 0.0, share)
    for start in range(0, 10, 2):
        pair = slice(start, start + 2)
        assert torch.equal(whole[pair], mix(images[pair], share[pair], boxes[pair]))
        assert set(targets[start].nonzero().flatten().tolist()) <= {start, start + 1}
    torch.testing.assert_close(targets.sum(1), torch.ones(10))
    kept = (whole - images).abs().flatten(1).amax(1) == 0
    assert not kept.all()


def test_nothing_is_mixed_or_erased_unless_asked(folder: LabelledFolder) -> None:
    config = ClassAugmentConfig(size=SIZE, mixup=0, cutmix=0, erase=0, rand_magnitude=0, label_smoothing=0, flip=0)
    transform = ClassTransform(config, folder.labels, 3, seed=0)
    data = transform.collate(0, np.arange(3), lambda index: (index, folder.read(index)))
    images, targets = transform.views(data, torch.device("cpu"))
    assert torch.equal(images, normalise(data["images"]))
    assert torch.equal(targets.argmax(1), torch.from_numpy(folder.labels[:3]))
    assert targets.max() == 1


def test_global_generators_are_left_as_they_were() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    with drawing_from(5):
        first = drawn()
    with contextlib.suppress(KeyError), drawing_from(5):
        assert drawn() == first
        {}["an error inside"]
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


# --- training batches ----------------------------------------------------------------------------------


def test_views_depend_on_seed_epoch_and_image_alone(folder: LabelledFolder) -> None:
    images, targets = epoch_views(loader(folder), 1)
    torch.manual_seed(99)
    random.seed(99)
    for again in (
        epoch_views(loader(folder), 1),
        epoch_views(loader(folder, accumulate=3), 1),
        epoch_views(loader(folder, workers=2), 1),
    ):
        assert torch.equal(again[0], images)
        assert torch.equal(again[1], targets)
    ranks = [epoch_views(loader(folder, rank=rank, world_size=2), 1)[0] for rank in range(2)]
    assert torch.equal(torch.cat([ranks[0][:6], ranks[1][:6]]), images[:12])
    assert not torch.equal(epoch_views(loader(folder), 2)[0][:12], images[:12])
    assert not torch.equal(epoch_views(loader(folder, seed=4), 1)[0], images)


def test_the_transform_hands_over_bytes_and_travels_to_workers(folder: LabelledFolder) -> None:
    config = ClassAugmentConfig(size=SIZE, erase=1)
    transform = pickle.loads(pickle.dumps(ClassTransform(config, folder.labels, 3, seed=1)))
    data = transform.collate(0, np.arange(4), lambda index: (index, folder.read(index)))
    assert data["images"].dtype == torch.uint8
    assert data["images"].shape == (4, 3, SIZE, SIZE)
    assert len(data["noise"]) == 3 * int((data["holes"][:, 2] * data["holes"][:, 3]).sum()) > 0
    images, targets = transform.views(data, torch.device("cpu"))
    assert images.dtype == torch.float32
    assert targets.shape == (4, 3)


def test_erasing_fills_the_rectangle_with_its_noise(folder: LabelledFolder) -> None:
    config = ClassAugmentConfig(size=SIZE, erase=1, mixup=0, cutmix=0)
    transform = ClassTransform(config, folder.labels, 3, seed=1)
    data = transform.collate(0, np.arange(4), lambda index: (index, folder.read(index)))
    images, start = transform.views(data, torch.device("cpu"))[0], 0
    for image, plain, (top, left, height, width) in zip(
        images, normalise(data["images"]), data["holes"].tolist(), strict=True
    ):
        inside = torch.zeros(SIZE, SIZE, dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        count = 3 * height * width
        assert torch.equal(image[:, inside].flatten(), data["noise"][start : start + count])
        assert torch.equal(image[:, ~inside], plain[:, ~inside])
        start += count


def test_a_substitute_brings_its_own_label(tmp_path: Path) -> None:
    root = make_classes(tmp_path / "train", 60)
    for path in sorted((root / "blue").iterdir())[1:]:
        path.unlink()
    (root / "blue" / "00.png").write_bytes(b"no image")  # the only one of its class
    opened = LabelledFolder.open(root)
    config = ClassAugmentConfig(size=SIZE, mixup=0, cutmix=0, label_smoothing=0)
    one = ClassLoader(opened, config, BatchSplit(len(opened)), seed=0)
    found = {int(i): int(t) for b in one.epoch(0) for i, t in zip(b.ids, one.views(b)[1].argmax(1), strict=True)}
    assert list(one.bad) == ["blue/00.png"]
    assert [i for i, label in found.items() if label != opened.labels[i]] == [0]


def test_photographs_and_their_labels_are_no_classes(tmp_path: Path) -> None:
    root = make_classes(tmp_path / "train", 2, classes=("blue", "red"))
    (root / "blue").rename(root / "images")
    assert LabelledFolder.open(root).class_names == ("images", "red")
    (root / "red").rename(root / "masks")
    with pytest.raises(DataError, match="images and masks"):
        LabelledFolder.open(root)


def test_bad_settings_are_refused() -> None:
    for wrong in ({"scale": (0.5, 0.2)}, {"erase": 1.5}, {"rand_magnitude": 11}, {"label_smoothing": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ClassAugmentConfig.model_validate(wrong)


# --- validation ----------------------------------------------------------------------------------------


def test_the_centre_crop_is_torchvisions(folder: LabelledFolder) -> None:
    from torchvision.transforms.v2 import functional as F

    for height, width in ((300, 400), (37, 90), (256, 256), (20, 16)):
        image = torch.randint(256, (3, height, width), dtype=torch.uint8)
        resized = F.resize(image, [256], F.InterpolationMode.BICUBIC, antialias=True)
        found, expected = centre_crop(image, 224), F.center_crop(resized, [224, 224])
        assert found.shape == (3, 224, 224)
        assert torch.equal(found, expected), (height, width)


@pytest.mark.parametrize("batch", [1, 4, 17, 18, 40])
def test_validation_images_come_in_order_each_once(folder: LabelledFolder, batch: int) -> None:
    indices = list(range(17, -1, -1))
    found = list(validation_batches(folder, indices, SIZE, batch, workers=2))
    assert [len(images) for images, _ in found] == [len(indices[i : i + batch]) for i in range(0, 18, batch)]
    assert torch.cat([labels for _, labels in found]).tolist() == folder.labels[indices].tolist()
    expected = centre_crop(torch.from_numpy(folder.read(17)).permute(2, 0, 1), SIZE)
    assert torch.equal(found[0][0][0], expected)
    assert list(validation_batches(folder, [], SIZE, 4)) == []


def test_an_unreadable_validation_image_is_an_error(tmp_path: Path) -> None:
    root = make_classes(tmp_path / "val", 2)
    opened = LabelledFolder.open(root)
    opened.path(3).write_bytes(b"no image")
    with pytest.raises(DataError, match=opened.path(3).name):
        list(validation_batches(opened, range(6), SIZE, 2))


def test_a_batch_that_cannot_be_shared_is_refused(folder: LabelledFolder) -> None:
    with pytest.raises(ConfigError, match="cannot be shared"):
        loader(folder, world_size=5)
