"""Object discovery on a data set: TokenCut and LOST boxes of every image and block of a feature store, CorLoc.

docs/tokencut.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinoskip.console import Progress, log
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError
from dinoskip.features import FeatureStore
from dinoskip.files import write_json
from dinoskip.images import read_image
from dinoskip.records import RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult
from eval.baselines import BOXES, discovery_baselines, hits_row
from eval.discovery import is_hit
from eval.labelled import places
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.cut import LEAST_TOKENS, TokenCut, to_pixels
from eval.tokencut.overlays import overlay
from eval.tokencut.store import ImageAtBlocks, ImageCuts, cut_store

T = TypeVar("T")


class BoxDataset(Protocol):
    """The part of a detection set that is read here; ``boxes(i)`` is (K, 4) x1 y1 x2 y2 in pixels, end exclusive."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def split(self) -> str: ...  # noqa: D102
    @property
    def ids(self) -> Sequence[str]: ...  # noqa: D102
    def path(self, index: int) -> Path: ...  # noqa: D102
    def boxes(self, index: int) -> np.ndarray: ...  # noqa: D102


class _Results:
    """What was found, as it comes: boxes of every method; seeds, ties, vectors and masks of the first tau."""

    def __init__(self, store: FeatureStore, groups: Sequence[tuple[int, ...]], methods: int, out: Path) -> None:
        self.store = store
        sizes = [store.image_size(i) for i in range(len(store))]
        counts = np.array([int(np.prod(store.grid(i))) for i in range(len(store))])
        self.ends = counts.cumsum()
        self.boxes = {
            (method, blocks): [[0, 0, width, height] for height, width in sizes]  # stays where there is nothing to cut
            for method in range(methods)
            for blocks in groups
        }
        self.seeds = {blocks: [0] * len(store) for blocks in groups}
        self.ties = dict.fromkeys(groups, 0)
        self.complete, self.degenerate = (dict.fromkeys(self.boxes, 0) for _ in range(2))
        self.cosines = {blocks: np.full(len(store), np.nan) for blocks in groups}
        single = [blocks for blocks in groups if len(blocks) == 1]
        total = int(counts.sum())
        self.vectors = {blocks: _file(out / f"vectors_block{blocks[0]}.npy", np.float16, total) for blocks in single}
        self.masks = {blocks: _file(out / f"masks_block{blocks[0]}.npy", np.bool_, total) for blocks in single}

    def add(self, item: ImageAtBlocks, cuts: ImageCuts) -> None:
        blocks, i = item
        for method, one in enumerate((*cuts.cuts, cuts.lost)):
            if one is not None:
                box = to_pixels(one.box, self.store.patch_size, self.store.image_size(i))
                self.boxes[method, blocks][i] = list(box)
                self.degenerate[method, blocks] += one.degenerate
                self.complete[method, blocks] += isinstance(one, TokenCut) and one.complete
        self.cosines[blocks][i] = cuts.cosine
        first = cuts.cuts[0]
        self.seeds[blocks][i] = first.seed
        self.ties[blocks] += first.ambiguous
        if blocks in self.masks:
            rows = slice(self.ends[i] - first.mask.size, self.ends[i])
            self.vectors[blocks][rows] = first.eigenvector / np.abs(first.eigenvector).max()
            self.masks[blocks][rows] = first.mask.ravel()

    def collapse(self, method: int, blocks: tuple[int, ...]) -> dict[str, float | None]:
        """Fields of a row that tell whether the network has collapsed there: shares of all images, mean cosine."""
        count, cosines = len(self.store), self.cosines[blocks]
        cosines = cosines[np.isfinite(cosines)]
        return {
            "degenerate": self.degenerate[method, blocks] / count,
            "complete": self.complete[method, blocks] / count,
            "token_cosine": float(cosines.mean()) if cosines.size else None,
        }

    def mask(self, block: int, i: int) -> NDArray[np.bool_]:
        """Return the mask (h, w) of image ``i``."""
        rows, columns = self.store.grid(i)
        return np.array(self.masks[(block,)][self.ends[i] - rows * columns : self.ends[i]]).reshape(rows, columns)


