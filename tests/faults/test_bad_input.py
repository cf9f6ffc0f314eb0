"""Bad input as a user meets it at the command line: one line, the right exit code, nothing lost."""

import json
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from tests.helpers.commands import child

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"
TRAIN = [
    "model.name=vit_tiny_patch16", "model.depth=1", "model.img_size=32", "pretrain.epochs=1",
    "pretrain.warmup_epochs=0",
    "pretrain.batch_size=2", "pretrain.out_dim=16", "pretrain.hidden_dim=16", "pretrain.bottleneck_dim=8",
    "pretrain.warmup_teacher_temp_epochs=0", "pretrain.crops={global_size: 32, local_size: 16, num_local: 1}",
]  # fmt: skip


def failed(capsys: pytest.CaptureFixture[str], code: int, *arguments: str, lines: int = 1) -> str:
    """Run a command in this process; return its first error line of so many."""
    capsys.readouterr()
    assert main([*arguments, "-q"]) == code
    found = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(found) == lines
    return found[0]


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    assert main(["data", "scenes", str(tmp_path / "voc"), "images=8", "size=64", "-q"]) == 0
    return tmp_path / "voc" / "VOC2012"


def probe(capsys: pytest.CaptureFixture[str], voc: Path, *more: str) -> str:
    out = voc.parent.parent / "out"
    small = ["evaluate.probe.size=64", "evaluate.probe.epochs=1"]
    return failed(capsys, 3, "eval", "probe", VIT, "--data", str(voc), "--out", str(out), *small, *more)


def first(folder: Path) -> Path:
    return sorted(folder.iterdir())[0]


