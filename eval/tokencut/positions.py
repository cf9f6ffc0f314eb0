"""Position taken out of the features of a set of images before they are cut (docs/tokencut.md).

``mean``: the mean of every position over the images of one grid is subtracted, each grid and block by itself; with
``mean_kept`` the mean of everything is added again. ``rasa`` and ``insid3`` are two published ways
(:mod:`dinoskip.diagnostics.position_removal`). What is needed for them is collected in one pass over all images, in
arrays that may be files, so that memory does not grow with images or grids.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dinoskip.diagnostics.position_removal import insid3_directions, rasa_round, without_directions
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureSet
from dinoskip.features.transform import Normalise
from dinoskip.io.arrays import read_arrays, write_arrays
from dinoskip.io.files import write_json
from dinoskip.io.parts import ALONE, Parts
from dinoskip.models import Backbone
from dinoskip.runtime.console import Progress, log
from eval.tokencut.treatments import Positions

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Grid = tuple[int, int]
NewArray = Callable[[str, Any, tuple[int, ...]], NDArray[Any]]
"""Makes an array of zeros by name, dtype and shape, or returns what a stopped run has left in it."""
ROUNDS = 9  # of RASA, as in Franca's experiments; fewer where they would leave less than half of the channels
RIDGE = 1e-6  # of the mean variance of a channel, so that a channel that is constant, or taken out, gets no weight
ROUNDING = 1e-18  # square of a correlation that is rounding noise
NOTHING_READ = 1e-9  # of what the first round explained
COMPONENTS = 500 / 1024
"""Share of the channels that INSID3 takes out: its 500 are of a ViT-L's 1,024, and more than a ViT-S has."""


def position_means(features: ArrayLike) -> F64:
    """Return the mean (N, C) of every position over B images of features (B, N, C), float64.

    A token that is the same in every image is its mean to the bit.
    """
    return np.asarray(np.asarray(features, np.float64).sum(0) / len(np.asarray(features)))


def without_positions(features: ArrayLike, *, keep_mean: bool = False) -> F32:
    """Return features (B, N, C) of B images of one grid less the mean of every position, float32.

    With ``keep_mean`` the mean of everything is added: an offset that all tokens share stays. Of one image nothing is
    left: no graph of it has a cut.
    """
    values = np.asarray(features, np.float64)
    means = position_means(values)
    return (values - (means - means.mean(0) if keep_mean else means)).astype(np.float32)


def position_share(features: ArrayLike) -> float:
    """Return the part (0..1) of the variance of features (B, N, C) that lies between positions; 0 where none varies.

    It is not corrected for chance: of few images it is large, of one image 1.
    """
    values = np.asarray(features, np.float64)
    means = position_means(values)
    centre = means.mean(0)
    total = float(np.square(values - centre).sum())
    return len(values) * float(np.square(means - centre).sum()) / total if total > 0 else 0.0


class _GridRows(NamedTuple):
    """The rows of a grid's positions among those of all grids, how many images have the grid, and its number."""

    rows: slice
    images: int
    number: int


@dataclass(frozen=True, eq=False)
class PositionRemoval:
    """Position taken out of tokens of a set's images, at the blocks and grids that it was collected of.

    ``arrays`` are of ``rule``: ``means`` float64 (blocks, positions of all grids, C), what is subtracted;
    ``projections`` float64 (blocks, C, C); ``directions`` float32 (blocks, grids, k, C), zeros where a grid has fewer.
    """

    rule: Positions
    blocks: tuple[int, ...]
    grids: dict[Grid, _GridRows]
    arrays: dict[str, NDArray[Any]]

    def __call__(self, block: int, grid: Grid, tokens: F32) -> F32:
        """Return tokens (N, C) of an image of ``grid`` at ``block`` without position, float32.

        Of an image whose grid no other has nothing is left by ``mean`` and ``mean_kept``: its means are itself.
        """
        at, place = self.blocks.index(block), self.grids[grid]
        if self.rule == "rasa":
            projection: F64 = self.arrays["projections"][at]
            return (tokens.astype(np.float64) @ projection).astype(np.float32)
        if self.rule == "insid3":
            directions = torch.from_numpy(np.array(self.arrays["directions"][at, place.number]))
            return without_directions(torch.from_numpy(tokens), directions).numpy()
        if place.images < 2:
            return np.zeros_like(tokens)
        means: F64 = self.arrays["means"][at, place.rows]
        return (tokens - means).astype(np.float32)

    def shares(self) -> dict[str, dict[str, dict[str, float]]]:
        """The share of variance between positions (:func:`position_share`) and the images, by block and grid.

        Empty for the published ways, which do not collect it.
        """
        if "shares" not in self.arrays:
            return {}
        return {
            str(block): {
                f"{rows}x{columns}": {"images": place.images, "share": float(self.arrays["shares"][at, place.number])}
                for (rows, columns), place in self.grids.items()
                if place.images > 1
            }
            for at, block in enumerate(self.blocks)
        }


