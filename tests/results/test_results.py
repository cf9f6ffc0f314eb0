"""Rows as JSON and CSV."""

from __future__ import annotations

import cProfile
import csv
import io
import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.errors import DataError
from dinoskip.io.files import read_json, write_json, write_manifest
from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult, best_by_heldout, read_rows, rows_csv, write_rows
from tests.helpers.an_error import METRIC, distance_is_a_task

__all__ = ["distance_is_a_task"]

ROW = EvalResult("mIoU", 40.0, "probe", "3+6", "voc2012", "val", 10, model="skip", low=38.04, high=43.96)


def test_rows_come_back_from_json_and_old_ones_have_no_interval(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [ROW, replace(ROW, low=None, high=None)])
    assert read_rows(tmp_path / "rows.json") == [ROW, replace(ROW, low=None, high=None)]
    old = {name: value for name, value in ROW.plain().items() if name not in {"low", "high"}}
    write_json(tmp_path / "old.json", [old])
    assert read_rows(tmp_path / "old.json")[0].interval == ""
    write_json(tmp_path / "new.json", [{**old, "spread": 1}])
    with pytest.raises(DataError, match="spread"):
        read_rows(tmp_path / "new.json")


def test_rows_say_how_their_trial_was_selected_and_old_ones_by_their_note(tmp_path: Path) -> None:
    held = replace(ROW, selected="held out")
    write_rows(tmp_path / "rows.json", [ROW, held])
    plain, other = read_json(tmp_path / "rows.json")
    assert ("selected" in plain, other["selected"]) == (False, "held out")
    assert [row.selected for row in read_rows(tmp_path / "rows.json")] == ["fixed", "held out"]
    assert held.baseline("majority class", 3.0).selected == "fixed"
    lines = list(csv.DictReader(io.StringIO(rows_csv([ROW, held]))))
    assert [line["selected"] for line in lines] == ["fixed", "held out"]
    notes = ("best on validation", "best on validation, seed 3", "seed 3")
    write_json(tmp_path / "old.json", [{**plain, "note": note} for note in notes])
    assert [row.selected for row in read_rows(tmp_path / "old.json")] == ["shown", "shown", "fixed"]
    for wrong in ("best", 3, None):
        write_json(tmp_path / "wrong.json", [{**plain, "selected": wrong}])
        with pytest.raises(DataError, match="row 1: selected: "):
            read_rows(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "text"), ("n", True), ("n", 3.0), ("n", -1), ("n", 10**400), ("n", None), ("depth", 1.5), ("epoch", -2),
        ("seed", "0"), ("classes", []), ("left_out", -1), ("value", "40"), ("value", True), ("value", math.inf),
        ("value", math.nan), ("low", "1"), ("low", math.nan), ("low", 44.0), ("high", []), ("deviation", -0.1),
        ("heldout", {}), ("complete", 1.01), ("degenerate", -0.01), ("ambiguous", "0"), ("metric", None), ("task", 3),
        ("dataset", ["voc"]), ("note", 0), ("model", False), ("block", "\u00b2"), ("block", "7 "), ("block", "9" * 5),
        ("block", 7), ("selected", "best"), ("precision", "fp8"), ("kernels", None),
    ],
)  # fmt: skip
def test_a_value_that_no_row_has_is_named_by_row_and_field(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW.plain(), {**ROW.plain(), field: value}]))
    with pytest.raises(DataError, match=f"row 2: {field}: ") as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: row 2: ")
    assert len(caught.value.problems) == 1


def test_many_rows_are_written_and_read_in_no_time(tmp_path: Path) -> None:
    """Reading 1,620 rows took 1.5 s with asdict once a field. Calls are counted here, as time depends on the load."""
    rows = [replace(ROW, seed=seed) for seed in range(300)]
    write_rows(tmp_path / "rows.json", rows)
    with cProfile.Profile() as profile:
        assert read_rows(tmp_path / "rows.json") == rows
        text = rows_csv(rows)
    assert text.count("\n") == 301
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls < 300 * 500, calls


def test_a_classifiers_accuracy_is_read_with_wilsons_interval(tmp_path: Path) -> None:
    bare = EvalResult("top1", 100 * 7 / 30, "classify", "12", "imagenet", "val", 30)
    write_rows(tmp_path / "rows.json", [bare, replace(bare, low=1.0, high=2.0), replace(bare, n=0)])
    found, kept, empty = read_rows(tmp_path / "rows.json")
    z, share = 1.959963984540054, 7 / 30
    for end in (found.low, found.high):  # where the share is z standard errors away (Wilson 1927)
        assert end is not None
        assert abs(share - end / 100) == pytest.approx(z * math.sqrt(end / 100 * (1 - end / 100) / 30))
    assert found.low < found.value < found.high
    assert (kept.low, kept.high) == (1.0, 2.0)
    assert empty.low is None


def test_rows_with_a_flipped_bit_are_not_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [ROW])
    write_manifest(tmp_path)
    assert read_rows(tmp_path / "rows.json") == [ROW]
    text = (tmp_path / "rows.json").read_text()
    (tmp_path / "rows.json").write_text(text.replace("40.0", "60.0"))
    with pytest.raises(DataError, match=r"rows\.json: content differs from its recorded sha256"):
        read_rows(tmp_path / "rows.json")


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [replace(ROW, value=math.nan, low=math.nan, high=math.nan)])
    (back,) = read_rows(tmp_path / "rows.json")
    assert math.isnan(back.value)
    assert (back.low, back.high) == (None, None)