def test_truncated_image_is_named_and_refused(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = first(voc / "JPEGImages")
    image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    assert image.name in probe(capsys, voc)


def test_mask_of_another_size(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = first(voc / "SegmentationClass")
    Image.open(mask).resize((32, 64), Image.Resampling.NEAREST).save(mask)
    line = probe(capsys, voc)
    assert mask.name in line
    assert "32×64" in line


def test_label_outside_the_classes(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = first(voc / "SegmentationClass")
    with Image.open(mask) as opened:
        labels, palette = np.array(opened), opened.getpalette()
    labels[0, 0] = 99
    bad = Image.fromarray(labels)
    bad.putpalette(palette or [])
    bad.save(mask)
    line = probe(capsys, voc)
    assert mask.name in line
    assert "99" in line


def test_missing_mask_and_missing_list(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = first(voc / "SegmentationClass")
    mask.unlink()
    assert mask.stem in probe(capsys, voc)
    (voc / "ImageSets" / "Segmentation" / "train.txt").unlink()
    assert "train.txt" in probe(capsys, voc)


def test_image_smaller_than_a_patch(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = first(voc / "JPEGImages")
    Image.open(image).resize((8, 8)).save(image)
    out = str(voc.parent / "out")
    line = failed(capsys, 3, "eval", "tokencut", VIT, "--data", str(voc), "--out", out)
    assert image.name in line, "its annotation is of a larger image, which is seen before anything is computed"
    annotation = voc / "Annotations" / f"{image.stem}.xml"
    name = annotation.read_text().partition("<name>")[2].partition("<")[0]
    annotation.write_text(
        f"<annotation><size><width>8</width><height>8</height></size><object><name>{name}</name><bndbox><xmin>2</xmin>"
        "<ymin>2</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>"
    )
    line = failed(capsys, 3, "eval", "tokencut", VIT, "--data", str(voc), "--out", out)
    assert image.name in line
    assert "patch" in line


def test_damaged_annotation(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotation = first(voc / "Annotations")
    annotation.write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>')
    out = str(voc.parent / "out")
    assert annotation.name in failed(capsys, 3, "eval", "tokencut", VIT, "--data", str(voc), "--out", out)


def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pretrain", "--data", "x", "--out", "y", "--workers", "-1"])
    assert caught.value.code == 2
    assert "gpus_per_node" in failed(capsys, 2, "submit", "--gpus-per-node", "two", "run", "x")
    photos = ["pretrain", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert "vit_small" in failed(capsys, 2, *photos, "model.name=vit_smal_patch16")
    assert "depth" in failed(capsys, 2, *photos, "model.depth=0")
    (tmp_path / "file").write_text("x")
    assert "file" in failed(capsys, 2, "data", "scenes", str(tmp_path / "file"))
    assert "--out" in failed(capsys, 2, "eval", "knn", VIT, "--data", "x", "--out", str(tmp_path / "my out"))


def test_empty_folder_and_wrong_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    common = [
        "features",
        "export",
        VIT,
        "--data",
        str(tmp_path / "empty"),
        "--out",
        str(tmp_path / "o"),
    ]
    assert "no images" in failed(capsys, 3, *common)
    Image.new("RGB", (32, 32)).save(tmp_path / "empty" / "a.png")
    assert "blocks" in failed(capsys, 2, *common, "--blocks", "1,9")
    assert "--blocks" in failed(capsys, 2, *common, "--blocks", "one")


def test_weights_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from dinoskip.io.files import save_tensors

    (tmp_path / "photos").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "photos" / "a.png")
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)})
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "other.pth")
    for spec in (f"weights:{tmp_path}/other.safetensors", f"dino:{tmp_path}/other.pth"):
        places = ["--data", str(tmp_path / "photos"), "--out", str(tmp_path / "o")]
        line = failed(capsys, 3, "features", "export", spec, *places)
        assert "other" in line


def pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(count):
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / f"{index:03d}.png")
    return folder


def test_output_of_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pictures(tmp_path / "images", 4)
    run = ["pretrain", "--data", str(images), "--out", str(tmp_path / "run"), *TRAIN]
    assert main([*run, "-q"]) == 0
    assert main([*run, "-q"]) == 0  # done already: nothing to do
    line = failed(capsys, 2, *run, "optimizer.lr=1e-4", lines=2)
    assert "optimizer.lr: 0.0005 → 0.0001" in line
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    line = failed(capsys, 2, "pretrain", "--data", str(images), "--out", str(other), *TRAIN)
    assert "thesis.tex" in line
    assert (other / "thesis.tex").read_text() == "x"


def test_too_many_bad_training_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pictures(tmp_path / "images", 6)
    for name in ("001.png", "003.png"):  # one may be bad in any set
        (images / name).write_bytes(b"not an image")
    line = failed(capsys, 3, "pretrain", "--data", str(images), "--out", str(tmp_path / "run"), *TRAIN)
    assert "001.png" in line
    assert "003.png" in line


def test_a_bad_training_image_is_replaced_counted_and_listed(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 120)
    (images / "007.png").write_bytes((images / "007.png").read_bytes()[:200])
    run = ["pretrain", "--data", str(images), "--out", str(tmp_path / "run"), *TRAIN, "pretrain.batch_size=20"]
    assert main([*run, "-q"]) == 0
    listed = json.loads((tmp_path / "run" / "bad_images.json").read_text())
    assert list(listed) == ["007.png"]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["bad_images"] == 1


def _limited(arguments: list[str]) -> int:
    """Run a command where no file may have more than 64 KiB: what a full disk is to it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    return main(arguments)


def test_full_disk_during_export(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 4)
    common = ["features", "export", VIT, "--data", str(images), "--out", str(tmp_path / "o")]
    done = child(_limited, common)
    assert done.returncode == 6, done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()
    assert main([*common, "-q"]) == 0  # with space again, it goes on


def _signalled(arguments: list[str], number: int, metrics: str) -> int:
    """Run a command that is sent a signal as soon as it has written its first metrics."""

    def send() -> None:
        while not (os.path.exists(metrics) and os.path.getsize(metrics)):
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return main(arguments)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_stopped_by_a_signal_and_continued(tmp_path: Path, number: int, code: int) -> None:
    images = pictures(tmp_path / "images", 4)
    run = ["pretrain", "--data", str(images), "--out", str(tmp_path / "run"), *TRAIN, "pretrain.epochs=400"]
    done = child(_signalled, run, number, str(tmp_path / "run" / "metrics.jsonl"))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "run" / "checkpoints").glob("step-*/MANIFEST.json"))


def test_output_below_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pictures(tmp_path / "images", 4)
    (tmp_path / "file").write_text("x")
    out = str(tmp_path / "file" / "run")
    assert "file" in failed(capsys, 2, "pretrain", "--data", str(images), "--out", out, *TRAIN)
    assert "file" in failed(capsys, 2, "run", "configs/demo.yaml", f"output={out}", "--until", "data")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pictures(tmp_path / "images", 4)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    line = failed(capsys, 2, "pretrain", "--data", str(images), "--out", str(locked / "run"), *TRAIN)
    assert "locked" in line
    shutil.rmtree(locked)
