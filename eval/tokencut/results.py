"""Results of TokenCut and LOST, image by image, in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.features import FeatureSet
from dinoskip.io.parts import ALONE, Parts
from dinoskip.models import Backbone
from dinoskip.settings.config import dump
from eval.resumed import ResumedArrays, degeneracy
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.cut import TokenCut, to_pixels
from eval.tokencut.positions import open_removal
from eval.tokencut.store import ImageCuts


class CutResults:
    """Boxes of every method; seeds, vectors and masks of the first tau; ``files`` has which images are done.

    ``groups`` are blocks by label. ``boxes`` int64 (methods, groups, N, 4), ``degenerate``, ``complete`` and ``ties``
    bool (methods, groups, N), ``seeds`` int64 and ``cosines`` float64 (groups, N). Image without a cut: box and seed
    are -1, the vector NaN, the mask empty. ``positions`` take position out of the features.
    """

    def __init__(
        self,
        features: FeatureSet,
        groups: Mapping[str, tuple[int, ...]],
        config: TokenCutConfig,
        out: Path,
        network: Backbone | None = None,
        parts: Parts = ALONE,
    ) -> None:
        self.features, self.groups = features, list(groups.values())
        self.files = files = ResumedArrays(features, [dump(config), list(groups)], out, parts)
        sizes = np.array([features.image_size(i) for i in range(len(features))])
        counts = np.array([int(np.prod(features.grid(i))) for i in range(len(features))])
        self.ends = counts.cumsum()
        shape = (len(config.methods), len(groups), len(features))
        self.boxes = files.array("boxes", np.int64, (*shape, 4), 2)
        self.degenerate, self.complete, self.ties = (
            files.array(name, np.bool_, shape, 2) for name in ("degenerate", "complete", "ties")
        )
        self.seeds = files.array("seeds", np.int64, shape[1:], 1)
        self.cosines = files.array("cosines", np.float64, shape[1:], 1)
        single = [blocks for blocks in self.groups if len(blocks) == 1]
        total = (int(counts.sum()),)
        self.vectors, self.masks = (
            {key: files.kept(f"{name}_block{key[0]}", dtype, total, "tokens") for key in single}
            for name, dtype in (("vectors", np.float16), ("masks", np.bool_))
        )
        self.positions = open_removal(features, config.positions, network, files.array)
        if files.new:
            self.boxes[..., 2:] = sizes[:, ::-1]  # stays where there is nothing to cut
            self.cosines[:] = np.nan
        files.begin()

    def add(self, blocks: tuple[int, ...], i: int, cuts: ImageCuts) -> None:
        """Take what was found in image ``i`` at ``blocks``."""
        group = self.groups.index(blocks)
        for method, cut in enumerate((*cuts.cuts, cuts.lost)):
            if cut is not None:
                self.boxes[method, group, i] = to_pixels(cut.box, self.features.patch_size, self.features.image_size(i))
                self.degenerate[method, group, i], self.ties[method, group, i] = cut.degenerate, cut.ambiguous
                self.complete[method, group, i] = isinstance(cut, TokenCut) and cut.complete
        self.cosines[group, i] = cuts.cosine
        first = cuts.cuts[0]
        self.seeds[group, i] = first.seed
        if blocks in self.masks:
            rows = slice(self.ends[i] - first.mask.size, self.ends[i])
            self.vectors[blocks][rows] = first.eigenvector / np.abs(first.eigenvector).max()
            self.masks[blocks][rows] = first.mask.ravel()

    def degeneracy(self, method: int, group: int) -> dict[str, Any]:
        """Fields of a row that tell how many images have no cut there (:func:`eval.resumed.degeneracy`)."""
        at = method, group
        return degeneracy(self.degenerate[at], self.complete[at], self.cosines[group], self.ties[at])

    def mask(self, block: int, i: int) -> NDArray[np.bool_]:
        """Return the mask (h, w) of image ``i``."""
        rows, columns = self.features.grid(i)
        return np.array(self.masks[(block,)][self.ends[i] - rows * columns : self.ends[i]]).reshape(rows, columns)
