"""Places that tasks without heads score: the blocks of every facet, alone and several together, in a single pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dinoskip.models import Backbone
from dinoskip.results.rows import EvalResult
from dinoskip.settings.read_points import blocks_at
from dinoskip.settings.tasks import TaskInputs

Layer = tuple[str, int]
"""A facet of a block."""


@dataclass(frozen=True)
class Place:
    """One block or several of a facet under a norm."""

    facet: str
    norm: str
    blocks: tuple[int, ...]

    @property
    def layers(self) -> list[Layer]:
        """The layers that are read of the network, one for each block."""
        return [(self.facet, block) for block in self.blocks]

    def row(self, template: EvalResult) -> EvalResult:
        """``template`` as a row of these blocks, facet and norm."""
        return replace(template, block="+".join(map(str, self.blocks)), facet=self.facet, norm=self.norm)


def places_of(given: TaskInputs) -> dict[str, Place]:
    """Every block alone, then ``multiscale`` together, of each facet under its norm.

    By name: ``"3"``, ``"3+6"``; of facets after the first ``"mlp 3"``. Raises :class:`ConfigError` for a block that the
    network lacks.
    """
    groups = [*((block,) for block in given.block_numbers), *([tuple(given.multiscale)] if given.multiscale else [])]
    return {
        blocks_at(facet, given.facets[0], "+".join(map(str, group))): Place(facet, norm, group)
        for facet, norm in zip(given.facets, given.norms, strict=True)
        for group in groups
    }


def read_layers(backbone: Backbone, pixels: Tensor, places: Mapping[str, Place]) -> dict[Layer, Tensor]:
    """Tokens (B, h·w, C) of every layer of ``places``, of one pass; ValueError as of :meth:`Backbone.layers`."""
    norms = {place.facet: place.norm for place in places.values()}
    blocks = {block for place in places.values() for block in place.blocks}
    layers = backbone.layers(pixels, blocks, list(norms), list(norms.values()))
    return {(facet, block): layer.tokens for facet, by_block in layers.items() for block, layer in by_block.items()}
