"""The command line as a user meets it: real processes, one line per error, the documented exit codes."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dinoskip.cli import main
from tests.helpers.commands import ROOT, dinoskip, program


def one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0]


SIGNALS = {"SIGTERM": 75, "SIGUSR2": 75, "SIGINT": 130}


def every_signal(ways: Mapping[str, str]) -> list[Any]:
    """Each signal with its exit code in each way; but for the one that ``ways`` names with a way they are slow.

    Most are children of the fork server; those that end as Python does are new interpreters.
    """
    return [
        pytest.param(number, code, way, marks=[] if number == quick else pytest.mark.slow)
        for way, quick in ways.items()
        for number, code in SIGNALS.items()
    ]


def test_help_needs_no_heavy_package() -> None:
    code = "import sys\ntry:\n    from dinoskip.cli import main; main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'timm', 'scipy', 'sklearn', 'matplotlib', 'faiss', 'cv2', 'pycocotools'}\n"
    code += "assert heavy.isdisjoint(sys.modules), heavy & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "exit codes" in done.stdout.lower()


def test_help_of_run_names_every_stage_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    from dinoskip.cli import main
    from dinoskip.pipeline.study import STAGES

    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = re.search(r"stages: ([a-z, \n]+)", capsys.readouterr().out)
    assert said is not None
    assert re.split(r",\s+", said[1].strip()) == list(STAGES)


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from dinoskip.cli import main

    def commands(words: list[str]) -> list[list[str]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([*words, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert "usage: dinoskip" in text
        found = re.findall(r"^    (\w+) {2,}\w|^    (\w+)$", text, re.MULTILINE)
        return [[*words, one or other] for one, other in found]

    tree = [command for top in commands([]) for command in [top, *commands(top)]]
    names = {" ".join(command) for command in tree}
    assert {
        "run",
        "plan",
        "status",
        "pretrain",
        "features export",
        "eval probe",
        "eval tokencut",
        "eval knn",
        "gallery",
        "report",
    } <= names
    assert {
        "data check",
        "data prepare",
        "data pack",
        "data scenes",
        "models list",
        "models show",
        "models convert",
        "gc",
        "verify",
        "doctor",
    } <= names


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["rnu"], "did you mean run?"),
        (["run"], "required"),
        (["run", "configs/dmeo.yaml"], "did you mean configs/demo.yaml?"),
        (["run", "configs/demo.yaml", "pretrain.epoch=3"], "did you mean epochs?"),
        (["run", "configs/demo.yaml", "pretrain.epochs=0"], "greater than or equal to 1"),
        (["run", "configs/demo.yaml", "pretrain.dataset=sceens"], "'sceens' is not one of the data sets"),
        (["run", "configs/demo.yaml", "--only", "prob"], "did you mean probe?"),
        (["plan", "configs/demo.yaml", "evaluate.epochs=[1]", "gallery.epochs=[1]"], "epoch 1 is not kept"),
        (["plan", "configs/demo.yaml", "variants.model.4.init.gian=3"], "did you mean gain?"),
        (["settings", "pretrian"], "did you mean pretrain?"),
        (["gallery", "x", "--data", "x", "--out", "y", "--csv", "z"], "see dinoskip gallery --help"),
        (["features", "export", "tim:x", "--data", "x", "--out", "y"], "tim"),
    ],
)
def test_usage_and_config_errors(arguments: list[str], part: str) -> None:
    one_line(dinoskip(*arguments), 2, part)


def test_missing_data_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    one_line(dinoskip("pretrain", "--data", str(missing), "--out", str(tmp_path / "run")), 3, str(missing))
    one_line(dinoskip("data", "check", "images", "--data", str(missing)), 3, str(missing))
    one_line(dinoskip("verify", str(tmp_path)), 3, "no finished output")
    one_line(dinoskip("models", "show", f"weights:{missing}.safetensors"), 3, str(missing))


def test_scenes_then_check_and_doctor(tmp_path: Path) -> None:
    done = dinoskip("data", "scenes", str(tmp_path / "s"), "images=8", "size=64")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_dir()
    one_line(dinoskip("data", "scenes", str(tmp_path / "s")), 2, "not an empty folder")
    checked = dinoskip("data", "check", "voc", "--data", str(tmp_path / "s"), "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)
    doctor = dinoskip("doctor")
    assert doctor.returncode == 0
    assert "torch" in doctor.stdout


def test_version() -> None:
    command = [sys.executable, "-m", "dinoskip", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert done.stdout.startswith("dinoskip 0.")


@pytest.mark.parametrize(
    ("number", "code", "begins"),
    every_signal({"at once": "SIGINT", "slowly": "SIGTERM"}),
)
def test_a_signal_that_comes_in_a_destructor_stops_the_command(number: str, code: int, begins: str) -> None:
    """Python prints and drops what the handler raises there. A thread that sends the signal again may begin slowly."""
    text = f"""