def test_fields_that_do_not_apply_are_left_out_of_the_file(tmp_path: Path) -> None:
    probed = replace(ROW, heldout=41.0, token_cosine=0.25)
    write_rows(tmp_path / "rows.json", [ROW, probed, replace(ROW, complete=0.5, degenerate=math.nan)])
    plain, other, cut = read_json(tmp_path / "rows.json")
    optional = {"heldout", "token_cosine", "complete", "degenerate", "ambiguous"}
    assert [optional & set(entry) for entry in (plain, other, cut)] == [
        set(),
        {"heldout", "token_cosine"},
        {"complete"},
    ]
    assert read_rows(tmp_path / "rows.json")[1] == probed
    assert probed.baseline("majority class", 3.0).heldout is None


def test_kernels_are_recorded_and_tell_no_rows_apart(tmp_path: Path) -> None:
    one, other = (replace(ROW, kernels=f"openblas {name}") for name in ("Zen", "SkylakeX"))
    write_rows(tmp_path / "rows.json", [one])
    assert [row.kernels for row in read_rows(tmp_path / "rows.json")] == ["openblas Zen"]
    assert len({one, other, ROW}) == 1, "the same baseline of two machines is one"
    assert "openblas SkylakeX" in rows_csv([other])


def test_a_block_is_chosen_by_held_out_images_not_by_its_value() -> None:
    rows = [replace(ROW, block=str(b), value=v, heldout=h) for b, v, h in ((1, 30, 31.0), (2, 50, 20.0), (3, 40, 31.0))]
    best = best_by_heldout(rows)
    assert best is not None
    assert best.block == "1"
    assert best_by_heldout([ROW]) is None


def test_interval_reads_as_one_would_write_it() -> None:
    assert ROW.interval == "38.0-44.0"
    assert replace(ROW, low=None).interval == ""


def test_csv_has_every_field_and_the_variant_if_asked() -> None:
    names = [field.name for field in fields(EvalResult)]
    rows = [ROW, replace(ROW, value=math.nan, low=None, high=None, dataset="=1+1")]
    plain = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    assert list(plain[0]) == names
    assert (plain[0]["low"], plain[1]["low"], plain[1]["value"], plain[1]["dataset"]) == ("38.04", "", "", "'=1+1")
    named = list(csv.DictReader(io.StringIO(rows_csv(rows, ["a", "-b"]))))
    assert [row["variant"] for row in named] == ["a", "'-b"]
    assert list(named[0]) == ["variant", *names]


def test_baselines_of_any_model_are_the_same_row() -> None:
    other = replace(ROW, model="skipless", block="4", depth=12, epoch=9, weights="abc", facet="key", protocol="x")
    assert ROW.baseline("full image", 5.0) == other.baseline("full image", 5.0)


def test_retrieve_prints_writes_csv_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(3):
            mask = rng.integers(0, 2, (3, 3)).repeat(16, 0).repeat(16, 1).astype(np.uint8)
            for kind, array in (("images", (mask * 200)[..., None].repeat(3, 2)), ("masks", mask)):
                (tmp_path / "set" / kind / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(tmp_path / "set" / kind / split / f"{number}.png")
    (tmp_path / "set" / "classes.txt").write_text("off\non\n")
    config = VitConfig(name="vit_tiny_patch16", depth=1, img_size=48)
    model = create_model("vit_tiny_patch16", depth=1, img_size=48)
    save_weights(tmp_path / "tiny.safetensors", model.state_dict(), config, {})
    command = [
        "eval",
        "retrieve",
        f"weights:{tmp_path / 'tiny.safetensors'}",
        "--kind",
        "masks",
        "--device",
        "cpu",
    ]
    command += ["--data", str(tmp_path / "set"), "--out", str(tmp_path / "out"), "--csv", str(tmp_path / "rows.csv")]
    command += ["evaluate.retrieve.size=48", "evaluate.retrieve.k=3", "--device", "cpu", "-q"]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "retrieval mIoU, set val, by block, read at out"
    measured, trivial = (line.split() for line in printed if line.startswith("retrieval mIoU, set val  "))
    assert measured[4:7] == ["tiny", "1", "out"]
    assert "baseline: majority class" in " ".join(trivial)
    assert printed[-1].startswith("rows: ")
    written = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["metric"] for row in rows] == [row["metric"] for row in written]
    assert rows[0]["low"] <= rows[0]["value"] <= rows[0]["high"]
    assert float(written[0]["low"]) == rows[0]["low"]
    for name in ("model", "depth", "block", "facet", "norm", "dataset", "split", "protocol", "resolution", "classes"):
        assert rows[0][name], name
    for name in ("metric", "value", "n", "weights", "version"):
        assert rows[0][name], name
    assert (rows[0]["seed"], rows[0]["epoch"]) == (0, UNKNOWN_EPOCH)


def test_errors_are_shown_in_their_unit_with_three_digits() -> None:
    error = EvalResult(METRIC, 0.44861, "distance", "3", "nyu", "test", 654, low=0.43, high=0.47, deviation=0.0012)
    assert error.shown == "0.449 ± 0.001"
    assert error.interval == "0.430-0.470"
