"""What stands at the top of a study's folder: ``index.html``, ``rows.csv``, ``rows.json``, and the pages themselves."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from dinoskip.config import read_yaml
from dinoskip.console import log
from dinoskip.errors import ConfigError, DataError, translate_write_errors
from dinoskip.files import MANIFEST, TEMPORARY, differing_files, publish_directory, write_bytes, write_text
from dinoskip.locks import directory_lock
from dinoskip.pipeline.artifacts import is_volatile
from dinoskip.results import EvalResult, rows_csv, write_rows

STUDY = "study.yaml"  # of a report: the settings that it was made by
_FRONT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={page}">
<title>dinoskip</title>
<p><a href="{page}">The page is here.</a></p>
"""


def publish_results(study: Path, rows: Sequence[EvalResult], pages: dict[str, Path | None]) -> list[Path]:
    """Bring rows and pages to their places in ``study``, which do not change from run to run; return what was written.

    Args:
        study: the study's folder.
        rows: all rows of the study; none writes no files of rows.
        pages: the published output of a stage that makes a page, by its name (``report``, ``gallery``); the first that
            is there is what ``index.html`` opens. None where a stage has not run.
    """
    written: list[Path] = []
    with directory_lock(study):
        for left in study.glob(f"{TEMPORARY}*"):  # of a run that was killed here
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        for name, source in pages.items():
            if source is None:
                continue
            _say_replaced(study / name, source)
            _install(source, study / name)
            if not written:
                write_text(study / "index.html", _FRONT.format(page=f"{name}/index.html"))
                written.append(study / "index.html")
        if rows:
            write_rows(study / "rows.json", rows)
            write_text(study / "rows.csv", rows_csv(rows))
            written.append(study / "rows.csv")
    return written


def _say_replaced(standing: Path, fresh: Path) -> None:
    """Warn where the page of another study gives way: of another title, or with variants that this one lacks."""
    if not all((page / STUDY).is_file() for page in (standing, fresh)):
        return
    old, new = (read_yaml(page / STUDY).tree for page in (standing, fresh))
    before, after = (study["variants"]["model"] for study in (old, new))
    titles = [str(study["report"]["title"] or study["name"]) for study in (old, new)]
    if titles[0] != titles[1] or any(model not in after for model in before):
        log.warning(
            "%s: the page %r is replaced by %r, of another title or without some of its variants; studies with a name "
            "each keep a page each, and share what was computed with `stages: NAME`", standing, *titles,
        )  # fmt: skip


def _install(source: Path, final: Path) -> None:
    problems = [text for name, text in differing_files(source).items() if not is_volatile(name)]
    if problems:
        raise DataError(f"damaged output: {problems[0]}", f"remove {source}: the same command makes it again")
    fresh = final.parent / f"{TEMPORARY}{final.name}-{os.getpid()}"
    with translate_write_errors(final):
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(MANIFEST, "timing.json"))
    publish_directory(fresh, final)


_PICTURE = re.compile(r"\]\(img/([\w.-]+)\)")


def markdown_file(text: str) -> Path:
    """The file named by ``--markdown``; :class:`ConfigError` unless it ends in ``.md`` and is no folder."""
    path = Path(text)
    if path.suffix != ".md" or path.is_dir():
        raise ConfigError(f"--markdown {text}: is not the name of a Markdown file", "for example docs/results/study.md")
    return path


def copy_markdown(report: Path, to: Path) -> list[Path]:
    """Write ``report/report.md`` to ``to`` and the pictures that it shows into the folder of its name beside it.

    ``docs/results/study.md`` has its pictures in ``docs/results/study/``; none of them is a photograph. Returns the
    files written.
    """
    text = (report / "report.md").read_text(encoding="utf-8")
    names = list(dict.fromkeys(_PICTURE.findall(text)))
    pictures = [to.with_suffix("") / name for name in names]
    for picture in pictures:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(picture, (report / "img" / picture.name).read_bytes())
    to.parent.mkdir(parents=True, exist_ok=True)
    write_text(to, _PICTURE.sub(lambda match: f"]({to.stem}/{match[1]})", text))
    return [to, *pictures]
