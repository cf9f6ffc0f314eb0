"""The gallery's settings: what the stage could refuse from them alone is refused here."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from visualize.gallery.config import GalleryConfig


def test_it_is_read_without_torch_and_matplotlib():
    code = "import sys, visualize.gallery.config, visualize.report.config\n"
    code += "print({'torch', 'numpy', 'matplotlib', 'PIL'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"first": 0},
        {"first": 100_001},
        {"page": 0},
        {"block": 0},
        {"size": 8},
        {"sheet": 0},
        {"sheet": []},
        {"similarity": -1},
        {"x": 1},
    ],
)
def test_what_cannot_be_shown_is_refused(settings):
    with pytest.raises(ValidationError):
        GalleryConfig(**settings)


def test_images_are_a_count_or_ids():
    assert GalleryConfig(sheet=3, similarity=("a.jpg",)).model_dump(exclude_unset=True) == {
        "sheet": 3, "similarity": ("a.jpg",)
    }  # fmt: skip
