"""docs/extending.md: its examples are the package's, a study uses all of them, and a stranger's package brings them."""

from __future__ import annotations

import importlib
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

from dinoskip.cli import main
from dinoskip.io.files import read_manifest, read_tensor_header, sha256_file
from dinoskip.plugins import found
from dinoskip.results.rows import read_rows
from dinoskip.settings.specs import newest_checkpoint
from dinoskip.testing.study import EXAMPLES, write_study
from tests.helpers.commands import child, command, programs
from tests.helpers.study import ANALYZE, SVG

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SHOWN = dict(re.findall(r"<summary>(\w+\.py)</summary>\n\n```python\n(.*?)\n```\n", PAGE, flags=re.DOTALL))
CHANGES = re.findall(r"```diff\n--- (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)  # a file's name, and its change
PARTS = EXAMPLES / "parts.py"


def checked(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def dinoskip(
    folder: Path, *arguments: str, site: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the packages below ``site`` installed."""
    return checked(child(with_site, arguments, site, cwd=folder, seconds=280), code)


def with_site(arguments: tuple[str, ...], site: Path | None) -> int:
    if site is not None:
        sys.path.insert(0, str(site))
        found.cache_clear()
    return main(arguments)


def test_the_page_shows_the_packages_examples() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"} == set(SHOWN)
    for name, text in SHOWN.items():
        assert text == (EXAMPLES / name).read_text().rstrip(), name


def test_every_example_is_complete(tmp_path: Path) -> None:
    said = checked(child(conformance, cwd=tmp_path), 0).stdout
    verdicts = [line.rpartition(": ")[2] for line in said.splitlines()]
    assert set(verdicts) == {"ok"}
    assert len(verdicts) > 9, "our own plug-ins, and the page's nine parts"


def conformance() -> int:
    """``python -m dinoskip.testing --plugin PARTS``."""
    from dinoskip.testing import __main__

    sys.argv = ["dinoskip.testing", "--plugin", str(PARTS)]
    return __main__.main()


WITH_PARTS = ("--plugin", str(PARTS))
BESIDE = {
    "board": command("board", "runs/extended", "--out", "board", "--json", *WITH_PARTS),
    "missing": f"""
import json
from pathlib import Path
from dinoskip.plugins import use_files
use_files([{str(PARTS)!r}])
from dinoskip.testing.study import missing_numbers
tasks = ["smoothness", "note_length"]
print(json.dumps(missing_numbers(Path("runs/extended"), tasks, [Path("board/index.html")])))
""",
    "check": command("data", "check", "beside", "--data", "photos", *WITH_PARTS),
    "hello": command("hello", "you", *WITH_PARTS),
    "help": command("eval", "smoothness", "--help", *WITH_PARTS),
}
"""Programs that follow the page's study in its folder."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Folder in which the page's study was run, with every example in it, and what further programs print there."""
    folder = tmp_path_factory.mktemp("extended")
    run = command("run", str(write_study(folder)), "-q")
    _, *beside = [checked(done, 0) for done in programs(run, *BESIDE.values(), cwd=folder)]
    return folder, {name: done.stdout for name, done in zip(BESIDE, beside, strict=True)}


@pytest.fixture(scope="module")
def folder(extended: tuple[Path, dict[str, str]]) -> Path:
    return extended[0]


@pytest.fixture(scope="module")
def printed(extended: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return extended[1]


@pytest.fixture(scope="module")
def study(folder: Path) -> Path:
    """The folder of that study's results."""
    return folder / "runs" / "extended"


def one(study: Path, pattern: str) -> Path:
    (path,) = study.glob(pattern)
    return path


def rows(study: Path, stage: str) -> list[Any]:
    every = [row for path in study.glob(f"stages/{stage}/**/rows.json") for row in read_rows(path)]
    return [row for row in every if not row.is_baseline]


def test_evaluation_tasks(study: Path) -> None:
    measured = rows(study, "smoothness")
    assert {(row.dataset, row.block, row.n) for row in measured} == {("scenes", "1", 4), ("photos", "1", 2)}
    assert all(-100 < row.value <= 100 for row in measured)
    assert {(row.dataset, row.n) for row in rows(study, "note_length")} == {("photos", 2)}


def test_tasks_of_several_labels_read_one_export(study: Path) -> None:
    assert len(list(study.glob("stages/features/*/*/photos-val-*"))) == 1


def test_the_numbers_of_tasks_are_wherever_results_are_read(printed: dict[str, str]) -> None:
    assert json.loads(printed["missing"]) == []


def test_gallery_layer(study: Path) -> None:
    page = one(study, "stages/gallery/*/index.html")
    assert 'data-layer="distance" aria-pressed' in page.read_text()
    assert '"spread"' in page.read_text(), "its score"
    with Image.open(page.parent / "img" / "distance-m0-i000.png") as sheet:
        assert len(np.unique(np.asarray(sheet))) > 2


def test_objective_optimizer_and_initialisation(study: Path) -> None:
    run = one(study, "stages/pretrain/*/*/")
    config = json.loads((run / "config.json").read_text())
    assert config["pretrain"]["objective"] == "turns"
    assert not (newest_checkpoint(run) / "teacher.safetensors").exists()
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < loss < 3 for loss in losses)  # ln 4 = 1.39 at the start
    (row, *_) = rows(study, "probe")
    assert (row.initialisation, row.optimizer) == ("xavier", "lion")
    state = read_tensor_header(newest_checkpoint(run) / "optimizer.safetensors")
    assert any(name.endswith("momentum") for name in state.shapes)


def test_commands(printed: dict[str, str]) -> None:
    assert "photos notes val: 2 images, 2 read: ok" in printed["check"]
    assert printed["hello"] == "hello you\n"
    assert "evaluate.smoothness.size=448" in printed["help"]


# --- a package of a stranger's -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which a package with two of the page's examples is installed, from a wheel."""
    source, site = tmp_path_factory.mktemp("stranger"), tmp_path_factory.mktemp("site")
    package = source / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("smoothness.py", "distance.py"):
        (package / name).write_text(SHOWN[name])
    (declared,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    project = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    (source / "pyproject.toml").write_text(f'{project}[project]\nname = "my-package"\nversion = "1.0"\n{declared}')
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    quiet = {"check": True, "capture_output": True, "timeout": 120}
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", source / "dist", source], **quiet
    )
    (wheel,) = (source / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], **quiet)
    return site


def tried(folder: Path) -> Path:
    """A study of random features, measured by the stranger's task."""
    (folder / "study.yaml").write_text(
        "name: tried\n"
        "data: {scenes: {kind: scenes, images: 4, size: 64, val_fraction: 0.5}}\n"
        'variants: {model: [{backbone: "timm:vit_tiny_patch16_224,pretrained=false,depth=1", label: tiny}]}\n'
        "evaluate: {blocks: [1], smoothness: {datasets: [scenes], size: 32}}\n"
        f"gallery: {{sheet_formats: []}}\n{ANALYZE}{SVG}"
    )
    return folder / "study.yaml"


def test_an_installed_package_is_found_and_gone_when_it_is_removed(site: Path, tmp_path: Path) -> None:
    study = tried(tmp_path)
    listed, ran = programs(command("eval", "--help"), command("run", str(study), "-q"), cwd=tmp_path, site=site)
    assert "smoothness" in checked(listed, 0).stdout
    said = checked(ran, 0).stdout
    (row,) = rows(tmp_path / "runs" / "tried", "smoothness")
    assert row.shown in said
    assert row.shown in (tmp_path / "runs" / "tried" / "report" / "index.html").read_text()
    gone = dinoskip(tmp_path, "plan", str(study), code=2).stderr
    assert gone.count("\n") == 1
    assert "evaluate.smoothness" in gone


def test_a_broken_package_is_one_line_and_two_of_one_name_are_refused(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(site, broken)
    (broken / "my_package" / "smoothness.py").write_text("import a_module_that_is_not_there\n")
    said = dinoskip(tmp_path, "settings", "probe", site=broken)
    assert said.stderr.count("\n") == 1
    assert all(word in said.stderr for word in ("smoothness", "my-package", "a_module_that_is_not_there"))
    both = dinoskip(tmp_path, "settings", "probe", "--plugin", str(PARTS), site=site, code=2).stderr
    assert both.count("\n") == 1
    assert "my-package" in both
    assert str(PARTS) in both


# --- changes of dinoskip itself ------------------------------------------------------------------------


def changed(text: str, hunk: list[str]) -> str:
    """``text`` with the lines of a hunk, which stand in it once, replaced."""
    old, new = ("".join(line[1:] for line in hunk if line[0] in kinds) for kinds in (" -", " +"))
    assert text.count(old) == 1, f"these lines stand {text.count(old)} times in the file:\n{old}"
    return text.replace(old, new)


def hunks_of(diff: str) -> Iterator[list[str]]:
    """The lines of every hunk of a diff block."""
    for hunk in diff.split("@@\n"):
        yield hunk.splitlines(keepends=True)


def test_a_stage(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "extending" / "sizes.py", tmp_path)
    (tmp_path / "study.yaml").write_text(
        "name: sized\nplugins: [sizes.py]\nmodel: {name: vit_tiny_patch16, depth: 1, img_size: 32}\n"
        "data: {scenes: {kind: scenes, images: 8, size: 64}}\nsizes: {unit: bytes}\n"
        "pretrain: {dataset: scenes, epochs: 1, batch_size: 2, warmup_epochs: 0}\n"
    )
    run = command("run", "study.yaml", "-q", "--only", "sizes", "--plugin", "sizes.py")
    checked(programs(run, cwd=tmp_path)[0], 0)
    output = one(tmp_path / "runs" / "sized", "stages/sizes/*/")
    ((variant, size),) = json.loads((output / "sizes.json").read_text()).items()
    assert size > 4 * 400_000
    settings = read_manifest(output).info["record"]["settings"]
    assert settings["plugin"] == sha256_file(tmp_path / "sizes.py")
    shown = checked(child(table_of_sizes, str(output), variant, cwd=tmp_path), 0).stdout
    assert shown == f"[['words', {size}]]\n"


def table_of_sizes(output: str, variant: str) -> None:
    """Print the rows of the table that the stage of the page shows."""
    sys.path.append(str(Path.cwd()))
    sizes = importlib.import_module("sizes")
    print(sizes.shows(sizes.ShownOf({"sizes": Path(output)}, {"words": variant}, Path())).tables[0].rows, flush=True)


def test_a_probe_protocol(tmp_path: Path) -> None:
    for package in ("dinoskip", "eval", "visualize"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    ((name, diff),) = CHANGES
    for hunk in hunks_of(diff):
        (tmp_path / name).write_text(changed((tmp_path / name).read_text(), hunk))
    (tmp_path / "study.yaml").write_text(
        "name: changed\ndata: {scenes: {kind: scenes, images: 8, size: 64}}\n"
        'variants: {model: [{backbone: "timm:vit_tiny_patch16_224,pretrained=false", label: tiny}]}\n'
        "evaluate: {probe: {datasets: [scenes], protocol: brief}}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    plan = [sys.executable, "-m", "dinoskip", "plan", "study.yaml", "--json"]
    subprocess.run(plan, cwd=tmp_path, env=environment, check=True, timeout=200, capture_output=True)
