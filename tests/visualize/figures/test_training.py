"""The figures of a run's metrics.jsonl and diagnostics.jsonl."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from visualize.figures import histograms_figure, loss_figure, online_figure, skip_weight_figure, training_figure
from visualize.palette import variant_colour, variant_places


def rows(scale: float) -> list[dict[str, Any]]:
    """Three rows of three blocks, as a run writes them."""
    return [
        {
            "step": step, "epoch": 1, "entropy": [0.9, 0.8, 0.7], "kappa_attention": [10.0, 1e3, 1e15],
            "kappa_weights": [scale, 3 * scale, 2 * scale], "kappa_weights_bound": [1e5 * step] * 3,
        }
        for step in (5, 10, 15)
    ]  # fmt: skip


def test_medians_over_blocks_against_step(tmp_path: Path) -> None:
    found = training_figure({"skip": rows(100), "skipless": rows(7), "not looked at": []}, tmp_path / "inside")
    assert found is not None
    for words in (
        "attention entropy / ln n: skip from 0.8 to 0.8, skipless from 0.8 to 0.8",
        "κ(attention), median: skip from 1e+03 to 1e+03",
        "κ(J) by WQ, WK, WV: skip from 200 to 200, skipless from 14 to 14",
        "Theorem 3.1's bound of κ(J): skip from 5e+05 to 1.5e+06",
    ):
        assert words in found.alt
    assert "token cosine" not in found.alt, "no panel for what the rows do not have"
    assert found.light.read_text().startswith("<?xml")
    assert found.dark.is_file()


def test_densities_of_the_last_block_by_step(tmp_path: Path) -> None:
    density = [0.0] * 40 + [6 / 16] * 16 + [0.0] * 40
    logged = [{"step": step, "epoch": 1, "histogram_1": [1.0] * 96, "histogram_4": density} for step in range(20)]
    figure = histograms_figure({"a": logged, "b": rows(1.0)}, tmp_path / "h")
    assert figure is not None
    assert figure.light.stat().st_size > 1000
    assert figure.alt == "a at steps 0, 5, 10, 14, 19"
    assert histograms_figure({"b": rows(1.0)}, tmp_path / "none") is None


def test_no_rows_no_figure(tmp_path: Path) -> None:
    assert training_figure({"skip": []}, tmp_path / "inside") is None
    assert list(tmp_path.iterdir()) == []


def polylines(path):
    """Colours of the drawn paths of an SVG, lower case."""
    ElementTree.parse(path)  # well formed
    return path.read_text().lower()


def test_loss_keeps_each_variants_colour_and_skips_what_is_not_finite(tmp_path, for_papers):
    rows = [{"step": step, "epoch": 0, "loss": 8.0 / (step + 1)} for step in range(90)]
    broken = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"epoch": 1}]
    figure = loss_figure({"empty": broken, "skipless $x$": [*rows, *broken]}, tmp_path / "loss.svg")
    light, dark = polylines(figure.light), polylines(figure.dark)
    assert variant_colour(1).lower() in light
    assert variant_colour(0).lower() not in light
    assert variant_colour(1, dark=True).lower() in dark
    assert (tmp_path / "loss.pdf").read_bytes().startswith(b"%PDF")
    assert "0.09" in figure.alt
    assert figure.reading.endswith(".")
    assert loss_figure({"a": broken}, tmp_path / "none.svg") is None


def test_loss_has_a_panel_an_optimizer_if_there_are_several(tmp_path):
    runs = {name: [{"step": s, "loss": 9.0 - s / 50} for s in range(99)] for name in ("a-adamw", "a-soap")}
    alone = loss_figure(runs, tmp_path / "x")
    apart = loss_figure(runs, tmp_path / "y", {"a-adamw": "AdamW", "a-soap": "SOAP"})
    assert "by optimizer" in apart.caption
    assert "by optimizer" not in alone.caption


def test_what_was_measured_while_training_is_drawn_against_epochs(tmp_path):
    def rows(base):
        steps = [{"step": 10 * e + 5, "epoch": e + 1, "loss": 3.0} for e in range(4)]
        seen = [{"step": 10 * e, "epoch": e, "loss": 3.0, "knn10_top1": base + e, "probe_miou": 9.0} for e in (2, 4)]
        return [*steps, *seen]

    runs = {"none": [{"step": 1, "epoch": 1, "loss": 2.0}], "skip": rows(40.0), "skipless": rows(50.0)}
    figure = online_figure(runs, tmp_path / "online.svg")
    light, dark = polylines(figure.light), polylines(figure.dark)
    assert all(colour.lower() in light for colour in map(variant_colour, (1, 2)))
    assert variant_colour(0).lower() not in light, "a variant that was not measured keeps its colour unused"
    assert all(colour.lower() in dark for colour in (variant_colour(1, dark=True), variant_colour(2, dark=True)))
    assert "k-NN top-1, k = 10: skip from 42 to 44, skipless from 52 to 54" in figure.alt
    assert "probe mIoU: skip from 9 to 9" in figure.alt
    assert "epoch" in light
    assert online_figure({"none": runs["none"]}, tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()


def test_a_probe_of_one_block_has_one_panel(tmp_path):
    seen = [{"step": 9, "epoch": 2, "probe_miou": 9.0, "probe_block12_miou": 9.0}]
    one = online_figure({"skip": seen}, tmp_path / "one.svg")
    assert one is not None
    assert one.alt == "probe mIoU, block 12: skip from 9 to 9."
    two = online_figure({"skip": [{**seen[0], "probe_block6_miou": 8.0}]}, tmp_path / "two.svg")
    assert two is not None
    assert two.alt.count("probe mIoU") == 3


def test_seeds_of_a_network_share_its_colour_and_differ_in_their_dashes():
    names = [f"{network}-soap-s{seed}" for network in ("skip", "default", "paper") for seed in (0, 1)]
    places = variant_places(names)
    assert list(places.values()) == [0, 6, 1, 7, 2, 8]
    assert len({variant_colour(place) for place in places.values()}) == 3
    many = variant_places([f"{letter}-s{seed}" for letter in "abcdefgh" for seed in (3, 5)])
    assert len(set(many.values())) == len(many)
    assert many["g-s3"] == 6
    assert variant_colour(many["g-s5"]) == variant_colour(many["g-s3"])
    assert variant_places(["skip-s1", "default"]) == {"skip-s1": 0, "default": 1}
    assert variant_places([]) == {}


def test_a_weight_of_skips_that_changes_is_drawn(tmp_path: Path) -> None:
    annealed = [{"step": step, "skip_weight": max(0.0, 1 - step / 4), "loss": 1.0} for step in range(1, 9)]
    constant = [{"step": step, "skip_weight": 0.5, "loss": 1.0} for step in range(1, 9)]
    figure = skip_weight_figure({"annealed": annealed, "half": constant}, tmp_path / "weight")
    assert figure is not None
    assert "Weight of the skip connections" in figure.caption
    assert skip_weight_figure({"half": constant, "none": [{"step": 1, "loss": 1.0}]}, tmp_path / "none") is None
