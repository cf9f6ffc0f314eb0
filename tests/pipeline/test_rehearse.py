"""``dinoskip rehearse``: a study made small on composed data, and what of it stays empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.errors import ConfigError
from dinoskip.pipeline.rehearsal.layouts import make_real
from dinoskip.pipeline.rehearsal.shrink import BLOCKS, Shrink
from dinoskip.settings.config import read_yaml

STUDY = """
name: own
data: {photos: {kind: images, root: /nowhere/photos}}
variants:
  model:
    - {label: theirs, backbone: "timm:vit_small_patch16_224.dino"}
gallery: {dataset: photos, first: 40}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A study whose data and network are not there."""
    path = tmp_path / "own.yaml"
    path.write_text(STUDY)
    return path


def test_a_folder_with_other_files_is_left_alone(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rehearse", str(config), "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.yaml"]


def shrunk(text: str, tmp_path: Path) -> Shrink:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return Shrink(read_yaml(path), tmp_path / "place")


def test_schedules_keep_their_shares_and_blocks_their_depth(tmp_path: Path) -> None:
    one = shrunk(
        """
        name: trained
        data:
          train: {kind: folder, root: data/imagenet}
          voc: {kind: voc, root: ~/VOCdevkit}
        model: {name: vit_small_patch16}
        pretrain: {dataset: train, epochs: 300, warmup_epochs: 10, keep_epochs: [200]}
        evaluate:
          epochs: [200, 300]
          blocks: [3, 6, 9, 12]
          probe: {datasets: [voc], protocol: dinov2}
        """,
        tmp_path,
    )
    tree = one.shrunk()
    recipe = tree["pretrain"]
    assert (recipe["epochs"], recipe["keep_epochs"], recipe["warmup_epochs"]) == (3, [2], 0.1)
    assert (tree["evaluate"]["epochs"], tree["evaluate"]["blocks"]) == ([2, 3], [1, 2, 3, BLOCKS])
    probe = tree["evaluate"]["probe"]
    assert (probe["iterations"], probe["stride"], "epochs" in probe) == (2, one.side, False)
    assert (tree["data"]["train"]["root"], tree["data"]["voc"]["root"]) == ("data/imagenet", "VOCdevkit")


@pytest.mark.parametrize(
    ("spec", "stands"),
    [
        ("timm:vit_small_patch16_224.dino", "timm:vit_tiny_patch16_224,pretrained=false,depth=4"),
        ("hf:facebook/dinov2-small", "timm:vit_tiny_patch16_224,pretrained=false,depth=4"),
        ("dinoskip:skip", "dinoskip:skip"),
        ("weights:/models/a.safetensors", "weights:{place}/models/a.safetensors"),
        ("run:runs/x", "weights:{place}/runs/x/teacher.safetensors"),
    ],
)
def test_networks_that_would_be_read_are_small_ones(config: Path, tmp_path: Path, spec: str, stands: str) -> None:
    one = Shrink(read_yaml(config), tmp_path / "place")
    assert one.spec(spec) == stands.format(place=tmp_path / "place")


def test_another_kind_is_composed_by_its_own_method(tmp_path: Path) -> None:
    class Mine(ImagesConfig):
        kind: str = "mine"  # type: ignore[assignment]

        def compose(self, root: Path) -> None:
            root.mkdir(parents=True)
            (root / "made").touch()

    class Theirs(ImagesConfig):
        kind: str = "theirs"  # type: ignore[assignment]

    make_real({"own": Mine(root="data/own")}, tmp_path)
    assert (tmp_path / "data" / "own" / "made").exists()
    with pytest.raises(ConfigError, match=r"data\.other: .*theirs"):
        make_real({"other": Theirs(root="data/other")}, tmp_path)
    with pytest.raises(ConfigError, match="leads out of"):
        make_real({"up": Mine(root="../up")}, tmp_path)
