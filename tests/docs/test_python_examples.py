"""Python in README.md and on some pages runs as it stands there, with small stand-ins for what a reader would have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import dinoskip.models
from dinoskip.cli import main
from dinoskip.data import ScenesConfig
from dinoskip.models import VitConfig, create_model, save_weights
from tests.helpers.absent_parts import is_there
from tests.helpers.tiny import make_images

ROOT = Path(__file__).parents[2]
SMALL = "timm:vit_tiny_patch16_224,pretrained=false,depth=3"
STAND_INS = {
    "README.md": {
        '"timm:vit_small_patch16_224.dino"': f'"{SMALL}"',
        '"skipless_vit_small_patch16_224"': '"skipless_vit_tiny_patch16_224"',
        '"run:runs/skipless"': f'"{SMALL}"',
        "[3, 6, 9, 12]": "[1, 3]",
        "store.tokens(9, 0)": "store.tokens(3, 0)",
    },
    "docs/concepts/initialisation.md": {},
    "docs/backbones.md": {'"timm:vit_small_patch16_224,': '"timm:vit_tiny_patch16_224,'},
    "docs/files.md": {
        '"skipless_vit_small_patch16_224", num_classes=0': '"vit_tiny_patch16_224", num_classes=0, depth=1'
    },
    "docs/gallery.md": {},
    "docs/initialisations.md": {},
    "docs/optimizers.md": {},
    "docs/tokencut.md": {},
}
"""What each page's examples are run with, in place of what they say: no downloads, small networks."""
ELSEWHERE = {
    "docs/change_a_loss.md": "tests/docs/test_change_a_loss.py",
    "docs/cluster.md": "tests/pipeline/test_other_engines.py",
    "docs/extending.md": "tests/house/test_extending.py",
    "docs/heads.md": "plugins/dense/tests/test_examples.py",
    "docs/features.md": "tests/features/test_export.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
}
"""Pages whose examples another test runs."""


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(page: str, namespace: dict[str, Any]) -> list[str]:
    """Run all examples of a page in one namespace, in the current folder; each stand-in is needed."""
    texts, unused = examples(page), set(STAND_INS[page])
    for place, text in enumerate(texts):
        for written, stand_in in STAND_INS[page].items():
            unused -= {written} if written in text else set()
            text = text.replace(written, stand_in)
        exec(compile(text, f"{page}, example {place + 1}", "exec"), namespace)
    assert texts
    assert not unused, f"{page} no longer says {unused}"
    return texts


def test_every_page_with_examples_is_run() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "concepts").glob("*.md")]
    names = {page.relative_to(ROOT).as_posix() for page in pages}
    assert {name for name in names if examples(name)} == {*STAND_INS, *ELSEWHERE}
    assert all(map(is_there, ELSEWHERE.values()))
    for page in ELSEWHERE:  # some of their tests are slow
        for place, text in enumerate(examples(page)):
            compile(text, f"{page}, example {place + 1}", "exec")


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ScenesConfig(images=8, size=64, val_fraction=0.5).generate(tmp_path / "made").rename(tmp_path / "VOCdevkit")
    (photographs,) = tmp_path.rglob("JPEGImages")
    assert main(["features", "export", SMALL, "--data", str(photographs), "--out", "runs/features", "-q"]) == 0
    values: dict[str, Any] = {"images": torch.zeros(1, 3, 224, 224)}
    run("README.md", values)
    assert values["store"].blocks == (1, 2, 3)
    assert {row["metric"] for row in values["rows"]} >= {"mIoU", "CorLoc"}
    assert {row["block"] for row in values["rows"]} >= {"1", "2", "3"}
    model = values["model"]
    assert isinstance(model, timm.models.VisionTransformer)
    assert isinstance(model.blocks[0], dinoskip.models.Block)
    assert model.num_classes == 10
    assert values["layers"][3].tokens.shape == (1, 14 * 14, 192)


def test_initialisations_differ_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/concepts/initialisation.md", {})
    default, ours = (
        [float(one) for one in line.split("[")[1].strip("]\n").split(",")]
        for line in capsys.readouterr().out.splitlines()
    )
    assert min(default[1:]) > 0.99
    assert ours[2] == pytest.approx(0.42, abs=0.05)
    assert ours[9] == pytest.approx(0.96, abs=0.02)


def test_backbones() -> None:
    values: dict[str, Any] = {"images": torch.zeros(1, 3, 224, 224)}
    run("docs/backbones.md", values)
    assert values["layers"][12].tokens.shape == (1, 14 * 14, 192)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = VitConfig(name="vit_tiny_patch16", depth=1)
    save_weights(Path("weights.safetensors"), create_model(config.name, depth=1).state_dict(), config, {})
    assert main(["models", "convert", "weights:weights.safetensors", "FOLDER"]) == 0
    run("docs/files.md", {})


def test_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "photos", 3)
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"
    command = ["features", "export", spec, "--data", "photos", "--out", "runs/features", "--size", "48"]
    assert main([*command, "--device", "cpu"]) == 0
    run("docs/gallery.md", {})
    assert "First look" in (tmp_path / "gallery" / "index.html").read_text()


def test_initialisations_in_place() -> None:
    model = create_model("vit_tiny_patch16", depth=2, img_size=32, skip=False)
    run("docs/initialisations.md", {"model": model, "images": torch.randn(16, 3, 32, 32)})
    assert torch.isfinite(model(torch.randn(1, 3, 32, 32))).all()


def test_optimizers() -> None:
    model = create_model("vit_mini_patch16", depth=1, img_size=32)
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    run("docs/optimizers.md", {"model": model})


def test_tokencut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_image = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]}
    truth = {"images": [{"id": 1, "height": 8, "width": 8}], "categories": [{"id": 1, "name": "any"}]}
    truth["annotations"] = [{**of_image, "id": 1, "area": 16, "iscrowd": 0}]
    Path("instances_val2017.json").write_text(json.dumps(truth))
    Path("coco_block11.json").write_text(json.dumps([{**of_image, "score": 1.0}]))
    keys = torch.randn(784, 16)
    values: dict[str, Any] = {"keys": keys, "batch": torch.stack([keys, -keys]), "H": 448, "W": 448}
    run("docs/tokencut.md", values)
    assert len(values["cuts"]) == 2
    assert values["cuts"][0].box == values["cut"].box
