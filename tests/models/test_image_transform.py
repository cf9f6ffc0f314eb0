"""One picture, by a transform and by the path that feeds every evaluation."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.errors import ConfigError
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.io.images import read_image
from dinoskip.models import Backbone, create_model


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone(create_model("vit_tiny_patch16", depth=1, img_size=32), "x", mean=(0.5, 0.4, 0.3), std=(0.2,) * 3)


def picture(path: Path, mode: str) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (61, 90, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    image = Image.fromarray(pixels).convert(mode)
    image.save(path, **({"exif": exif} if path.suffix == ".jpg" else {}))
    return path


@pytest.mark.parametrize("mode", ["square", "center_crop"])
@pytest.mark.parametrize(("name", "colours"), [("a.png", "RGB"), ("b.png", "P"), ("c.png", "LA"), ("d.jpg", "RGB")])
def test_is_what_evaluation_feeds(tmp_path: Path, backbone: Backbone, mode: str, name: str, colours: str) -> None:
    path = picture(tmp_path / name, colours)
    sized = load_pixels(Transform(mode=mode, size=48), path, backbone.patch_size)
    expected = Normalise(backbone.mean, backbone.std, torch.device("cpu"), torch.float32)([sized], 48, 48)[0]
    transform = pickle.loads(pickle.dumps(backbone.transform(48, mode)))
    with Image.open(path) as image:
        assert torch.equal(transform(image), expected)
    pixels = read_image(path)
    assert torch.equal(transform(pixels), expected)
    before = pixels.copy()
    assert torch.equal(transform(torch.from_numpy(pixels).permute(2, 0, 1)), expected)
    pixels.flags.writeable = False
    assert torch.equal(transform(pixels), expected)
    assert np.array_equal(pixels, before)
    assert backbone.layers(expected[None], [1])[1].grid == (3, 3)


def test_what_it_refuses(backbone: Backbone) -> None:
    with pytest.raises(ConfigError, match="size 50 is not a multiple of the patch size 16"):
        backbone.transform(50)
    for wrong in (torch.zeros(3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8), np.zeros((8, 8), np.uint8)):
        with pytest.raises(ValueError, match="neither a uint8 array"):
            backbone.transform()(wrong)
