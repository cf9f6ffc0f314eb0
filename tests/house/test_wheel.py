"""The wheel, built, unpacked and run from an empty folder: nothing of the source tree is needed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = ("dinoskip", "eval", "visualize", "pyproject.toml", "README.md", "LICENSE")
    source.mkdir()
    for name in names:  # a copy, so that the build leaves nothing in the tree
        (source / name).symlink_to(ROOT / name)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder / "dist"),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr[-2000:] + built.stdout[-2000:]
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def run(site: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=200, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_holds_everything(site: Path) -> None:
    found = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    for package in ("dinoskip", "eval", "visualize"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.relative_to(ROOT).as_posix() in found
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in found)


def test_runs_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    code = "import timm, dinoskip.models, eval.metrics, visualize.gallery, dinoskip; print(dinoskip.__file__)\n"
    code += "timm.create_model('skipless_vit_tiny_patch16_224')"
    assert str(site) in run(site, tmp_path, "-c", code)
    assert "commands:" in run(site, tmp_path, "-m", "dinoskip", "--help")
    assert "mine.yaml" in run(site, tmp_path, "-m", "dinoskip", "init-study", "mine", "train")
    assert all((site / "dinoskip" / path).is_file() for path in ("configs/demo.yaml", "configs/start/compare.yaml"))


def test_the_smallest_study(site: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\ndata: {scenes: {kind: scenes, images: 4, size: 64, val_fraction: 0.5}}\n"
        "evaluate: {tokencut: {datasets: [scenes]}}\ngallery: {dataset: scenes, first: 1, size: 64}\n"
        "analyze: {model: vit_tiny_patch16, depth: 1, photos: 1}\n"
        "variants: {model: [{label: vit, backbone: 'timm:vit_tiny_patch16_224,pretrained=false,depth=1'}]}\n"
    )
    assert "page: " in run(site, tmp_path, "-m", "dinoskip", "run", "s.yaml")
    assert (tmp_path / "runs" / "s" / "report" / "gallery" / "index.html").is_file()
