"""A folder for the hub: the card's YAML by the hub's own client, its scores those of these weights alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import ModelCard

from dinoskip.cli import main
from dinoskip.io.files import write_json, write_manifest
from dinoskip.models import VitConfig, load_backbone, save_weights
from dinoskip.models.build import from_config
from dinoskip.models.export import hash_weights
from dinoskip.results.rows import EvalResult, write_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A pretraining run's outputs, and a study's rows of it and of another network."""
    config = VitConfig(name="vit_mini_patch16", depth=2, img_size=32, skip=False)
    torch.manual_seed(0)
    state = from_config(config).state_dict()
    folder = tmp_path / "run" / "checkpoints" / "step-00000003"
    save_weights(folder / "teacher.safetensors", state, config, {"seed": 5, "optimizer": "soap", "epoch": 3})
    write_manifest(folder)
    recipe = {"seed": 5, "data": {"fingerprint": "abc123", "images": 77}, "optimizer": {"lr": 0.25}}
    write_json(tmp_path / "run" / "config.json", recipe)
    own = hash_weights(state)
    row = EvalResult(
        "mIoU", 41.25, "probe", "2", "voc2012", "val", 1449, model="skipless", epoch=3, weights=own, protocol="paper",
        facet="out", norm="final", low=40.0, high=42.5, heldout=50.0,
    )  # fmt: skip
    rows = [row, row.with_context({"block": "1", "value": 90.0, "heldout": 20.0})]
    rows.append(row.with_context({"weights": "0" * 64, "model": "other", "value": 99.0, "heldout": 99.0}))
    (tmp_path / "study").mkdir()
    write_rows(tmp_path / "study" / "rows.json", [*rows, row.baseline("all background", 3.0)])
    return tmp_path / "run"


def test_the_card_of_a_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "vit-skipless"
    command = ["models", "convert", f"run:{run}", str(out), "--rows", str(tmp_path / "study"), "--license", "mit", "-q"]
    assert main(command) == 0
    assert {path.name for path in out.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    card = ModelCard.load(out / "README.md")
    assert (card.data.license, card.data.library_name) == ("mit", "timm")
    assert "skipless" in card.data.tags
    (result,) = card.data.eval_results
    assert (result.task_type, result.dataset_name, result.dataset_split) == ("image-segmentation", "voc2012", "val")
    assert (result.metric_type, result.metric_value) == ("mIoU", 41.25)
    about = result.metric_args
    assert (about["block"], about["interval_95"], about["protocol"]) == ("2", [40.0, 42.5], "paper")
    assert about["block_chosen"] == "chosen on held-out training images"
    for told in (
        "41.2 | 40.0-42.5",
        "abc123",
        '"lr": 0.25',
        "seed: `5`",
        "without skip connections",
        "network: `run:run`",
        "## Limits",
    ):
        assert told in card.text
    assert "99.0" not in card.text
    assert str(tmp_path) not in card.text, "a card is passed on"
    images = torch.randn(1, 3, 32, 32)
    ours = load_backbone(f"weights:{out / 'model.safetensors'}").model(images)
    assert torch.equal(timm.create_model(f"local-dir:{out}", pretrained=True).eval()(images), ours)


def test_without_rows_and_with_those_of_other_weights(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "convert", f"run:{run}", str(tmp_path / "a"), "-q"]) == 0
    card = ModelCard.load(tmp_path / "a" / "README.md")
    assert card.data.eval_results is None
    assert "None were given" in card.text
    write_rows(tmp_path / "study" / "rows.json", [EvalResult("mIoU", 1.0, "probe", "1", "d", "val", 2, weights="1")])
    command = ["models", "convert", f"run:{run}", str(tmp_path / "b"), "-q", "--rows", str(tmp_path / "study")]
    assert main(command) == 3
    assert "no row is of these weights" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert main([*command, "--layout", "transformers"]) == 2
    assert "--rows: is for the model card" in capsys.readouterr().err


def test_every_way_to_load_it_that_the_card_names(run: Path, tmp_path: Path) -> None:
    assert main(["models", "convert", f"run:{run}", str(tmp_path / "a"), "-q"]) == 0
    text = (tmp_path / "a" / "README.md").read_text().replace("FOLDER", str(tmp_path / "a"))
    blocks = [part.split("```")[0] for part in text.split("```python")[1:]]
    assert len(blocks) == 2
    picture = torch.zeros(3, 50, 40, dtype=torch.uint8)
    names: dict[str, object] = {"picture": picture}
    for block in blocks:
        exec(block, names)
    assert list(names["layers"]) == [1, 2]  # type: ignore[call-overload]
    assert "dinoskip look weights:" in text
