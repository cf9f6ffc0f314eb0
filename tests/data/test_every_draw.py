"""Every augmentation that ships, drawn thousands of times: it raises nothing, and gives finite pixels of its shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dinoskip.data.classification import ClassTransform
from dinoskip.data.config import ClassAugmentConfig
from dinoskip.data.multicrop import WorkerCrops
from dinoskip.data.view_targets import WithTargets
from dinoskip.training.objectives import OBJECTIVES
from eval.probe import crops as probe
from eval.probe.config import PROTOCOLS, ProbeConfig
from tests.helpers.tiny import REQUIRED

SIZE, BATCH = 32, 50
SMALL = {"dino": "crops", "ibot": "crops", "mae": "crop_size", "patch_contrast": "crop_size",
         "distill": "crop_size"}  # fmt: skip


def picture(number: int) -> np.ndarray:
    """A picture uint8 (H, W, 3): noise of some size and contrast, every fifth black, white, grey or of one colour."""
    rng = np.random.default_rng(number)
    shape = (*rng.integers(SIZE // 2, 2 * SIZE, 2), 3)
    if number % 5:
        return np.clip(rng.normal(rng.integers(256), rng.integers(1, 120), shape), 0, 255).astype(np.uint8)
    colour = [np.zeros(3), np.full(3, 255), np.full(3, rng.integers(256)), rng.integers(0, 256, 3)][number // 5 % 4]
    return np.broadcast_to(colour, shape).astype(np.uint8)


def of_training(transform: Any) -> Callable[[np.ndarray], None]:
    def check(indices: np.ndarray) -> None:
        views = transform.views(transform.collate(0, indices, lambda index: (index, picture(index))), "cpu")
        assert all(len(view) % len(indices) == 0 for view in views[:1])
        assert all(view.isfinite().all() for view in views)

    return check


def of_pretraining(name: str) -> Callable[[np.ndarray], None]:
    small = {"crops": {"global_size": SIZE, "local_size": SIZE // 2}, "crop_size": SIZE}
    config = OBJECTIVES[name].model_validate(
        {"objective": name, SMALL[name]: small[SMALL[name]], **REQUIRED.get(name, {})}
    )
    transform, targets = WorkerCrops(*config.views(), 0, compiled=False), config.targets(0, 8)
    return of_training(transform if targets is None else WithTargets(transform, targets))


def of_probe(recipe: ProbeConfig) -> Callable[[np.ndarray], None]:
    recipe = recipe.model_copy(update={"size": SIZE})

    def check(indices: np.ndarray) -> None:
        for index in indices.tolist():
            rng, image = np.random.default_rng(index), torch.from_numpy(picture(index)).permute(2, 0, 1)
            label = rng.integers(0, 4, image.shape[1:]).astype(np.uint8)
            crop, of_crop = probe.augmented(image, label, recipe, rng)
            assert crop.dtype == torch.uint8
            assert of_crop.shape == (recipe.size, recipe.size)

    return check


LABELS = np.zeros(1 << 15, dtype=np.int64)
AUGMENTATIONS: dict[str, Callable[[np.ndarray], None]] = {
    **{name: of_pretraining(name) for name in OBJECTIVES},
    "supervise": of_training(ClassTransform(ClassAugmentConfig(size=SIZE), LABELS, 3, 0)),
    **{f"probe {name}": of_probe(ProbeConfig(protocol=name)) for name in PROTOCOLS},
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_four_hundred_draws(name: str) -> None:
    for start in range(0, 400, BATCH):
        AUGMENTATIONS[name](np.arange(start, start + BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_twenty_thousand_draws(name: str) -> None:
    for start in range(0, 20_000, BATCH):
        AUGMENTATIONS[name](np.arange(start, start + BATCH))