import os, signal, sys, threading, time
from dinoskip import cli
from dinoskip.cli import machine

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins without it

start = threading.Thread.start
if {begins!r} == "slowly":
    threading.Thread.start = lambda thread: (start(thread), time.sleep(0.2))

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        time.sleep(0)  # where the handler runs

def long(*_):
    Last()
    time.sleep(120)

machine.describe = long
sys.exit(cli.main(["doctor"]))
"""
    began = time.monotonic()
    done = program(text)
    assert done.returncode == code, done.stderr
    assert time.monotonic() - began < 60  # not the whole of its sleep, on a busy machine either
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_line_is_imported_is_no_traceback() -> None:
    """A run of ``tests/chaos`` (2026-11-27, seed 401) met it 0.06 s after the start."""
    text = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "dinoskip.errors":
            os.kill(os.getpid(), signal.SIGINT)

import dinoskip
assert "dinoskip.errors" not in sys.modules
sys.meta_path.insert(0, Interrupt())
from dinoskip.__main__ import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", text, "doctor"], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_second_request_that_comes_in_a_destructor_keeps_its_meaning(number: str, code: int) -> None:
    """A training that was asked twice to end for preemption said that Ctrl-C had ended it."""
    text = f"""
import os, signal, sys, time
from pathlib import Path
from dinoskip import cli
from dinoskip.cli import machine
from dinoskip.training.guard import StopNow, StopSignals
from dinoskip.training.run_directory import stopped_at_once

signal.signal(signal.SIGINT, signal.default_int_handler)

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        time.sleep(0)

def training(*_):
    with StopSignals() as signals:
        signals.leave = lambda request: None  # the main thread answers, late on a busy machine
        os.kill(os.getpid(), signal.{number})
        try:
            Last()
            time.sleep(60)
        except StopNow as stop:
            raise stopped_at_once(Path("run"), stop.request) from None

machine.describe = training
sys.exit(cli.main(["doctor"]))
"""
    done = program(text)
    assert (done.returncode, done.stderr) == (code, "error: run: stopped at once; the last checkpoint stands\n")


def test_ctrl_c_meets_our_handlers_before_anything_large_is_imported() -> None:
    program = "import sys, dinoskip.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert {"pydantic", "rich", "numpy"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("number", "code", "after"),
    every_signal({"in a clean-up": "SIGUSR2", "while Python ends": "SIGINT"}),
)
def test_a_second_signal_changes_nothing(number: str, code: int, after: str) -> None:
    """It ended the process by the signal itself, or in a traceback, and SLURM requeues 75 alone."""
    program = f"""
import atexit, os, signal, sys, time
from dinoskip import cli
from dinoskip.cli import machine

signal.signal(signal.SIGINT, signal.default_int_handler)

def again():
    os.kill(os.getpid(), signal.{number})
    time.sleep(0.2)

def long(*_):
    try:
        os.kill(os.getpid(), signal.{number})
        time.sleep(120)
    finally:
        if {after == "in a clean-up"}:
            again()

if {after == "while Python ends"}:
    atexit.register(again)
machine.find_below = long  # verify imports nothing large
sys.argv = ["dinoskip", "verify", "."]
sys.exit(cli.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "how"),
    every_signal({"taken for another error": "SIGTERM", "swallowed": "SIGUSR2", "in C code": "SIGINT"}),
)
def test_a_signal_while_a_module_is_imported_stops_the_command(
    number: str, code: int, how: str, tmp_path: Path
) -> None:
    """matplotlib turned it into an ImportError, which ended in a traceback; others take a module for missing."""
    (tmp_path / "imported.py").write_text(f"""
import os, signal, time
try:
    os.kill(os.getpid(), signal.{number})
    time.sleep(0.3)
except BaseException as error:
    if {how == "taken for another error"}:
        raise ImportError("a dependency is missing")
""")
    text = f"""
import os, signal, sys, time
sys.path.insert(0, {str(tmp_path)!r})
from dinoskip import cli
from dinoskip.cli import machine

signal.signal(signal.SIGINT, signal.default_int_handler)

def long(*_):
    if {how == "in C code"}:  # what SIGINT became in an extension's initialisation
        try:
            os.kill(os.getpid(), signal.{number})
            time.sleep(60)
        except BaseException as error:
            raise SystemError("raised unreported exception") from error
    import imported
    time.sleep(120)

machine.describe = long
sys.exit(cli.main(["doctor"]))
"""
    began = time.monotonic()
    done = program(text)
    assert done.returncode == code, done.stderr
    assert time.monotonic() - began < 60
    assert "Traceback" not in done.stderr


