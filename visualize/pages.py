"""Static pages that open from disk: templates with autoescape, code inlined under a hash-only content policy.

Styles and scripts are inlined and allowed by their sha256: a ``file:`` page has no origin of its own in some
browsers, where ``'self'`` would block files lying beside it. Images may come from the page's own folder only
by relative address, which the templates make from numbers and never from names in the data.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from markupsafe import Markup

from dinoskip.errors import ConfigError
from dinoskip.io.files import write_text

_TEMPLATES = Path(__file__).parent / "templates"


def clean(text: object, limit: int = 120) -> str:
    """``text`` fit for one line of a page: no control or direction-changing characters, its middle cut if long.

    It is not HTML-escaped: the templates do that.
    """
    given = str(text)[:20_000]
    # Nearly all of a page is printable ASCII, which needs no look at each letter.
    kept = given.strip() if given.isascii() and given.isprintable() else _visible(given)
    if len(kept) <= limit:
        return kept
    tail = limit // 3
    return f"{kept[: limit - tail - 1]}…{kept[-tail:]}"


def _visible(text: str) -> str:
    return "".join(
        " " if unicodedata.category(letter) in {"Cc", "Zl", "Zp"} else letter
        for letter in text
        if unicodedata.category(letter) not in {"Cf", "Cs"}
    ).strip()


def relative_link(address: str) -> str:
    """``address`` if it is a plain relative path (``../gallery/index.html``, ``#…`` allowed), else ConfigError."""
    path = address.partition("#")[0]
    if not path or ":" in path or "\\" in path or PurePosixPath(path).is_absolute():
        raise ConfigError(f"link {clean(address)!r}: a page links only to relative paths")
    return address


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _allow(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def render_page(
    out: Path,
    template: str,
    context: Mapping[str, Any],
    *,
    styles: tuple[str, ...],
    extra_style: str = "",
    script: str | tuple[str, ...] = (),
    folder: Path = _TEMPLATES,
) -> None:
    """Render the ``template`` of a ``folder`` to ``out``, with the named CSS and JS files of ``templates/`` inlined.

    It may include those of ``templates/``.

    ``extra_style`` is CSS made by code from numbers (colours), never from text in the data.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    style = "\n".join([*(_source(name) for name in styles), extra_style])
    code = "\n".join(map(_source, (script,) if isinstance(script, str) else script))
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src 'self' data: file:",
            f"style-src {_allow(style)}",
            f"script-src {_allow(code) if code else chr(39) + 'none' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    page = environment.get_template(template).render(
        {**context, "policy": Markup(policy), "style": Markup(style), "script": Markup(code)}
    )
    write_text(out, page)
