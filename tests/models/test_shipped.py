"""The two networks that ship: they open without a download, match their manifest, and are what their cards say."""

import pytest
import torch

from dinoskip.errors import ConfigError
from dinoskip.io.files import MANIFEST, verify_manifest
from dinoskip.models import load_backbone
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.settings.networks import known_network
from dinoskip.settings.shipped import FOLDER, PAIR, SHIPPED
from dinoskip.settings.specs import declared_weights, split_spec

MOST_BYTES = 12_000_000


def test_files_are_those_of_the_manifest_and_small() -> None:
    assert verify_manifest(FOLDER) == []
    files = {path.name for path in FOLDER.iterdir()}
    assert files == {MANIFEST, *(f"{name}.{kind}" for name in SHIPPED for kind in ("safetensors", "md"))}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


@pytest.mark.parametrize("name", SHIPPED)
def test_it_opens_and_its_features_have_not_collapsed(name: str) -> None:
    network = SHIPPED[name]
    config, info, header = declared_weights(network.weights)
    assert set(header.dtypes.values()) == {"F16"}
    assert config.skip is (name == "skip")
    assert info["epoch"] == info["epochs"] == 6
    backbone = load_backbone(network.spec)
    assert (backbone.depth, backbone.dim, backbone.patch_size) == (12, 128, 8)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    last = backbone.layers(images, [12], norm="final")[12].tokens
    assert last.dtype == torch.float32
    assert token_cosine(last) < 0.99


def test_specs_are_those_of_weights_files() -> None:
    assert PAIR == ("dinoskip:skip", "dinoskip:skipless")
    kind, place, options = split_spec("dinoskip:skip,mean=0.5")
    assert (kind, place, options) == ("weights", str(SHIPPED["skip"].weights), {"mean": 0.5})
    shape = known_network("dinoskip:skipless")
    assert shape is not None
    assert (shape.width, shape.patch, shape.depth) == (128, 8, 12)
    with pytest.raises(ConfigError, match="did you mean skipless"):
        split_spec("dinoskip:skiples")


@pytest.mark.parametrize("name", SHIPPED)
def test_its_card_says_recipe_data_licence_and_scores(name: str) -> None:
    text = SHIPPED[name].card.read_text(encoding="utf-8")
    for part in ("How it was trained", "Differences from", "Imagenette", "Apache-2.0", "mIoU", "CorLoc"):
        assert part in text
    assert "nan" not in text
