"""Frozen tokens with their label maps, and BatchNorm as the constant that it is for features that never change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.data.segmentation import IGNORE, SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.models import rank_collapse
from dinoskip.runtime.environment import memory_limit
from eval.prefetch import prefetched, threads_of

Key = tuple[str, int]  # what tokens are: (norm, block)
Constants = dict[Key, tuple[torch.Tensor, torch.Tensor]]  # BatchNorm: mean and 1 / deviation, each (C,)
EPS = 1e-5  # BatchNorm's
_CHUNK_VALUES = 2**22  # read at once for the statistics


class NamedImages(Protocol):
    """The part of a labelled set that joins it with a store."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def split(self) -> str: ...  # noqa: D102
    @property
    def ids(self) -> Sequence[str]: ...  # noqa: D102


def places(store: FeatureSet, dataset: NamedImages) -> list[int]:
    """Return where each image of ``store`` is in ``dataset``; :class:`DataError` naming one that is not there."""
    where = {name: i for i, name in enumerate(dataset.ids)}
    if missing := [name for name in store.ids if name not in where]:
        raise DataError(f"{store.path}: image {missing[0]!r} is not in {dataset.name} {dataset.split}")
    return [where[name] for name in store.ids]


@dataclass(frozen=True)
class LabelledTokens:
    """Frozen tokens of N images with their label maps.

    ``tokens[block]`` is (N, T, C) float16, float32 or bfloat16 as uint16, indexable by rows (a memory map will do);
    ``label(i)`` gives uint8 (H, W) of any size; ``grid`` is (h, w) with h·w = T; 255 is ignored.
    """

    tokens: Mapping[int, Any]
    label: Callable[[int], NDArray[np.uint8]]
    grid: tuple[int, int]
    num_classes: int
    count: int
    pixels: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # per class (K,), of the label maps read so far

    def checked_label(self, i: int) -> NDArray[np.uint8]:
        """Return label map ``i``; :class:`DataError` if a value is neither a class nor 255."""
        label = self.label(i)
        pixels = np.bincount(label.ravel(), minlength=IGNORE + 1)
        if beyond := np.flatnonzero(pixels[self.num_classes : IGNORE]).tolist():
            value = self.num_classes + beyond[0]
            raise DataError(f"label map {i}: value {value} is outside the {self.num_classes} classes")
        self.pixels[i] = pixels[: self.num_classes]
        return label

    def pixels_per_image(self) -> NDArray[np.int64]:
        """Return (N, K): labelled pixels of every image, in order; label maps not read so far are read."""
        for i in set(range(self.count)) - set(self.pixels):
            self.checked_label(i)
        return np.stack([self.pixels[i] for i in range(self.count)])

    @classmethod
    def of(cls, store: FeatureSet, dataset: SegmentationDataset) -> LabelledTokens:
        """Join features of ``square`` images with the labels of the same ids; of windows there are no tokens here."""
        if store.transform.mode != "square":
            raise ConfigError(
                f"{store.path}: transform {store.transform.mode} does not cover the label", "export with mode=square"
            )
        index = places(store, dataset)
        maps = {block: store.tokens(block) for block in store.blocks} if isinstance(store, FeatureStore) else {}
        return cls(maps, lambda i: dataset.label(index[i]), store.grid(0), dataset.num_classes, len(store.ids))

    @classmethod
    def pair(
        cls,
        train_store: FeatureSet,
        val_store: FeatureStore,
        train_set: SegmentationDataset,
        val_set: SegmentationDataset,
    ) -> tuple[LabelledTokens, LabelledTokens]:
        """Make both splits by :meth:`of`; :class:`DataError` unless both stores hold the same features."""
        if train_store.weights_hash != val_store.weights_hash:
            raise DataError(f"{val_store.path}: of other weights than {train_store.path}: weights_hash differs")
        for name in ("blocks", "facet", "norm", "transform"):
            if getattr(train_store, name) != getattr(val_store, name):
                raise DataError(f"{val_store.path}: {name} differs from {train_store.path}")
        return cls.of(train_store, train_set), cls.of(val_store, val_set)

    @classmethod
    def labels_of(cls, dataset: SegmentationDataset) -> LabelledTokens:
        """The labels of a data set, without tokens."""
        return cls({}, dataset.label, (0, 0), dataset.num_classes, len(dataset))


def labels_ahead(label: Callable[[int], NDArray[np.uint8]], rows: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield the label maps of ``rows`` in order; threads decode them, some ahead of the one that is asked for."""
    if len(rows) < 2:
        yield from map(label, rows)
        return
    for _, read in prefetched(rows, label, threads_of(0)):
        yield read


def _floats(stored: NDArray[Any], device: torch.device) -> torch.Tensor:
    return _as_stored(stored, device).float()


def _as_stored(stored: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Stored tokens on the device, in the dtype in which they are stored."""
    stored = np.ascontiguousarray(stored)
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).to(device, non_blocking=True).view(torch.bfloat16)
    return torch.from_numpy(stored).to(device, non_blocking=True)


