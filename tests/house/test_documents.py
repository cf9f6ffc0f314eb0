"""The documents name only what exists: modules and their names, files, settings, and commands with their options."""

from __future__ import annotations

import importlib
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from pydantic import BaseModel

from dinoskip.cli import _parse
from dinoskip.pipeline.study import Study
from dinoskip.plugins import GROUPS
from dinoskip.runtime.console import log
from dinoskip.settings.config import models_of
from tests.helpers.absent_parts import names_an_absent_part

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(
        page
        for room in ("", "concepts", "decisions", "plugins", "results")
        for page in (ROOT / "docs" / room).glob("*.md")
    ),
]
SOURCES = [
    path
    for part in ("dinoskip", "eval", "visualize", "benchmarks", "studies", "plugins")
    for path in (ROOT / part).rglob("*.py")
]
DOTTED = re.compile(r"\b(?:dinoskip(?:_\w+)?|eval|visualize)(?:\.[A-Za-z_]\w*)+\b(?![/-])")
FILE = re.compile(
    r"(?<![(/])\b(?:dinoskip|eval|visualize|tests|benchmarks|studies|plugins|configs|docs)/[\w./*-]*\w\.(?:py|md|yaml)\b"
)
SETTING = re.compile(r"`((?:evaluate|pretrain|supervise|online|gallery|report|analyze|sweep|model)(?:\.[a-z_]+)+)\b")
COMMAND = re.compile(r"^(?:torchrun.* -m )?dinoskip (.*)$")
FILES = (".md", ".safetensors", ".json", ".html", ".yaml")
ENTRY_POINTS = f"dinoskip.({'|'.join(GROUPS)})$"
MADE = {
    "docs/extending.md": "sizes",
    "docs/report.md": "docs/results/study",
}


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or a name in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def without_local_names(text: str) -> str:
    """A source without its code, in which ``eval`` and ``benchmarks`` may be variables: docstrings and comments."""
    return "\n".join(re.findall(r'"""(?:.|\n)*?"""|#.*', text))


def test_names_and_files() -> None:
    for path in (*PAGES, *SOURCES):
        text, page = path.read_text(), path.relative_to(ROOT).as_posix()
        text = without_local_names(text) if path.suffix == ".py" else text
        exempt = re.compile(f"{MADE.get(page, 'docs/results/study')}|{ENTRY_POINTS}")
        for name in {one for one in DOTTED.findall(text) if not exempt.search(one)}:
            assert resolves(name) or names_an_absent_part(name), f"{page}: {name}"
        for name in {one for one in FILE.findall(text) if not exempt.search(one)}:
            assert list(ROOT.glob(name)) or names_an_absent_part(name), f"{page}: {name}"


def has_setting(model: type[BaseModel], parts: list[str]) -> bool:
    """Whether a dotted key leads to a field; below a field of free keys everything is one."""
    if not parts:
        return True
    if parts[0] not in model.model_fields:
        return False
    inner = models_of(model.model_fields[parts[0]])
    return not parts[1:] or any(has_setting(one, parts[1:]) for one in inner)


def test_settings() -> None:
    named = {(path.name, dotted) for path in PAGES for dotted in SETTING.findall(path.read_text())}
    asked = {(page, dotted) for page, dotted in named if not dotted.endswith(FILES)}
    there = {dotted: has_setting(Study, dotted.split(".")) for _, dotted in asked}
    missing = [(page, dotted) for page, dotted in sorted(asked) if not there[dotted]]
    assert len(asked) > 60
    assert [(page, dotted) for page, dotted in missing if not names_an_absent_part(dotted)] == []


def commands_of(page: Path) -> Iterator[str]:
    """The command lines of a page's code blocks and sentences, without ``dinoskip`` and comments."""
    for block in re.findall(r"```(?:sh)?\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if match := COMMAND.match(line.strip()):
                yield match[1]
    sentences = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(found.split()) for found in re.findall(r"`dinoskip ([^`]+)`", sentences))


def problems_of(line: str) -> list[str]:
    """What is wrong with ``dinoskip LINE``: what the parser says, or settings that are none."""
    arguments = [word for word in shlex.split(line, comments=True) if word != "[SETTING]"]
    if "..." in arguments:
        return []
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            args = _parse(arguments)
    except SystemExit as stop:
        if stop.code == 0 or "arguments are required" in said.getvalue():
            return []  # --help, or a sentence that names a command without what it is given
        return [] if names_an_absent_part(said.getvalue()) else [said.getvalue()]
    keys = [text.partition("=")[0] for text in getattr(args, "overrides", []) if arguments[0] != "data"]
    keys = [key for key in keys if not key.startswith("data.") and not has_setting(Study, key.split("."))]
    return [key for key in keys if not names_an_absent_part(key)]


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, *values: warned.append(text % values))
    pages: dict[str, list[str]] = {}
    for page in PAGES:
        for line in commands_of(page):
            pages.setdefault(line, []).append(page.name)
    assert len(pages) > 100
    assert {line: (names, wrong) for line, names in pages.items() if (wrong := problems_of(line))} == {}
    assert warned == []
