"""The DINO authors' networks through torch.hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import load_backbone
from dinoskip.models.from_hub import load_hub


def repository(folder: Path, body: str) -> Path:
    folder.mkdir()
    (folder / "hubconf.py").write_text(f"import torch\nfrom tests.helpers.dino_modules import Dino\n\n{body}\n")
    return folder


def test_hub_runs_no_code_that_was_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that looks like owner/name is not taken for a path; untrusted names fetch nothing."""
    (tmp_path / "someone").mkdir()
    repository(tmp_path / "someone" / "net", "raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "load", lambda *args, **kwargs: pytest.fail("torch.hub was called"))
    with pytest.raises(ConfigError, match=r"name its folder: hub:\./FOLDER:NAME"):
        load_backbone("hub:someone/net:vit")


def test_hub_of_a_folder(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo",
        "def vit(pretrained=True, depth=1):\n    return Dino(depth=depth)\n"
        "def resnet(pretrained=True):\n    return torch.nn.Linear(2, 2)\n"
        "def nothing(pretrained=True):\n    return None\n",
    )
    random = load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2")
    assert random.depth == 2
    assert load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2").weights_hash == random.weights_hash
    assert load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2,seed=1").weights_hash != random.weights_hash
    state = {name: tensor for name, tensor in random.model.state_dict().items() if name != "norm.bias"}
    torch.save({"teacher": state}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"1 missing \(norm.bias\)"):
        load_backbone(f"hub:{folder}:vit,depth=2,file={tmp_path / 'w.pth'}")
    refused = {"resnet": "it does not take an image of 224×224 pixels", "nothing": "a NoneType, not a network"}
    for name, message in refused.items():
        with pytest.raises(ConfigError, match=message):
            load_backbone(f"hub:{folder}:{name},pretrained=false")
    with pytest.raises(ConfigError, match="cannot build it: Cannot find callable absent"):
        load_backbone(f"hub:{folder}:absent,pretrained=false")


def test_a_commit_pins_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.hub refuses a commit that is not the head of a branch, unless it is told not to look."""
    given: list[Any] = []

    def load(where: str, name: str, **options: Any) -> torch.nn.Module:
        given.append((where, options.get("skip_validation", False)))
        return torch.nn.Identity()

    monkeypatch.setattr(torch.hub, "load", load)
    for reference in ("a" * 40, "main"):
        load_hub(f"facebookresearch/dinov2:{reference}:dinov2_vits14")
    assert given == [(f"facebookresearch/dinov2:{'a' * 40}", True), ("facebookresearch/dinov2:main", False)]


ROOT = Path(__file__).parents[2]


def test_models_and_backbones_from_a_checkout() -> None:
    name = "skipless_vit_mini_patch16_224"
    model = torch.hub.load(str(ROOT), name, source="local", num_classes=0, depth=1)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 128)
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    assert torch.hub.load(str(ROOT), "backbone", spec, source="local").depth == 1
