"""``dinoskip init-study`` writes studies that are valid; ``dinoskip demo`` runs one that comes with the package."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.cli.start import CONFIGS, PURPOSES
from dinoskip.data import ScenesConfig
from dinoskip.pipeline.estimate.costs import costs
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from dinoskip.results.rows import read_rows
from tests.helpers.labelled import make_classes


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_study_to_start_from(
    purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init-study", "mine", purpose]) == 0
    assert capsys.readouterr().out.startswith("mine.yaml: ")
    text = (tmp_path / "mine.yaml").read_text()
    assert "NAME" not in text.replace(":NAME", "")
    study, variants = load_study("mine.yaml")
    assert (study.name, len(variants)) == ("mine", 4 if purpose == "with_pretrained" else 2)
    assert main(["init-study", "mine", purpose]) == 2  # nothing is written over
    assert main(["init-study", "mine.yaml", purpose]) == 2, "the same file"
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == text


def test_names_that_no_folder_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init-study", "../x y"]) == 2
    assert not list(tmp_path.parent.glob("x y*"))


def test_the_demo_is_a_study_of_the_package(tmp_path: Path) -> None:
    assert (CONFIGS / "demo.yaml").is_file()
    study, _ = load_study(CONFIGS / "demo.yaml")
    assert study.name == "demo"


def _photographs(folder: Path) -> Path:
    """Twenty JPEGs of several sizes, grey ones among them."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(20):
        shape = (70 + number, 90) if number % 5 == 0 else (70 + number, 90, 3)
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{number}.jpg")
    return folder


def _voc(folder: Path, *without: str) -> Path:
    """Twenty scenes as VOC lays them out, without some folders of labels."""
    made = ScenesConfig(images=20, size=64, val_fraction=0.4).generate(folder)
    for name in without:
        shutil.rmtree(made / name)
    return made


def _classes(folder: Path) -> Path:
    make_classes(folder / "train", each=4)
    make_classes(folder / "val", each=2)
    return folder


FOLDERS: dict[str, tuple[Callable[[Path], Path], str, set[str]]] = {
    "photographs": (_photographs, "20 images of 90 x 70 to 90 x 89 pixels; no labels", set()),
    "masks": (
        lambda folder: _voc(folder, "Annotations", "ImageSets/Main"),
        "12 images of 64 x 64 pixels to train on; masks: train 12, val 8",
        {"probe"},
    ),
    "boxes": (
        lambda folder: _voc(folder, "SegmentationClass", "ImageSets/Segmentation"),
        "20 images of 64 x 64 pixels; boxes: val 8; classes: train 12, val 8",
        {"tokencut", "knn"},
    ),
    "classes": (_classes, "to train on; classes: train 12, val 6", {"knn"}),
}
FEW = [
    "model.depth=2", "pretrain.epochs=1", "pretrain.warmup_epochs=0", "evaluate.epochs=[0,1]", "gallery.epochs=[0,1]",
    "gallery.first=2", "gallery.size=64",
    *(["analyze={model: vit_tiny_patch16, depth: 1, img_size: 64, photos: 1}"] if "analyze" in STAGES else []),
]  # fmt: skip


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_study_for_a_folder_measures_what_its_labels_allow(
    name: str, purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, seen, measured = FOLDERS[name]
    folder = make(tmp_path / "data")
    assert main(["init-study", "mine", purpose, "--data", str(folder)]) == 0
    assert seen in capsys.readouterr().out
    study, variants = load_study("mine.yaml")
    asked = {stage for stage in ("probe", "tokencut", "knn") if getattr(study.evaluate, stage).datasets}
    assert asked == (set() if purpose == "features" else measured)
    assert main(["plan", "mine.yaml", "-q"]) == 0  # every file that it reads is there
    if purpose == "train":
        made = costs(StudyImages(study), study, variants, build_nodes(study, variants))
        assert all(cost.flop > 0 for cost in made if cost.stage == "pretrain"), "a step an epoch at least"


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_the_first_run_of_a_training_ends_with_a_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, _, measured = FOLDERS[name]
    assert main(["init-study", "mine", "train", "--data", str(make(tmp_path / "data"))]) == 0
    assert main(["run", "mine.yaml", *FEW, "evaluate.probe.epochs=1"]) == 0
    assert (tmp_path / "runs" / "mine" / "index.html").is_file()
    rows = read_rows(tmp_path / "runs" / "mine" / "rows.json") if measured else []
    assert {row.task for row in rows} == measured


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["compare", "features"])
@pytest.mark.parametrize("name", FOLDERS)
def test_the_first_run_of_backbones_ends_with_a_page(
    name: str, purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights stand for those that would be downloaded."""
    monkeypatch.chdir(tmp_path)
    assert main(["init-study", "mine", purpose, "--data", str(FOLDERS[name][0](tmp_path / "data"))]) == 0
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=4,img_size=64"
    few = [f"variants.model=[{{backbone: '{spec}'}}]", "evaluate.probe.epochs=1", *FEW[5:]]
    assert main(["run", "mine.yaml", *few, "evaluate.probe.size=64", "evaluate.knn.size=64"]) == 0
    assert (tmp_path / "runs" / "mine" / "index.html").is_file()


def test_one_photograph_is_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "one" / "1.jpg")
    assert main(["init-study", "mine", "--data", "one"]) == 3
    assert "one: has 1 image (give a folder of 20 photographs or more)" in capsys.readouterr().err
    assert main(["init-study", "mine", "--data", "none"]) == 3
    assert "none: is not a folder" in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


def test_masks_without_boxes_are_no_data_for_tokencut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = FOLDERS["masks"][0](tmp_path / "data")
    assert main(["init-study", "mine", "compare", "--data", str(folder)]) == 0
    assert main(["plan", "mine.yaml", "evaluate.tokencut.datasets=[voc2012]"]) == 3
    said = capsys.readouterr().err
    assert "tokencut: " in said
    assert "if voc2012 has no boxes, leave it out of evaluate.tokencut.datasets" in said
