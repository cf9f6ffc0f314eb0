"""The DINO authors' networks through torch.hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import from_hub, load_backbone
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


class _GitHub(BaseHTTPRequestHandler):
    """Answers as GitHub's API does: commits of a's are behind the head, those of f's a fork's, those of 0's unknown."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        commit = self.path.rpartition("...")[2]
        status = {"a": "behind", "b": "identical", "f": "diverged", "e": "ahead"}.get(commit[0])
        self.send_response(200 if status else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"status": status}).encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[_GitHub]]:
    with HTTPServer(("127.0.0.1", 0), _GitHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(from_hub, "GITHUB", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        _GitHub.asked.clear()
        yield _GitHub
        server.shutdown()


def test_a_commit_pins_the_code(monkeypatch: pytest.MonkeyPatch, github: type[_GitHub], tmp_path: Path) -> None:
    """torch.hub refuses a commit that is not the head of a branch, unless it is told not to look: then we look."""
    given: list[Any] = []

    def load(where: str, name: str, **options: Any) -> torch.nn.Module:
        given.append((where, options.get("skip_validation", False)))
        return torch.nn.Identity()

    monkeypatch.setattr(torch.hub, "load", load)
    for reference in ("a" * 40, "b" * 40, "main"):
        load_hub(f"facebookresearch/dinov2:{reference}:dinov2_vits14")
    place = "facebookresearch/dinov2"
    assert given == [(f"{place}:{'a' * 40}", True), (f"{place}:{'b' * 40}", True), (f"{place}:main", False)]
    assert github.asked == [f"/repos/{place}/compare/HEAD...{letter * 40}" for letter in "ab"]
    for letter in "fe0":
        with pytest.raises(ConfigError, match=letter * 40):
            load_hub(f"{place}:{letter * 40}:dinov2_vits14")
    assert len(given) == 3, "nothing of a fork's was run"
    (tmp_path / f"facebookresearch_dinov2_{'c' * 40}").mkdir()
    load_hub(f"{place}:{'c' * 40}:dinov2_vits14")  # fetched before: it needs no network
    assert len(github.asked) == 5
    monkeypatch.setattr(from_hub, "GITHUB", "http://127.0.0.1:9")
    with pytest.raises(WeightsError, match="cannot be asked"):
        load_hub(f"{place}:{'a' * 40}:dinov2_vits14")


ROOT = Path(__file__).parents[2]


def test_models_and_backbones_from_a_checkout() -> None:
    name = "skipless_vit_mini_patch16_224"
    model = torch.hub.load(str(ROOT), name, source="local", num_classes=0, depth=1)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 128)
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    assert torch.hub.load(str(ROOT), "backbone", spec, source="local").depth == 1
