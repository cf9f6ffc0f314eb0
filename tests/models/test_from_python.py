"""A network of the user's own file, and torchvision's by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import load_backbone

NETWORK = """
import torch
from beside import WIDTH

def network(width=WIDTH):
    return torch.nn.Sequential(torch.nn.Conv2d(3, width, 4, 4), torch.nn.Conv2d(width, 2 * width, 2, 2))

def broken():
    raise RuntimeError("no weights here")

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 6\n")
    path = tmp_path / "net.py"
    path.write_text(NETWORK)
    return path


def test_a_function_of_the_users_file(file: Path) -> None:
    backbone = load_backbone(f"python:{file}:network")
    assert [(part.patch_size, part.dim) for part in backbone.parts] == [(4, 6), (8, 12)]
    assert load_backbone(f"python:{file}:network,width=3").parts[0].dim == 3
    assert load_backbone(f"python:{file}:network").weights_hash == backbone.weights_hash
    assert load_backbone(f"python:{file}:network,seed=1").weights_hash != backbone.weights_hash


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:FILE:netwrok", "has no function netwrok .did you mean network"),
        ("python:FILE:broken", "net.py:9: RuntimeError: no weights here"),
        ("python:FILE:number", "number returns a int, not a torch.nn.Module"),
        ("python:FILE", "write python:FILE.py:FUNCTION|there is no file"),
        ("python:nowhere.py:network", "there is no file nowhere.py"),
        ("python:FILE:network,depth=2", "unexpected keyword argument 'depth'"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(file: Path, spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_backbone(spec.replace("FILE", str(file)))
    assert raised.match(message)
    assert "\n" not in str(raised.value)


def test_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = torchvision.models.resnet18(weights=None).eval()
    torch.save(model.state_dict(), tmp_path / "resnet18.pth")
    images = torch.randn(1, 3, 64, 64)
    backbone = load_backbone(f"tv:resnet18,file={tmp_path / 'resnet18.pth'},layers=layer1+layer4")
    with torch.no_grad():
        expected = model.layer1(model.maxpool(model.relu(model.bn1(model.conv1(images)))))
    assert torch.equal(backbone.layers(images, [1])[1].tokens, expected.flatten(2).mT)
    torch.save({"fc.weight": torch.zeros(2, 2)}, tmp_path / "other.pth")
    with pytest.raises(WeightsError):
        load_backbone(f"tv:resnet18,file={tmp_path / 'other.pth'}")


def test_a_timm_file_with_and_without_its_classifier(tmp_path: Path) -> None:
    import timm

    torch.manual_seed(3)
    model = timm.create_model("resnet18", num_classes=7)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "resnet18.pth")
    backbone = load_backbone(f"timm:resnet18,file={tmp_path / 'resnet18.pth'}")
    assert torch.equal(backbone.model.layer4[0].conv1.weight, model.layer4[0].conv1.weight)
    partial = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("layer3")}
    torch.save(partial, tmp_path / "partial.pth")
    with pytest.raises(WeightsError, match="layer3"):
        load_backbone(f"timm:resnet18,file={tmp_path / 'partial.pth'}")
