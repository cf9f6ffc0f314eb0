"""Files at the top of a study's folder: ``index.html``, rows as CSV, JSON and Parquet, and the pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from dinoskip.errors import ConfigError, DataError, translate_write_errors
from dinoskip.io.files import MANIFEST, MAX_JSON, differing_files, read_regular, read_text, write_bytes, write_text
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import Output, given_file, own_folder, remove, remove_temporaries
from dinoskip.pipeline.artifacts import is_volatile
from dinoskip.results.parquet import rows_parquet
from dinoskip.results.rows import EvalResult, rows_csv, write_rows
from dinoskip.runtime.console import log
from dinoskip.settings.config import read_yaml

PAGES = ("report", "gallery")
PARQUET = "rows.parquet"
TOP = (*PAGES, "index.html", "rows.json", "rows.csv", PARQUET)
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
    with directory_lock(study):
        remove_temporaries(study)  # of a run that was killed here
        parquet = rows_parquet(rows) if rows else None
        if rows and parquet is None and (study / PARQUET).exists():  # of other rows, by an environment with pyarrow
            study_output(study).refuse_foreign((PARQUET,))
            remove(study / PARQUET)
        with study_output(study).filled(keep=True) as fresh:
            shown = [name for name, source in pages.items() if source is not None]
            for name, source in pages.items():
                if source is not None:
                    _say_replaced(study / name, source)
                    _copy(source, fresh / name, study / name)
            if shown:
                write_text(fresh / "index.html", _FRONT.format(page=f"{shown[0]}/index.html"))
            if rows:
                write_rows(fresh / "rows.json", rows)
                write_text(fresh / "rows.csv", rows_csv(rows))
            if parquet is not None:
                write_bytes(fresh / PARQUET, parquet)
    return [study / "index.html"] * bool(shown) + [study / "rows.csv"] * bool(rows)


def study_output(study: Path) -> Output:
    """Return the :class:`Output` at the top of a study's folder, of this version's studies and of earlier ones'."""
    return Output(study, "study", _of_earlier_versions)


def refuse_foreign(study: Path) -> None:
    """:class:`ConfigError` for what is in the place of a study's rows and pages and no study has made."""
    study_output(study).refuse_foreign(TOP)


def _of_earlier_versions(study: Path) -> list[str]:
    """Rows and pages of a study without a list of them: it has stages of its own, or a report's settings."""
    if not (study / "records").is_dir() and not any((study / page / STUDY).is_file() for page in PAGES):
        return []
    front = study / "index.html"
    pages = [name for name in PAGES if (study / name / "index.html").is_file()]
    ours = [name for name in ("rows.json", "rows.csv") if (study / name).is_file()]
    known = front.is_file() and read_text(front) in [_FRONT.format(page=f"{n}/index.html") for n in PAGES]
    return [*pages, *ours, *(["index.html"] if known else [])]


def _say_replaced(standing: Path, fresh: Path) -> None:
    """Warn where the page of another study gives way: of another title, or with variants that this one lacks."""
    if not all((page / STUDY).is_file() for page in (standing, fresh)):
        return
    try:
        old, new = (read_yaml(page / STUDY).tree for page in (standing, fresh))
        before, after = (study["variants"]["model"] for study in (old, new))
        titles = [str(study["report"]["title"] or study["name"]) for study in (old, new)]
    except (ConfigError, DataError, KeyError, TypeError):
        return  # damaged: of the fresh one _copy says so, and the standing one gives way
    if titles[0] != titles[1] or any(model not in after for model in before):
        log.warning(
            "%s: the page %r is replaced by %r, of another title or without some of its variants; studies with a name "
            "each keep a page each, and share what was computed with `stages: NAME`", standing, *titles,
        )  # fmt: skip


def _copy(source: Path, fresh: Path, final: Path) -> None:
    problems = [text for name, text in differing_files(source).items() if not is_volatile(name)]
    if problems:
        raise DataError(f"damaged output: {problems[0]}", f"remove {source}: the same command makes it again")
    with translate_write_errors(final):
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(MANIFEST, "timing.json"))


_PICTURE = re.compile(r"\]\(img/([\w.-]+)\)")


def markdown_file(text: str) -> Path:
    """The file named by ``--markdown``; :class:`ConfigError` unless it ends in ``.md`` and is new or a report's."""
    path = Path(text)
    if path.suffix != ".md" or path.is_dir():
        raise ConfigError(f"--markdown {text}: is not the name of a Markdown file", "for example docs/results/study.md")
    return given_file(path, _is_report)


def _is_report(path: Path) -> bool:
    """Whether a Markdown file is a copied report: it has a report's folds and headings."""
    text = read_text(path)
    return text.startswith("# ") and '<details markdown="1"><summary>' in text and "## Numbers" in text


def copy_markdown(report: Path, to: Path) -> list[Path]:
    """Write ``report/report.md`` to ``to`` and the pictures that it shows into the folder of its name beside it.

    ``docs/results/study.md`` has its pictures in ``docs/results/study/``; none of them is a photograph. Returns the
    files written.
    """
    text = read_text(report / "report.md")
    names = list(dict.fromkeys(_PICTURE.findall(text)))
    pictures = [to.with_suffix("") / name for name in names]
    for picture in pictures:
        write_bytes(own_folder(picture.parent) / picture.name, read_regular(report / "img" / picture.name, MAX_JSON))
    write_text(to, _PICTURE.sub(lambda match: f"]({to.stem}/{match[1]})", text))
    return [to, *pictures]
