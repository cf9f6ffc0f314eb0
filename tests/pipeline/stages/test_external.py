"""Files outside a study enter the keys by content: each edited file re-runs what reads it, and nothing else."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.errors import DataError
from dinoskip.io.files import write_manifest
from dinoskip.pipeline.report.notices import notices
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.external import backbone_hash
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from tests.helpers.study import ANALYZE, SVG

STUDY = """
name: s
data: {photos: {kind: voc, root: VOC}}
variants: {model: [{label: vit, backbone: "timm:vit_tiny_patch16_224,pretrained=false,depth=1"}]}
evaluate:
  tokencut: {datasets: [photos], split: val}
  knn: {datasets: [photos], k: [1], size: 64}
  probe: {datasets: [photos], size: 64, epochs: 1, learning_rates: [1e-3]}
gallery: {first: 1, sheet_formats: []}
"""
STUDY += ANALYZE + SVG


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("external")
    assert main(["data", "scenes", str(folder / "voc"), "images=8", "size=64", "val_fraction=0.5", "-q"]) == 0
    (folder / "s.yaml").write_text(STUDY.replace("VOC", str(folder / "voc")) + f"output: {folder}\n")
    assert main(["run", str(folder / "s.yaml"), "-q"]) == 0
    return folder


def again(folder: Path) -> set[str]:
    """Stages (of features: the store) that run at once; what comes after them waits."""
    study, variants = load_study(folder / "s.yaml")
    steps = study_runner(study, variants, build_nodes(study, variants)).plan()
    names = (step.node.id.removeprefix("features/vit/ep0/").split("/")[0] for step in steps if step.state == "run")
    return {name.partition("-out-")[0] for name in names}


def names(voc: Path, split: str) -> list[str]:
    return (voc / "ImageSets" / "Segmentation" / f"{split}.txt").read_text().split()


def edit_mask(voc: Path, split: str) -> None:
    path = voc / "SegmentationClass" / f"{names(voc, split)[0]}.png"
    with Image.open(path) as opened:
        labels, palette = np.array(opened), opened.getpalette()
    changed = Image.fromarray(np.zeros_like(labels))
    changed.putpalette(palette or [])
    changed.save(path)


def edit_class(voc: Path, split: str) -> None:
    path = voc / "Annotations" / f"{names(voc, split)[0]}.xml"
    text = path.read_text()
    old = re.search(r"<name>(\w+)</name>", text)
    assert old
    path.write_text(text.replace(old[0], "<name>coin</name>" if old[1] != "coin" else "<name>vase</name>"))


def edit_image(voc: Path, split: str) -> None:
    path = voc / "JPEGImages" / f"{names(voc, split)[0]}.jpg"
    Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)


def edit_classes(voc: Path, split: str) -> None:
    path = voc / "classes.txt"
    path.write_text(path.read_text().replace("coin", "token"))
    for annotation in (voc / "Annotations").iterdir():
        annotation.write_text(annotation.read_text().replace("coin", "token"))


@pytest.mark.parametrize(
    ("edit", "split", "expected"),
    [
        (edit_mask, "train", {"probe"}),
        (edit_mask, "val", {"probe"}),
        (edit_class, "train", {"knn"}),
        (edit_class, "val", {"knn", "tokencut"}),
        (edit_image, "train", {"photos-train-segmentation", "photos-train-classes"}),
        (edit_classes, "val", {"probe", "tokencut", "knn"}),
    ],
)
def test_an_edited_file_runs_its_readers_again(
    done: Path, tmp_path: Path, edit: Callable[[Path, str], None], split: str, expected: set[str]
) -> None:
    assert again(done) == set()
    kept = tmp_path / "kept"
    shutil.copytree(done / "voc", kept)
    try:
        edit(done / "voc" / "VOC2012", split)
        assert again(done) == expected
    finally:
        shutil.rmtree(done / "voc")
        shutil.copytree(kept, done / "voc")


def test_a_moved_data_set_changes_nothing(done: Path) -> None:
    shutil.move(done / "voc", done / "elsewhere")
    config = done / "s.yaml"
    config.write_text(config.read_text().replace(str(done / "voc"), str(done / "elsewhere")))
    try:
        assert again(done) == set()
    finally:
        shutil.move(done / "elsewhere", done / "voc")
        config.write_text(config.read_text().replace(str(done / "elsewhere"), str(done / "voc")))


def test_missing_data_is_said_before_anything_runs(done: Path) -> None:
    shutil.move(done / "voc", done / "gone")
    try:
        with pytest.raises(DataError, match="voc"):
            again(done)
        assert main(["run", str(done / "s.yaml"), "seed=3", "-q"]) == 3
    finally:
        shutil.move(done / "gone", done / "voc")


TRAINED = """
name: s
data: {photos: {kind: voc, root: VOC}}
variants: {model: [{label: vit}]}
model: {name: vit_mini_patch8, depth: 1, img_size: 32}
pretrain:
  {objective: patch_contrast, dataset: photos, epochs: 1, batch_size: 2, warmup_epochs: 0, crop_size: 32}
