"""docs/extending.md: its examples, files beside the page, copied into the packages and run in one study."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.files import read_tensor_header
from dinoskip.results import read_rows
from dinoskip.specs import newest_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
LINKED = re.findall(r"\]\((extending/\w+\.py)\) to `(\S+)`", PAGE)


FILES = [(name, (ROOT / "docs" / link).read_text()) for link, name in LINKED]
CHANGES = re.findall(r"```diff\n--- (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)  # a file's name, and its change


def changed(text: str, hunk: list[str]) -> str:
    """``text`` with the lines of a hunk, which stand in it once, replaced."""
    old, new = ("".join(line[1:] for line in hunk if line[0] in kinds) for kinds in (" -", " +"))
    assert text.count(old) == 1, f"these lines stand {text.count(old)} times in the file:\n{old}"
    return text.replace(old, new)


def hunks_of(diff: str) -> Iterator[list[str]]:
    """The lines of every hunk of a diff block."""
    for hunk in diff.split("@@\n"):
        yield hunk.splitlines(keepends=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with all examples in it."""
    folder = tmp_path_factory.mktemp("extended")
    for package in ("dinoskip", "eval", "visualize"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, text in FILES:
        assert not (folder / name).exists(), f"{name} is there already"
        (folder / name).write_text(text)
    for name, diff in CHANGES:
        for hunk in hunks_of(diff):
            (folder / name).write_text(changed((folder / name).read_text(), hunk))
    return folder


def dinoskip(packages: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dinoskip", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, cwd=packages, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def photos(folder: Path) -> Path:
    """Six images of two classes, as the kind of data set of the page wants them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        mask = np.zeros((64, 64), np.uint8)
        mask[:, : 16 + 8 * number] = 1
        image = rng.integers(0, 128, (64, 64, 3), np.uint8) + 100 * mask[..., None]
        Image.fromarray(image).save(folder / f"{number}.png")
        Image.fromarray(mask).save(folder / f"{number}_mask.png")
        (folder / f"{number}_note.txt").write_text(f"note {number}")
    (folder / "train.txt").write_text("0 1 2 3")
    (folder / "val.txt").write_text("4 5")
    (folder / "classes.txt").write_text("dark\nbright\n")
    return folder


@pytest.fixture(scope="module")
def printed(packages: Path) -> str:
    """What the page's study prints at its end, run with every example in it."""
    (link,) = re.findall(r"\]\((extending/\w+\.yaml)\)", PAGE)
    text = (ROOT / "docs" / link).read_text()
    (packages / "study.yaml").write_text(text.replace("PHOTOS", str(photos(packages / "photos"))))
    return dinoskip(packages, "run", "study.yaml", "-q")


@pytest.fixture(scope="module")
def study(packages: Path, printed: str) -> Path:
    """The folder of that study."""
    return packages / "runs" / "extended"


def one(study: Path, pattern: str) -> Path:
    (path,) = study.glob(pattern)
    return path


def rows(study: Path, stage: str) -> list[Any]:
    every = [row for path in study.glob(f"stages/{stage}/**/rows.json") for row in read_rows(path)]
    return [row for row in every if not row.is_baseline]


def test_each_is_a_short_file_and_a_line_in_one_table() -> None:
    assert len(FILES) == 7
    assert len(CHANGES) == 9  # a protocol and a label have no file of their own
    for name, text in FILES:
        assert text.count("\n") < 75, f"{name} has {text.count(chr(10))} lines"
    for name, diff in CHANGES:
        assert f"`{name}` |" in PAGE, f"{name} is not in the page's table"
        added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
        assert sum(not line.startswith("from ") for line in added) == 1, f"{name}: {added}"


def test_they_keep_the_rules_of_the_house(packages: Path) -> None:
    names = [name for name, _ in FILES]
    for arguments in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, *names],
            cwd=packages,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_stage(study: Path) -> None:
    sizes = json.loads(one(study, "stages/sizes/*/sizes.json").read_text())
    assert set(sizes) == {"skip_xavier-lion"}
    assert sizes["skip_xavier-lion"] > 4 * 500_000


def test_evaluation_task(study: Path) -> None:
    measured = rows(study, "smoothness")
    assert {(row.dataset, row.block, row.n) for row in measured} == {("scenes", "1", 4), ("photos", "1", 2)}
    assert all(-100 < row.value <= 100 for row in measured)
    assert ",smoothness," in one(study, "report/**/rows.csv").read_text()


def test_the_number_of_a_task_is_wherever_results_are_read(packages: Path, printed: str, study: Path) -> None:
    measured = next(row for row in rows(study, "smoothness") if row.dataset == "photos")
    assert dinoskip(packages, "board", str(study), "--out", "board", "--json")
    pages = {
        "summary": printed,
        "report": (study / "report" / "index.html").read_text(),
        "board": (packages / "board" / "index.html").read_text(),
        "gallery": (study / "report" / "gallery" / "index.html").read_text(),
    }
    for name, text in pages.items():
        assert "cosine of neighbours, photos val" in text, name
        assert measured.shown in text, f"{name} lacks {measured.shown}"
    for name in ("summary", "report", "board"):
        assert "unrelated patches" in pages[name], name


def test_an_evaluation_task_is_a_command(packages: Path, study: Path) -> None:
    assert "say how alike neighbouring patches are" in dinoskip(packages, "--help")
    assert "evaluate.smoothness.size=448" in dinoskip(packages, "smoothness", "--help")


def test_gallery_layer(study: Path) -> None:
    page = one(study, "stages/gallery/*/index.html")
    assert 'data-layer="distance" aria-pressed' in page.read_text()
    assert "Euclidean distance of a patch’s feature from the mean" in page.read_text()
    with Image.open(page.parent / "img" / "distance-m0-i000.png") as sheet:
        assert len(np.unique(np.asarray(sheet))) > 2


def test_kind_of_data_set_and_probe_protocol(study: Path) -> None:
    measured = rows(study, "probe")
    assert {(row.dataset, row.n, row.classes, row.protocol) for row in measured} == {
        ("photos", 2, 2, "brief, fitted on train")
    }


def test_data_check_of_the_kind(packages: Path, study: Path) -> None:
    said = dinoskip(packages, "data", "check", "beside", "--data", str(packages / "photos"))
    assert "photos segmentation train: 4 images, 4 read: ok" in said
    assert "photos notes val: 2 images, 2 read: ok" in said, "the page's label"


def test_objective(study: Path) -> None:
    run = one(study, "stages/pretrain/*/*/")
    config = json.loads((run / "config.json").read_text())
    assert config["pretrain"]["objective"] == "turns"
    assert not (newest_checkpoint(run) / "teacher.safetensors").exists()
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < loss < 3 for loss in losses)  # ln 4 = 1.39 at the start


def test_optimizer_and_initialisation(study: Path) -> None:
    (row, *_) = rows(study, "probe")
    assert (row.initialisation, row.optimizer) == ("xavier", "lion")
    state = read_tensor_header(newest_checkpoint(one(study, "stages/pretrain/*/*/")) / "optimizer.safetensors")
    assert any(name.endswith("momentum") for name in state.shapes)
