"""``dinoskip compare``: two result rows over the same images, on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.cli import main
from dinoskip.results.records import write_recorded_rows
from dinoskip.results.rows import EvalResult
from eval.rows import hits_row

IDS = tuple(f"image{number}" for number in range(60))
ROW = EvalResult(
    "CorLoc", 0.0, "tokencut", "2", "voc2007", "trainval", 60, "skip", epoch=3, protocol="tokencut tau=0.2"
)


def written(folder: Path, model: str, hits: np.ndarray) -> str:
    folder.mkdir()
    write_recorded_rows(folder, IDS, [hits_row(replace(ROW, model=model), hits)])
    return str(folder)


def test_intervals_overlap_and_the_paired_difference_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more, less = np.arange(60) < 39, np.arange(60) < 31  # 65.0 and 51.7 %, eight images apart
    a, b = written(tmp_path / "a", "skip", more), written(tmp_path / "b", "skipless", less)
    assert main(["compare", a, b]) == 0
    line = capsys.readouterr().out
    assert line.startswith(
        "CorLoc on voc2007 trainval, 60 images: skip epoch 3 block 2 - skipless epoch 3 block 2 = +13.3"
    )
    assert "McNemar 8 : 0" in line
    assert main(["compare", a, b, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["a"]["low"] < told["b"]["high"], "the unpaired intervals overlap"
    assert told["difference"]["low"] > 0
    assert told["mcnemar"]["p"] < 0.01
    assert told["a"]["selected"] == "fixed"
    assert told["verdict"] in {"higher, one training each", "undecided"}
    assert bool(told["why"]) is (told["verdict"] == "undecided")


def test_the_folder_of_a_command_has_rows_above_and_records_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = np.arange(60) < 39
    for name in ("a", "b"):
        (tmp_path / name / "stages").mkdir(parents=True)
        written(tmp_path / name / "stages" / "old", "of an older run", hits)
        written(tmp_path / name / "stages" / "new", name, hits)
        (tmp_path / name / "rows.json").write_bytes((tmp_path / name / "stages" / "new" / "rows.json").read_bytes())
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "60 images: a epoch 3 block 2 - b epoch 3 block 2 = " in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a", "skip", np.arange(60) < 39)
    assert main(["compare", a, f"{a}@blok=3"]) == 2
    assert "block" in capsys.readouterr().err
    assert main(["compare", a, str(tmp_path)]) == 0  # the only rows.json below it
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    assert main(["compare", a, str(tmp_path / "empty")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no rows.json" in line
