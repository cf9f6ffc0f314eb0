from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import ConfigError, DataError
from visualize.gallery import GalleryConfig, GalleryImage, GalleryModel, build_gallery

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Tags with their attributes, and the text of the data block."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag == "script" and dict(attributes).get("id") == "data"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, text):
        if self._inside:
            self.data += text

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


def pictures_named(page: Page) -> set[str]:
    """Every picture that the page or its script can ask for."""
    data = json.loads(page.data)
    names = {f"img/photo-{row:03d}.jpg" for row in range(len(data["images"]))}
    names |= {f"img/label-{row:03d}.png" for row, image in enumerate(data["images"]) if image["label"]}
    for column, cells in enumerate(data["cells"]):
        for row, cell in enumerate(cells):
            for layer, blocks in cell.items():
                names |= {f"img/{layer}-m{column}-i{row:03d}-b{int(block):02d}.png" for block in blocks}
    return names


def test_every_picture_exists_and_none_is_left_over(make_scene, tmp_path):
    scene, out = make_scene(), tmp_path / "gallery"
    build_gallery(scene.models, scene.images, out, classes=scene.classes)
    page = Page(out / "index.html")
    named = pictures_named(page)
    assert set(page.values("src")) <= named
    assert {path.relative_to(out).as_posix() for path in (out / "img").iterdir()} == named
    assert len(named) == 3 * 2 + 2 * 3 * 3 * 4  # photo and label; models x images x blocks x layers
    assert all(Image.open(out / name).size[0] > 0 for name in named)
    assert sum(path.stat().st_size for path in out.rglob("*")) < 400_000
    assert all(tag["alt"] for name, tag in page.tags if name == "img")


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
    build_gallery(plain.models, plain.images, tmp_path / "plain", GalleryConfig(title="t"), classes=plain.classes)
    build_gallery(scene.models, scene.images, tmp_path / "hostile", GalleryConfig(title=hostile), classes=scene.classes)
    page, reference = Page(tmp_path / "hostile/index.html"), Page(tmp_path / "plain/index.html")
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in reference.tags]
    assert not [name for name in {name for _, tag in page.tags for name in tag} if name.startswith("on")]
    text = (tmp_path / "hostile/index.html").read_text()
    assert "\u202e" not in text
    assert "\u2066" not in text
    assert len(text) < len((tmp_path / "plain/index.html").read_text()) + 30_000  # 10 kB names are cut
    assert json.loads(page.data)["images"][0]["id"].startswith('"><script>alert(1)')
    names = {path.name for path in (tmp_path / "hostile/img").iterdir()}
    assert names == {path.name for path in (tmp_path / "plain/img").iterdir()}
    assert not (tmp_path / "up").exists()


def test_output_is_the_same_bytes_each_time(make_scene, tmp_path):
    scene = make_scene()
    for name in "ab":
        build_gallery(scene.models, scene.images, tmp_path / name, classes=scene.classes)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_missing_parts_are_shown_as_missing(make_scene, tmp_path):
    scene = make_scene()
    bare = GalleryModel("nothing yet")
    short = GalleryModel("short", predictions={2: {scene.images[0].id: np.ones((4, 4), np.uint8)}})
    unlabelled = [GalleryImage(image.id, image.path) for image in scene.images]
    build_gallery([bare, short, scene.models[0]], unlabelled, tmp_path / "g", GalleryConfig(first=2, block=2))
    page = Page(tmp_path / "g/index.html")
    data = json.loads(page.data)
    assert data["block"] == 2
    assert len(data["images"]) == 2
    assert data["cells"][0] == [{}, {}]
    assert [layer["key"] for layer in data["layers"]] == ["pca", "vector", "cut", "photo"]  # no classes: no probe
    assert pictures_named(page) == {f"img/{path.name}" for path in (tmp_path / "g/img").iterdir()}
    build_gallery([bare], unlabelled, tmp_path / "photos")
    assert json.loads(Page(tmp_path / "photos/index.html").data)["layer"] == "photo"


def test_nothing_to_show_and_damaged_photographs_are_named(make_scene, tmp_path):
    scene = make_scene()
    with pytest.raises(ConfigError, match="at least one model"):
        build_gallery([], scene.images, tmp_path / "g")
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"\xff\xd8 not a jpeg")
    with pytest.raises(DataError, match=r"damaged\.jpg"):
        build_gallery(scene.models, [GalleryImage("a", damaged)], tmp_path / "g")


DRIVER = """
const errors = [];
addEventListener("securitypolicyviolation", (event) => errors.push("policy " + event.violatedDirective));
addEventListener("error", (event) => errors.push(event.message || "missing " + event.target.src), true);
addEventListener("load", () => {
  const sources = () => [...document.querySelectorAll("[data-column] .base")].map((image) => image.getAttribute("src"));
  const seen = { start: sources() };
  const slider = document.getElementById("block");
  slider.value = 0;
  slider.dispatchEvent(new Event("input"));
  seen.slid = sources();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  seen.stepped = sources();
  document.querySelector("[data-layer=cut]").click();
  seen.boxes = document.querySelectorAll("[data-column] .box").length;
  seen.notes = [...document.querySelectorAll("[data-column] .note")].map((note) => note.textContent);
  seen.masks = [...document.querySelectorAll("[data-column] image")].map((image) => image.getAttribute("href"));
  document.querySelector("[data-layer=probe]").click();
  seen.truth = document.querySelector(".reference .base").getAttribute("src");
  setTimeout(() => {
    const broken = [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src);
    const result = document.createElement("pre");
    result.id = "seen";
    result.textContent = JSON.stringify({ ...seen, errors, broken });
    document.body.append(result);
  }, 300);
});
"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_slider_keys_and_layers_work_in_chromium(make_scene, tmp_path, hostile):
    scene, out = make_scene(names=(hostile, "skipless")), tmp_path / "gallery"
    build_gallery(scene.models, scene.images, out, classes=scene.classes)
    text = (out / "index.html").read_text()
    (out / "driver.js").write_text(DRIVER)
    driven = text.replace("script-src ", "script-src 'self' ", 1).replace(
        "</head>", '<script src="driver.js"></script></head>', 1
    )
    (out / "driven.html").write_text(driven)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'profile'}"]
    run = subprocess.run(
        [*command, "--dump-dom", (out / "driven.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    assert ":CONSOLE" not in run.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', run.stdout, re.S)
    assert found, run.stderr[-2000:]
    seen = json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    assert seen["errors"] == []
    assert seen["broken"] == []
    places = [(column, row) for row in range(3) for column in range(2)]
    for name, block in (("start", 3), ("slid", 1), ("stepped", 2)):
        assert seen[name] == [f"img/pca-m{column}-i{row:03d}-b{block:02d}.png" for column, row in places]
    assert seen["boxes"] == 6
    assert seen["masks"] == [f"img/cut-m{column}-i{row:03d}-b02.png" for column, row in places]
    assert seen["notes"][0] == "IoU 0.71 ✓"  # 32..112 x 16..80 against 30..120 x 20..70
    assert seen["truth"] == "img/label-000.png"
