"""A report's Markdown where it can be committed."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import ConfigError
from dinoskip.pipeline.publishing import COLOURS, copy_markdown, markdown_file


def png(pixels: np.ndarray, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, "PNG")
    return stream.getvalue()


def test_pictures_stand_in_a_folder_of_the_files_name(tmp_path: Path) -> None:
    report, to = tmp_path / "report", tmp_path / "docs" / "results" / "study.md"
    (report / "img").mkdir(parents=True)
    curve = np.random.default_rng(0).integers(100, 132, (120, 100, 3), dtype=np.uint8)
    pictures = {"loss.png": png(curve), "sheet.png": png(curve, "P"), "photographs.png": png(curve)}
    for name, content in pictures.items():
        (report / "img" / name).write_bytes(content)
    text = "# é\n\n![a](img/loss.png)\n\n![b](img/sheet.png) ![a](img/loss.png) [c](tables/best.md)\n"
    (report / "report.md").write_text(text, encoding="utf-8")
    written = copy_markdown(report, to)
    assert to.read_text(encoding="utf-8") == text.replace("img/", "study/")
    assert written == [to, to.parent / "study/loss.png", to.parent / "study/sheet.png"]
    assert sorted((to.parent / "study").iterdir()) == written[1:]
    assert written[2].read_bytes() == pictures["sheet.png"]
    with Image.open(written[1]) as found:
        assert found.size == (100, 120)
        assert len(found.convert("RGB").getcolors() or ()) <= COLOURS
        assert np.abs(np.asarray(found.convert("RGB"), dtype=int) - curve).mean() < 8
    assert written[1].stat().st_size < len(pictures["loss.png"])


@pytest.mark.parametrize("name", ["study", "study.html", "folder.md"])
def test_another_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(ConfigError, match="Markdown"):
        markdown_file(str(tmp_path / name))
