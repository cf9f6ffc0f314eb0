"""Pages made of hostile names: variants, classes, images, tags, captions, settings, commands, tables, rows.

A page may differ in its text alone: its tags and attributes are those of the same page with letters in the place of
all that means something to HTML. Scripts' data stays JSON, and figures hold nothing that runs or loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.segmentation import voc_palette
from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.results.rows import EvalResult
from tests.helpers.commands import dinoskip
from visualize.figures import loss_figure
from visualize.gallery import Classes, GalleryImage, GalleryModel, build_gallery
from visualize.report import Preview, Report, build_report
from visualize.rows import StudyVariant
from visualize.tables import DataTable

PAGES = [3, pytest.param(150, marks=pytest.mark.slow)]
SEEDS = [
    b'"><script>alert(1)</script><img src=x onerror=alert(2)>',
    b"' onmouseover='alert(1)' autofocus onfocus=alert(1) x=\"",
    b"</title></style></script></textarea><svg/onload=alert(1)>",
    b"<!--<script>--><![CDATA[ ]]><?xml?><!DOCTYPE html>&lt;b&gt;&#60;i&#62;&amp;",
    b"javascript:alert(1)//data:text/html,<iframe src=..> http://example.org/",
    b"{{7*7}}{% raw %}{# x #}${x} `rm` |a|b| [x](y) ![z](w) # h\n\n- l",
    b"\xe2\x80\xae\xe2\x81\xa6gpj.exe\x00\x1b[31m\xff\xfe $x_1^2$ \\frac{1}{2} %s %d \\u003c",
    b"3.5 <b>x</b>, \xc2\xb1 <i>, 95 % <a href=x>, a/b/../c?d=e&f#g",
]
MARKUP = str.maketrans({"<": "l", ">": "g", "&": "a", '"': "d", "'": "s", "=": "e", "`": "t"})
Text = Callable[[], str]


class Structure(HTMLParser):
    """Tags, their attributes but for texts, and the contents of scripts that hold data."""

    TEXTS = ("alt", "title", "aria-label", "data-label", "value", "label")

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        self.data: list[str] = []
        self._in_data = False
        self.others = 0  # comments, declarations, processing instructions
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple((name, self._fixed(name, value or "")) for name, value in attrs)))
        self._in_data = tag == "script" and ("type", "application/json") in attrs
        if self._in_data:
            self.data.append("")

    def _fixed(self, name: str, value: str) -> str:
        """Return the part of an attribute's value that must not depend on texts."""
        if name == "href" and value.startswith("#image="):
            assert re.fullmatch(r"#image=[\w%.~/-]*", value, re.ASCII)
            return "#image="
        return "" if name in self.TEXTS else value

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data[-1] += data

    def handle_comment(self, data: str) -> None:
        self.others += 1

    def handle_pi(self, data: str) -> None:
        self.others += 1

    def unknown_decl(self, data: str) -> None:
        self.others += 1


def same_structure(hostile: Path, harmless: Path) -> None:
    page, reference = Structure(hostile), Structure(harmless)
    assert page.tags == reference.tags
    assert page.others == reference.others
    for data in page.data:
        assert "<" not in data, "a script that is left early, or a comment that hides its end"
        json.loads(data)


def harmless_figure(path: Path) -> None:
    """An SVG parses, and holds nothing that runs, links or loads from elsewhere."""
    for element in ElementTree.parse(path).iter():
        name = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
        assert name not in {"script", "a", "foreignObject", "iframe", "animate", "set"}
        for attribute, value in element.attrib.items():
            assert not attribute.lower().startswith("on")
            if attribute.rpartition("}")[2] == "href":
                assert value.startswith(("#", "data:image/png;base64,"))


def no_markup_in(markdown: str) -> None:
    """No tag or comment that GitHub would take for HTML, but in the indented commands and where parts are folded."""
    for line in markdown.splitlines():
        if not line.startswith(("    ", '<details markdown="1"><summary>')) and line != "</details>":
            assert not re.search(r"(?<!\\)<[A-Za-z/!?]", line), line


