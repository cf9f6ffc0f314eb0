"""What TokenCut and LOST found, image by image, in files: a run that is stopped goes on after the last whole part."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.config import dump
from dinoskip.errors import DataError
from dinoskip.features import FeatureSet
from dinoskip.files import hash_of, read_json, write_json
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.cut import TokenCut, to_pixels
from eval.tokencut.store import ImageCuts

_PROGRESS = "progress"  # folder below the output, gone when all is done


class CutResults:
    """Boxes of every method; seeds, ties, vectors and masks of the first tau; which images are done.

    ``groups`` are blocks by label. Arrays lie in files below ``out``: ``done`` bool (N,); ``boxes`` int64 (methods,
    groups, N, 4), ``degenerate`` and ``complete`` bool (methods, groups, N), ``seeds`` int64, ``ties`` bool and
    ``cosines`` float64 (groups, N). Work of other features or settings that lies in ``out`` is discarded.
    """

    def __init__(
        self, features: FeatureSet, groups: Mapping[str, tuple[int, ...]], config: TokenCutConfig, out: Path
    ) -> None:
        self.features, self.groups, self._folder = features, list(groups.values()), out / _PROGRESS
        sizes = np.array([features.image_size(i) for i in range(len(features))])
        counts = np.array([int(np.prod(features.grid(i))) for i in range(len(features))])
        self.ends = counts.cumsum()
        state = {"key": hash_of([features.key, dump(config), list(groups)])}
        self._new = not self._continues(state)
        shape = (len(config.methods), len(groups), len(features))
        self.done = self._array("done", np.bool_, shape[-1:])
        self.boxes = self._array("boxes", np.int64, (*shape, 4))
        self.degenerate, self.complete = (self._array(name, np.bool_, shape) for name in ("degenerate", "complete"))
        self.seeds, self.ties = self._array("seeds", np.int64, shape[1:]), self._array("ties", np.bool_, shape[1:])
        self.cosines = self._array("cosines", np.float64, shape[1:])
        single = [blocks for blocks in self.groups if len(blocks) == 1]
        total = (int(counts.sum()),)
        self.vectors, self.masks = (
            {one: self._array(f"../{name}_block{one[0]}", dtype, total) for one in single}
            for name, dtype in (("vectors", np.float16), ("masks", np.bool_))
        )
        if self._new:
            self.boxes[..., 2:] = sizes[:, ::-1]  # stays where there is nothing to cut
            self.cosines[:] = np.nan
            write_json(self._folder / "state.json", state)

    def _continues(self, state: Mapping[str, Any]) -> bool:
        """Whether work of the same features and settings lies there; any other is removed."""
        with suppress(DataError):
            if read_json(self._folder / "state.json") == state:
                return True
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return False

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An .npy file as an array, of zeros if new: one entry a token of all images need not fit in memory."""
        path = self._folder / f"{name}.npy"
        if not self._new:
            return np.lib.format.open_memmap(path, mode="r+")
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    def add(self, blocks: tuple[int, ...], i: int, cuts: ImageCuts) -> None:
        """Take what was found in image ``i`` at ``blocks``."""
        group = self.groups.index(blocks)
        for method, one in enumerate((*cuts.cuts, cuts.lost)):
            if one is not None:
                self.boxes[method, group, i] = to_pixels(one.box, self.features.patch_size, self.features.image_size(i))
                self.degenerate[method, group, i] = one.degenerate
                self.complete[method, group, i] = isinstance(one, TokenCut) and one.complete
        self.cosines[group, i] = cuts.cosine
        first = cuts.cuts[0]
        self.seeds[group, i] = first.seed
        self.ties[group, i] = first.ambiguous
        if blocks in self.masks:
            rows = slice(self.ends[i] - first.mask.size, self.ends[i])
            self.vectors[blocks][rows] = first.eigenvector / np.abs(first.eigenvector).max()
            self.masks[blocks][rows] = first.mask.ravel()

    def settle(self, images: Sequence[int]) -> None:
        """Bring all to disk, then mark ``images`` as done."""
        self._flush(self.boxes, self.degenerate, self.complete, self.seeds, self.ties, self.cosines)
        self._flush(*self.vectors.values(), *self.masks.values())
        self.done[list(images)] = True
        self._flush(self.done)

    @staticmethod
    def _flush(*arrays: NDArray[Any]) -> None:
        for array in arrays:
            if isinstance(array, np.memmap):
                array.flush()

    def finish(self) -> None:
        """Remove what only a stopped run needs; the arrays stay readable."""
        shutil.rmtree(self._folder)

    def collapse(self, method: int, group: int) -> dict[str, float | None]:
        """Fields of a row that tell whether the network has collapsed there: shares of all images, mean cosine."""
        cosines = self.cosines[group][np.isfinite(self.cosines[group])]
        return {
            "degenerate": int(self.degenerate[method, group].sum()) / len(self.features),
            "complete": int(self.complete[method, group].sum()) / len(self.features),
            "token_cosine": float(cosines.mean()) if cosines.size else None,
        }

    def mask(self, block: int, i: int) -> NDArray[np.bool_]:
        """Return the mask (h, w) of image ``i``."""
        rows, columns = self.features.grid(i)
        return np.array(self.masks[(block,)][self.ends[i] - rows * columns : self.ends[i]]).reshape(rows, columns)
