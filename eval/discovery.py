"""Object discovery: TokenCut boxes of every image and block of a feature store, and CorLoc (docs/tokencut.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from dinoskip.config import Config, Multiscale
from dinoskip.console import Progress
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore
from dinoskip.files import atomic_path, write_json
from dinoskip.results import EvalResult, write_rows
from eval.baselines import BOXES, discovery_baselines
from eval.bootstrap import share_interval
from eval.graph import normalise
from eval.tokencut import TokenCut, cut_unit, each, to_pixels


class TokenCutConfig(Config):
    """Settings of TokenCut.

    ``tau``, ``eps``: affinity 1 where the cosine similarity is greater than tau, else eps. ``multiscale``: blocks whose
    mean similarity makes one more graph, None for none.
    """

    tau: float = Field(0.2, ge=0, lt=1)
    eps: float = Field(1e-5, gt=0, lt=1)
    multiscale: Multiscale | None = None


class BoxDataset(Protocol):
    """The part of a detection set that is read here; ``boxes(i)`` is (K, 4) x1 y1 x2 y2 in pixels, end exclusive."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def split(self) -> str: ...  # noqa: D102
    @property
    def ids(self) -> Sequence[str]: ...  # noqa: D102
    def boxes(self, index: int) -> np.ndarray: ...  # noqa: D102


