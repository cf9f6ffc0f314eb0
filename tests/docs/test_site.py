"""The site: built strictly (a broken link or a page that nobody reaches fails it); it loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_LOADED = {"canonical", "next", "prev", "alternate"}

for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[docs]'")


class Loads(HTMLParser):
    """The addresses outside the site that a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        target = values.get(LOADED.get(tag, ""))
        if target and re.match(r"(\w+:)?//", target) and values.get("rel") not in NOT_LOADED:
            self.foreign.append(target)


def test_what_is_foreign() -> None:
    assert Loads('<link rel=stylesheet href="https://a.b/c.css"><script src="//a.b/c.js"></script>').foreign == [
        "https://a.b/c.css",
        "//a.b/c.js",
    ]
    assert Loads('<a href="https://a.b"></a><script src="x.js"></script>').foreign == []


def loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert {page.name: foreign for page in pages if (foreign := Loads(page.read_text()).foreign)} == {}
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()), sheet
    assert not any("mermaid" in page.read_text() for page in pages)  # the theme would load it from a CDN


def reference_is_that_of_the_code(site: Path) -> None:
    settings, commands, python, models, evaluation = (
        (site / "reference" / f"{name}.html").read_text()
        for name in ("settings", "commands", "python", "dinoskip.models", "eval")
    )
    assert "<code>evaluate.probe.protocol</code>" in settings
    assert "≥ 1" in settings
    assert "such as _mask; null: as they are found" in settings
    assert "dinoskip features export" in commands
    assert "requeue" not in re.findall(r'<h2 id="dinoskip-([a-z]+)"', commands)
    for page, name in (
        (python, "dinoskip.pipeline.look.evaluate.evaluate"),
        (models, "dinoskip.models.build.create_model"),
        (evaluation, "eval.tokencut.cut.tokencut"),
    ):
        assert f'id="{name}"' in page, name
    assert not re.search(r":(?:class|func):(?:`|<code>)", python + models + evaluation)


def search_works_from_disk(site: Path) -> None:
    assert "tokencut" in (site / "search" / "search_index.js").read_text().lower()
    assert (site / "assets" / "iframe-worker.js").is_file()
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text()


def source_files_are_named_and_not_linked(site: Path) -> None:
    page = (site / "faults.html").read_text()
    assert "test_pretrain_kill.py</code>" in page
    assert "../tests/" not in page
    assert 'href="docs/' not in (site / "contributing.html").read_text()


@pytest.mark.slow  # links, names, files, settings and commands of the pages are tested by tests/house
def test_the_site(tmp_path: Path) -> None:
    """One test, for the build, which is that of ``make docs``, is what takes time."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    loads_nothing_from_elsewhere(tmp_path)
    reference_is_that_of_the_code(tmp_path)
    search_works_from_disk(tmp_path)
    source_files_are_named_and_not_linked(tmp_path)
