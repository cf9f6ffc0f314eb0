"""Keypoints found against the published rules written out: maps upsampled in full, one point at a time, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import interpolate, normalize

from dinoskip_video.correspondence import (
    CorrespondenceConfig,
    Matched,
    Matcher,
    Placement,
    padded_size,
    sampled,
    upsampled_lengths,
)
from dinoskip_video.correspondence.windows import load_square


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 6), st.integers(1, 25), st.integers(1, 25))
def test_lengths_are_those_of_the_upsampled_map(seed: int, high: int, wide: int, rows: int, columns: int) -> None:
    maps = torch.randn(high, wide, 5, generator=torch.Generator().manual_seed(seed))
    large = interpolate(maps.double().permute(2, 0, 1)[None], size=(rows, columns), mode="bilinear")[0]
    torch.testing.assert_close(upsampled_lengths(maps, (rows, columns)).double(), large.norm(dim=0), rtol=0, atol=2e-6)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 6))
def test_samples_are_those_of_grid_sample(seed: int, high: int, wide: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.standard_normal((high * wide, 3)))
    spots = rng.random((7, 2)) * (wide - 1, high - 1)
    to = torch.from_numpy((spots + 0.5) / (wide, high) * 2 - 1)[None, None]
    maps = tokens.T.reshape(1, 3, high, wide)
    wanted = torch.nn.functional.grid_sample(maps, to, padding_mode="border", align_corners=False)[0, :, 0].T
    torch.testing.assert_close(sampled(tokens, (high, wide), spots), wanted)


def written_out(
    config: CorrespondenceConfig,
    source: torch.Tensor,
    target: torch.Tensor,
    points: np.ndarray,
    sizes: list[tuple[int, int]],
    patch: int,
) -> np.ndarray:
    """The published scripts for one pair: predictions and wanted points in the pixels that they are compared in."""
    side, found = config.size, []
    cells = source.shape[0]
    maps = [one.permute(2, 0, 1)[None] for one in (source, target)]
    if config.protocol == "dift":
        wide = [interpolate(one, size=size, mode="bilinear")[0] for one, size in zip(maps, sizes, strict=True)]
        for x, y in points:
            vector = normalize(wide[0][:, int(y), int(x)], dim=0)
            cosine = torch.einsum("chw,c->hw", normalize(wide[1], dim=0), vector)
            row, column = divmod(int((cosine > cosine.max() - 1e-12).flatten().int().argmax()), cosine.shape[1])
            found.append((column, row))  # of equals, up to rounding, the first
        return np.array(found)
    scale = side / max(sizes[0])
    high, wide_side = padded_size(sizes[0], side)
    inside = points * scale + (int((side - wide_side) / 2), int((side - high) / 2))
    if config.protocol == "sd-dino":
        for x, y in inside:
            vector = source[int(cells / side * y), int(cells / side * x)]
            cosine = torch.nn.functional.cosine_similarity(target, vector, dim=-1)
            row, column = divmod(int(cosine.argmax()), cells)
            found.append(
                ((column - 1) * patch + patch + patch // 2 - 0.5, (row - 1) * patch + patch + patch // 2 - 0.5)
            )
        return np.array(found)
    large = [interpolate(normalize(one, dim=1), size=(side, side), mode="bilinear")[0] for one in maps]
    for x, y in inside:
        product = torch.einsum("chw,c->hw", large[1], large[0][:, int(np.floor(y)), int(x)])
        row, column = divmod(int((product > product.max() - 1e-12).flatten().int().argmax()), side)
        found.append((column, row))
    return np.array(found)


@pytest.mark.parametrize("protocol", ["dift", "sd-dino", "lift"])
@pytest.mark.parametrize("seed", range(4))
def test_protocols_are_the_scripts(protocol: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    patch, sizes = 8, [(50, 70), (64, 41)] if seed % 2 else [(33, 60), (60, 60)]
    config = CorrespondenceConfig(protocol=protocol, size=48)  # type: ignore[arg-type]
    source, target = (torch.from_numpy(rng.standard_normal((6, 6, 16))) for _ in range(2))
    points = np.floor(rng.random((9, 2)) * (sizes[0][1], sizes[0][0]))
    matcher = Matcher(config, (6, 6), patch)
    places = [Placement.of(size, config) for size in sizes]
    wanted_points = np.floor(rng.random((9, 2)) * (sizes[1][1], sizes[1][0]))
    matched = matcher.match(
        matcher.descriptors(source.flatten(0, 1), points, places[0]),
        matcher.prepared(target.flatten(0, 1), places[1]),
        wanted_points,
        20.0,
        places[1],
    )
    np.testing.assert_array_equal(matched.found, written_out(config, source, target, points, sizes, patch))
    scale = 48 / max(sizes[1])
    if protocol == "dift":
        np.testing.assert_array_equal(matched.wanted, wanted_points)
        assert matched.extent == 20
        return
    high, wide = padded_size(sizes[1], 48)
    np.testing.assert_allclose(matched.wanted, wanted_points * scale + (int((48 - wide) / 2), int((48 - high) / 2)))
    assert matched.extent == pytest.approx(20 * scale)


def test_on_the_threshold_is_a_hit_by_dift_and_tokens_only() -> None:
    matched = Matched(np.array([[3.0, 4.0], [0.0, 5.1]]), np.zeros((2, 2)), 50.0)
    assert matched.hits(0.1, strict=False).tolist() == [True, False]
    assert matched.hits(0.1, strict=True).tolist() == [False, False]
    for protocol, strict in {"dift": False, "sd-dino": True, "lift": True, "tokens": False}.items():
        assert CorrespondenceConfig(protocol=protocol).padded is strict  # type: ignore[arg-type]


def test_placements_and_sizes() -> None:
    assert padded_size((100, 200), 224) == (112, 224)
    assert padded_size((333, 500), 224) == (149, 224)
    place = Placement.of((333, 500), CorrespondenceConfig(protocol="lift"))
    assert place.offset == (0, 37)
    points = np.array([[10.0, 20.0], [499.0, 332.0]])
    np.testing.assert_allclose(place.back(place.into(points)), points)
    square = Placement.of((333, 500), CorrespondenceConfig(size=448))
    np.testing.assert_allclose(square.into(points[1:]), [[499 * 448 / 500, 332 * 448 / 333]])


def test_the_protocol_gives_the_size() -> None:
    for protocol, size in {"dift": 768, "sd-dino": 224, "lift": 224, "tokens": 448}.items():
        assert CorrespondenceConfig.model_validate({"protocol": protocol}).size == size
    assert CorrespondenceConfig.model_validate({"protocol": "lift", "size": 448}).resolution == "448 padded"
    assert CorrespondenceConfig().resolution == "768 square"


def test_padded_images_are_resized_by_lanczos_as_in_the_scripts(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    square = load_square(tmp_path / "noise.png", CorrespondenceConfig(protocol="sd-dino", size=32)).permute(1, 2, 0)
    small = np.asarray(Image.fromarray(pixels).resize((32, 19), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(square[6:25], small)
    assert not square[:6].any()
    assert not square[25:].any()