def _file(path: Path, dtype: Any, size: int) -> NDArray[Any]:
    """Return a new .npy file of ``size`` zeros as an array: one entry a token of the store need not fit in memory."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def evaluate(
    store: FeatureStore,
    dataset: BoxDataset,
    out: Path,
    config: TokenCutConfig,
    context: Mapping[str, Any],
    *,
    multiscale: Sequence[int] | None = None,
    device: str = "cpu",
    workers: int = 0,
) -> list[EvalResult]:
    """Cut every image of ``store`` at every block; write all into ``out``.

    With ``multiscale`` also at these blocks together, by the mean of their similarities.

    The store must hold patch tokens (facet ``key`` by protocol) of the dataset's images in their native size. Writes
    ``rows.json`` (a CorLoc row a block, in percent with its interval, then the baselines') with ``records.npz`` (which
    images are hits), ``boxes.json`` ``{id: {block: [x1, y1, x2, y2]}}`` in pixels, ``seeds.json`` ``{id: {block: flat
    token index}}``, ``ties.json``, in how many images of each block tied seeds would give different boxes, for each
    block ``vectors_block{b}.npy`` float16 (eigenvectors divided by their largest absolute value) and
    ``masks_block{b}.npy`` bool, (sum of T,) in store order, and with multiscale ``boxes_multiscale.json`` ``{id: [x1,
    y1, x2, y2]}``: all of the first tau. The boxes of another are in ``boxes_tau{tau}.json``, of LOST in
    ``boxes_lost.json``, as in ``boxes.json``. An image of fewer than 3 tokens cannot be cut: its box is all of it.

    On a CPU ``workers`` threads (0: one a core) cut one image each; on a GPU images and blocks are cut in batches.
    Raises :class:`ConfigError` for a store of another image size or blocks it lacks, :class:`DataError` if ids differ
    or features cannot be cut.
    """
    place = _places(store, dataset, multiscale)
    truth = [dataset.boxes(i) for i in place]
    groups: dict[str, tuple[int, ...]] = {str(block): (block,) for block in store.blocks}
    if multiscale:
        groups["+".join(map(str, multiscale))] = tuple(multiscale)
    methods = config.methods
    out.mkdir(parents=True, exist_ok=True)
    results = _Results(store, list(groups.values()), len(methods), out)
    todo = (list(groups.values()), config.tau, config.eps, config.lost_k, choose_device(device), workers)
    with Progress("TokenCut", len(groups) * len(store), "images") as progress:
        for item, cuts in cut_store(store, *todo):
            results.add(item, cuts)
            progress.advance()
    recorded: list[RecordedRow] = []
    for number, (protocol, name) in enumerate(methods.items()):
        boxes = {label: results.boxes[number, blocks] for label, blocks in groups.items()}
        for label, blocks in groups.items():
            row = _row(store, dataset, label, protocol).with_context(results.collapse(number, blocks))
            hits = [is_hit(box, others) for box, others in zip(boxes[label], truth, strict=True)]
            recorded.append(hits_row(row.with_context(context), hits))
        if number:
            write_json(out / name, _by_image(store.ids, boxes))
    _warn_of_collapse([one.row for one in recorded])
    _write(results, groups, out)
    for i in range(min(config.overlays, len(store))):
        _draw(results, dataset.path(place[i]), i, truth[i], out / "overlays")
    baselines = {
        name: [is_hit(rule(*store.image_size(i)), boxes) for i, boxes in enumerate(truth)]
        for name, rule in BOXES.items()
    }
    recorded += discovery_baselines(baselines, recorded[0].row)
    return write_recorded_rows(out, store.ids, recorded)


def _warn_of_collapse(rows: Sequence[EvalResult]) -> None:
    """Say once at which blocks most cuts are degenerate: their boxes are chance, whatever their CorLoc."""
    collapsed = [row for row in rows if (row.degenerate or 0) > 0.5]
    if collapsed:
        worst = max(collapsed, key=lambda row: (row.complete or 0, row.degenerate or 0))
        blocks = ", ".join(dict.fromkeys(row.block for row in collapsed))
        log.warning(
            "TokenCut: collapsed at block %s: most cuts are degenerate (at block %s %d of %d graphs are complete)",
            blocks, worst.block, round((worst.complete or 0) * worst.n), worst.n,
        )  # fmt: skip


def _places(store: FeatureStore, dataset: BoxDataset, multiscale: Sequence[int] | None) -> list[int]:
    """Check that store, dataset and blocks fit; return where each stored image is in the dataset."""
    if store.transform.mode != "native":
        raise ConfigError(
            f"{store.path}: its images were resized ({store.transform.label})", "export with transform mode native"
        )
    if absent := sorted(set(multiscale or ()) - set(store.blocks)):
        raise ConfigError(f"multiscale: block {absent[0]} is not in {store.path}", f"it has {store.blocks}")
    return places(store, dataset)


def _by_image(ids: Sequence[str], by_label: Mapping[str, Sequence[T]]) -> dict[str, dict[str, T]]:
    """``{label: one for each image}`` as ``{id: {label: one}}``."""
    return {name: {label: values[i] for label, values in by_label.items()} for i, name in enumerate(ids)}


def _write(results: _Results, groups: Mapping[str, tuple[int, ...]], out: Path) -> None:
    """Write boxes, seeds and ties of the first tau."""
    ids, single = results.store.ids, {label: blocks for label, blocks in groups.items() if len(blocks) == 1}
    for label, blocks in groups.items():
        if label not in single:
            write_json(out / "boxes_multiscale.json", dict(zip(ids, results.boxes[0, blocks], strict=True)))
    write_json(out / "ties.json", {label: results.ties[blocks] for label, blocks in groups.items()})
    write_json(out / "boxes.json", _by_image(ids, {label: results.boxes[0, one] for label, one in single.items()}))
    write_json(out / "seeds.json", _by_image(ids, {label: results.seeds[one] for label, one in single.items()}))
    if small := sum(int(np.prod(results.store.grid(i))) < LEAST_TOKENS for i in range(len(ids))):
        log.warning("TokenCut: %d images have fewer than %d patches: boxed whole", small, LEAST_TOKENS)


def _draw(results: _Results, image: Path, i: int, truth: np.ndarray, folder: Path) -> None:
    """Save ``overlays/block{b}/{number}_{image}.png`` of image ``i`` at every block."""
    store, pixels = results.store, read_image(image)
    for block in store.blocks:
        picture = overlay(pixels, results.mask(block, i), store.patch_size, results.boxes[0, (block,)][i], truth)
        where = folder / f"block{block}" / f"{i + 1:04d}_{image.stem}.png"
        where.parent.mkdir(parents=True, exist_ok=True)
        picture.save(where)


def _row(store: FeatureStore, dataset: BoxDataset, label: str, protocol: str) -> EvalResult:
    return EvalResult(
        metric="CorLoc",
        value=0.0,
        task="tokencut",
        block=label,
        dataset=dataset.name,
        split=dataset.split,
        n=len(store),
        facet=store.facet,
        norm=store.norm,
        protocol=protocol,
        resolution=store.transform.label,
        weights=store.weights_hash,
    )
