from __future__ import annotations

import math
import re
from dataclasses import replace

from dinoskip.results.rows import EvalResult
from tests.visualize.figures.pictures import png_size
from visualize.comparison import Scores
from visualize.figures import blocks_figure, classes_figure, depth_figure, epochs_figure, roughness_figure


def rows_at(epochs, level, **more):
    return [
        EvalResult("mIoU", level + epoch + int(block[0]), "probe", block, "voc", "val", 9, epoch=epoch, **more)
        for epoch in epochs
        for block in ("1", "2", "1+2")
    ]


def test_block_curves_say_the_best_block_and_repeat_byte_for_byte(make_scene, tmp_path):
    variants = {model.name: model.rows for model in make_scene().models}
    figure = blocks_figure(variants, tmp_path / "blocks.svg")
    first = figure.light.read_bytes()
    assert blocks_figure(variants, tmp_path / "blocks.svg").light.read_bytes() == first
    assert "mIoU, voc2012 val: skip best" in figure.alt
    assert "k-NN (k = 20), imagenette val: skip best 33.0 at block 3, skipless best 38.0 at block 3" in figure.alt
    assert blocks_figure({"a": []}, tmp_path / "none.svg") is None


def test_blocks_that_scores_were_read_at_have_dots(tmp_path):
    rows = {"a": rows_at((1,), 3.0)}
    [benchmark] = Scores(rows, {}).benchmarks
    plain = blocks_figure(rows, tmp_path / "plain")
    dotted = blocks_figure(rows, tmp_path / "dots", chosen={benchmark: {"a": ("1", "1+2")}})
    assert "large dot" in dotted.reading
    assert "large dot" not in plain.reading
    assert dotted.light.read_bytes() != plain.light.read_bytes()
    elsewhere = blocks_figure(rows, tmp_path / "other", chosen={benchmark: {"b": ("1",)}})
    assert elsewhere.light.read_bytes() == plain.light.read_bytes()


def test_epochs_have_a_column_an_optimizer_and_need_three_epochs(tmp_path, for_papers):
    variants = {name: rows_at((1, 3, 5), level) for name, level in (("skip-adamw", 3.0), ("skip-soap", 5.0))}
    figure = epochs_figure(variants, tmp_path / "e", {"skip-adamw": "AdamW", "skip-soap": "SOAP"})
    assert "skip-soap 8.0 at epoch 1, 10.0 at epoch 3, 12.0 at epoch 5" in figure.alt
    assert png_size(figure)[0] > 900
    assert epochs_figure({"a": rows_at((1, 5), 1.0)}, tmp_path / "none") is None


def test_depth_draws_families_that_differ_in_depth_alone(tmp_path, for_papers):
    variants = {f"d{depth}": rows_at((1,), float(depth)) for depth in (12, 9)}
    families = {f"d{depth}": ("skipless, adamw", depth) for depth in (12, 9)}
    figure = depth_figure(variants, families, tmp_path / "d")
    assert figure.alt == "mIoU, voc val: skipless, adamw 12.0 with 9 blocks, 15.0 with 12 blocks."
    assert png_size(figure)[0] > 700
    assert depth_figure(variants, {"d12": ("a", 12), "d9": ("b", 9)}, tmp_path / "none") is None


def test_intervals_are_shaded_where_there_are_any(tmp_path):
    figure = blocks_figure({"a": rows_at((1,), 3.0, low=2.0, high=9.0)}, tmp_path / "b")
    assert "shade: 95 % interval" in figure.reading
    assert re.search(r"(fill-)?opacity: 0\.13", figure.light.read_text())
    assert "shade" not in blocks_figure({"a": rows_at((1,), 3.0)}, tmp_path / "c").reading


def test_the_curve_is_the_median_over_images_that_have_a_number(tmp_path):
    found = {"skip": {"2": [0.5, None, 0.7, math.nan], "1": [0.25, 0.5, 0.3, 9.0]}, "flat": {"1": [None] * 4}}
    figure = roughness_figure(found, tmp_path / "roughness", ["skip", "flat"])
    assert "skip from 0.4 to 0.6" in figure.alt
    assert "flat" not in figure.alt
    assert all(path.is_file() for path in figure.files.values())
    assert roughness_figure({"flat": {"1": [None]}}, tmp_path / "none", ["flat"]) is None


def test_baselines_and_random_weights_are_drawn_where_they_belong(tmp_path):
    rows = rows_at((0, 1), 3.0)
    floor = [rows[0].baseline("majority class", 2.0), rows[0].baseline("chance", 2.5)]
    elsewhere = rows_at((1,), 1.0, model="x")[0].baseline("centre box", 9.0)
    elsewhere = replace(elsewhere, dataset="other")
    figure = blocks_figure({"a": rows}, tmp_path / "b", [*floor, elsewhere])
    drawn = figure.light.read_text()
    assert "dashed line: baseline" in figure.reading
    assert "thin curve: the same network before training" in figure.reading
    assert all(f"<!-- {rule}" in drawn for rule in ("chance", "majority class"))
    assert "centre box" not in drawn
    plain = blocks_figure({"a": rows_at((1,), 3.0)}, tmp_path / "c")
    assert "dashed line: baseline" not in plain.reading
    assert "thin curve" not in plain.reading


def test_every_figure_says_what_to_look_for(tmp_path):
    rows = {name: rows_at((1, 3, 5), 3.0) for name in ("d12", "d9")}
    families = {"d12": ("a", 12), "d9": ("a", 9)}
    figures = [
        blocks_figure(rows, tmp_path / "b"),
        epochs_figure(rows, tmp_path / "e"),
        depth_figure(rows, families, tmp_path / "d"),
        roughness_figure({"d12": {"1": [0.5]}}, tmp_path / "r", ["d12"]),
    ]
    assert all(figure.reading.endswith(".") for figure in figures)
    assert len({figure.reading for figure in figures}) == len(figures)


def test_blocks_where_cuts_fail_are_crossed_out_and_have_no_shade(tmp_path):
    rows = [replace(row, degenerate=1.0, complete=1.0) for row in rows_at((1,), 3.0, low=2.0, high=9.0)]
    figure = blocks_figure({"a": rows}, tmp_path / "b")
    assert "cross:" in figure.reading
    assert not re.search(r"(fill-)?opacity: 0\.13", figure.light.read_text())


def test_classes_are_in_the_order_of_their_means_and_forty_at_most(tmp_path):
    two = {"skip": [("cat", 20.0), ("dog", 60.0)], "skipless": [("dog", 50.0), ("owl", 70.0)]}
    figure = classes_figure({"pets": two}, tmp_path / "classes", ["skip", "skipless"])
    drawn = re.findall("<!-- (cat|dog|owl) -->", figure.light.read_text())
    assert drawn == ["owl", "dog", "cat"]
    assert "owl 70.0" in figure.alt
    many = {"skip": [(f"c{number}", float(number)) for number in range(150)]}
    drawn = re.findall(r"<!-- (c\d+) -->", classes_figure({"many": many}, tmp_path / "m", ["skip"]).light.read_text())
    assert drawn == [f"c{number}" for number in range(149, 109, -1)]
    assert classes_figure({}, tmp_path / "none", ["skip"]) is None
