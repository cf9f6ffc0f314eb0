"""A report's Markdown where it can be committed."""

from pathlib import Path

import pytest

from dinoskip.errors import ConfigError
from dinoskip.pipeline.report.markdown import copy_markdown, markdown_file


def test_pictures_stand_in_a_folder_of_the_files_name(tmp_path: Path) -> None:
    report, to = tmp_path / "report", tmp_path / "docs" / "results" / "study.md"
    (report / "img").mkdir(parents=True)
    for name in ("loss.png", "blocks.png", "photographs.png"):
        (report / "img" / name).write_bytes(name.encode())
    text = "# é\n\n![a](img/loss.png)\n\n![b](img/blocks.png) ![a](img/loss.png) [c](tables/best.md)\n"
    (report / "report.md").write_text(text, encoding="utf-8")
    written = copy_markdown(report, to)
    assert to.read_text(encoding="utf-8") == text.replace("img/", "study/")
    assert written == [to, to.parent / "study/loss.png", to.parent / "study/blocks.png"]
    assert {path: path.read_bytes() for path in (to.parent / "study").iterdir()} == {
        path: path.name.encode() for path in written[1:]
    }


@pytest.mark.parametrize("name", ["study", "study.html", "folder.md"])
def test_another_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(ConfigError, match="Markdown"):
        markdown_file(str(tmp_path / name))
