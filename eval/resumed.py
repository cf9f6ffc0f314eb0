"""Results of an evaluation, image by image, in files: a stopped run continues after the last complete part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.io.files import hash_of, read_json, write_json
from dinoskip.io.output import own_folder, remove
from dinoskip.io.parts import ALONE, IMAGES, Parts
from dinoskip.runtime.console import Progress, log

T = TypeVar("T")
Axis = int | Literal["tokens"]
"""The axis of an array that is that of images, or "tokens" for an array (ΣT,) of one entry a token of all images."""
_PROGRESS = "progress"  # folder below the output, gone when all is done
_TOGETHER = 16  # images between two times that files are brought to disk, which takes as long as a small image


class ResumedArrays:
    """Arrays in files below ``out``, and which of the images of ``features`` are ``done``, bool (N,).

    Where a stopped run of the same features and settings has left them they are as it did, and ``new`` is False; work
    of any other is discarded. :meth:`array` and :meth:`kept` come first, then, if they are new, whatever is to
    stay where nothing is found, then :meth:`begin`. Where the work is shared its ``parts`` are what a stopped run
    leaves.
    """

    def __init__(self, features: FeatureSet, settings: Sequence[Any], out: Path, parts: Parts = ALONE) -> None:
        self.features, self._out, self._folder, self._parts = features, out, out / _PROGRESS, parts
        self._state = {"key": hash_of([features.key, *settings])}
        self._arrays: list[NDArray[Any]] = []
        self._shared: list[tuple[NDArray[Any], Axis]] = []
        self._ends: NDArray[np.int64] | None = None  # of images among tokens, once asked for
        self.new = not self._continues()
        self.done = self._open(self._folder / "done.npy", np.bool_, (len(features),))

    def _continues(self) -> bool:
        """Whether work of the same features and settings lies there; any other is removed."""
        with suppress(DataError):
            if self._parts.folder is None and read_json(self._folder / "state.json") == self._state:
                return True
        remove(self._folder)
        own_folder(self._folder)
        return False

    def _open(self, path: Path, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An .npy file as an array, of zeros if new: one entry a token of all images need not fit in memory."""
        if not self.new:
            return np.lib.format.open_memmap(path, mode="r+")
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    def array(self, name: str, dtype: Any, shape: tuple[int, ...], axis: Axis | None = None) -> NDArray[Any]:
        """An array that goes when all is done (it stays readable), of zeros if new; ``axis``: of what parts write."""
        return self._opened(self._folder / f"{name}.npy", dtype, shape, axis)

    def kept(self, name: str, dtype: Any, shape: tuple[int, ...], axis: Axis | None = None) -> NDArray[Any]:
        """An array that stays as ``out/NAME.npy``, of zeros if new; ``axis``: of what parts write."""
        return self._opened(self._out / f"{name}.npy", dtype, shape, axis)

    def _opened(self, path: Path, dtype: Any, shape: tuple[int, ...], axis: Axis | None) -> NDArray[Any]:
        array = self._open(path, dtype, shape)
        self._arrays.append(array)
        if axis is not None:
            self._shared.append((array, axis))
        return array

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

    def fill(
        self,
        title: str,
        groups: int,
        work: Callable[[FeatureStore], Iterable[tuple[int, T]]],
        take: Callable[[int, T], None],
    ) -> None:
        """Let ``take`` write what ``work`` finds in every image that is not done into the arrays.

        Where the work is shared it is done in parts of some :data:`dinoskip.io.parts.IMAGES` images, and of each the
        arrays that have an axis of images are taken over. See :meth:`each` for ``groups`` and ``work``.
        """
        if self._parts.folder is None:
            for i, result in self.each(title, groups, work):
                take(i, result)
            return
        shares = self.features.shares(IMAGES)
        with Progress(title, len(shares), "parts") as progress:

            def make(number: int, _: Path) -> Mapping[str, NDArray[Any]]:
                share, images = shares[number].read(), shares[number].images
                for i, result in work(share):
                    take(images[i], result)
                share.drop()
                return {str(at): array[self._of(images, axis)] for at, (array, axis) in enumerate(self._shared)}

            every = self._parts.each("images", len(shares), make, self._out, progress.advance)
            for share, arrays in zip(shares, every, strict=True):
                for at, (array, axis) in enumerate(self._shared):
                    array[self._of(share.images, axis)] = arrays[str(at)]

    def _of(self, images: Sequence[int], axis: Axis) -> tuple[Any, ...]:
        """The index of some images in an array."""
        if axis != "tokens":
            return (slice(None),) * axis + (list(images),)
        if self._ends is None:
            counts = [int(np.prod(self.features.grid(i))) for i in range(len(self.features))]
            self._ends = np.cumsum([0, *counts])
        return (np.concatenate([np.arange(self._ends[i], self._ends[i + 1]) for i in images]),)

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
