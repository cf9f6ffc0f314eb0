"""``dinoskip look``: what a folder can be used for is seen in it; the page comes of any photographs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.data import ScenesConfig
from dinoskip.pipeline.look.study import _neighbours, holds_at_most, labels_of, study_tree
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.settings.config import RawConfig
from eval.knn.config import KnnConfig
from tests.helpers.study import PLAIN

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=64"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ScenesConfig(images=12, size=64).generate(tmp_path_factory.mktemp("look") / "scenes")


def _photographs(folder: Path, *names: str) -> Path:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (70, 90, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_labels_are_seen_in_the_folder(scenes: Path, tmp_path: Path) -> None:
    voc = labels_of(scenes)
    assert (voc.data["kind"], voc.data["year"]) == ("voc", 2012)
    assert voc.found == {"segmentation": ("train", "val"), "detection": ("val",), "classes": ("train", "val")}
    classes = _photographs(tmp_path / "c", "train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png")
    assert labels_of(classes).classes
    plain = _photographs(tmp_path / "p", "1.png", "more/2.png")
    assert labels_of(plain).data == {"kind": "images", "root": str(plain)}
    halved = _photographs(tmp_path / "h", "train/1.png", "val/2.png")  # looks like classes, and has none
    assert labels_of(halved).data["kind"] == "images"


def test_boxes_alone_are_shown_on_their_images(scenes: Path, tmp_path: Path) -> None:
    """The gallery asks for masks of every kind that may have them, so boxes alone need the kind of plain images."""
    folder = Path(shutil.copytree(scenes, tmp_path / "boxes"))
    assert labels_of(folder).images == {}
    for name in ("SegmentationClass", "ImageSets/Segmentation"):
        shutil.rmtree(folder / name)
    labels = labels_of(folder)
    assert "segmentation" not in labels.found
    assert labels.found["detection"] == ("val",)
    assert labels.images == {"kind": "images", "root": str(folder / "JPEGImages")}
    tree = study_tree([VIT], labels, tmp_path / "out")
    assert tree["gallery"]["dataset"] in tree["data"]
    assert tree["data"][tree["gallery"]["dataset"]] == labels.images
    study, variants = study_of(RawConfig(tree))
    for node in build_nodes(study, variants):
        assert node.external is None or node.external() is not None  # what it reads is there


def test_a_look_at_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, out = _photographs(tmp_path / "my photos", "1.png", "2.png"), tmp_path / "out"
    command = ["look", VIT, "--data", str(plain), "--out", str(out), "evaluate.probe.size=64"]
    assert main(command) == 0
    said = capsys.readouterr()
    *named, norms, page = said.out.strip().splitlines()
    assert any(VIT in line for line in named), "the spec beside its name"
    assert re.fullmatch(r"ViT-Ti/16 \(random weights\): .* \(max norm 1\.\d × median, block \d\)", norms)
    assert page == f"page: {out.resolve() / 'index.html'}"
    assert "report/index.html" in (out / "index.html").read_text()
    assert (out / "report" / "gallery" / "index.html").is_file()
    assert "A look at my photos" in (out / "report" / "index.html").read_text()


def test_photographs_without_labels_are_all_shown_with_the_shipped_pair(tmp_path: Path) -> None:
    plain, out = _photographs(tmp_path / "mine", *(f"{number}.png" for number in range(14))), tmp_path / "out"
    assert main(["look", "--data", str(plain), "--out", str(out), "--blocks", "3,12", "gallery.size=32", *PLAIN]) == 0
    gallery = out / "report" / "gallery"
    assert len(list((gallery / "img").glob("photo-*.jpg"))) == 14
    text = (out / "report" / "index.html").read_text(encoding="utf-8")
    assert "14 photographs without labels" in text
    assert "pretrained, skipless, calibrated" in text
    assert "img/features.svg" in text
    assert list(json.loads((out / "report" / "names.json").read_text())) == ["skip", "skipless"]
    features = json.loads((gallery / "features.json").read_text())
    assert all(0 < row["cosine"] <= 1 and row["rank"] >= 1 for blocks in features.values() for row in blocks.values())


def test_a_small_set_needs_no_limit(tmp_path: Path) -> None:
    scenes = tmp_path / "scenes"
    assert main(["data", "scenes", str(scenes), "images=8", "size=64", "-q"]) == 0
    assert holds_at_most(scenes, 16)  # masks are images, too
    assert not holds_at_most(scenes, 15)
    for images, limit in ((200, None), (4, 4)):
        data = study_tree([VIT], labels_of(scenes), tmp_path / "out", images=images)["data"]
        assert next(iter(data.values())).get("limit") == limit
        assert any(name.endswith("-4-images") for name in data) == (images == 4)
    (scenes / "more.tar").write_text("")
    assert not holds_at_most(scenes, 1000)


def test_photographs_beyond_the_limit_are_told(tmp_path: Path) -> None:
    plain = _photographs(tmp_path / "mine", *(f"{number}.png" for number in range(5)))
    tree = study_tree([VIT], labels_of(plain), tmp_path / "out", images=3)
    assert tree["gallery"]["first"] == 3
    assert re.search(r"\b5 photographs.*\b3\b", tree["report"]["note"])
    assert list(tree["data"]) == ["mine"]


def test_a_look_at_labelled_images_measures_them(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["look", VIT, "--data", str(scenes), "--out", str(out), "--images", "4", "evaluate.probe.size=64"]
    command += ["evaluate.probe.epochs=1", "gallery.first=1", *PLAIN]
    assert main(command) == 0
    said = capsys.readouterr()
    assert re.search(r"mIoU, voc2012-4-images val +ViT-Ti/16 \(random weights\) ", said.out)
    assert re.search(r"CorLoc, voc2012-4-images val +ViT-Ti/16 \(random weights\) ", said.out)
    assert re.search(r"\d+ stages to run, 0 cached$", said.err, re.MULTILINE)
    rows = json.loads((out / "rows.json").read_text())
    assert {row["n"] for row in rows if row["metric"] in ("mIoU", "CorLoc")} <= {3, 4}
    assert main([*command, "-q"]) == 0  # all is cached
    assert "passes" not in capsys.readouterr().err


def test_a_look_at_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", VIT, "--data", str(tmp_path / "none")]) == 3
    assert "is not a folder" in capsys.readouterr().err


def test_no_more_neighbours_are_asked_for_than_there_are_images() -> None:
    usual = list(KnnConfig().k)
    assert _neighbours(10_000) == usual
    assert _neighbours(12) == [k for k in usual if k <= 12]
    assert _neighbours(1) == [1]


def test_blocks_beyond_every_network_are_refused_before_any_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, out = _photographs(tmp_path / "p", "1.png", "2.png"), tmp_path / "out"
    assert main(["look", VIT, "--data", str(plain), "--out", str(out), "--blocks", "3"]) == 2
    assert "3 is beyond the 2 blocks" in capsys.readouterr().err
    assert not out.exists()
