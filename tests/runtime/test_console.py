"""Names given by others, as a terminal or a log receives them."""

import logging
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.runtime import console
from dinoskip.runtime.console import say, table, visible
from tests.helpers.commands import dinoskip
from tests.helpers.tiny import make_images

HOSTILE = "a\x1b[31mred\x07\u202egnp\u2066\nerror: forged\r\x9b2J\u2028x\u200e.png"
UNSEEN = set("\x1b\x07\r\x9b\u202e\u2066\u2028\u200e")


def test_what_acts_on_a_terminal_is_shown_as_an_escape() -> None:
    assert visible(HOSTILE) == (r"a\x1b[31mred\x07\u202egnp\u2066\nerror: forged\r\x9b2J\u2028x\u200e.png")
    assert visible("a\U000e0041\u180e\u206fb") == r"a\U000e0041\u180e\u206fb", "letters that nobody sees"
    assert visible("Zürich 東京 e\u0301 🦕 שלום") == "Zürich 東京 e\u0301 🦕 שלום", "letters of any language stay"


def test_lines_tables_and_logs_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    say(HOSTILE, error=True)
    say(*table([(HOSTILE, 1.5)], ("name", HOSTILE)).split("\n"))
    console.configure()
    console.log.warning("%s: %s", HOSTILE, "damaged")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        console.log.exception("%s", HOSTILE)
    out, err = capsys.readouterr()
    assert not UNSEEN & set(out + err)
    assert len(out.split("\n")) == 4, "one line and two of the table, and the end"
    assert not [line for line in (out + err).split("\n") if line.startswith("error: forged")]
    assert logging.getLogger("dinoskip").handlers


def test_a_name_forges_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Image names, options, YAML and paths, through commands that say them."""
    photos = make_images(tmp_path / "photos", 2)
    (photos / HOSTILE).write_bytes(b"no image")
    config = tmp_path / "study.yaml"
    config.write_text('name: "a\\e[31m\\nerror: forged"\n"b\\a\\u202e": 1\n')
    commands = [
        ["data", "check", "images", "--data", str(photos)],
        ["plan", str(config)],
        ["plan", str(tmp_path / HOSTILE)],
        ["verify", str(tmp_path / HOSTILE)],
        ["cuts", "timm:vit_tiny_patch16_224,pretrained=false", str(photos / HOSTILE), "--out", HOSTILE],
        ["settings", HOSTILE],
        [HOSTILE],
        ["plan", f"--{HOSTILE}"],
    ]
    for arguments in commands:
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
        said = "".join(capsys.readouterr())
        assert code in {2, 3}, arguments
        assert not UNSEEN & set(said), arguments
        assert not [line for line in said.split("\n") if line.startswith("error: forged")], arguments


def test_a_process_says_it_so(tmp_path: Path) -> None:
    done = dinoskip("verify", str(tmp_path / HOSTILE))
    assert done.returncode == 3
    assert not UNSEEN & set(done.stderr)
    assert done.stderr.count("\n") == 1
