from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dinoskip.results import EvalResult
from visualize.diagnostics import signal_figure, signal_table, weights_figure
from visualize.drawing import fitted, inches
from visualize.figures import blocks_figure, curves_figure, depth_figure, epochs_figure, loss_figure, online_figure
from visualize.inside import cka_figure
from visualize.palette import variant_colours


def polylines(path):
    """Colours of the drawn paths of an SVG, lower case."""
    ElementTree.parse(path)  # well formed
    return path.read_text().lower()


def test_loss_keeps_each_variants_colour_and_skips_what_is_not_finite(tmp_path):
    rows = [{"step": step, "epoch": 0, "loss": 8.0 / (step + 1)} for step in range(90)]
    broken = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"epoch": 1}]
    figure = loss_figure({"empty": broken, "skipless $x$": [*rows, *broken]}, tmp_path / "loss.svg")
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
    figure = curves_figure(panels, tmp_path / "d.svg", caption="c", logarithmic=["κ"])
    assert figure.alt == "κ: a from 1 to 10."
    assert curves_figure({"κ": {"b": {1: 0.0}}}, tmp_path / "n.svg", caption="c", logarithmic=["κ"]) is None


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
    assert "from 1 to 2" in weights_figure({"trained": {"a": weights}}, tmp_path / "w.svg", caption="c").alt


def test_a_long_legend_takes_room_of_its_own(tmp_path):
    def height(count):
        names = [f"skipless_initialised-soap number {index}, trained" for index in range(count)]
        curves_figure({"a": {name: {1: 1.0, 2: 2.0} for name in names}}, tmp_path / f"{count}.svg", caption="c")
        return float(re.search(r'height="([\d.]+)pt"', (tmp_path / f"{count}.svg").read_text())[1])

    assert height(12) == pytest.approx(height(2) + 10 * 0.2 * 72), "points; the panel stays as high as it was"


def sizes(figure):
    """The PNG's width and height, after a look at both files for papers."""
    assert figure.pdf.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in figure.pdf.read_bytes()
    with Image.open(figure.png) as picture:
        picture.load()
        assert picture.mode == "P"
        assert picture.info["dpi"] == pytest.approx((150, 150), rel=1e-3)
        return picture.size


def rows_at(epochs, level, **more):
    return [
        EvalResult("mIoU", level + epoch + int(block[0]), "probe", block, "voc", "val", 9, epoch=epoch, **more)
        for epoch in epochs
        for block in ("1", "2", "1+2")
    ]


def test_epochs_have_a_column_an_optimizer_and_need_two_epochs(tmp_path):
    variants = {name: rows_at((1, 5), level) for name, level in (("skip-adamw", 3.0), ("skip-soap", 5.0))}
    figure = epochs_figure(variants, tmp_path / "e", {"skip-adamw": "AdamW", "skip-soap": "SOAP"})
    assert "skip-soap 8.0 at epoch 1, 12.0 at epoch 5" in figure.alt
    assert sizes(figure)[0] > 900
    assert epochs_figure({"a": rows_at((5,), 1.0)}, tmp_path / "none") is None


def test_depth_draws_families_that_differ_in_depth_alone(tmp_path):
    variants = {f"d{depth}": rows_at((1,), float(depth)) for depth in (12, 9)}
    families = {f"d{depth}": ("skipless, adamw", depth) for depth in (12, 9)}
    figure = depth_figure(variants, families, tmp_path / "d")
    assert figure.alt == "mIoU, voc val: skipless, adamw 12.0 with 9 blocks, 15.0 with 12 blocks."
    assert sizes(figure)[0] > 700
    assert depth_figure(variants, {"d12": ("a", 12), "d9": ("b", 9)}, tmp_path / "none") is None


def test_intervals_are_shaded_where_there_are_any(tmp_path):
    figure = blocks_figure({"a": rows_at((1,), 3.0, low=2.0, high=9.0)}, tmp_path / "b")
    assert "shades are 95 % intervals" in figure.caption
    assert re.search(r"(fill-)?opacity: 0\.13", figure.light.read_text())
    assert "shades" not in blocks_figure({"a": rows_at((1,), 3.0)}, tmp_path / "c").caption


def test_loss_has_a_panel_an_optimizer_if_there_are_several(tmp_path):
    runs = {name: [{"step": s, "loss": 9.0 - s / 50} for s in range(99)] for name in ("a-adamw", "a-soap")}
    alone = loss_figure(runs, tmp_path / "x")
    apart = loss_figure(runs, tmp_path / "y", {"a-adamw": "AdamW", "a-soap": "SOAP"})
    assert "by optimizer" in apart.caption
    assert "by optimizer" not in alone.caption


def test_cka_of_many_networks_is_drawn_with_the_first_only(tmp_path):
    names = [f"skipless_initialised_with_a_long_label_{index}-eigenvalue_corrected" for index in range(5)]
    pairs = [{"left": a, "right": b, "matrix": [[1.0, None]]} for i, a in enumerate(names) for b in names[i:]]
    figure = cka_figure(pairs, tmp_path / "cka")
    assert figure.alt.count(" with skipless") == 2 * 5 - 1
    assert sizes(figure)[0] <= 3 * 2.9 * 150 + 1


@given(st.text(max_size=80), st.floats(0.5, 4), st.integers(1, 3))
def test_fitted_text_is_no_wider_than_its_room(text, width, lines):
    found = fitted(text, width, 9.5, lines)
    assert found.count("\n") < lines
    assert all(inches(line.replace(r"\$", "$")) <= max(width, inches("WWWW…")) for line in found.split("\n"))
    assert not re.search(r"(?<!\\)\$", found)