def in_memory(_: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Arrays that are no files (:data:`NewArray`)."""
    return np.zeros(shape, dtype)


def open_removal(
    features: FeatureSet, rule: Positions, network: Backbone | None, new_array: NewArray = in_memory
) -> PositionRemoval | None:
    """Make room for what is collected of ``features``, which no pass has read yet; None for ``keep``.

    Raises :class:`ConfigError` for ``insid3`` without the network, whose features of a flat image it needs.
    """
    if rule == "keep":
        return None
    if rule == "insid3" and network is None:
        raise ConfigError(
            "positions: insid3 needs the network's features of a flat image, which these features do not have",
            "evaluate the network itself, or choose mean, mean_kept or rasa",
        )
    blocks, dim = len(features.blocks), features.dim
    counts = Counter(features.grid(i) for i in range(len(features)))
    grids, end = {}, 0
    for number, (grid, images) in enumerate(counts.items()):
        needed = math.prod(grid) if images > 1 else 0
        grids[grid] = _GridRows(slice(end, end + needed), images, number)
        end += needed
    shapes: dict[str, tuple[Any, tuple[int, ...]]]
    if rule == "rasa":
        shapes = {"projections": (np.float64, (blocks, dim, dim)), "moments": (np.float64, (blocks, dim, dim + 2))}
    elif rule == "insid3":
        shapes = {"directions": (np.float32, (blocks, len(grids), max(1, round(COMPONENTS * dim)), dim))}
    else:
        shapes = {"means": (np.float64, (blocks, max(1, end), dim)), "shares": (np.float64, (blocks, len(grids)))}
    arrays = {name: new_array(f"positions_{name}", *form) for name, form in shapes.items()}
    arrays["collected"] = new_array("positions_collected", np.bool_, (1,))
    return PositionRemoval(rule, features.blocks, grids, arrays)


def collect(removal: PositionRemoval, features: FeatureSet, network: Backbone | None) -> None:
    """Read all images once, and keep what :class:`PositionRemoval` needs; nothing if a stopped run has done so.

    Images whose grid no other has are counted in the log. Raises :class:`DataError` for features that are not finite.
    """
    if removal.arrays["collected"][0]:
        return
    for array in removal.arrays.values():
        array[:] = 0
    if removal.rule == "insid3":
        assert network is not None
        _collect_directions(removal, features, network)
    else:
        with Progress("positions", len(features) * len(features.blocks), "images") as progress:
            for part in features.parts():
                for at, block in enumerate(features.blocks):
                    for i in range(len(part)):
                        tokens = part.tokens(block, i)
                        if not np.isfinite(tokens).all():
                            raise DataError(f"{part.path}: {part.ids[i]}: block {block}: features must be finite")
                        _add(removal, at, part.grid(i), tokens.astype(np.float64))
                        progress.advance()
        _conclude(removal)
    alone = sum(place.images == 1 for place in removal.grids.values())
    if alone and removal.rule in {"mean", "mean_kept"}:
        log.warning(
            "positions: %d of %d images have a grid that no other image has: they have no cut, and are misses",
            alone, len(features),
        )  # fmt: skip
    removal.arrays["collected"][0] = True


def take_out_positions(
    removal: PositionRemoval | None,
    features: FeatureSet,
    network: Backbone | None,
    out: Path,
    parts: Parts = ALONE,
) -> None:
    """Collect what ``removal``, if there is one, takes out of ``features``; :meth:`PositionRemoval.shares` as a file.

    That is ``out/positions.json``, where shares are known. Those who make ``parts`` of the work find it collected.
    """
    if removal is None:
        return
    if parts.folder is None:
        collect(removal, features, network)
    else:
        _collect_once(removal, features, network, parts)
    if shares := removal.shares():
        write_json(out / "positions.json", shares)


def _collect_once(removal: PositionRemoval, features: FeatureSet, network: Backbone | None, parts: Parts) -> None:
    """:func:`collect` by the process whose work it is; others read what it has collected."""

    def write(folder: Path) -> None:
        collect(removal, features, network)
        write_arrays(folder / "arrays.npz", removal.arrays)

    found = read_arrays(parts.once("positions", write) / "arrays.npz", limit=sys.maxsize)  # of our own making
    for name, array in removal.arrays.items():
        array[...] = found[name]


def _add(removal: PositionRemoval, at: int, grid: Grid, tokens: F64) -> None:
    """Add an image's tokens (N, C), at block number ``at``, to the sums."""
    place = removal.grids[grid]
    if removal.rule == "rasa":
        removal.arrays["moments"][at] += moments_of(tokens, grid)
    elif place.images > 1:
        removal.arrays["means"][at, place.rows] += tokens
        removal.arrays["shares"][at, place.number] += np.square(tokens).sum()


def _conclude(removal: PositionRemoval) -> None:
    """Turn sums into what is taken out."""
    arrays = removal.arrays
    for at in range(len(removal.blocks)):
        if removal.rule == "rasa":
            arrays["projections"][at] = rasa_projection(arrays["moments"][at])
            continue
        for place in removal.grids.values():
            if place.images < 2:
                continue
            means = arrays["means"][at, place.rows] / place.images
            centre = means.mean(0)
            squares = float(arrays["shares"][at, place.number])
            total = squares - place.images * len(means) * float(np.square(centre).sum())
            between = place.images * float(np.square(means - centre).sum())
            arrays["shares"][at, place.number] = min(1.0, between / total) if total > 0 else 0.0
            arrays["means"][at, place.rows] = means - centre if removal.rule == "mean_kept" else means


def moments_of(tokens: F64, grid: Grid) -> F64:
    """Return the moments (C, C + 2) of an image's tokens (N, C) that :func:`rasa_projection` takes, to be added up."""
    middle = np.indices(grid).reshape(2, -1).T + 0.5
    return np.asarray(tokens.T @ np.concatenate([tokens, middle / grid - 0.5], axis=1))


def rasa_projection(moments: F64) -> F64:
    """Return the matrix (C, C) that takes out what RASA's rounds do, of moments (C, C + 2) over all tokens.

    Those are the sums of x x' and of x times row and column, in -1/2..1/2. The published probe is trained by steps, on
    the sigmoid of its output; this one (ours) is the linear map of least squares, so that one pass over the features
    is enough for all rounds and no seed decides. The rounds end where nothing is left to read: what a further one took
    out would be rounding noise.
    """
    dim = len(moments)
    products, targets = moments[:, :dim], moments[:, dim:]
    kept, first = np.eye(dim), 0.0
    for _ in range(min(ROUNDS, dim // 4)):
        inner, left = kept @ products @ kept, kept @ targets
        if np.square(left).sum() <= ROUNDING * np.trace(products):  # features and places are uncorrelated
            break
        ridge = RIDGE * max(float(np.trace(inner)) / dim, np.finfo(np.float64).tiny)
        weight = kept @ np.linalg.solve(inner + ridge * np.eye(dim), left)
        read = float((weight * left).sum())  # the squares that the map explains
        first = first or read
        if read <= NOTHING_READ * first:
            break
        kept = rasa_round(torch.from_numpy(kept), torch.from_numpy(weight.T)).kept.numpy()
    return kept


def _collect_directions(removal: PositionRemoval, features: FeatureSet, network: Backbone) -> None:
    """The leading directions of a flat image at every block and grid; a grid of N tokens has N - 1 at most."""
    directions = removal.arrays["directions"]
    to_input = Normalise(network.mean, network.std, network.device, network.dtype)
    with Progress("positions", len(removal.grids), "grids") as progress, torch.inference_mode():
        for grid, place in removal.grids.items():
            height, width = (side * features.patch_size for side in grid)
            black = torch.zeros(3, height, width, dtype=torch.uint8)
            layers = network.layers(
                to_input([black], height, width), features.blocks, facet=features.facet, norm=features.norm
            )
            most = min(directions.shape[2], math.prod(grid) - 1)
            for at, block in enumerate(features.blocks):
                found = insid3_directions(layers[block].tokens[0].cpu().float(), most)
                directions[at, place.number, : len(found)] = found.numpy()
            progress.advance()
