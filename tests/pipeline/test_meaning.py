"""Labels that mean something else stop a study before anything is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.data import label_values
from dinoskip.io.files import read_json
from dinoskip.pipeline.meaning import _of_online_knn, verdicts
from dinoskip.pipeline.report.notices import notices
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from eval.online.config import OnlineKnnConfig

NETWORK = "timm:vit_tiny_patch16_224,pretrained=false,depth=1,img_size=32"
PROBE = "probe: {datasets: [mine], size: 32, epochs: 1, learning_rates: [1e-3]}"


def masks(root: Path, values: tuple[int, ...], classes: str) -> Path:
    """A set of kind ``masks`` of 32 pixels: three images a split, squares of these values."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            photo = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(photo).save(root / "images" / split / f"{number}.png")
            drawn = np.kron(np.resize(values, (4, 4)), np.ones((8, 8))).astype(np.uint8)
            Image.fromarray(drawn).save(root / "masks" / split / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(classes.split()))
    return root


def study(tmp_path: Path, evaluate: str, more: str = "") -> str:
    (tmp_path / "s.yaml").write_text(
        f"name: s\noutput: {tmp_path / 'runs'}\ndata: {{mine: {{kind: masks, root: {tmp_path / 'mine'}{more}}}}}\n"
        f"variants: {{model: [{{backbone: '{NETWORK}'}}]}}\nevaluate: {{{evaluate}}}\n"
    )
    return str(tmp_path / "s.yaml")


def test_another_numbering_is_refused_by_plan_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    masks(tmp_path / "mine", (0, 255), "background object")
    path = study(tmp_path, PROBE)
    assert main(["plan", path]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: mine train and val: ")
    assert "values=[0,255]" in line
    monkeypatch.setattr(label_values, "read_mask", None)  # would fail: what was counted is not read again
    assert main(["run", path, "--dry-run"]) == 3
    assert main(["run", path, "--accept", "masks-0-255:mine"]) == 3, "what is refused cannot be accepted"
    monkeypatch.undo()
    assert not (tmp_path / "runs/s/stages").exists()
    out = ["--out", str(tmp_path / "out"), "--device", "cpu"]
    command = ["eval", "probe", NETWORK, "--kind", "masks", "--data", str(tmp_path / "mine"), *out]
    assert main(command) == 3
    assert not (tmp_path / "out/stages").exists()
    assert main(["plan", path, "data.mine.values=[0,255]"]) == 0
    assert main(["status", path]) == 0, "what shows results is not stopped"


def test_masks_in_colours_are_refused_by_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = masks(tmp_path / "mine", (0, 1), "background object")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(root / "masks/val/1.png")
    assert main(["plan", study(tmp_path, PROBE)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "masks/val/1.png" in line
    assert main(["plan", study(tmp_path, PROBE, ", skip_broken: true")]) == 0


def test_data_check_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = masks(tmp_path / "mine", (0, 255), "background object")
    assert main(["data", "check", "masks", "--data", str(root)]) == 3
    assert capsys.readouterr().out.count("values=[0,255]") == 2
    assert main(["data", "check", "masks", "--data", str(root), "values=[0,255]"]) == 0


def test_a_doubtful_set_is_accepted_by_name_and_recorded_and_said(tmp_path: Path) -> None:
    masks(tmp_path / "mine", (0,), "background object")
    path = study(tmp_path, PROBE)
    assert main(["plan", path]) == 3
    assert main(["run", path, "--until", "probe", "--device", "cpu", "--accept", "one-class:mine"]) == 0
    (manifest,) = (tmp_path / "runs/s/stages/probe").glob("*/*/*/*/MANIFEST.json")
    (line,) = read_json(manifest)["info"]["accepted"]
    assert line.startswith("one-class:mine: mine train and val: ")
    assert notices({"probe/net/ep0/mine": manifest.parent})[0] == f"accepted by name: {line}"


def test_classes_that_no_mask_has_are_named_on_the_page(tmp_path: Path) -> None:
    masks(tmp_path / "mine", (0, 2), "sky tree road")
    config, variants = load_study(study(tmp_path, PROBE))
    (one,) = verdicts(config)
    assert (one.state, one.check, one.data) == ("said", "never-seen", "mine")
    runner = study_runner(config, variants, build_nodes(config, variants), accept=())
    (page,) = (node for node in runner.planner.nodes if node.stage == "report")
    assert page.plain["said"] == [one.text]
    assert "tree" in one.text


def test_more_neighbours_than_training_images_are_refused_before_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for number in range(2):
                photo = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(photo).save(tmp_path / "pets" / split / name / f"{number}.png")
    (tmp_path / "s.yaml").write_text(
        f"name: s\noutput: {tmp_path / 'runs'}\ndata: {{pets: {{kind: folder, root: {tmp_path / 'pets'}}}}}\n"
        f"variants: {{model: [{{backbone: '{NETWORK}'}}]}}\nevaluate: {{knn: {{datasets: [pets], k: [5], size: 32}}}}\n"
    )
    assert main(["plan", str(tmp_path / "s.yaml")]) == 2, "a setting is refused, not the data"
    (line,) = capsys.readouterr().err.splitlines()
    assert "evaluate.knn.k: 5" in line
    assert "4 training images" in line
    assert main(["plan", str(tmp_path / "s.yaml"), "evaluate.knn.k=[4]"]) == 0


@pytest.mark.parametrize(("k", "images", "held_out", "count"), [(4, 4, True, 3), (5, 4, False, 4), (20, 15, True, 14)])
def test_more_neighbours_than_training_images_while_training_are_refused(
    k: int, images: int, held_out: bool, count: int
) -> None:
    (one,) = _of_online_knn(OnlineKnnConfig(dataset="pets", k=(k,), held_out=held_out), range(images))
    assert (one.state, one.by, one.data) == ("refused", "settings", "pets")
    assert f"online.knn.k: {k} neighbours are asked of {count} training images" in one.text
    assert not list(_of_online_knn(OnlineKnnConfig(dataset="pets", k=(count,), held_out=held_out), range(images)))