def is_hit(predicted: ArrayLike, truth: ArrayLike, threshold: float = 0.5) -> bool:
    """Whether a box (4,) overlaps any of the boxes (K, 4) with IoU >= threshold, exactly one half included.

    Nothing is divided, so that boxes of whole pixels are compared without rounding.
    """
    box = np.asarray(predicted, dtype=np.float64).reshape(4)
    others = np.asarray(truth, dtype=np.float64).reshape(-1, 4)
    ratio = Fraction(str(threshold))
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    inter = np.clip(sides, 0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - inter
    return bool((inter * ratio.denominator >= union * ratio.numerator)[union > 0].any())


def corloc(predicted: Sequence[ArrayLike], ground_truth: Sequence[ArrayLike], threshold: float = 0.5) -> float:
    """Return the part (0..1) of the images whose one predicted box hits any ground-truth box.

    ``predicted`` holds a box (4,) and ``ground_truth`` boxes (K, 4) for each image. The denominator is all images: one
    without any ground-truth box counts as a miss. No image gives nan. Raises ValueError if the lengths differ.
    """
    if len(predicted) != len(ground_truth):
        raise ValueError(f"{len(predicted)} predicted boxes for {len(ground_truth)} images")
    if not len(predicted):
        return float("nan")
    hits = sum(is_hit(box, truth, threshold) for box, truth in zip(predicted, ground_truth, strict=True))
    return hits / len(predicted)


@dataclass(frozen=True)
class _Found:
    """What one block found, image by image; cells of all images lie one after another."""

    boxes: list[list[int]]
    seeds: list[int]
    tied: int
    vectors: NDArray[np.float16]
    masks: NDArray[np.bool_]


def evaluate(
    store: FeatureStore, dataset: BoxDataset, out: Path, config: TokenCutConfig, context: Mapping[str, Any]
) -> list[EvalResult]:
    """Cut every image of ``store`` at every block, and at the multiscale blocks together; write all into ``out``.

    The store must hold patch tokens (facet ``key`` by protocol) of the dataset's images in their native size. Writes
    ``rows.json`` (a CorLoc row a block, in percent with its interval, then the baselines'), ``boxes.json``
    ``{id: {block: [x1, y1, x2, y2]}}`` in pixels,
    ``seeds.json`` ``{id: {block: flat token index}}``, for each block ``vectors_block{b}.npy`` float16 (eigenvectors
    divided by their largest absolute value) and ``masks_block{b}.npy`` bool, (sum of T,) in store order, and with
    multiscale ``boxes_multiscale.json`` ``{id: [x1, y1, x2, y2]}``, and ``ties.json``, in how many images of each block
    tied seeds would give different boxes. Raises :class:`ConfigError` for a store of another
    image size or blocks it lacks, :class:`DataError` if ids differ or features cannot be cut.
    """
    truth = _truth(store, dataset, config)
    groups: dict[str, tuple[int, ...]] = {str(block): (block,) for block in store.blocks}
    if config.multiscale:
        groups["+".join(map(str, config.multiscale))] = config.multiscale
    out.mkdir(parents=True, exist_ok=True)
    rows: list[EvalResult] = []
    boxes: dict[str, dict[str, list[int]]] = {name: {} for name in store.ids}
    seeds: dict[str, dict[str, int]] = {name: {} for name in store.ids}
    ties: dict[str, int] = {}
    with Progress("TokenCut", len(groups) * len(store.ids), "images") as progress:
        for label, blocks in groups.items():
            found = _cut_all(store, blocks, config, progress)
            rows.append(_row(store, dataset, label, found, truth, config).with_context(context))
            ties[label] = found.tied
            if len(blocks) > 1:
                write_json(out / "boxes_multiscale.json", dict(zip(store.ids, found.boxes, strict=True)))
                continue
            for name, box, seed in zip(store.ids, found.boxes, found.seeds, strict=True):
                boxes[name][label], seeds[name][label] = box, seed
            _save(out / f"vectors_block{label}.npy", found.vectors)
            _save(out / f"masks_block{label}.npy", found.masks)
    write_json(out / "ties.json", ties)
    write_json(out / "boxes.json", boxes)
    write_json(out / "seeds.json", seeds)
    baselines = {
        name: [is_hit(rule(*store.image_size(i)), boxes) for i, boxes in enumerate(truth)]
        for name, rule in BOXES.items()
    }
    rows += discovery_baselines(baselines, rows[0])
    write_rows(out / "rows.json", rows)
    return rows


def _truth(store: FeatureStore, dataset: BoxDataset, config: TokenCutConfig) -> list[np.ndarray]:
    """Check that store, dataset and config fit; return each stored image's ground-truth boxes."""
    if store.transform.mode != "native":
        raise ConfigError(
            f"{store.path}: its images were resized ({store.transform.label})", "export with transform mode native"
        )
    if absent := sorted(set(config.multiscale or ()) - set(store.blocks)):
        raise ConfigError(f"multiscale: block {absent[0]} is not in {store.path}", f"it has {store.blocks}")
    place = {name: index for index, name in enumerate(dataset.ids)}
    if missing := [name for name in store.ids if name not in place]:
        raise DataError(f"{store.path}: image {missing[0]!r} is not in {dataset.name} {dataset.split}")
    return [dataset.boxes(place[name]) for name in store.ids]


def _cut_all(store: FeatureStore, blocks: tuple[int, ...], config: TokenCutConfig, progress: Progress) -> _Found:
    def one(index: int) -> TokenCut:
        # The mean cosine over blocks is the cosine of the concatenated normalised features over sqrt(blocks).
        parts = [normalise(store.tokens(block, index)) for block in blocks]
        unit = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) / np.float32(np.sqrt(len(parts)))
        try:
            return cut_unit(unit, store.grid(index), config.tau, config.eps)
        except ValueError as error:
            raise DataError(f"{store.path}: {store.ids[index]}: block {blocks}: {error}") from error

    boxes, seeds, vectors, masks, tied = [], [], [], [], 0
    for index, cut in enumerate(each(one, len(store.ids))):
        boxes.append(list(to_pixels(cut.box, store.patch_size, store.image_size(index))))
        seeds.append(cut.seed)
        tied += cut.ambiguous
        vectors.append((cut.eigenvector / np.abs(cut.eigenvector).max()).astype(np.float16))
        masks.append(cut.mask.ravel())
        progress.advance()
    return _Found(boxes, seeds, tied, np.concatenate(vectors), np.concatenate(masks))


def _row(
    store: FeatureStore,
    dataset: BoxDataset,
    label: str,
    found: _Found,
    truth: list[np.ndarray],
    config: TokenCutConfig,
) -> EvalResult:
    hits = [is_hit(box, boxes) for box, boxes in zip(found.boxes, truth, strict=True)]
    low, high = share_interval(hits)
    return EvalResult(
        metric="CorLoc",
        value=100 * (sum(hits) / len(hits)),
        low=100 * low,
        high=100 * high,
        task="tokencut",
        block=label,
        dataset=dataset.name,
        split=dataset.split,
        n=len(truth),
        facet=store.facet,
        norm=store.norm,
        protocol=f"tokencut tau={config.tau:g} eps={config.eps:g}",
        resolution=store.transform.label,
        weights=store.weights_hash,
    )


def _save(path: Path, array: NDArray[Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, array, allow_pickle=False)