def hostile_text(rng: Random) -> str:
    """One of :data:`SEEDS`, or two joined, with bytes changed, cut out or repeated; as names of files are decoded."""
    content = bytearray(b"".join(rng.choices(SEEDS, k=rng.choice((1, 1, 2)))))
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(content) + 1)
        piece = content[at : at + rng.randrange(1, 24)]
        change = rng.choice(("byte", "remove", "repeat", "end"))
        if change == "byte":
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif change == "remove":
            content[at : at + len(piece)] = b""
        elif change == "repeat":
            content[at:at] = piece * rng.randrange(1, 9)
        else:
            del content[max(at, 8) :]
    return content.decode("utf-8", "surrogateescape")


def attack(build: Callable[[Text, Path], None], check: Callable[[Path, Path], None], pages: int, place: Path) -> None:
    """Build ``pages`` pages of hostile texts, and each once more of harmless ones; print how many texts there were."""
    texts = 0
    for number in range(pages):
        for name in ("hostile", "harmless"):
            rng, table, used = Random(number), MARKUP if name == "harmless" else {}, count()

            def text(rng: Random = rng, table: dict[int, str] = table, used: Iterator[int] = used) -> str:
                return f"{next(used)} {hostile_text(rng).translate(table)}"  # the number tells names apart

            build(text, place / name)
        texts += next(used)
        check(place / "hostile", place / "harmless")
    print(f"{texts} texts on {pages} pages")


def row(text: Text, model: str, block: int, value: float) -> EvalResult:
    return EvalResult(
        "mIoU",
        value,
        "probe",
        str(block),
        "voc2012",
        "val",
        100,
        model,
        text(),
        "adamw",
        12,
        weights=text(),
        note=text(),
    )


@pytest.mark.parametrize("pages", PAGES)
def test_report(pages: int, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (8, 4)).save(photo)

    def build(text: Text, out: Path) -> None:
        names = [text(), text()]
        data = text()
        rows = {
            name: [replace(row(text, name, block, 30.0 + at + block), dataset=data) for block in (1, 2)]
            for at, name in enumerate(names)
        }
        report = Report(
            text(),
            [StudyVariant(name, rows=rows[name], settings={"depth": text(), text(): [1e-4, text()]}) for name in names],
            baselines=[replace(rows[names[0]][0], model=text(), note=text(), block="")],
            note=text(),
            previews=[Preview(photo, text(), text()), Preview(photo, text(), text(), photographs=False)],
            diagnostics=[DataTable(text(), [text(), text()], [[text(), 1.0], [None, text()]], text())],
            environment={text(): text()},
            protocol={text(): {text(): text()}},
            notices=[text()],
            commands=[text()],
            confounds=[text()],
        )
        build_report(report, out)

    def check(hostile: Path, harmless: Path) -> None:
        for page in ("index.html", "rows.html"):
            same_structure(hostile / page, harmless / page)
        no_markup_in((hostile / "report.md").read_text(encoding="utf-8"))

    attack(build, check, pages, tmp_path)


@pytest.mark.parametrize("pages", PAGES)
def test_gallery(pages: int, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (16, 16)).save(photo)
    label = np.arange(4, dtype=np.uint8).repeat(64).reshape(16, 16)

    def build(text: Text, out: Path) -> None:
        images = [GalleryImage(text(), photo, label, tags=(text(), text())) for _ in range(2)]
        models = []
        for number in range(2):
            name = text()
            rows = [replace(row(text, name, block, 30.0 + number), dataset=text()) for block in (1, 2)]
            predictions = {1: {image.id: label for image in images}}
            models.append(GalleryModel(name, predictions=predictions, rows=rows, description=text()))
        classes = Classes((text(), text(), text(), text()), voc_palette())
        build_gallery(models, images, out, title=text(), classes=classes)

    def check(hostile: Path, harmless: Path) -> None:
        same_structure(hostile / "index.html", harmless / "index.html")
        names = [sorted(path.name for path in (place / "img").iterdir()) for place in (hostile, harmless)]
        assert names[0] == names[1]

    attack(build, check, pages, tmp_path)


