"""TokenCut on one photograph at several facets and tau, with one pass of the network: a figure and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.images import read_image
from dinoskip.models import load_backbone
from dinoskip.read_points import usual_norm
from eval.tokencut import to_pixels
from eval.tokencut.ways import agreement, cut_every_way
from visualize.figures.cuts import CutPicture, cuts_figure


def draw_cuts(
    spec: str, photo: Path, out: Path, block: int, facets: Sequence[str], taus: Sequence[float]
) -> dict[str, Any]:
    """Write the figure ``out``; the box, the share of the image and the completeness of every cut, how far they agree.

    ``block`` 0 is the last. Raises :class:`ConfigError` for a block that the network lacks, :class:`DataError` for a
    photograph that cannot be read or is too small.
    """
    backbone = load_backbone(spec)
    block = block or backbone.depth
    if block not in backbone.numbers:
        raise ConfigError(f"--block {block}: {spec} has blocks {backbone.numbers[0]}..{backbone.numbers[-1]}")
    facets = backbone.read_at(facets)
    native = Transform(mode="native")
    pixels = load_pixels(native, photo, backbone.size_multiple)
    size = (pixels.shape[1], pixels.shape[2])
    norms = [usual_norm(facet, "final") for facet in facets]
    images = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)(
        [pixels], *native.padded_size(*size, backbone.size_multiple)
    )
    with torch.inference_mode():
        layers = backbone.layers(images, [block], facets, norms)
    grid = layers[facets[0]][block].grid
    patch = backbone.stride(block)
    try:
        ways = cut_every_way({facet: layers[facet][block].tokens[0].cpu() for facet in facets}, grid, taus)
    except ValueError as error:
        raise DataError(f"{photo}: block {block}: {error}") from error
    rows = []
    for at in range(0, len(ways), len(taus)):
        row = ways[at : at + len(taus)]
        label = f"{row[0].facet}{', centred' if row[0].centred else ''}, cosine {row[0].cosine:.2f}"
        pictures = [CutPicture(way.cut.mask, to_pixels(way.cut.box, patch, size), way.cut.complete) for way in row]
        rows.append((label, pictures))
    columns = [f"τ = {tau:g}" for tau in taus]
    title = f"{photo.name}, block {block}: crossed out where the graph is complete"
    cuts_figure(read_image(photo), patch, columns, rows, out, title=title)
    sound = [way for way in ways if not way.cut.complete]
    return {
        "agreement": agreement(sound) if len(sound) > 1 else None,
        "cuts": [
            {
                "facet": way.facet, "centred": way.centred, "tau": way.tau, "cosine": round(way.cosine, 4),
                "complete": way.cut.complete, "box": list(to_pixels(way.cut.box, patch, size)),
                "share": round(float(way.cut.component.mean()), 4),
            }
            for way in ways
        ],
    }  # fmt: skip