evaluate: {probe: {datasets: [photos], size: 64, epochs: 1, learning_rates: [1e-3]}}
"""


@pytest.mark.parametrize(("stage", "edit"), [("pretrain", edit_image), ("probe", edit_mask)])
def test_data_that_change_while_they_are_read(stage: str, edit: Callable[[Path, str], None], tmp_path: Path) -> None:
    assert main(["data", "scenes", str(tmp_path / "voc"), "images=8", "size=64", "val_fraction=0.5", "-q"]) == 0
    (tmp_path / "s.yaml").write_text(TRAINED.replace("VOC", str(tmp_path / "voc")) + f"output: {tmp_path}\n")
    study, variants = load_study(tmp_path / "s.yaml")
    nodes = build_nodes(study, variants)

    def edited(task: Task) -> None:
        STAGES[stage].run(task)
        edit(tmp_path / "voc" / "VOC2012", "train")

    runner = Runner(study.directory, nodes, {**STAGES, stage: replace(STAGES[stage], run=edited)})
    (node,) = (node for node in nodes if node.stage == stage)
    runner.plan()
    wanted = {other.id for other in nodes if other.stage in {"pretrain", "weights", "features", "probe"}}
    with pytest.raises(
        DataError,
        match=r"files were changed while this command ran: photos: (images|targets) of train \(\w+\.(jpg|png)\)",
    ):
        runner.run(wanted)
    output = runner.output(node.id)
    if stage == "probe":
        assert output is None
        assert not list((study.directory / "stages").rglob(".partial-*")), "what was made of other files is removed"
        return
    assert output is not None  # hours of training are not thrown away
    assert [line for line in notices({"pretrain/vit": output}) if "files were changed while it trained" in line]
    assert not any(runner.output(other.id) for other in nodes if other.stage == "probe")


def test_the_weights_a_model_starts_from_enter_its_key_by_content(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher.safetensors"
    (tmp_path / "images").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "images" / "one.png")
    init = {"name": "weight_selection", "teacher": f"weights:{teacher}"}
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: s\noutput: {tmp_path}\ndata: {{photos: {{kind: images, root: {tmp_path / 'images'}}}}}\n"
        f"pretrain: {{dataset: photos, warmup_epochs: 0}}\nmodel: {{init: {json.dumps(init)}}}\n"
    )
    found = []
    for content in (b"one", b"another", b"one"):
        teacher.write_bytes(content)
        node = next(node for node in build_nodes(*load_study(path)) if node.stage == "pretrain")
        assert node.external is not None
        found.append(node.external())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("spec", "file"),
    [
        ("weights:HERE/w.safetensors", "w.safetensors"),
        ("weights:HERE/w.safetensors,pos_embed=dino", "w.safetensors"),
        ("dino:HERE/w.pth,role=student", "w.pth"),
        ("timm:vit_tiny_patch16_224,depth=1,file=HERE/w.pth", "w.pth"),
        ("hub:facebookresearch/dino:dino_vits16,file=HERE/w.pth", "w.pth"),
        ("hf:HERE", "model.safetensors"),
        ("hf:HERE,seed=1", "config.json"),
    ],
)
def test_backbones_enter_by_the_content_of_their_files(spec: str, file: str, tmp_path: Path) -> None:
    found = []
    for content in (b"one", b"two", b"one"):
        (tmp_path / file).write_bytes(content)
        found.append(backbone_hash(spec.replace("HERE", str(tmp_path))))
    assert found[0] == found[2] != found[1]


def test_a_run_enters_by_its_newest_checkpoint_whatever_is_taken_of_it(tmp_path: Path) -> None:
    found = []
    for step in (10, 20):
        checkpoint = tmp_path / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "teacher.safetensors").write_bytes(bytes([step]))
        write_manifest(checkpoint)
        found.append([backbone_hash(f"run:{tmp_path}{option}") for option in ("", ",role=teacher")])
    assert found[0] != found[1]
    assert all(plain == with_role for plain, with_role in found)


def test_what_is_read_of_a_file_enters_beside_its_content(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(b"one")
    options = ("", ",role=student", ",mean=0.5", ",mean=0.5,std=0.5", ",grid=14x16", ",pos_embed=timm", ",prefix=a.")
    found = [backbone_hash(f"{tmp_path / 'w.pth'}{option}") for option in options]
    assert len(set(found)) == len(options)
    assert backbone_hash(f"{tmp_path / 'w.pth'},role=teacher") == found[0]
