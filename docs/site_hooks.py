"""Pages of the site beside those of this folder: reference pages, notebooks, pages of the top level.

mkdocs calls the functions ``on_*`` (``hooks`` in mkdocs.yml). Links to source files lead out of the site and become
names.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dinoskip.cli import _parser
from dinoskip.cli.settings import Setting, settings_of
from dinoskip.pipeline.study import Study

ROOT = Path(__file__).parents[1]
TOP = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the top level, and what they are called in the site."""
PACKAGES = {
    "dinoskip.models": ["dinoskip.models"],
    "dinoskip.init": ["dinoskip.init"],
    "dinoskip.optim": ["dinoskip.optim"],
    "dinoskip.features": ["dinoskip.features"],
    "dinoskip.data": ["dinoskip.data"],
    "dinoskip.diagnostics": ["dinoskip.diagnostics"],
    "eval": [
        "eval.probe",
        "eval.tokencut",
        "eval.knn",
        "eval.retrieval",
        "eval.metrics",
        "eval.discovery",
        "eval.object_scores",
        "eval.rows",
        "eval.compare",
    ],
    "visualize": ["visualize.pca", "visualize.gallery", "visualize.report", "visualize.figures", "visualize.board"],
}
"""Pages of the Python reference, and the packages whose public names stand on each."""
PLUGINS = sorted(
    ".".join(stub.parent.relative_to(plugin).parts)
    for plugin in ROOT.glob("plugins/*")
    for stub in plugin.glob("dinoskip_*/**/__init__.pyi")
)
"""Packages of the plug-ins that lie beside the core, on one page together."""
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):(?=<code>)")
FROM_DISK = re.compile(r'location\.protocol==="file:"\?(\w+\(`\$\{new URL\("search/search_index\.js")')
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made at build."""
    pages = {name: (ROOT / source).read_text(encoding="utf-8") for source, name in TOP.items()}
    pages["reference/commands.md"] = commands_page()
    pages["reference/settings.md"] = settings_page()
    pages["reference/python.md"] = python_page("Python", ["dinoskip"])
    pages["reference/plugins.md"] = python_page("Plug-ins", PLUGINS)
    pages |= {f"reference/{page}.md": python_page(page, packages) for page, packages in PACKAGES.items()}
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        pages[notebook.src_uri.replace(".ipynb", ".md")] = notebook_page(json.loads(notebook.content_string))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bring links to the site: those to files of the top level, and those of the top level's pages to this folder."""
    if page.file.src_uri in TOP.values():
        markdown = markdown.replace("](docs/", "](")
    markdown = markdown.replace(".ipynb)", ".md)")
    return OUTSIDE.sub(functools.partial(_inside, page.file.src_uri), markdown)


def _inside(page: str, link: re.Match[str]) -> str:
    """A link that leaves the folder: to the site's copy, or the bare name of a source file; it must be there."""
    text, target, anchor = link.groups()
    path = (ROOT / "docs" / page).parent.joinpath(target).resolve()
    if path.is_relative_to(ROOT / "docs"):
        return link[0]
    if not path.exists():
        raise PluginError(f"{page}: links to {target}, which is not there")
    name = path.relative_to(ROOT).as_posix()
    if name in TOP:
        return f"[{text}]({'../' * page.count('/')}{TOP[name]}{anchor or ''})"
    return text if "`" in text else f"`{text}`"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names in docstrings, ``:class:`X```, as code."""
    return ROLE.sub("", html)


@event_priority(-100)
def on_post_build(config: MkDocsConfig) -> None:
    """Keep one search index: the script that is read from disk is read from a server, too, in place of the JSON."""
    site = Path(config.site_dir)
    for bundle in site.glob("assets/javascripts/bundle.*.min.js"):
        text, found = FROM_DISK.subn(r"true?\1", bundle.read_text(encoding="utf-8"))
        if found == 1:  # else the theme does it otherwise now: both stay
            bundle.write_text(text, encoding="utf-8")
            (site / "search" / "search_index.json").unlink(missing_ok=True)


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as a page: text, code, and outputs as they are in the file."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for is_text, outputs in groupby(cell.get("outputs", []), key=lambda output: "image/png" not in _data(output)):
            if is_text:
                said = "".join("".join(output.get("text", _data(output).get("text/plain", ""))) for output in outputs)
                parts.append(f"```text\n{said.rstrip()}\n```")
            else:
                parts += [
                    f"![](data:image/png;base64,{''.join(_data(output)['image/png'].split())})" for output in outputs
                ]
    return "\n\n".join(parts)


def _data(output: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = output.get("data", {})
    return data


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands\n\nThe same as `dinoskip COMMAND --help`."]
    parts += [f"## {parser.prog}\n\n```text\n{_help(parser)}```" for parser in _commands(_parser())]
    return "\n\n".join(parts)


def _commands(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for choice in action._choices_actions:  # without those that have no help, which are for programs
                yield from _commands(action.choices[choice.dest])


def _help(parser: ArgumentParser) -> str:
    parser.formatter_class = functools.partial(RawDescriptionHelpFormatter, width=100)  # type: ignore[assignment]
    return parser.format_help()


def settings_page() -> str:
    """Every setting of a study, a table for each section."""
    parts = [
        "# Settings\n\nThe same as `dinoskip settings`. A key is written `a.b=value` on the command line, or in "
        "sections of YAML ([studies](../studies.md)). What one kind (of data, of optimizer) has follows its name."
    ]
    for section, rows in groupby(settings_of(Study), key=_section):
        table = "\n".join(_row(setting) for setting in rows)
        parts.append(f"## {section}\n\n| setting | default | range | meaning |\n|---|---|---|---|\n{table}")
    return "\n\n".join(parts)


def _section(setting: Setting) -> str:
    return setting.key.split(".")[0] if "." in setting.key else "study"


def _row(setting: Setting) -> str:
    of = f"{setting.of}: " if setting.of else ""
    default, allowed = (f"`{text}`" if text else "" for text in (setting.default, setting.range))
    meaning = re.sub(r"([|*_])", r"\\\1", setting.meaning).replace("<", "&lt;")
    return f"| {of}`{setting.key}` | {default} | {allowed} | {meaning} |"


def python_page(title: str, packages: list[str]) -> str:
    """The public names of packages, for mkdocstrings to write out."""
    parts = [f"# {title}"]
    for package in packages:
        module = importlib.import_module(package)
        parts.append(f"{'## ' + package if len(packages) > 1 else ''}\n\n{(inspect.getdoc(module) or '').strip()}")
        level = 3 if len(packages) > 1 else 2
        for name, path in _public(module):
            options = f"{{heading_level: {level}, heading: {package}.{name}, toc_label: {name}}}"
            parts.append(f"::: {path}\n    options: {options}")
    return "\n\n".join(parts)


def _public(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The classes and functions that a package offers, and where they are defined."""
    names = getattr(module, "__all__", None)
    for name in names or vars(module):
        value = getattr(module, name)
        own = names is not None or (not name.startswith("_") and getattr(value, "__module__", "") == module.__name__)
        if own and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, f"{value.__module__}.{value.__qualname__}"
