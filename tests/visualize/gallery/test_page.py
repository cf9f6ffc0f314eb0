"""The files that build_gallery writes; tests/visualize/gallery/test_browser.py drives the page itself."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.errors import ConfigError, DataError
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.models import Backbone
from tests.helpers.html import Page
from visualize import colours
from visualize.colours import pca_views
from visualize.foreground import count_outliers
from visualize.gallery import Discovery, GalleryConfig, GalleryImage, GalleryModel, build_gallery
from visualize.gallery.layers import foreground
from visualize.gallery.layers.layer import Cell
from visualize.gallery.layers.vector import STRIPE
from visualize.palette import variant_colour
from visualize.report.diagnostics import outliers_said, outliers_table


def pictures_named(data: Any) -> set[str]:
    """Every picture that the page or its script can ask for."""
    names = {f"photo-{row:03d}.jpg" for row in range(len(data["images"]))}
    names |= {f"label-{row:03d}.png" for row, image in enumerate(data["images"]) if image["label"]}
    for column, cells in enumerate(data["cells"]):
        for row, cell in enumerate(cells):
            names |= {f"{layer}-m{column}-i{row:03d}.png" for layer in cell["layers"]}
    return names


def test_every_picture_exists_and_none_is_left_over(make_scene, tmp_path):
    scene, out = make_scene(), tmp_path / "gallery"
    build_gallery(scene.models, scene.images, out, classes=scene.classes)
    page = Page(out / "index.html")
    data, named = page.json(), pictures_named(page.json())
    assert {path.name for path in (out / "img").iterdir()} == named
    drawn = [layer for layer in data["layers"] if layer["key"] not in ("photo", "similarity")]
    assert len(named) == 3 * 2 + 2 * 3 * len(drawn)  # photo and label; models x images x layers, blocks in one sheet
    assert page.values("src") == [f"img/photo-{row:03d}.jpg" for row in range(3)]
    for column, row in np.ndindex(2, 3):
        for layer, entry in data["cells"][column][row]["layers"].items():
            width, height = entry["size"]
            parts = max(entry.get("parts", [0])) + 1
            with Image.open(out / f"img/{layer}-m{column}-i{row:03d}.png") as sheet:
                assert sheet.size == (width * parts, height * len(entry["blocks"]))
    assert sum(path.stat().st_size for path in out.rglob("*")) < 400_000
    assert all("alt" in tag for name, tag in page.tags if name == "img")


def test_a_single_file_holds_the_same_pictures_and_needs_nothing_else(make_scene, tmp_path):
    scene = make_scene()
    for name, single in (("many", False), ("one", True)):
        build_gallery(
            scene.models, scene.images, tmp_path / name, GalleryConfig(single_file=single), classes=scene.classes
        )
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["index.html"]
    page = Page(tmp_path / "one/index.html")
    inside = page.json("files")
    photos = dict(
        zip(sorted(path.name for path in (tmp_path / "many/img").glob("photo*")), page.values("src"), strict=True)
    )
    for path in (tmp_path / "many/img").iterdir():
        text = photos[path.name].removeprefix("data:image/jpeg;base64,") if path.name in photos else inside[path.name]
        assert base64.b64decode(text) == path.read_bytes()
    assert len(inside) == len(list((tmp_path / "many/img").iterdir())) - 3


def test_sheets_hold_the_maps_of_their_block_and_part(make_scene, tmp_path):
    scene = make_scene()
    build_gallery(scene.models, scene.images, tmp_path / "g", classes=scene.classes)
    data = Page(tmp_path / "g/index.html").json()
    for column, row in np.ndindex(2, 3):
        model, image = scene.models[column], scene.images[row]
        entries = data["cells"][column][row]["layers"]
        with Image.open(tmp_path / f"g/img/probe-m{column}-i{row:03d}.png") as opened:
            sheet, palette = np.array(opened), np.array(opened.getpalette()).reshape(-1, 3)
        np.testing.assert_array_equal(palette[:4], scene.classes.palette[:4])
        with Image.open(tmp_path / f"g/img/cut-m{column}-i{row:03d}.png") as opened:
            veil = np.array(opened.convert("RGBA"))[..., 3]
        for at, block in enumerate((1, 2, 3)):
            width, height = entries["probe"]["size"]
            predicted = model.predictions[block][image.id]
            np.testing.assert_array_equal(sheet[at * height : (at + 1) * height, :width], predicted)
            width, height = entries["cut"]["size"]
            found = model.discoveries[block][image.id]
            np.testing.assert_array_equal(veil[at * height : (at + 1) * height] == 0, found.mask)
            assert entries["cut"]["boxes"][str(block)] == list(found.box)
            peak = 100 * model.attention[block][image.id][1].max()
            assert entries["attention"]["peaks"][str(block)][2] == pytest.approx(peak, abs=0.051)
    assert [entry["parts"] for entry in (column[0]["layers"]["pca"] for column in data["cells"])] == [
        [0, 1, 2],
        [0, 1, 2],
    ]


def test_scores_are_those_of_the_picture(make_scene, tmp_path):
    scene = make_scene()
    scene.models[0].predictions[1][scene.images[0].id] = scene.images[0].label.copy()
    build_gallery(scene.models, scene.images, tmp_path / "g", classes=scene.classes)
    scores = Page(tmp_path / "g/index.html").json()["cells"][0][0]["scores"]
    assert scores["miou"]["1"] == scores["right"]["1"] == 100
    assert scores["iou"]["2"] == 0.712  # 32..112 x 16..80 against 30..120 x 20..70
    assert set(scores) == {"miou", "right", "iou", "foreground", "outliers", "cosine"}


def test_page_refers_to_nothing_outside_itself(make_scene, tmp_path):
    scene = make_scene()
    build_gallery(scene.models, scene.images, tmp_path / "g", classes=scene.classes)
    page = Page(tmp_path / "g/index.html")
    assert not [value for name in ("src", "href", "action", "srcset") for value in page.values(name) if ":" in value]
    text = (tmp_path / "g/index.html").read_text()
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    policy = next(tag["content"] for _, tag in page.tags if tag.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_text_becomes_neither_markup_nor_file_name(make_scene, tmp_path, hostile):
    plain, scene = make_scene(), make_scene(names=(hostile, "b"), ids=(hostile, "../../up", "a\nb"))
    build_gallery(plain.models, plain.images, tmp_path / "plain", title="t", classes=plain.classes)
    build_gallery(scene.models, scene.images, tmp_path / "hostile", title=hostile, classes=scene.classes)
    page, reference = Page(tmp_path / "hostile/index.html"), Page(tmp_path / "plain/index.html")
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in reference.tags]
    assert not [name for name in {name for _, tag in page.tags for name in tag} if name.startswith("on")]
    text = (tmp_path / "hostile/index.html").read_text()
    assert "\u202e" not in text
    assert "\u2066" not in text
    assert len(text) < len((tmp_path / "plain/index.html").read_text()) + 40_000  # 10 kB names are cut
    assert page.json()["images"][0]["id"].startswith('"><script>alert(1)')
    names = {path.name for path in (tmp_path / "hostile/img").iterdir()}
    assert names == {path.name for path in (tmp_path / "plain/img").iterdir()}
    assert not (tmp_path / "up").exists()


def test_output_is_the_same_bytes_each_time(make_scene, tmp_path):
    scene = make_scene()
    for name in "ab":
        build_gallery(scene.models, scene.images, tmp_path / name, classes=scene.classes)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_epochs_and_seeds_of_a_network_have_its_colour_and_earlier_epochs_are_thin(make_scene, tmp_path):
    scene = make_scene()
    names = ["skip-s0 ep0", "skip-s0 ep30", "skip-s1 ep0", "skip-s1 ep30", "calibrated-s0 ep0", "calibrated-s0 ep30"]
    models = [dataclasses.replace(scene.models[0], name=name) for name in names]
    build_gallery(models, scene.images, tmp_path)
    text = (tmp_path / "index.html").read_text()
    colours = dict(re.findall(r"--m(\d):(#\w+);", text.split("@media (prefers-color-scheme: dark){:root{--m0")[0]))
    assert [colours[str(index)] for index in range(6)] == [variant_colour(place) for place in (0, 0, 0, 0, 1, 1)]
    assert re.findall(r"polyline\.m(\d)\{stroke-width:1\}", text) == ["0", "2", "4"]


def test_outlying_patches_are_marked_and_counted(make_scene, tmp_path):
    scene = make_scene()
    store = scene.models[0].store
    image, block = scene.images[0].id, store.blocks[0]
    far = np.array(store.tokens(block, 0), copy=True)
    far[0] *= 100
    views = pca_views([store], [image])
    tokens = {block: {image: far.reshape(*store.grid(0), -1)}}
    colours._add_foreground(views, 0, block, tokens[block], [image])
    cell = Cell(scene.models[0], scene.images[0], 0, 0, views, None)
    drawn = foreground.draw(cell)
    assert tuple(drawn.maps[block][1][0, 0]) == foreground.OUTLIER
    assert foreground.scores(cell)["outliers"][block] == 100 / len(far)
    assert outliers_table({"v": {"1": dataclasses.asdict(views.outliers[0][block])}}).rows[0][:2] == ["v", 1]
    usual = {"share": 0.0, "norm": 0.0, "median": 1.0, "ratio": 1.5}
    rows = outliers_table({"v": {"1": usual, "2": {**usual, "ratio": 2.5}}}).rows
    assert rows == [["v", 2, 2.5, 0.0, None, 1.0]], "the block of the largest norm is there without outliers, too"
    (line,) = outliers_said({"v": {"1": usual, "2": {**usual, "ratio": 2.5}}})
    assert line == "v: no high-norm outlier patches (max norm 2.5 × median, block 2)"
    assert "LOST may start from one" in outliers_said({"v": {"1": {**usual, "share": 0.1}}})[-1]


def test_register_tokens_are_no_patches():
    def counted(registers):
        config = ModelConfig(name="vit_mini_patch8", depth=2, img_size=32, registers=registers)
        model = build_model(config, 0)
        if registers:
            with torch.no_grad():
                model.reg_token.mul_(1e4)
        backbone = Backbone.from_model(model)
        tokens = backbone.layers(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), [1])[1].tokens
        assert tokens.shape[1] == 16
        return count_outliers([one.reshape(4, 4, -1).numpy() for one in tokens])

    with_registers, without = counted(4), counted(0)
    assert with_registers.share == without.share == 0
    assert with_registers.ratio < 3 > without.ratio


def test_missing_parts_are_shown_as_missing(make_scene, tmp_path):
    scene = make_scene()
    bare = GalleryModel("nothing yet")
    short = GalleryModel("short", predictions={2: {scene.images[0].id: np.ones((4, 4), np.uint8)}})
    unlabelled = [GalleryImage(image.id, image.path) for image in scene.images]
    plain = dataclasses.replace(scene.models[0], attention={})
    config = GalleryConfig(first=2, block=2, similarity=0)
    build_gallery([bare, short, plain], unlabelled, tmp_path / "g", config)
    data = Page(tmp_path / "g/index.html").json()
    assert data["block"] == 2
    assert len(data["images"]) == 2
    assert data["cells"][0] == [{"layers": {}, "scores": {}}] * 2
    assert [layer["key"] for layer in data["layers"]] == [
        "pca", "foreground", "vector", "cut", "photo",
    ]  # no classes: no probe  # fmt: skip
    assert pictures_named(data) == {path.name for path in (tmp_path / "g/img").iterdir()}
    build_gallery([bare], unlabelled, tmp_path / "photos")
    assert [layer["key"] for layer in Page(tmp_path / "photos/index.html").json()["layers"]] == ["photo"]


def test_features_go_into_the_page_for_the_chosen_images_alone(make_scene, tmp_path):
    scene = make_scene()
    for similarity, rows in ((1, [0]), (("chelsea",), [2])):
        build_gallery(scene.models, scene.images, tmp_path / "g", GalleryConfig(similarity=similarity))
        page = Page(tmp_path / "g/index.html")
        assert [name for name in page.scripts if name.startswith("features-")] == [f"features-{row}" for row in rows]
        found = page.json(f"features-{rows[0]}")
        assert [sorted(model["blocks"]) for model in found] == [["1", "2", "3"]] * 2
    with pytest.raises(
        ConfigError, match=r"gallery\.similarity: no image 'chelsey' is shown \(did you mean chelsea\?\)"
    ):
        build_gallery(scene.models, scene.images, tmp_path / "g", GalleryConfig(similarity=("chelsey",)))


def test_tags_are_classes_in_the_label_and_what_the_caller_says(make_scene, tmp_path):
    scene = make_scene()
    images = [dataclasses.replace(image, tags=("folder",)) for image in scene.images]
    build_gallery(scene.models, images, tmp_path / "g", classes=scene.classes)
    data = Page(tmp_path / "g/index.html").json()
    assert data["images"][0]["tags"] == ["background", "folder", "person"]
    assert len(data["tags"]) == 5


def test_a_hidden_overhang_and_an_odd_vector_are_drawn(make_scene, tmp_path):
    scene = make_scene()
    vector = np.full((10, 13), np.nan)
    odd = {2: {scene.images[0].id: Discovery((0, 0, 16, 16), vector, np.zeros((10, 13), bool), 16)}}
    build_gallery([GalleryModel("odd", discoveries=odd)], scene.images, tmp_path / "g")
    entry = Page(tmp_path / "g/index.html").json()["cells"][0][0]["layers"]["vector"]
    assert entry["cover"] == [13 * 16, 10 * 16]
    with Image.open(io.BytesIO((tmp_path / "g/img/vector-m0-i000.png").read_bytes())) as opened:
        assert len(np.unique(np.array(opened))) == 1


def test_the_vector_of_a_complete_graph_is_striped(make_scene, tmp_path):
    scene = make_scene()
    vector, mask = np.random.default_rng(0).normal(size=(10, 13)), np.ones((10, 13), bool)
    found = {
        block: {scene.images[0].id: Discovery((0, 0, 16, 16), vector, mask, 16, not complete)}
        for block, complete in ((1, False), (2, True))
    }
    build_gallery([GalleryModel("m", discoveries=found)], scene.images, tmp_path / "g")
    with Image.open(tmp_path / "g/img/vector-m0-i000.png") as opened:
        colours = np.array(opened.convert("RGB"))
    drawn, striped = colours[:10], colours[10:]
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 10
    assert len(np.unique(striped.reshape(-1, 3), axis=0)) == 2
    assert (striped[0, ::4] == STRIPE).all()
    assert 'class="swatch complete"' in (tmp_path / "g/index.html").read_text()


def test_nothing_to_show_and_damaged_photographs_are_named(make_scene, tmp_path):
    scene = make_scene()
    with pytest.raises(ConfigError, match="at least one model"):
        build_gallery([], scene.images, tmp_path / "g")
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"\xff\xd8 not a jpeg")
    with pytest.raises(DataError, match=r"damaged\.jpg"):
        build_gallery(scene.models, [GalleryImage("a", damaged)], tmp_path / "g")
