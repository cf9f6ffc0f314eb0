"""Results of an evaluation, image by image, in files: a stopped run continues after the last complete part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.io.files import hash_of, read_json, write_json
from dinoskip.io.output import own_folder, remove
from dinoskip.runtime.console import Progress, log

T = TypeVar("T")
_PROGRESS = "progress"  # folder below the output, gone when all is done
_TOGETHER = 16  # images between two times that files are brought to disk, which takes as long as a small image


class ResumedArrays:
    """Arrays in files below ``out``, and which of the images of ``features`` are ``done``, bool (N,).

    Where a stopped run of the same features and settings has left them they are as it did, and ``new`` is False; work
    of any other is discarded. :meth:`array` and :meth:`kept` come first, then, if they are new, whatever is to
    stay where nothing is found, then :meth:`begin`.
    """

    def __init__(self, features: FeatureSet, settings: Sequence[Any], out: Path) -> None:
        self.features, self._out, self._folder = features, out, out / _PROGRESS
        self._state = {"key": hash_of([features.key, *settings])}
        self._arrays: list[NDArray[Any]] = []
        self.new = not self._continues()
        self.done = self._open(self._folder / "done.npy", np.bool_, (len(features),))

    def _continues(self) -> bool:
        """Whether work of the same features and settings lies there; any other is removed."""
        with suppress(DataError):
            if read_json(self._folder / "state.json") == self._state:
                return True
        remove(self._folder)
        own_folder(self._folder)
        return False

    def _open(self, path: Path, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An .npy file as an array, of zeros if new: one entry a token of all images need not fit in memory."""
        if not self.new:
            return np.lib.format.open_memmap(path, mode="r+")
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that goes when all is done (it stays readable), of zeros if new."""
        self._arrays.append(self._open(self._folder / f"{name}.npy", dtype, shape))
        return self._arrays[-1]

    def kept(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that stays as ``out/NAME.npy``, of zeros if new."""
        self._arrays.append(self._open(self._out / f"{name}.npy", dtype, shape))
        return self._arrays[-1]

    def begin(self) -> None:
        """Begin the work; a run that is stopped after this is continued."""
        if self.new:
            write_json(self._folder / "state.json", self._state)

    def _settle(self, images: Sequence[int]) -> None:
        """Bring all to disk, then mark ``images`` as done."""
        for array in self._arrays:
            _flush(array)
        self.done[list(images)] = True
        _flush(self.done)

    def each(
        self, title: str, groups: int, work: Callable[[FeatureStore], Iterable[tuple[int, T]]]
    ) -> Iterator[tuple[int, T]]:
        """Yield what ``work`` finds in every part of the features, with the image's place among all images.

        ``work`` gives the place in its part. A part is settled when what was found in it has been taken; images
        that are done are in none. ``groups`` is how often an image is counted by the bar with ``title``.
        """
        place = {name: i for i, name in enumerate(self.features.ids)}
        done = int(self.done.sum())
        if done:
            log.info("%s: continuing, %d of %d images are done", title, done, len(place))
        with Progress(title, groups * len(place), "images", start=groups * done) as progress:
            for part in self.features.parts(self.done):
                images = [place[name] for name in part.ids]
                for i, result in work(part):
                    yield images[i], result
                    progress.advance()
                self._settle(images)

    def one_by_one(self, title: str) -> Iterator[int]:
        """Yield the place of every image that is not done, in order, for work that reads no features.

        An image is done when the next is asked for; after each :data:`_TOGETHER` they are settled.
        """
        todo = np.flatnonzero(~np.asarray(self.done)).tolist()
        if len(todo) < len(self.done):
            log.info("%s: continuing, %d of %d images are done", title, len(self.done) - len(todo), len(self.done))
        with Progress(title, len(self.done), "images", start=len(self.done) - len(todo)) as progress:
            for start in range(0, len(todo), _TOGETHER):
                for i in (together := todo[start : start + _TOGETHER]):
                    yield i
                    progress.advance()
                self._settle(together)

    def finish(self) -> None:
        """Remove what only a stopped run needs; the arrays stay readable."""
        remove(self._folder)


def _flush(array: NDArray[Any]) -> None:
    if isinstance(array, np.memmap):
        array.flush()


def degeneracy(
    degenerate: NDArray[np.bool_],
    complete: NDArray[np.bool_],
    cosines: NDArray[np.float64] | None = None,
    ambiguous: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Fields of a row that tell how many images have no cut there: shares of all images (n,), mean cosine.

    Images without a cosine (NaN) are left out of its mean. What is not given is not in the row.
    """
    shares = {"degenerate": degenerate, "complete": complete, "ambiguous": ambiguous}
    fields: dict[str, Any] = {
        name: int(flags.sum()) / len(flags) for name, flags in shares.items() if flags is not None
    }
    if cosines is not None:
        finite = cosines[np.isfinite(cosines)]
        fields["token_cosine"] = float(finite.mean()) if finite.size else None
    return fields