def batchnorm_statistics(
    stored: NDArray[Any], rows: NDArray[np.int64], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and 1 / sqrt(variance + 1e-5), float32 (C,), over all tokens of images ``rows``.

    Read in parts (float32), merged in float64. Cached features do not change, so these are BatchNorm's constants.
    Raises :class:`DataError` if they are not finite.
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    step = max(1, _CHUNK_VALUES // int(np.prod(stored.shape[1:])))
    for at in range(0, len(rows), step):
        part = _floats(stored[rows[at : at + step]], device).flatten(0, 1)
        variance, centre = (x.double() for x in torch.var_mean(part, 0, correction=0))
        if not count:
            count, mean, squares = len(part), centre, variance * len(part)
            continue
        total, delta = count + len(part), centre - mean
        squares = squares + variance * len(part) + delta.square() * (count * len(part) / total)
        mean, count = mean + delta * (len(part) / total), total
    if not bool(torch.stack((mean, squares)).isfinite().all()):
        raise DataError("features are not finite", "verify the store, or export it again")
    return mean.float(), (squares / count + EPS).rsqrt().float()


def token_cosine(stored: Any, device: torch.device) -> float:
    """Return the mean cosine between different tokens of an image, over images, of stored tokens (N, T, C).

    As :func:`dinoskip.models.rank_collapse.token_cosine`, read in parts: near 1 the network has collapsed.
    """
    step = max(1, _CHUNK_VALUES // int(np.prod(stored.shape[1:])))
    parts = [
        len(part) * rank_collapse.token_cosine(part)
        for at in range(0, stored.shape[0], step)
        for part in [_floats(stored[np.arange(at, min(at + step, stored.shape[0]))], device)]
    ]
    return float(sum(parts) / stored.shape[0])


def _itemsize(stored: Any) -> int:
    """Bytes of a value as it is read of tokens."""
    return int(stored.dtype.itemsize) if isinstance(stored, np.ndarray) else 4  # under a norm: float32


class TokensUnderNorm:
    """Tokens (N, T, C) under a norm that is applied when rows of them are read; float32."""

    def __init__(
        self, stored: NDArray[Any], norm: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> None:
        self.stored, self.norm, self.device = stored, norm, device
        self.shape = stored.shape

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return float32 (n, T, C) of images ``rows``."""
        return np.asarray(self.norm(_floats(self.stored[rows], self.device)).float().cpu().numpy())


class BatchNormedTokens:
    """Tokens (N, T, C) of every key, normalised; kept on the device if they fit and read batch by batch if not.

    They fit in half of ``memory_limit()``, or of what the device has left: in float32, or else as they are stored, in
    half of that or less, and are then normalised batch by batch. With ``keep`` false (what is read once) none are kept.
    """

    def __init__(
        self, tokens: Mapping[Key, Any], device: torch.device, statistics: Constants, *, keep: bool = True
    ) -> None:
        self.tokens, self.device, self.statistics = tokens, device, statistics
        values = {key: int(np.prod(stored.shape)) for key, stored in tokens.items()}
        stored_size = sum(values[key] * _itemsize(stored) for key, stored in tokens.items())
        limit = memory_limit() // 2 if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 2
        self._finite = torch.ones((), dtype=torch.bool, device=device)  # read once, in check(): no batch waits for it
        self._kept = dict[Key, torch.Tensor]()
        self._stored = dict[Key, torch.Tensor]()
        if keep and 4 * sum(values.values()) <= limit:
            self._kept = {key: self._read(key, np.arange(stored.shape[0])) for key, stored in tokens.items()}
        elif keep and stored_size <= limit:
            self._stored = {
                key: _as_stored(stored[np.arange(stored.shape[0])], device) for key, stored in tokens.items()
            }

    def _read(self, key: Key, rows: NDArray[np.int64]) -> torch.Tensor:
        return self._normalised(key, _floats(self.tokens[key][rows], self.device))

    def _normalised(self, key: Key, tokens: torch.Tensor) -> torch.Tensor:
        mean, inverse = self.statistics[key]
        values = tokens.sub_(mean).mul_(inverse)
        self._finite &= values.isfinite().all()
        return values

    def check(self) -> None:
        """Raise :class:`DataError` if any token that has been read is not finite."""
        if not bool(self._finite):
            raise DataError("features are not finite", "verify the store, or export it again")

    def batch(self, rows: NDArray[np.int64]) -> dict[Key, torch.Tensor]:
        """Return key -> (n·T, C) of images ``rows``."""
        if self._kept or self._stored:
            index = torch.from_numpy(rows).to(self.device, non_blocking=True)
            kept = {key: tokens[index].flatten(0, 1) for key, tokens in self._kept.items()}
            # in float32 already, if they are stored so: indexing has made a copy that may be changed
            stored = {key: self._normalised(key, t[index].float()) for key, t in self._stored.items()}
            return kept | {key: tokens.flatten(0, 1) for key, tokens in stored.items()}
        return {key: self._read(key, rows).flatten(0, 1) for key in self.tokens}