@pytest.mark.parametrize("pages", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_curves(pages: int, tmp_path: Path) -> None:
    def build(text: Text, out: Path) -> None:
        runs = {text(): [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}] for _ in range(8)}
        assert loss_figure(runs, out / "loss.svg") is not None

    def check(hostile: Path, harmless: Path) -> None:
        for path in sorted(hostile.glob("*.svg")):
            harmless_figure(path)

    attack(build, check, pages, tmp_path)


def hostile_study(folder: Path) -> Path:
    """A study whose folder, classes, images and strings in YAML all hold markup."""
    root = folder / "data <b onload=alert(1)> &amp; 'set'"
    names = ['"><img src=x onerror=alert(1)>', "<script>alert(2)<!--", "plain &lt;i&gt;"]
    for split in ("train", "val"):
        for at, name in enumerate(names):
            for kind in ("images", "masks"):
                (root / kind / split).mkdir(parents=True, exist_ok=True)
            mask = np.arange(48 * 48).reshape(48, 48) // 97 % 2
            pixels = np.stack([mask * 100 + 40 * at] * 3, -1).astype(np.uint8)
            Image.fromarray(pixels).save(root / "images" / split / f"{name}.png")
            Image.fromarray(mask.astype(np.uint8)).save(root / "masks" / split / f"{name}.png")
    (root / "classes.txt").write_text("</script><script>alert(3)</script>\n<svg/onload=alert(4)>\n")
    model = create_model("vit_tiny_patch16", depth=1, img_size=48)
    weights = folder / "w <u onclick=alert(5)>.safetensors"
    save_weights(weights, model.state_dict(), VitConfig(name="vit_tiny_patch16", depth=1, img_size=48), {})
    probe = {"datasets": ["mine"], "size": 48, "epochs": 1, "learning_rates": [1e-3]}
    study = {
        "name": "hostile",
        "output": str(folder / "runs"),
        "data": {"mine": {"kind": "masks", "root": str(root)}},
        "variants": {"model": [{"backbone": f"weights:{weights}"}]},
        "evaluate": {"probe": probe, "knn": {}},
        "analyze": {"model": "vit_tiny_patch16", "depth": 1, "img_size": 32, "photos": 1},
        "gallery": {"dataset": "mine", "first": 3},
        "report": {"title": "<title>{{7*7}}</title>", "note": "</p><script>alert(6)</script>"},
    }
    (folder / "study.yaml").write_text(json.dumps(study))
    return folder / "study.yaml"


@pytest.mark.slow
def test_a_whole_study_of_hostile_names(tmp_path: Path) -> None:
    done = dinoskip("run", str(hostile_study(tmp_path)), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "runs" / "hostile").rglob("*.html"))
    assert {page.name for page in pages} == {"index.html", "rows.html"}
    for page in pages:
        seen = Structure(page)
        attributes = {name for _, pairs in seen.tags for name, _ in pairs}
        assert not [name for name in attributes if name.startswith("on")]
        assert {tag.removeprefix("/") for tag, _ in seen.tags}.isdisjoint({"iframe", "object", "embed", "u"})
        assert sum(tag == "script" for tag, _ in seen.tags) - len(seen.data) <= 1, "the page's own"
        for name, value in ((name, value) for tag, pairs in seen.tags if tag == "img" for name, value in pairs):
            assert name != "src" or value.startswith(("img/", "gallery/", "data:image/")), value
        assert all("<" not in data for data in seen.data)
    text = (tmp_path / "runs" / "hostile" / "report" / "index.html").read_text()
    assert "&lt;title&gt;{{7*7}}&lt;/title&gt;" in text
    for figure in (tmp_path / "runs" / "hostile").rglob("*.svg"):
        harmless_figure(figure)
