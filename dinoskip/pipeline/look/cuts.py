"""TokenCut on one photograph at several facets and tau, with one pass of the network: a figure and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dinoskip.data.photographs import photographs_below
from dinoskip.diagnostics.position_removal import insid3_directions, without_directions
from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.io.images import image_size, read_image
from dinoskip.models import Backbone, load_backbone
from dinoskip.settings.read_points import usual_norm
from eval.tokencut import to_pixels
from eval.tokencut.positions import COMPONENTS, moments_of, rasa_projection
from eval.tokencut.ways import CutWay, agreement, cut_every_way
from visualize.figures.cuts import MADE_BY, CutPicture, cuts_figure

__all__ = ["MADE_BY", "draw_cuts"]

Grid = tuple[int, int]
OF_A_SET = ("mean", "mean_kept", "rasa")  # ways of taking position out that need other images


class _Reader:
    """Tokens of photographs in their own size, at one block of a network and several facets."""

    def __init__(self, backbone: Backbone, block: int, facets: Sequence[str]) -> None:
        self.backbone, self.block, self.facets = backbone, block, list(facets)
        self.norms = [usual_norm(facet, "final") for facet in facets]
        self._to_input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)

    def pixels(self, photo: Path) -> torch.Tensor:
        """Pixels uint8 (3, H, W) of a photograph."""
        return load_pixels(Transform(mode="native"), photo, self.backbone.size_multiple)

    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of the tokens of an image of so many pixels."""
        padded = Transform(mode="native").padded_size(height, width, self.backbone.size_multiple)
        stride = self.backbone.stride(self.block)
        return padded[0] // stride, padded[1] // stride

    def tokens(self, pixels: torch.Tensor) -> dict[str, np.ndarray]:
        """Tokens float32 (N, C) of every facet, by one pass."""
        size = pixels.shape[1], pixels.shape[2]
        native = Transform(mode="native").padded_size(*size, self.backbone.size_multiple)
        with torch.inference_mode():
            layers = self.backbone.layers(self._to_input([pixels], *native), [self.block], self.facets, self.norms)
        return {facet: layers[facet][self.block].tokens[0].float().cpu().numpy() for facet in self.facets}


def _without_positions(
    reader: _Reader, tokens: Mapping[str, np.ndarray], grid: Grid, ways: Sequence[str], others: Sequence[Path]
) -> dict[str, dict[str, np.ndarray]]:
    """The photograph's tokens without position, by way and facet; means are over it and ``others``, of its grid."""
    sums = {facet: part.astype(np.float64) for facet, part in tokens.items()}
    moments = {facet: moments_of(sums[facet], grid) for facet in tokens} if "rasa" in ways else {}
    for other in others:
        for facet, part in reader.tokens(reader.pixels(other)).items():
            sums[facet] += part
            if moments:
                moments[facet] += moments_of(part.astype(np.float64), grid)
    flat: dict[str, np.ndarray] = {}
    if "insid3" in ways:
        stride = reader.backbone.stride(reader.block)
        flat = reader.tokens(torch.zeros(3, grid[0] * stride, grid[1] * stride, dtype=torch.uint8))

    def treated(way: str, facet: str, part: np.ndarray) -> np.ndarray:
        if way == "rasa":
            return part @ rasa_projection(moments[facet])
        if way == "insid3":
            most = min(max(1, round(COMPONENTS * part.shape[1])), len(part) - 1)
            directions = insid3_directions(torch.from_numpy(flat[facet]), most)
            return without_directions(torch.from_numpy(part), directions).numpy()
        means = sums[facet] / (1 + len(others))
        return part - (means - means.mean(0) if way == "mean_kept" else means)

    return {way: {facet: treated(way, facet, part) for facet, part in tokens.items()} for way in ways}


def _of_the_grid(reader: _Reader, photo: Path, images: Path, grid: Grid) -> list[Path]:
    """The folder's other images whose tokens have the photograph's grid; :class:`DataError` for none."""
    folder = photographs_below(images)
    paths = [path for path in map(folder.path, range(len(folder))) if path.resolve() != photo.resolve()]
    found = [path for path in paths if reader.grid(*image_size(path)) == grid]
    if not found:
        raise DataError(
            f"{images}: no other image has the photograph's grid of {grid[0]} x {grid[1]} tokens",
            "means of positions are over images of one grid; they are not resized",
        )
    return found


def draw_cuts(
    spec: str,
    photo: Path,
    out: Path,
    block: int,
    facets: Sequence[str],
    taus: Sequence[float],
    positions: Sequence[str] = (),
    images: Path | None = None,
) -> dict[str, Any]:
    """Write the figure ``out``; return every way's cut, if there is one, its box and share of the image, and agreement.

    ``block`` 0 is the last. ``positions`` are ways of taking position out of the features, drawn below what is as it is
    and centred; those of a set of images read the folder ``images``. Raises :class:`ConfigError` for a block that the
    network lacks or a way without its images, :class:`DataError` for a photograph that cannot be read or is too small,
    or a folder without another image of its grid.
    """
    if (lacking := sorted(set(positions) & set(OF_A_SET))) and images is None:
        raise ConfigError(f"--positions {lacking[0]}: is over a set of images", "name their folder by --images DIR")
    backbone = load_backbone(spec)
    block = block or backbone.depth
    if block not in backbone.numbers:
        raise ConfigError(f"--block {block}: {spec} has blocks {backbone.numbers[0]}..{backbone.numbers[-1]}")
    reader = _Reader(backbone, block, backbone.read_at(facets))
    pixels = reader.pixels(photo)
    size = (pixels.shape[1], pixels.shape[2])
    grid, patch = reader.grid(*size), backbone.stride(block)
    others = _of_the_grid(reader, photo, images, grid) if images is not None and positions else []
    tokens = reader.tokens(pixels)
    without = _without_positions(reader, tokens, grid, positions, others)
    try:
        ways = cut_every_way(tokens, grid, taus, without=without)
    except ValueError as error:
        raise DataError(f"{photo}: block {block}: {error}") from error
    rows = []
    for at in range(0, len(ways), len(taus)):
        row = ways[at : at + len(taus)]
        pictures = [CutPicture(way.cut.mask, to_pixels(way.cut.box, patch, size), way.cut.is_cut) for way in row]
        rows.append((_label(row[0]), pictures))
    columns = [f"τ = {tau:g}" for tau in taus]
    over = f"; means over {1 + len(others)} images" if others else ""
    title = f"{photo.name}, block {block}: crossed out where there is no cut{over}"
    cuts_figure(read_image(photo), patch, columns, rows, out, title=title)
    return {
        "agreement": agreement(ways) if sum(way.cut.is_cut for way in ways) > 1 else None,
        "images": 1 + len(others),
        "cuts": [_described(way, patch, size) for way in ways],
    }


def _label(way: CutWay) -> str:
    treated = f"{', centred' if way.centred else ''}{'' if way.positions == 'keep' else f', {way.positions}'}"
    return f"{way.facet}{treated}, cosine {way.cosine:.2f}"


def _described(way: CutWay, patch: int, size: tuple[int, int]) -> dict[str, Any]:
    return {
        "facet": way.facet, "centred": way.centred, "positions": way.positions, "tau": way.tau,
        "cosine": round(way.cosine, 4), "complete": way.cut.complete, "is_cut": way.cut.is_cut,
        "box": list(to_pixels(way.cut.box, patch, size)), "share": round(float(way.cut.component.mean()), 4),
    }  # fmt: skip
