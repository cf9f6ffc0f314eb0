"""Pictures of pages: small, by a real browser; without one, a line that says so."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.helpers.chromium import CHROMIUM

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "screenshots.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "IMAGES", tmp_path)
    return module


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_picture_of_a_page(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<body style='margin:0;background:#ff0000'>")
    script.take((tmp_path / "page.html").as_uri(), "red", 200, 100)
    picture = Image.open(tmp_path / "red.png")
    assert picture.size == (200, 100)
    assert picture.convert("RGB").getpixel((100, 50)) == (255, 0, 0)


def test_without_a_browser(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"^screenshots: none of chromium.* is installed; docs/images stays as it is$"):
        script.take("about:blank", "none", 100, 100)
    assert not list(tmp_path.iterdir())


def test_says_what_it_takes() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "screenshots.py report runs/inits" in done.stderr


def test_committed_pictures_are_small() -> None:
    for name in ("report", "gallery", "tensorboard"):
        assert (ROOT / "docs" / "images" / f"{name}.png").stat().st_size < 150_000
