"""The wheel, built, unpacked and run from an empty folder: nothing of the source tree is needed."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.helpers.wheel import build_distributions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, the wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("distributions")
    return build_distributions(folder)


@pytest.fixture(scope="module")
def site(dist: Path) -> Path:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(dist.parent / "site")
    return dist.parent / "site"


def test_an_index_would_take_both(dist: Path) -> None:
    pytest.importorskip("twine")
    files = sorted(map(str, dist.iterdir()))
    assert [Path(name).suffix for name in files] == [".whl", ".gz"]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def requirements(name: str) -> set[str]:
    """The distributions that one needs here, and all that those need, without any extra."""
    needed: set[str] = set()
    left = [Requirement(name)]
    while left:
        own = left.pop()
        if own.name in needed or (own.marker and not own.marker.evaluate({"extra": ""})):
            continue
        needed.add(own.name)
        left += [Requirement(text) for text in metadata.requires(own.name) or ()]
    return needed


def borrow(names: Iterable[str], folder: Path) -> None:
    """Link the installed files of some distributions, and no others, into a folder."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}
        for top in tops:
            source = Path(str(distribution.locate_file(top)))
            if not (folder / top).exists():
                (folder / top).symlink_to(source)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_the_declared_dependencies_alone(dist: Path, tmp_path: Path) -> None:
    """The wheel in a fresh environment, which has what it declares and no extra: help, and a first picture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = set().union(*(requirements(line) for line in project["dependencies"]))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=200)
    python, here = tmp_path / "venv" / "bin" / "python", tmp_path / "empty"
    borrow(needed, tmp_path / "borrowed")
    (place,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (place / "borrowed.pth").write_text(f"{tmp_path / 'borrowed'}\n")
    here.mkdir()

    def do(*command: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=800, cwd=here, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
        return done.stdout

    do(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools")  # an old one; torch needs a newer
    do(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(next(dist.glob("*.whl"))))
    assert "No broken requirements" in do(str(python), "-m", "pip", "check")
    extras = ("transformers", "h5py", "tensorboard", "wandb", "onnxruntime", "pytest", "build")
    code = f"import importlib.util as i; print([name for name in {extras} if i.find_spec(name)])"
    assert do(str(python), "-c", code).strip() == "[]"
    dinoskip = str(tmp_path / "venv" / "bin" / "dinoskip")
    assert "train one network:" in do(dinoskip, "--help")
    assert "page: " in do(dinoskip, "demo", "--quick")
    assert (here / "runs" / "quick" / "index.html").is_file()


def run(site: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=200, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_holds_everything(site: Path) -> None:
    found = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    packages = [*(ROOT / name for name in ("dinoskip", "eval", "visualize")), *ROOT.glob("plugins/*/dinoskip_*")]
    for package in packages:
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.relative_to(package.parent).as_posix() in found
    assert not any(name.startswith(("tests/", "benchmarks/", "plugins/")) for name in found)


def test_runs_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    code = "import timm, dinoskip.models, eval.metrics, visualize.gallery, dinoskip; print(dinoskip.__file__)\n"
    code += "timm.create_model('skipless_vit_tiny_patch16_224')"
    assert str(site) in run(site, tmp_path, "-c", code)
    assert "train one network:" in run(site, tmp_path, "-m", "dinoskip", "--help")
    assert "mine.yaml" in run(site, tmp_path, "-m", "dinoskip", "init-study", "mine", "train")
    assert all((site / "dinoskip" / path).is_file() for path in ("configs/demo.yaml", "configs/start/compare.yaml"))


@pytest.mark.slow  # its files are tested above, and that commands run from it
def test_the_smallest_study(site: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\ndata: {scenes: {kind: scenes, images: 4, size: 64, val_fraction: 0.5}}\n"
        "evaluate: {tokencut: {datasets: [scenes]}}\ngallery: {dataset: scenes, first: 1, size: 64}\n"
        "analyze: {model: vit_tiny_patch16, depth: 1, photos: 1}\n"
        "variants: {model: [{label: vit, backbone: 'timm:vit_tiny_patch16_224,pretrained=false,depth=1'}]}\n"
    )
    assert "page: " in run(site, tmp_path, "-m", "dinoskip", "run", "s.yaml")
    assert (tmp_path / "runs" / "s" / "report" / "gallery" / "index.html").is_file()


ABSENT = {
    "evaluate.detection.datasets=[scenes]": "detection",
    "pretrain.objective=ibot": "objective",
    "pretrain.koleo={}": "koleo",
    "report.compare=paper.table2": "compare",
    "analyze.depth=2": "analyze",
}
"""Settings of parts that a core without plug-ins lacks, and what the error names."""


@pytest.mark.slow
def test_the_core_runs_without_plugins(tmp_path: Path) -> None:
    """A wheel of the core alone, in an empty folder: a study to its last page; what it lacks is said in one line."""
    (wheel,) = build_distributions(tmp_path, plugins=False).glob("*.whl")
    place, here = tmp_path / "site", tmp_path / "empty"
    here.mkdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place)
    assert not list(place.glob("dinoskip_*/"))[1:]  # its metadata alone
    tasks = "import dinoskip, dinoskip.settings.tasks as t; print(dinoskip.__file__, *t.TASKS)"
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("entry-points", {})
    own = {*points.get("dinoskip.tasks", ())}  # none in a tree without plug-ins
    said = run(place, here, "-c", tasks).split()
    assert said[0].startswith(str(place))
    assert not own & set(said)
    study = (
        "name: s\ndata: {scenes: {kind: scenes, images: 8, size: 64, val_fraction: 0.5}}\n"
        "model: {name: vit_mini_patch8, depth: 1, img_size: 32}\n"
        "pretrain: {dataset: scenes, crops: {global_size: 32, local_size: 16, num_local: 1}, epochs: 1, batch_size: 4,"
        " warmup_epochs: 0, out_dim: 64, hidden_dim: 32, bottleneck_dim: 16}\n"
        "gallery: {dataset: scenes, first: 1, size: 64}\n"
        "evaluate:\n  tokencut: {datasets: [scenes]}\n  knn: {datasets: [scenes], size: 32, k: [2]}\n"
        "  retrieve: {datasets: [scenes], size: 32}\n  probe: {datasets: [scenes], size: 32, epochs: 1}\n"
    )
    (here / "s.yaml").write_text(study)
    assert "page: " in run(place, here, "-m", "dinoskip", "run", "s.yaml")
    for asked, named in ABSENT.items():
        environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "dinoskip", "plan", "s.yaml", asked]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, cwd=here, env=environment, check=False
        )
        assert done.returncode == 2, asked
        (line,) = done.stderr.splitlines()
        assert named in line
