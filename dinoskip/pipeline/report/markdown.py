"""A report's Markdown with its pictures, copied to where it can be committed."""

from __future__ import annotations

import re
from pathlib import Path

from dinoskip.errors import ConfigError
from dinoskip.files import write_bytes, write_text

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
