"""``dinoskip settings``: every setting, with a meaning; sections and words are looked for."""

import json
import os
import subprocess
import sys

import pytest

from dinoskip.cli import main
from dinoskip.cli.settings import Setting, matching, settings_of
from dinoskip.pipeline.study import Study

EVERY = settings_of(Study)


def test_every_setting_has_a_meaning() -> None:
    assert len(EVERY) > 250
    assert [row.key for row in EVERY if len(row.meaning) < 5] == []


def test_ranges_are_those_of_the_types() -> None:
    ranges = {(row.key, row.of): row.range for row in EVERY}
    assert ranges["evaluate.tokencut.tau", ""] == "≥ 0, < 1"
    assert ranges["pretrain.log_every", ""] == "≥ 1"
    assert ranges["pretrain.parallel", ""] == "ddp | fsdp"
    assert ranges["model.init.mlp", "skipless"] == "suo | orthogonal | default"
    assert ranges["pretrain.teacher_temp", "dino"] == "> 0"
    assert next(row for row in EVERY if row.key == "data.NAME.year") == (
        "data.NAME.year", "voc", "2012", "2007 | 2012", "of the challenge"
    )  # fmt: skip


def keys(*words: str) -> set[str]:
    return {row.key for row in matching(EVERY, list(words))}


def test_a_section_is_matched_wherever_it_stands() -> None:
    assert {"evaluate.probe.size", "online.probe.size"} <= keys("probe")
    assert {key.rpartition(".")[0] for key in keys("online.knn")} == {"online.knn"}
    assert keys("lost_k") == {"evaluate.tokencut.lost_k"}


def test_a_word_finds_what_mentions_it_after_what_is_called_so() -> None:
    found = [row.key for row in matching(EVERY, ["crop"])]
    assert found[0] == "evaluate.probe.crop"
    assert {"pretrain.crops.global_size", "pretrain.crops.local_scale"} <= set(found)
    assert len(found) == len(matching(EVERY, ["crop"])) == len({(row.key, row.of) for row in matching(EVERY, ["crop"])})
    assert {key.rpartition(".")[0] for key in keys("evaluate.probe")} >= {"evaluate.probe"}
    assert all(".probe" in key for key in keys("evaluate.probe")), "a dotted word gives its section alone"


def test_words_are_looked_for_in_names_and_meanings() -> None:
    assert "pretrain.augment.blur_sigma" in keys("blur", "deviation")
    assert keys("prototypes") >= {"pretrain.out_dim"}
    assert keys() == {row.key for row in EVERY}


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "evaluate.knn", "--json"]) == 0
    assert {"evaluate.knn.k", "evaluate.knn.size"} <= {row["key"] for row in json.loads(capsys.readouterr().out)}
    assert main(["settings", "tokencutt"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: settings: nothing has tokencutt")
    assert "did you mean tokencut?" in error


def test_rows_have_the_columns_of_the_table() -> None:
    assert Setting._fields == ("key", "of", "default", "range", "meaning")


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_a_terminal_of_ascii_shows_what_it_can() -> None:
    command = [sys.executable, "-m", "dinoskip", "settings", "tokencut.tau"]
    done = subprocess.run(command, env={**os.environ, **ASCII}, capture_output=True, check=True)
    assert b"\\u2265 0" in done.stdout


def test_letters_that_the_locale_does_not_know() -> None:
    command = [sys.executable, "-m", "dinoskip", "plan", "configs/demo.yaml", "output=\u00e9"]
    done = subprocess.run([part.encode() for part in command], env={**os.environ, **ASCII}, capture_output=True)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: command line: output: has letters that this locale (ascii) does not know "
        b"(set LC_ALL=C.UTF-8 or PYTHONUTF8=1)\n"
    )
