"""Take the pictures of docs/images from real pages, with a headless Chromium.

``python docs/screenshots.py report runs/inits`` writes report.png and gallery.png from a study's page;
``python docs/screenshots.py tensorboard runs/board`` writes tensorboard.png from the logs below a folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

from PIL import Image

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)
PORT = 6106
LARGEST = 150_000  # bytes of a picture


def take(url: str, name: str, width: int, height: int, wait: tuple[str, ...] = ("--virtual-time-budget=8000",)) -> None:
    """Write ``docs/images/NAME.png``, width × height pixels, as small as asked; exits if there is no browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"screenshots: none of {', '.join(BROWSERS)} is installed; docs/images stays as it is")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        picture = Path(folder) / "page.png"
        where = (f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={picture}")
        subprocess.run([browser, *FLAGS, *wait, *where, url], check=True, capture_output=True, timeout=120)
        save(Image.open(picture).convert("RGB"), name)


def save(picture: Image.Image, name: str) -> None:
    """Write ``docs/images/NAME.png`` with as many colours as its size allows."""
    for colours in (256, 128, 64, 32):
        picture.quantize(colours, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
        if (IMAGES / f"{name}.png").stat().st_size < LARGEST:
            break
    print(f"{IMAGES / name}.png")


def report(study: Path) -> None:
    """The first screen of a study's report, and of its gallery."""
    page = study.resolve() / "report"
    if not (page / "index.html").is_file():
        sys.exit(f"screenshots: {page / 'index.html'} is not there: run the study first")
    take((page / "index.html").as_uri(), "report", 1100, 900)
    take((page / "gallery" / "index.html").as_uri(), "gallery", 1100, 1010)


def tensorboard(logs: Path) -> None:
    """The curves of the runs below a folder, from a TensorBoard that is started and stopped here."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(PORT)]
    url = f"http://localhost:{PORT}"
    shown = f"{url}/#scalars&tagFilter=^(loss|lr|accuracy)"  # the other page draws by WebGL
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{url}/data/runs", timeout=5).close()
                    break
                except URLError:
                    time.sleep(0.5)
            take(shown, "tensorboard", 1100, 640, ("--timeout=30000", "--virtual-time-budget=30000"))
        finally:
            server.terminate()


if __name__ == "__main__":
    makers = {"report": report, "tensorboard": tensorboard}
    if len(sys.argv) != 3 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    makers[sys.argv[1]](Path(sys.argv[2]))
