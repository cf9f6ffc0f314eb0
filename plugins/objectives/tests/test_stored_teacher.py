"""Distillation from stored features: where a crop's are cut, the same run with and without workers, wrong stores."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.data.sets import open_training_images
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import export
from dinoskip.features.transform import Transform
from dinoskip.io.files import load_tensors, read_manifest
from dinoskip.models.load import load_backbone
from dinoskip.training import pretrain
from dinoskip_objectives.distill_config import TeacherConfig
from dinoskip_objectives.stored_teacher import StoredCrops, open_store
from tests.helpers.tiny import make_images, objective_job

TEACHER = "timm:vit_tiny_patch16_224,pretrained=false,img_size=32,depth=2"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "images", 16)


@pytest.fixture(scope="module")
def store(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(images, tmp_path_factory.mktemp("store") / "store")


def training_images(root: Path) -> Any:
    return open_training_images(ImagesConfig(root=str(root)))


def stored(root: Path, out: Path, **more: Any) -> Path:
    transform = Transform(size=64) if "transform" not in more else more.pop("transform")
    export(load_backbone(TEACHER), training_images(root), out, [1, 2], dtype="float32", transform=transform, **more)
    return out


@given(
    sides=st.tuples(st.integers(40, 90), st.integers(40, 90)), shares=st.tuples(*[st.floats(0.3, 0.6)] * 2),
    places=st.tuples(*[st.floats(0.3, 0.7)] * 2), flip=st.booleans(), grid=st.integers(1, 7),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_cell_of_a_crop_has_the_features_of_its_place_in_the_image(
    sides: tuple[int, int], shares: tuple[float, float], places: tuple[float, float], flip: bool, grid: int
) -> None:
    """Of a map whose features are each token's own height and width, a cell has those of its centre."""
    rows, columns = 12, 10
    down, right = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
    whole = np.stack([down, right], axis=-1).reshape(-1, 2).astype(np.float32)
    ramp = SimpleNamespace(
        depth=1, tokens=lambda block, i: whole, grid=lambda i: (rows, columns), manifest={"image_sizes": [sides]}
    )
    lengths = [max(1, int(share * side)) for share, side in zip(shares, sides, strict=True)]
    first = [int(place * (side - length)) for place, side, length in zip(places, sides, lengths, strict=True)]
    crops = StoredCrops((TeacherConfig(store=Path("ramp"), cls=None),), grid)
    crops.__dict__["stores"] = [ramp]
    (found,) = crops(0, np.array([0]), np.array([[[*first, *lengths]]]), np.array([[flip]]))
    centres = [
        (begin + (np.arange(grid) + 0.5) / grid * length) / side
        for begin, length, side in zip(first, lengths, sides, strict=True)
    ]
    if flip:
        centres[1] = centres[1][::-1]
    wanted = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    inside = (wanted > [1 / rows, 1 / columns]).all(1) & (wanted < [1 - 1 / rows, 1 - 1 / columns]).all(1)
    spread = np.array(lengths) / np.array(sides) / grid / 2  # where half a cell reaches beyond the outermost centres
    inside &= (wanted - spread > [0.5 / rows, 0.5 / columns]).all(1)
    inside &= (wanted + spread < [1 - 0.5 / rows, 1 - 0.5 / columns]).all(1)
    np.testing.assert_allclose(found[0].numpy()[inside], wanted[inside], atol=1e-5)


def test_a_run_from_a_store_is_the_same_with_workers_and_names_it(images: Path, store: Path, tmp_path: Path) -> None:
    job = objective_job("distill", teachers=[{"store": str(store), "standardise": "phi_s", "blocks": [-1, 0]}])
    ends = [
        load_tensors(
            pretrain(job, training_images(images), tmp_path / str(n), device="cpu", workers=n) / "student.safetensors"
        )
        for n in (0, 1)
    ]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    recorded = [path for path in (tmp_path / "0").rglob("*.json") if str(store) in path.read_text()]
    assert any(read_manifest(store).hash in path.read_text() for path in recorded)
    rows = [json.loads(line) for line in (tmp_path / "0" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0]


def test_the_whole_image_as_its_crop_has_its_own_features(store: Path) -> None:
    """With the store's own grid nothing is resampled: a crop of the whole image has the stored tokens."""
    opened = open_store(TeacherConfig(store=store))
    sides = opened.manifest["image_sizes"][3]
    patches, cls = StoredCrops((TeacherConfig(store=store),), 4)(
        0, np.array([3]), np.array([[[0, 0, *sides]]]), np.array([[False]])
    )
    np.testing.assert_allclose(patches[0].numpy(), opened.tokens(2, 3), atol=1e-5)
    every = opened.cls(2)
    assert every is not None
    np.testing.assert_array_equal(cls[0].numpy(), every[3])


@pytest.mark.parametrize(
    ("teacher", "said"),
    [
        ({"store": "STORE", "backbone": TEACHER}, "one of the two is needed"),
        ({}, "one of the two is needed"),
        ({"store": "STORE", "size": 32}, "size: a store holds what it holds"),
        ({"store": "STORE", "norm": "none"}, "norm final, settings say none"),
        ({"store": "STORE", "blocks": [3]}, r"blocks \[3\] must be within the 2"),
        ({"store": "nowhere"}, "nowhere"),
    ],
)
def test_settings_that_a_store_cannot_serve_are_said(
    teacher: dict[str, Any], said: str, images: Path, store: Path, tmp_path: Path
) -> None:
    given = {name: str(store) if value == "STORE" else value for name, value in teacher.items()}
    with pytest.raises((ConfigError, DataError, ValueError), match=said):
        pretrain(objective_job("distill", teachers=[given]), training_images(images), tmp_path / "run", device="cpu")


def test_a_store_of_other_images_or_of_parts_of_images_is_refused(images: Path, store: Path, tmp_path: Path) -> None:
    job = objective_job("distill", teachers=[{"store": str(store)}])
    other = training_images(make_images(tmp_path / "other", 12))
    with pytest.raises(DataError, match="features of 16 images, which are not the 12 training images"):
        pretrain(job, other, tmp_path / "run", device="cpu")
    centre = stored(images, tmp_path / "centre", transform=Transform(mode="center_crop", size=64))
    with pytest.raises(ConfigError, match="images are center_crop"):
        open_store(TeacherConfig(store=centre))
    patches = stored(images, tmp_path / "patches", cls=False)
    with pytest.raises(ConfigError, match="no CLS token"):
        open_store(TeacherConfig(store=patches))
