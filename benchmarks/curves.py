"""Curves beside a page of results."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from visualize.figures.drawing import write_figure


def draw_beside(place: Path, name: str, picture: Callable[[Sequence[str]], Any], colours: int, alt: str) -> str:
    """Write ``place/name.svg`` from a figure of so many colours; the Markdown that shows it."""
    with tempfile.TemporaryDirectory() as scratch:
        drawn = write_figure(Path(scratch) / name, picture, colours, alt, alt, alt)
        shutil.copyfile(drawn.light, place / f"{name}.svg")
    return f"![{alt}]({name}.svg)"
