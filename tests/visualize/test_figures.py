from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from visualize.diagnostics import signal_figure, signal_table, weights_figure
from visualize.figures import blocks_figure, diagnostics_figure, loss_figure, online_figure
from visualize.palette import variant_colours


def polylines(path):
    """Colours of the drawn paths of an SVG, lower case."""
    ElementTree.parse(path)  # well formed
    return path.read_text().lower()


def test_loss_keeps_each_variants_colour_and_skips_what_is_not_finite(tmp_path):
    rows = [{"step": step, "epoch": 0, "loss": 8.0 / (step + 1)} for step in range(90)]
    broken = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"epoch": 1}]
    figure = loss_figure({"empty": broken, "skipless $x$": [*rows, *broken]}, tmp_path / "loss.svg", pdf=True)
    light, dark = polylines(figure.light), polylines(figure.dark)
    assert variant_colours(2)[1].lower() in light
    assert variant_colours(2)[0].lower() not in light
    assert variant_colours(2, dark=True)[1].lower() in dark
    assert (tmp_path / "loss.pdf").read_bytes().startswith(b"%PDF")
    assert "0.09" in figure.alt
    assert loss_figure({"a": broken}, tmp_path / "none.svg") is None


def test_what_was_measured_while_training_is_drawn_against_epochs(tmp_path):
    def rows(base):
        steps = [{"step": 10 * e + 5, "epoch": e + 1, "loss": 3.0} for e in range(4)]
        seen = [{"step": 10 * e, "epoch": e, "loss": 3.0, "knn10_top1": base + e, "probe_miou": 9.0} for e in (2, 4)]
        return [*steps, *seen]

    runs = {"none": [{"step": 1, "epoch": 1, "loss": 2.0}], "skip": rows(40.0), "skipless": rows(50.0)}
    figure = online_figure(runs, tmp_path / "online.svg")
    light, dark = polylines(figure.light), polylines(figure.dark)
    assert all(colour.lower() in light for colour in variant_colours(3)[1:])
    assert variant_colours(3)[0].lower() not in light, "a variant that was not measured keeps its colour unused"
    assert all(colour.lower() in dark for colour in variant_colours(3, dark=True)[1:])
    assert "k-NN top-1, k = 10: skip from 42 to 44, skipless from 52 to 54" in figure.alt
    assert "probe mIoU: skip from 9 to 9" in figure.alt
    assert "epoch" in light
    assert online_figure({"none": runs["none"]}, tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()


def test_block_curves_say_the_best_block_and_repeat_byte_for_byte(make_scene, tmp_path):
    variants = {model.name: model.rows for model in make_scene().models}
    figure = blocks_figure(variants, tmp_path / "blocks.svg")
    first = figure.light.read_bytes()
    assert blocks_figure(variants, tmp_path / "blocks.svg").light.read_bytes() == first
    assert "mIoU, voc2012 val: skip best" in figure.alt
    assert "k-NN (k = 20), imagenette val: skip best 33.0 at block 3, skipless best 38.0 at block 3" in figure.alt
    assert blocks_figure({"a": []}, tmp_path / "none.svg") is None


def test_diagnostics_leave_out_what_a_log_axis_cannot_show(tmp_path):
    panels = {"κ": {"a": {1: 1.0, 2: math.inf, 3: 10.0}, "b": {1: 0.0}}}
    figure = diagnostics_figure(panels, tmp_path / "d.svg", caption="c", logarithmic=["κ"])
    assert figure.alt == "κ: a from 1 to 10."
    assert diagnostics_figure({"κ": {"b": {1: 0.0}}}, tmp_path / "n.svg", caption="c", logarithmic=["κ"]) is None


def test_signal_and_weights_rows_become_a_table_and_panels(tmp_path):
    rows = [
        {
            "name": name,
            "token_cosine": [0.4, 0.5],
            "effective_rank": [60.0, 30.0],
            "query_gradient": [1.0, 1e-9],
            "final_cosine": 0.6,
            "final_effective_rank": 20.0,
        }
        for name in ("skip", "skipless default")
    ]
    table = signal_table(rows)
    assert len(table.columns) == len(table.rows[0]) == 9
    assert table.rows[0][-1] == 1e-9
    assert "query gradient: skip from 1 to 1e-09" in signal_figure(rows, tmp_path / "s.svg").alt
    weights = [
        {"block": 1, "kappa_vo": 1.0, "logit_diagonal": 18.4},
        {"block": 2, "kappa_vo": 2.0, "logit_diagonal": 1.0},
    ]
    assert "from 1 to 2" in weights_figure({"a": weights}, tmp_path / "w.svg", caption="c").alt


def test_a_long_legend_takes_room_of_its_own(tmp_path):
    def height(count):
        names = [f"skipless_initialised-soap number {index}, trained" for index in range(count)]
        diagnostics_figure({"a": {name: {1: 1.0, 2: 2.0} for name in names}}, tmp_path / f"{count}.svg", caption="c")
        return float(re.search(r'height="([\d.]+)pt"', (tmp_path / f"{count}.svg").read_text())[1])

    assert height(12) == pytest.approx(height(2) + 10 * 0.2 * 72), "points; the panel stays as high as it was"
