"""Grids of patches that are no square: read off where one fits, asked for where two do, right once they are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch.nn import functional as F

from dinoskip.cli import main
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import load_backbone
from dinoskip.models.position_grids import Positions, checked_grid, grid_of

CASE = Path(__file__).parents[3] / "shared" / "cases" / "weights_rectangular_grid"
SIDE = 8


def saved(path: Path, height: int, width: int, **options: Any) -> Any:
    torch.manual_seed(height)
    tiny = {"patch_size": SIDE, "embed_dim": 64, "num_heads": 1, "depth": 1, "num_classes": 0, "dynamic_img_size": True}
    made = timm.create_model("vit_tiny_patch16_224", **(tiny | {"img_size": (height, width)} | options)).eval()
    with torch.no_grad():
        made.pos_embed.normal_()
    torch.save(made.state_dict(), path)
    return made


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        (Positions(197, 1), (1, (14, 14))),
        (Positions(50, 1), (1, (7, 7))),  # 5 × 10 without a class token's position, too
        (Positions(577, 1), (1, (24, 24))),
        (Positions(196, 0), (0, (14, 14))),
        (Positions(1369, 5, 4), (0, (37, 37))),  # DINOv2 with registers, timm's names
        (Positions(198, 2, 1, told=2), (2, (14, 14))),  # DeiT's distillation
        (Positions(196, 1, told=0), (0, (14, 14))),  # DeiT III
    ],
)
def test_squares_of_published_networks_are_read_off(positions: Positions, found: tuple[int, tuple[int, int]]) -> None:
    assert grid_of(positions, "w.pth") == found


@pytest.mark.parametrize(
    ("positions", "named"),
    [
        (Positions(225, 1), {"15x15", "14x16", "16x14"}),
        (Positions(81, 1), {"9x9", "8x10", "10x8"}),
        (Positions(25, 1), {"5x5", "4x6", "6x4"}),
        (Positions(129, 1), {"8x16", "16x8"}),
        (Positions(54, 5, 4), {"7x7", "6x9", "9x6"}),  # registers: with a position each, or without
        (Positions(24, 0), {"4x6", "6x4"}),
    ],
)
def test_what_is_no_square_or_fits_twice_is_asked_for(positions: Positions, named: set[str]) -> None:
    with pytest.raises(WeightsError) as caught:
        grid_of(positions, "w.pth")
    assert named <= {part.rstrip(",)") for part in str(caught.value).replace("grid=", " ").split()}
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["14x16", "14 x 16", "14×16", (14, 16), [14, 16]])
def test_a_grid_is_rows_and_columns(given: Any) -> None:
    assert checked_grid(given, "w.pth") == (14, 16)
    assert checked_grid(14, "w.pth") == (14, 14)


@pytest.mark.parametrize("given", ["14", "0x4", "x", "4x", (4,), (4, -1), "4x4x4", True])
def test_what_is_no_grid_is_refused(given: Any) -> None:
    if given == "14":
        assert checked_grid(given, "w.pth") == (14, 14)
        return
    with pytest.raises(ConfigError, match="rows x columns"):
        checked_grid(given, "w.pth")


@pytest.mark.parametrize(("height", "width"), [(24, 40), (40, 24), (48, 24), (32, 48)])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 4, "no_embed_class": True}, {"class_token": False}])
def test_a_network_of_a_said_grid_is_the_one_that_was_saved(
    tmp_path: Path, height: int, width: int, options: dict[str, Any]
) -> None:
    extra = {"global_pool": "avg", "fc_norm": False} if options.get("class_token") is False else {}
    made = saved(tmp_path / "w.pth", height, width, **options, **extra)
    found = load_backbone(f"{tmp_path / 'w.pth'},grid={height // SIDE}x{width // SIDE},pos_embed=timm")
    images = torch.randn(1, 3, height, width)
    tokens = made.forward_features(images)[:, made.num_prefix_tokens :]
    torch.testing.assert_close(found.layers(images, [1], norm="final")[1].tokens, tokens, rtol=1e-5, atol=1e-5)
    other = torch.randn(1, 3, 40, 56)  # timm's rule at another size
    tokens = made.forward_features(other)[:, made.num_prefix_tokens :]
    torch.testing.assert_close(found.layers(other, [1], norm="final")[1].tokens, tokens, rtol=1e-5, atol=1e-5)


def test_dinos_rule_has_a_factor_for_each_side(tmp_path: Path) -> None:
    made = saved(tmp_path / "w.pth", 24, 40)
    found = load_backbone(f"{tmp_path / 'w.pth'},grid=3x5")
    assert found.positions == "dino"
    patches = made.pos_embed[:, 1:].reshape(1, 3, 5, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(patches, scale_factor=((6 + 0.1) / 3, (4 + 0.1) / 5), mode="bicubic")
    zeros = torch.zeros(1, 3, 48, 32)
    tokens, _ = found.adapter.embed(zeros)
    expected = made.patch_embed(zeros).flatten(1, 2) + resized.permute(0, 2, 3, 1).flatten(1, 2)
    torch.testing.assert_close(tokens[:, 1:], expected, rtol=1e-5, atol=1e-5)


def test_a_grid_of_another_number_is_a_mistake_in_the_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "w.pth", 24, 40)
    assert main(["models", "show", f"{tmp_path / 'w.pth'},grid=3x3"]) == 2
    assert main(["models", "show", str(tmp_path / "w.pth")]) == 3, "16 positions: 4 × 4, or 3 × 5 with a class token"
    said = capsys.readouterr().err
    assert "grid=4x4" in said
    assert "grid=3x5" in said


@pytest.mark.skipif(not CASE.is_dir(), reason="needs ../shared/cases")
@pytest.mark.parametrize(("name", "grid"), [("r128x160", "8x10"), ("r224x256", "14x16"), ("r64x96", "4x6")])
def test_the_shared_cases(name: str, grid: str) -> None:
    file = CASE / f"{name}.pth"
    with pytest.raises(WeightsError, match=f"grid={grid}"):
        load_backbone(file)
    rows, columns = map(int, grid.split("x"))
    assert load_backbone(file, grid=grid).model.patch_embed.grid_size == (rows, columns)
