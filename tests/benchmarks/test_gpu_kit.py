"""The GPU kit: lines that are kept, limits that hold, parts that run small on a CPU, the section made of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import device_tests, driver, lines, page
from benchmarks.gpu.driver import PARTS, Plan
from benchmarks.gpu.public_dino import PublicDino, Shape, Style
from dinoskip.training import compilation
from dinoskip.training.dino import dino_loss

CPU = torch.device("cpu")
SMALL = Shape(dim=32, heads=2, depth=2, size=32, out=16, drop_path=0.0)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", compilation.BACKEND)  # parts at tiny sizes set it


def rows(folder: Path) -> list[dict[str, object]]:
    return lines.read([folder / lines.RESULTS])


# --- lines and limits --------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_is_left_out_and_those_before_it_are_kept(tmp_path: Path) -> None:
    lines.append(tmp_path, {"part": "env", "name": "copy", "t": 1.0, "tb_s": 2.5, "bad": float("nan")})
    with (tmp_path / lines.RESULTS).open("a") as stream:
        stream.write('{"part": "env", "na')
    assert rows(tmp_path) == [{"part": "env", "name": "copy", "t": 1.0, "tb_s": 2.5, "bad": None}]
    assert lines.summary(rows(tmp_path)) == ["copy: tb_s 2.5, bad None"]


def test_a_command_is_ended_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    with (tmp_path / "log").open("w") as log:
        assert driver.limited([sys.executable, "-c", child], 2.0, log.fileno()) == "ended at its limit"
        assert driver.limited([sys.executable, "-c", "raise SystemExit(3)"], 60, log.fileno()) == "exit code 3"
        assert driver.limited([sys.executable, "-c", ""], 60, log.fileno()) == "done"


def test_no_part_is_begun_without_time(tmp_path: Path) -> None:
    told = driver.run(Plan(["env", "probe"], tmp_path, driver.LEAST - 1, tiny=True))
    assert [(row["part"], row["code"]) for row in rows(tmp_path)[1:]] == [
        ("env", "no time left"),
        ("probe", "no time left"),
    ]
    assert (tmp_path / lines.SUMMARY).read_text().splitlines() == told


def test_every_part_is_a_module_and_the_first_five_fit_into_a_run() -> None:
    for part in PARTS.values():
        assert (Path(driver.__file__).parent / f"{part.module}.py").is_file()
    limits = [part.seconds for part in PARTS.values()]
    assert sum(limits[:5]) < command.SECONDS


@pytest.mark.parametrize("arguments", [["nosuch"], ["probe"]])
def test_unknown_parts_and_missing_gpus_are_usage_errors(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "visible_gpu", lambda: None)
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err or arguments == ["probe"]


# --- parts -------------------------------------------------------------------------------------------


NAMES = {
    "probe": [
        "probes of 2 blocks x 1 rates, 6 + 2 images, 5 classes, 1 epochs",
        "k-NN of 2 blocks, 10 queries among 50",
    ],
    "tokencut": ["TokenCut (10, 14)", "TokenCut (10, 14), a batch of 3, ms", "dense eigh (10, 14)"],
}


@pytest.mark.parametrize("part", NAMES)
def test_cheap_parts_run_small_to_their_last_line(part: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        assert command.main(["--child", part, "--tiny", "--out", str(tmp_path), "--seconds", "300"]) == 0
    finally:
        torch.set_num_threads(threads)
    measured = {row["name"]: row for row in rows(tmp_path)}
    assert list(measured) == NAMES[part]
    for row in measured.values():
        assert "failed" not in row
        numbers = [value for key, value in row.items() if key not in ("part", "name", "t", "peak_gib")]
        assert all(isinstance(value, (int, float)) and value > 0 for value in numbers), row
    if part == "tokencut":
        assert measured["dense eigh (10, 14)"]["agrees"] == pytest.approx(1, abs=1e-3)


def test_the_public_style_computes_the_loss_of_ours() -> None:
    dino = PublicDino(CPU, SMALL, Style(torch.float32))
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(count * 4, SMALL.out, generator=generator) for count in (5, 2))
    ours = dino_loss(student, teacher, torch.zeros(SMALL.out), 0.1, 0.04).loss
    assert float(dino.loss(student, teacher, 5)) == pytest.approx(float(ours), rel=1e-5)
    assert dino.center[0] == pytest.approx(0.1 * teacher.mean(0), abs=1e-6)


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_the_modern_style_takes_the_public_step() -> None:
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(count, 3, side, side, generator=generator) for count, side in ((4, 32), (6, 16))]
    steps = []
    for style in (Style(torch.float32), Style(torch.float32, "sdpa", modern=True)):
        torch.manual_seed(0)
        dino = PublicDino(CPU, SMALL, style)
        start = weights(dino.student)
        losses = [dino.step(views, 5) for _ in range(2)]
        steps.append((losses, weights(dino.student) - start, dino))
    (plain, moved, first), (modern, other, second) = steps
    assert plain == pytest.approx(modern, rel=1e-4)
    assert plain[1] != plain[0]
    assert float((moved - other).norm() / moved.norm()) < 0.02  # Adam's first steps turn tiny gradients around
    for a, b in zip(first.teacher.parameters(), second.teacher.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_parts_run_small_one_after_the_other(tmp_path: Path) -> None:
    told = driver.run(Plan(list(PARTS), tmp_path, 2900, tiny=True))
    measured = rows(tmp_path)
    ended = {row["part"]: row["code"] for row in measured if row["name"] == lines.PART_ENDED}
    assert ended == dict.fromkeys(PARTS, "done"), "\n".join(told)
    assert [row for row in measured if "failed" in row] == []
    assert json.dumps(measured)


# --- page --------------------------------------------------------------------------------------------


RUN = [
    {"part": "kit", "name": "begin", "day": "2026-12-01", "tiny": False},
    {"part": "env", "name": "card", "t": 3.0, "card": "NVIDIA H100"},
    {"part": "env", "name": "versions", "t": 1.0, "torch": "2.11.0"},
    {"part": "env", "name": "part", "code": "done", "s": 30.0},
    {
        "part": "eager",
        "name": "public, eager, fp16, plain attention, batch 64",
        "t": 9.0,
        "ms": 160.0,
        "images_s": 400.0,
    },
    {
        "part": "compiled",
        "name": "ours, compiled, adamw, batch 64",
        "t": 9.0,
        "ms": 40.0,
        "images_s": 1600.0,
        "mfu": 0.2,
    },
    {"part": "compiled", "name": "part", "code": "ended at its limit", "s": 150.0},
]


def test_the_section_says_card_rates_their_ratio_and_how_parts_ended() -> None:
    text = "\n".join(page.section([RUN]))
    assert "**NVIDIA H100**, torch 2.11.0, 2026-12-01" in text
    assert "4.00 times the public style, eager." in text
    assert "| ours, compiled, adamw, batch 64 | 1600 | 0.2 | 40 |  |" in text
    assert "(ended at its limit)" in text
    assert text.count("<details") == 3, "parts that were not asked for are left out"


def test_nothing_is_shown_of_no_runs_and_of_tiny_ones() -> None:
    assert page.section([]) == page.section([[{**RUN[0], "tiny": True}, *RUN[1:]]]) == ["", page.NOTHING, ""]


def test_the_committed_section_is_that_of_the_committed_lines() -> None:
    text = page.PAGE.read_text()
    made = page.section([lines.read([path]) for path in page.committed()])
    assert page.with_section(text, made) == text
    with pytest.raises(ValueError, match="gpu"):
        page.with_section(text.replace(page.END, ""), made)


def test_sizes_are_those_of_the_paper() -> None:
    from benchmarks.gpu.steps import PAPER

    assert (PAPER.out, PAPER.large, PAPER.small, PAPER.views) == (65536, 224, 96, 10)
    assert replace(PAPER, num_local=6).views == 8


def test_tests_of_whole_tasks_are_where_the_part_looks_for_them() -> None:
    assert set(device_tests.WHOLE) < set(device_tests.files())
