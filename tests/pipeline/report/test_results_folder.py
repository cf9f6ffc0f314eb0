"""Files that a finished study puts at the top of its folder."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from dinoskip.errors import ConfigError, DataError, DinoskipError, DiskFull, translate_write_errors
from dinoskip.io.files import write_bytes, write_manifest, write_text
from dinoskip.pipeline.report.results_folder import copy_markdown, markdown_file, publish_results
from tests.helpers.system import can_mount, small_disk


def test_a_damaged_page_is_not_shown(tmp_path: Path) -> None:
    page = tmp_path / "stages" / "report" / "key"
    write_text(page / "index.html", "mIoU 40.0")
    write_manifest(page)
    publish_results(tmp_path, [], {"report": page})
    (page / "index.html").write_text("mIoU 60.0")
    with pytest.raises(DataError, match=r"damaged output: .*index\.html: content differs"):
        publish_results(tmp_path, [], {"report": page})
    assert (tmp_path / "report" / "index.html").read_text() == "mIoU 40.0"


def _install_on_a_small_disk(place: str, page: str) -> None:
    small_disk(place, 1 << 16)
    try:
        publish_results(Path(place), [], {"report": Path(page)})
    except DiskFull as error:
        os._exit(error.exit_code if place in str(error) else 1)


@pytest.mark.skipif(os.geteuid() != 0 or not can_mount(), reason="only root may mount, and not everywhere")
def test_a_page_that_does_not_fit_is_a_full_disk(tmp_path: Path) -> None:
    page, place = tmp_path / "page", tmp_path / "study"
    for number in range(3):
        write_bytes(page / f"{number}.png", bytes(60_000))
    write_manifest(page)
    place.mkdir()
    process = multiprocessing.get_context("forkserver").Process(
        target=_install_on_a_small_disk, args=(str(place), str(page))
    )
    process.start()
    process.join(60)
    assert process.exitcode == 6


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, DiskFull), (errno.EROFS, ConfigError)])
def test_a_copied_folder_says_what_the_system_said(number: int, expected: type[DinoskipError], tmp_path: Path) -> None:
    failure = shutil.Error([("a", "b", str(OSError(number, os.strerror(number), "b")))])
    with pytest.raises(expected, match="report: "), translate_write_errors(tmp_path / "report"):
        raise failure


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
