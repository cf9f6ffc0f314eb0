"""No image is fitted on, or chosen by, and scored: by the names of splits, and by the files in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip import evaluate
from dinoskip.cli import main
from dinoskip.data import equal_images, near_images
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json
from dinoskip.pipeline.leaks import SplitOfData, SplitUse, comparisons, verdicts
from dinoskip.pipeline.report.notices import notices
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.results.rows import read_rows, rows_csv
from dinoskip.settings.tasks import TASKS, tasks
from tests.helpers.study import TINY

CASE = Path(__file__).parents[3] / "shared" / "cases" / "same_images_in_train_and_val"
NETWORK = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, six images each in train and three in val; one of val is a copy of one of train."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for name in "ab":
            place = tmp_path / "pets" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(place / f"{number}.png")
    copy = (tmp_path / "pets/train/b/4.png").read_bytes()
    (tmp_path / "pets/val/b/1.png").write_bytes(copy)
    return tmp_path / "pets"


def study_of_folder(tmp_path: Path, folder: Path, more: str = "") -> str:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: s\noutput: {tmp_path / 'runs'}\ndata: {{pets: {{kind: folder, root: {folder}}}}}\n"
        f"variants: {{model: [{{backbone: '{NETWORK}'}}]}}\n"
        f"evaluate: {{knn: {{datasets: [pets], k: [1], size: 32}}}}\n{more}"
    )
    return str(path)


def test_data_check_compares_declared_splits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "folder", "--data", str(folder)]) == 3
    assert "pets val: 1 of 6 scored images" in capsys.readouterr().out
    assert main(["data", "check", "folder", "--data", str(folder), "--accept", "equal-files:pets"]) == 0
    (folder / "val/b/1.png").unlink()
    assert main(["data", "check", "folder", "--data", str(folder)]) == 0


# --- one split twice -------------------------------------------------------------------------------------

TWO_SPLITS = [record.name for record in tasks() if {"train_split", "val_split"} <= record.section.model_fields.keys()]


def test_these_tasks_have_two_splits() -> None:
    known = {"probe", "retrieve", "depth", "normals", "linear", "cluster", "detection"}
    assert set(TWO_SPLITS) == known & TASKS.keys()
    assert {"probe", "retrieve"} <= set(TWO_SPLITS)


@pytest.mark.parametrize("name", TWO_SPLITS)
def test_a_split_that_is_fitted_and_scored_is_refused_by_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = {"depth": "rooms", "normals": "rooms", "linear": f"folder, root: {tmp_path}"}.get(name, "scenes")
    (tmp_path / "s.yaml").write_text(
        f"name: s\ndata: {{set: {{kind: {kind}}}}}\nvariants: {{model: [{{backbone: '{NETWORK}'}}]}}\n"
    )
    twice = [f"evaluate.{name}.datasets=[set]", f"evaluate.{name}.train_split=val", f"evaluate.{name}.val_split=val"]
    assert main(["plan", str(tmp_path / "s.yaml"), *twice, "--assume-data"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"evaluate.{name}.train_split" in line
    assert "'val'" in line
    command = ["eval", name, NETWORK, "--data", str(tmp_path), "--out", str(tmp_path / "out"), *twice[1:]]
    assert main(command) == 2, "the single command, too"
    assert f"evaluate.{name}.train_split" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_list_of_few_labels_is_not_the_scored_split(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TINY)
    with pytest.raises(ConfigError, match=r"evaluate\.retrieve\.lists"):
        load_study(tmp_path / "s.yaml", ["evaluate.retrieve.lists=[val]"])


KNN = "online: {knn: {dataset: scenes, size: 32, k: [3], train_images: 5, val_images: 3}}\nsweep: {lr: [1e-3, 1e-2]}"
PROBE = "online: {probe: {dataset: DATA, size: 32, blocks: [0]}}\nsweep: {lr: [1e-3, 1e-2]}\n"


def test_a_rate_is_not_chosen_by_images_that_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TINY + KNN)
    load_study(path)
    with pytest.raises(ConfigError, match=r"online\.knn\.held_out: 'val' of scenes") as caught:
        load_study(path, ["online.knn.held_out=false"])
    assert {line.partition("evaluate.")[2].split()[0] for line in caught.value.problems} == {
        "probe", "knn", "retrieve",
    }, "each evaluation of these images; tokencut has trainval"  # fmt: skip
    path.write_text(TINY + PROBE.replace("DATA", "scenes"))
    with pytest.raises(ConfigError, match=r"online\.probe\.held_out"):
        load_study(path)
    load_study(path, ["online.probe.held_out=true"])
    other = "data.other={kind: scenes, images: 16, size: 64, val_fraction: 0.5"
    with pytest.raises(ConfigError, match=r"online\.probe\.held_out"):
        load_study(path, [other + "}", "online.probe.dataset=other"])  # another name of the same set
    load_study(path, [other + ", seed: 1}", "online.probe.dataset=other"])
    with pytest.raises(ConfigError, match=r"online\.probe: val_split"):
        load_study(path, ["online.probe.val_split=train"])


# --- equal files -----------------------------------------------------------------------------------------


def test_equal_files_stop_plan_and_commands_until_they_are_accepted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of_folder(tmp_path, folder, "report: {title: T}\n")
    assert main(["plan", study]) == 3
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert not shown.out
    for part in ("pets val: 1 of 6 ", "val/b/1.png = train/b/4.png", "--accept equal-files:pets"):
        assert part in line
    monkeypatch.setattr(equal_images, "open_regular", None)  # would fail: what was compared is not read again
    assert main(["run", study, "--dry-run"]) == 3
    assert main(["plan", study, "--accept", "equal-files:other"]) == 3
    assert main(["plan", study, "--accept", "equal-files:pets"]) == 0
    assert main(["plan", study, "accept=[equal-files:pets]"]) == 0
    assert main(["plan", study, "--assume-data"]) == 0
    assert main(["status", study]) == 0, "what shows results is not stopped"
    monkeypatch.undo()
    (folder / "val/b/1.png").write_bytes((folder / "val/b/2.png").read_bytes())
    assert main(["plan", study]) == 0, "another file, another comparison"


def test_resized_copies_are_doubtful_where_they_are_many_and_looked_for_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "val/b/1.png").unlink()
    with Image.open(folder / "train/b/4.png") as one:
        one.resize((64, 64), Image.Resampling.BICUBIC).save(folder / "val/b/1.webp")
    study = study_of_folder(tmp_path, folder)
    assert main(["plan", study]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("pets val: 1 of 6 ", "val/b/1.webp and train/b/4.png", "--accept near-equal-images:pets"):
        assert part in line
    monkeypatch.setattr(near_images, "grey_thumbnail", None)  # would fail: what was compared is not decoded again
    assert main(["plan", study, "--accept", "near-equal-images:pets"]) == 0


def test_frames_of_one_recording_on_both_sides_are_said_to_be_that(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "val/b/1.png").unlink()
    for number in range(5):
        with Image.open(folder / f"train/b/{number}.png") as one:
            one.resize((64, 64), Image.Resampling.BICUBIC).save(folder / f"val/b/9{number}.webp")
    assert main(["plan", study_of_folder(tmp_path, folder)]) == 3
    assert "split by recording" in capsys.readouterr().err


def test_pictures_that_are_all_alike_are_said_to_be(tmp_path: Path) -> None:
    """As of a fixed camera: that train and val look the same is how they are, not a leak."""
    rng, part = np.random.default_rng(0), np.random.default_rng(9).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    for split, count in (("train", 6), ("val", 3)):
        for name in "ab":
            (tmp_path / "parts" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.array(Image.fromarray(part).resize((48, 48), Image.Resampling.BICUBIC)).astype(int)
                noisy = np.clip(pixels + rng.normal(0, 4, pixels.shape), 0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(tmp_path / "parts" / split / name / f"{number}.png")
    study, _ = load_study(study_of_folder(tmp_path, tmp_path / "parts"))
    (said,) = verdicts(study)
    assert (said.state, said.check) == ("said", "near-equal-images")
    assert "6 of 6" in said.text
    assert "fixed camera" in said.text


def test_what_was_accepted_is_recorded_in_manifests_and_said_on_the_page(folder: Path, tmp_path: Path) -> None:
    path = study_of_folder(tmp_path, folder)
    assert main(["run", path, "--until", "knn", "--device", "cpu", "--accept", "equal-files:pets"]) == 0
    (manifest,) = (tmp_path / "runs/s/stages/knn").glob("*/*/*/*/MANIFEST.json")
    (line,) = read_json(manifest)["info"]["accepted"]
    assert line.startswith("equal-files:pets: pets val: 1 of 6 scored images")
    rows = read_rows(manifest.parent / "rows.json")
    assert {row.accepted for row in rows} == {"equal-files"}
    assert "accepted" in rows_csv(rows).splitlines()[0].split(",")
    assert notices({"knn/net/ep0/pets": manifest.parent})[0] == f"accepted by name: {line}"
    study, variants = load_study(path)
    runner = study_runner(study, variants, build_nodes(study, variants))
    (page,) = (node for node in runner.planner.nodes if node.stage == "report")
    (said,) = page.plain["said"]
    assert said.startswith("pets val: 1 of 6 scored images")
    assert said.endswith("(doubtful)")


def test_the_call_from_python_is_stopped_too(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--accept equal-files:pets"):
        evaluate(NETWORK, folder, ["knn"], out=tmp_path / "out", settings={"evaluate.knn.size": 32}, device="cpu")


def test_training_images_that_are_evaluated_are_said(folder: Path, tmp_path: Path) -> None:
    (folder / "val/b/1.png").write_bytes((folder / "val/b/2.png").read_bytes())
    photos = "data.photos={kind: images, root: " + str(folder) + "}"
    path = study_of_folder(tmp_path, folder)
    trained = [photos, "pretrain={dataset: photos, batch_size: 2}", "variants={}", "model={img_size: 32}"]
    study, _ = load_study(path, trained)
    scored, used = SplitOfData("pets", "classes", "val"), SplitOfData("photos", "pretraining", "train")
    assert comparisons(study) == [
        SplitUse(SplitOfData("pets", "classes", "train"), "fitted on", scored),
        SplitUse(used, "trained on", scored),
    ]
    (said,) = verdicts(study)
    assert (said.state, said.name) == ("said", "equal-files:pets")
    assert said.text.startswith("pets val: 6 of 6 scored images are equal to files of photos train")
    assert main(["plan", path, *trained]) == 0


def test_two_names_of_one_list_of_files_are_one_split_twice(folder: Path, tmp_path: Path) -> None:
    (folder / "other").mkdir()
    for split in ("train", "val"):
        (folder / "other" / split).symlink_to(folder / "train")
    study, _ = load_study(study_of_folder(tmp_path, folder / "other"))
    assert [one.state for one in verdicts(study)] == ["refused"]
    assert main(["plan", study_of_folder(tmp_path, folder / "other"), "--accept", "equal-files:pets"]) == 2


@pytest.mark.skipif(not CASE.is_dir(), reason="needs ../shared/cases")
def test_the_case_of_equal_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", study_of_folder(tmp_path, CASE)]) == 3
    assert "16 of 16" in capsys.readouterr().err


def test_a_classifier_is_not_trained_on_what_it_classifies(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["supervise", "--data", str(folder), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(command) == 3
    assert "--accept equal-files:pets" in capsys.readouterr().err
    assert main([*command, "--val", str(folder / "train")]) == 2, "the training folder itself"