def test_a_signal_waits_for_no_import_without_end(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("import os, signal, time\nos.kill(os.getpid(), 15)\ntime.sleep(120)\n")
    text = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from dinoskip import cli
from dinoskip.cli import machine
from dinoskip.runtime import stopping
stopping.IMPORTING = 1.0
machine.describe = lambda *_: __import__("imported")
sys.exit(cli.main(["doctor"]))
"""
    began = time.monotonic()
    done = program(text)
    assert done.returncode == 75, done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_what_the_system_does_not_permit_is_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/data/file")

    monkeypatch.setattr("dinoskip.cli.machine.describe", refused)
    assert main(["doctor"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: not permitted: ")
    assert "'/data/file'" in line


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_refused_threads_and_memory_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The errors are those under a tight ulimit -v, where a thread gets no address space for its stack."""

    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("dinoskip.cli.machine.describe", refused)
    assert main(["doctor"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the system refuse")
    assert "ulimit -v" in line


def test_hints_say_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "p"
    photos.mkdir()
    for number in range(2):
        Image.new("RGB", (70, 70)).save(photos / f"{number}.jpg")
    vit = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    train, out = ["pretrain", "--data", str(photos), "--out"], str(tmp_path / "out")
    said = [
        ([*train, out], "or pretrain.batch_size=2 or less"),
        ([*train, out, "pretrain.epochs=5"], "give pretrain.warmup_epochs=0.5, or more epochs"),
        ([*train, out, "model.name=vit_small"], "did you mean vit_small_patch16?"),
        (["features", "export", vit, "--data", str(photos / "0.jpg"), "--out", out], "is a file"),
        (["eval", "knn", vit, "--data", str(photos), "--out", out], "/train/CLASS/IMAGE.jpg and "),
    ]
    for command, hint in said:
        assert main(command) in (2, 3)
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert hint in error
        assert "was given {" not in error


def test_a_damaged_image_is_named_without_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"junk")
    vit = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    export = [
        "features",
        "export",
        vit,
        "--data",
        str(tmp_path / "photos"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(export) == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "a.jpg: not a readable image" in error
    assert "<" not in error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prob a", "'prob' is no command: did you mean eval probe?"),
        ("eval prob a", "'prob' is no command: did you mean probe?"),
        ("export a", "'export' is no command: did you mean features export?"),
        ("validate study.yaml", "'validate' is no command: `dinoskip plan CONFIG` checks every setting and the data"),
        ("features exprt", "'exprt' is no command: did you mean export?"),
        ("eval knn a --images b --out c", "no option --images: this command takes --data"),
        ("eval knn a --dataset b", "no option --dataset: this command takes --data"),
        (
            "eval tokencut --weights a.safetensors",
            "no option --weights: this command takes the network without an option",
        ),
        ("eval tokencut a --output a", "no option --output: this command takes --out"),
        ("run a.yaml --out b", "no option --out: a study has a setting for it: write output=FOLDER"),
        ("gallery --bakbone a --out b", "no option --bakbone: this command takes the network without an option"),
        ("eval knn a --size 4", "no option --size: it is a setting: write evaluate.knn.size=VALUE"),
        ("look a --size 4", "no option --size: it is a setting: write evaluate.probe.size=VALUE or evaluate.knn.size="),
        ("gallery a --first 4", "no option --first: it is a setting: write gallery.first=VALUE"),
        ("pretrain --epochs 4", "no option --epochs: it is a setting: write pretrain.epochs=VALUE"),
        ("pretrain --epoch 4", "no option --epoch: did you mean the setting pretrain.epochs=VALUE?"),
        ("eval knn a --worker-count 4", "no option --worker-count: did you mean --workers?"),
    ],
)
def test_what_is_meant(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1


def test_commands_of_scripts_are_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["requeu"])
    assert "requeue" not in capsys.readouterr().err


def test_abbreviations_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("plan configs/none.yaml --js", "features export dino:none.pth --dat none --out none"):
        assert main(line.split()) in (2, 3)
        assert "no option" not in capsys.readouterr().err
