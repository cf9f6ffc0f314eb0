"""Maps of clusters, objects and saliency in the gallery's page."""

from __future__ import annotations

import dataclasses

import numpy as np
from PIL import Image

from tests.helpers.html import Page
from tests.visualize.conftest import make_scene
from tests.visualize.gallery.test_page import pictures_named
from visualize.gallery import build_gallery

__all__ = ["make_scene"]


def test_maps_of_clusters_and_objects_are_layers_of_their_own(make_scene, tmp_path):
    scene, out = make_scene(), tmp_path / "gallery"
    ids, values = [image.id for image in scene.images], np.array([[0, 1, 255], [2, 0, 1]], np.uint8)
    maps = {"cluster": {2: dict.fromkeys(ids, values)}, "objects": {2: dict.fromkeys(ids, values % 3)}}
    maps["saliency"] = {1: {ids[0]: values > 0}}
    models = [dataclasses.replace(scene.models[0], maps=maps), scene.models[1]]
    build_gallery(models, scene.images, out, classes=scene.classes)
    page = Page(out / "index.html")
    data = page.json()
    assert {path.name for path in (out / "img").iterdir()} == pictures_named(data)
    assert [one["name"] for one in data["layers"] if one["key"] in maps] == ["Clusters", "Saliency", "MaskCut"]
    assert data["cells"][0][0]["layers"]["cluster"] == {"size": [3, 2], "blocks": [2]}
    assert "saliency" not in data["cells"][0][1]["layers"]
    assert not maps.keys() & data["cells"][1][0]["layers"].keys()
    with Image.open(out / "img/cluster-m0-i000.png") as sheet:
        np.testing.assert_array_equal(np.asarray(sheet.convert("RGB"))[0, 1], scene.classes.palette[1])
    with Image.open(out / "img/objects-m0-i000.png") as sheet:
        alpha = np.asarray(sheet.convert("RGBA"))[..., 3]
    assert alpha[0, 0] == alpha[1, 1] > 0  # no object: veiled
    assert 0 < alpha[0, 1] < 255
    assert {"cluster", "saliency", "objects"} <= set(page.values("data-for"))
