from __future__ import annotations

import math

from visualize.figures import curves_figure


def test_diagnostics_leave_out_what_a_log_axis_cannot_show(tmp_path):
    panels = {"κ": {"a": {1: 1.0, 2: math.inf, 3: 10.0}, "b": {1: 0.0}}}
    figure = curves_figure(panels, tmp_path / "d.svg", caption="c", logarithmic=["κ"])
    assert figure.alt == "κ: a from 1 to 10."
    assert curves_figure({"κ": {"b": {1: 0.0}}}, tmp_path / "n.svg", caption="c", logarithmic=["κ"]) is None
