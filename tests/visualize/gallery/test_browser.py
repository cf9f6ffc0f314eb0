"""The gallery driven in a headless Chromium, as a reader's hand would: file:// alone, no server."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.chromium import CHROMIUM, Chromium, Page
from visualize.gallery import GalleryConfig, build_gallery
from visualize.palette import sequential

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
SHOWN = "[...document.querySelectorAll('[data-column] canvas')].map((canvas) => canvas.dataset.shown)"
ROWS = "[...document.querySelectorAll('.group')].filter((one) => !one.hidden).map((one) => Number(one.dataset.row))"
NOTES = "[...document.querySelectorAll('[data-column] .note')].map((note) => note.textContent)"


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as browser:
        yield browser


@pytest.fixture
def gallery(make_scene, tmp_path, chromium):
    """Return ``open(address="", width=1280, **how)`` of a gallery in its own folder, and check it in the end."""
    pages: list[tuple[Page, Path]] = []

    def open_page(address="", width=1280, *, config=None, scene=None, title="t", **how):
        scene = scene or make_scene()
        out = tmp_path / f"gallery{len(pages)}"
        build_gallery(scene.models, scene.images, out, config, title=title, classes=scene.classes)
        page = chromium.page((out / "index.html").as_uri() + address, width, 800, **how)
        page.until("[...document.querySelectorAll('canvas')].some((canvas) => canvas.dataset.shown)")
        page.scene, page.out = scene, out
        pages.append((page, out))
        return page

    yield open_page
    for page, out in pages:
        assert page.problems == []
        home = out.as_uri() + "/"
        assert all(address.startswith((home, "data:image/")) for address in page.requests), page.requests
        page.send("Page.close")


def maps(layer, block, part=0, rows=range(3), columns=range(2)):
    """Return what the canvases should say they show; part 0 of PCA is the first column of a sheet."""
    return [f"{layer}-m{column}-i{row:03d}.png {part} {block - 1}" for row in rows for column in columns]


def pixels(page: Page, row: int, column: int) -> np.ndarray:
    """RGBA of a canvas; only where nothing was loaded from a file (the browser forbids reading those)."""
    canvas = f".group[data-row='{row}'] [data-column='{column}'] canvas"
    found = page.js(
        f'(() => {{const c = document.querySelector("{canvas}"), copy = new OffscreenCanvas(c.width, c.height); '
        "const at = copy.getContext('2d', {willReadFrequently: true}); at.drawImage(c, 0, 0); "
        "return [c.height, c.width, [...at.getImageData(0, 0, c.width, c.height).data]]})()"
    )
    return np.array(found[2], np.uint8).reshape(found[0], found[1], 4)


def test_slider_keys_layers_and_a_clicked_patch(gallery):
    page = gallery()
    assert page.js(SHOWN) == maps("pca", 3)
    page.js("(() => {const s = document.querySelector('#block'); s.value = 0; s.dispatchEvent(new Event('input'))})()")
    assert page.js(SHOWN) == maps("pca", 1)
    page.key("ArrowRight")
    assert page.js(SHOWN) == maps("pca", 2)
    page.click("[data-layer=cut]")
    assert page.js(SHOWN) == maps("cut", 2)
    assert page.js("document.querySelectorAll('[data-column] .box').length") == 6
    assert page.js(NOTES)[0] == "IoU 0.71 ✓ · foreground 53\u00a0%"
    page.until("[...document.images].every((image) => !image.hasAttribute('src') || image.naturalWidth)")
    page.click("[data-layer=similarity]")
    page.click(".group[data-row='1'] [data-column='0'] .frame", 0.9, 0.1)
    assert page.js(SHOWN)[2:4] == ["similarity to 7", "similarity to 7"]  # of 8 x 8 tokens
    page.click(".group[data-row='1'] [data-column='1'] .frame", 0.1, 0.9)
    assert page.js(SHOWN)[2:4] == ["similarity to 56", "similarity to 56"]


@pytest.mark.slow
def test_similarity_is_the_cosine_to_the_patch(gallery):
    page = gallery("#layer=similarity")
    store, ramp = page.scene.models[1].store, sequential(256).astype(int)
    unit = store.tokens(3, 2).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    page.click(".group[data-row='2'] [data-column='0'] .frame", 5.5 / 8, 2.5 / 8)
    expected = np.clip(unit @ unit[21], 0, 1).reshape(8, 8)
    shown = pixels(page, 2, 1)[..., :3].astype(int)
    levels = np.abs(shown[..., None, :] - ramp).sum(-1).argmin(-1)
    assert np.abs(levels / 255 - expected).max() < 0.01
    others = np.delete(unit @ unit[21], 21)
    note = page.js("document.querySelector(\".group[data-row='2'] [data-column='1'] .note\").textContent")
    low, high = map(float, note.partition(",")[0].split(" to "))
    assert [low, high] == pytest.approx([others.min(), others.max()], abs=0.02)
    page.key("]")
    assert np.abs(pixels(page, 2, 1)[..., :3] - ramp[255]).sum(-1).min() == 0  # stretched: the closest is brightest
    page.click(".group[data-row='2'] .zoom")
    for _ in range(4):
        page.key("ArrowRight", modifiers=8)  # by 1/28 of the width
    assert page.js(SHOWN)[5] == "similarity to 22"


@pytest.mark.slow
def test_a_clicked_patch_finds_its_nearest_in_other_images(gallery):
    page = gallery("#layer=similarity&part=2")
    page.click(".group[data-row='1'] [data-column='0'] .frame", 5.5 / 8, 2.5 / 8)
    units = [np.asarray(page.scene.models[0].store.tokens(3, row), np.float64) for row in range(3)]
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in units]
    found = [one @ units[1][21] for one in units]
    shown, notes = page.js(SHOWN), page.js(NOTES)
    assert shown[2] == "similarity to 21"
    for row in (0, 2):
        at = int(shown[2 * row].rpartition(" ")[2])
        assert found[row][at] >= found[row].max() - 0.06, "of two that are as near either may be framed"
        assert float(notes[2 * row].split()[2].rstrip(",")) == pytest.approx(found[row][at], abs=0.04)


@pytest.mark.slow
def test_pictures_are_those_of_the_sheet(gallery):
    page = gallery("#block=2&layer=probe", config=GalleryConfig(single_file=True))
    assert not (page.out / "img").exists()
    palette = page.scene.classes.palette
    page.until("document.querySelector('[data-column] canvas').width === 13")
    for column in range(2):
        predicted = page.scene.models[column].predictions[2][page.scene.images[0].id]
        np.testing.assert_array_equal(pixels(page, 0, column)[..., :3], palette[predicted])
    page.key("1")
    page.until("document.querySelector('[data-column] canvas').width === 8")
    first = [pixels(page, 0, column) for column in range(2)]
    page.key("]")
    own = [pixels(page, 0, column) for column in range(2)]
    assert all((one != other).any() for one, other in zip(first, own, strict=True))
    page.key("ArrowRight")  # at the deepest block the first model's colours are the same, turned or not
    own = [pixels(page, 0, column) for column in range(2)]
    page.key("[")
    first = [pixels(page, 0, column) for column in range(2)]
    np.testing.assert_array_equal(first[0], own[0])
    assert (first[1] != own[1]).any()


@pytest.mark.slow
def test_sorting_by_a_score_and_by_a_difference(gallery):
    page = gallery("#layer=probe")
    scores = page.js("data.cells.map((column) => column.map((cell) => cell.scores.right[3]))")
    page.choose("#sort", "right.1")
    assert page.js(ROWS) == sorted(range(3), key=lambda row: -scores[1][row])
    page.click("#turn")
    assert page.js(ROWS) == sorted(range(3), key=lambda row: scores[1][row])
    assert "sort=-right.1" in page.js("location.hash")
    page.choose("#sort", "right.1-0")
    assert page.js(ROWS) == sorted(range(3), key=lambda row: scores[0][row] - scores[1][row])
    page.choose("#sort", "")
    assert page.js(ROWS) == [0, 1, 2]


@pytest.mark.slow
def test_only_images_with_a_class(gallery):
    page = gallery()
    page.choose("#tag", "person")
    assert page.js(ROWS) == [0]
    assert page.js("document.querySelector('#count').textContent") == "1 of them shown."
    page.choose("#tag", "")
    assert page.js(ROWS) == [0, 1, 2]


@pytest.mark.slow
def test_an_address_opens_what_it_says_and_follows_what_is_done(gallery):
    page = gallery("#image=chelsea&block=2&layer=attention&part=1&model=2")
    assert page.js(ROWS) == [2]
    assert page.js("document.body.classList.contains('single')")
    assert page.js(SHOWN)[5] == maps("attention", 2, part=1)[5]
    assert page.js("[...document.querySelectorAll('[data-column]')].slice(4).map((cell) => cell.hidden)") == [
        True,
        False,
    ]
    assert page.js("document.querySelector('#number').value") == "2"
    page.key("Escape")
    page.key("ArrowUp")
    assert page.js(ROWS) == [1]
    assert page.js("location.hash") == "#image=coffee&block=2&layer=attention&part=1"
    page.key("Escape")
    assert page.js(ROWS) == [0, 1, 2]
    page.js("history.back()")
    page.until(f"{ROWS}.length === 1")
    page.js("location.hash = '#image=nobody&block=99&layer=cat&model=7&sort=iou.9&class=dog&part=8&patch=a,b'")
    page.until(f"{ROWS}.length === 3")
    assert page.js("location.hash").startswith("#image=nobody")


@pytest.mark.slow
def test_zoom_fills_the_screen_and_has_every_field(gallery):
    page = gallery(width=1440)
    small = page.js("document.querySelector('[data-column] .frame').clientWidth")
    page.click(".group[data-row='0'] [data-column='0'] .frame")
    assert page.js("document.querySelector('[data-column] .frame').clientWidth") > 1.7 * small
    assert "mIoU" in page.js(NOTES)[0]
    assert "IoU 0.77 ✓" in page.js(NOTES)[0]
    page.click("#fields summary")
    text = page.until("document.querySelector('#fields .scroll').textContent")
    for row in (row for model in page.scene.models for row in model.rows if row.block == "3"):
        for value in (row.metric, row.task, row.dataset, row.split, f"{row.value:.4g}", str(row.n)):
            assert value in text
    page.click("#close")
    assert page.js(ROWS) == [0, 1, 2]


@pytest.mark.slow
def test_hostile_names_inject_nothing_and_still_work(gallery, make_scene, hostile):
    scene = make_scene(names=(hostile, "b"), ids=(hostile, hostile[:-1] + "y" * 9, "a\nb"))
    page = gallery(scene=scene, title=hostile)
    assert page.js("document.querySelectorAll('script:not([type])').length") == 1
    assert page.js("document.querySelectorAll('img').length") == 3 * (2 + 2)
    page.choose("#tag", page.js("data.tags.find((tag) => tag.includes('script'))"))
    assert page.js(ROWS) == [2]
    page.choose("#tag", "")
    page.click(".group[data-row='0'] .zoom")
    assert "alert" in page.js("decodeURIComponent(location.hash)")
    page.js("location.reload()")
    page.until(f"document.readyState === 'complete' && {ROWS}.length === 1")
    assert page.js(ROWS) == [0]
    for letter in "\u202e\u2066":
        assert letter not in page.js("document.documentElement.outerHTML")
    page.click("#fields summary")
    assert page.js("document.querySelectorAll('#fields script, #fields img').length") == 0
    page.js("location.hash = '#image=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&class=%3Cimg%20src=x%3E'")
    page.until(f"{ROWS}.length === 3")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_the_dark(gallery, dark):
    page = gallery(width=390, dark=dark, mobile=True)
    assert page.js("document.documentElement.scrollWidth") == 390
    ink, paper = (
        page.js(f"getComputedStyle(document.body).{name}.match(/\\d+/g).slice(0, 3).map(Number)")
        for name in ("color", "backgroundColor")
    )
    assert (sum(paper) < sum(ink)) == dark
    page.click(".group[data-row='0'] .zoom")
    assert page.js("document.documentElement.scrollWidth") == 390
    shot = page.out.parent / "shot.png"
    page.screenshot(shot)
    with Image.open(io.BytesIO(shot.read_bytes())) as opened:
        assert len(np.unique(np.array(opened.convert("RGB")).reshape(-1, 3), axis=0)) > 500  # not an empty page
