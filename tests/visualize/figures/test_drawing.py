from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualize.figures import curves_figure
from visualize.figures.drawing import fitted, inches, written_as


def test_a_long_legend_takes_room_of_its_own(tmp_path):
    def height(count):
        names = [f"skipless_initialised-soap number {index}, trained" for index in range(count)]
        curves_figure({"a": {name: {1: 1.0, 2: 2.0} for name in names}}, tmp_path / f"{count}.svg", caption="c")
        return float(re.search(r'height="([\d.]+)pt"', (tmp_path / f"{count}.svg").read_text())[1])

    assert height(12) == pytest.approx(height(2) + 10 * 0.2 * 72), "points; the panel stays as high as it was"


@pytest.mark.parametrize("formats", [(), ("pdf",), ("png",), ("pdf", "png")])
def test_a_figure_is_written_in_the_formats_that_are_asked_for(formats, tmp_path, for_papers):
    curves = {"a": {"skip": {1: 1.0, 2: 2.0}}}
    whole = curves_figure(curves, tmp_path / "whole", caption="c")
    with written_as(formats):
        figure = curves_figure(curves, tmp_path / "some" / "whole", caption="c")
    assert set(figure.files) == {"light", "dark", *formats}
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == sorted(p.name for p in figure.files.values())
    for name, path in figure.files.items():
        assert path.read_bytes() == whole.files[name].read_bytes(), name


@given(st.text(max_size=80), st.floats(0.5, 4), st.integers(1, 3))
def test_fitted_text_is_no_wider_than_its_room(text, width, lines):
    found = fitted(text, width, 9.5, lines)
    assert found.count("\n") < lines
    assert all(inches(line.replace(r"\$", "$")) <= max(width, inches("WWWW…")) for line in found.split("\n"))
    assert not re.search(r"(?<!\\)\$", found)
