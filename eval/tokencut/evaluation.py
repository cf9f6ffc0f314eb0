"""Object discovery on a data set: TokenCut and LOST boxes of every image and block of features, and CorLoc.

docs/tokencut.md has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch

from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.io.files import write_json
from dinoskip.io.images import read_image
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.console import log
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.tasks import TaskInputs
from eval.baselines import BOXES, full_image
from eval.coco_results import coco_result, in_pixels, without_misses
from eval.discovery import is_hit
from eval.labelled import NamedImages, places
from eval.resumed import degeneracy
from eval.rows import hits_row, row_like
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.cut import LEAST_TOKENS, to_pixels
from eval.tokencut.floor import cuts_of
from eval.tokencut.heads import HeadBoxes
from eval.tokencut.overlays import overlay
from eval.tokencut.positions import take_out_positions
from eval.tokencut.results import CutResults
from eval.tokencut.store import CutRule, ImageCuts, cut_store

T = TypeVar("T")


class BoxDataset(NamedImages, Protocol):
    """The part of a detection set that is read here; ``boxes(i)`` is (K, 4) x1 y1 x2 y2 in pixels, end exclusive."""

    def path(self, index: int) -> Path: ...  # noqa: D102
    def boxes(self, index: int) -> np.ndarray: ...  # noqa: D102


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Cut every image of a data set (:class:`BoxDataset`) at every block.

    With ``multiscale`` also at these blocks together, by the mean of their similarities.

    The features must be patch tokens (facet ``key`` by protocol) of the images in their native size. Writes
    ``rows.json`` (a CorLoc row a block, in percent with its interval, then the baselines') with ``records.npz`` (which
    images are hits), ``boxes.json`` ``{id: {block: [x1, y1, x2, y2]}}`` in pixels, -1 four times for an image without a
    cut, which is a miss, ``seeds.json`` ``{id: {block: flat token index}}``, ``ties.json``, in how many images of each
    block tied seeds would give different boxes, for each block ``vectors_block{b}.npy`` float16 (eigenvectors divided
    by their largest absolute value, NaN without a cut) and ``masks_block{b}.npy`` bool, (sum of T,) in store order, and
    with multiscale ``boxes_multiscale.json`` ``{id: [x1, y1, x2, y2]}``: all of the first tau. The boxes of another are
    in ``boxes_tau{tau}.json``, of LOST in ``boxes_lost.json``, as in ``boxes.json``; of Object-DINO, which reads all
    blocks at once, in ``boxes_object_dino.json``. With ``coco`` ``coco_block{b}.json`` has boxes and masks as COCO
    results. An image of fewer than 3 tokens cannot be cut: its box is all of it.
    With ``positions`` mean or mean_kept ``positions.json`` has what part of the variance lay between positions, and of
    how many images each grid's means are.

    Features are a store, or windows (:class:`dinoskip.features.FeatureWindows`), whose images are cut as they are
    computed: the same call in the same ``out`` continues after the last whole window.

    On a CPU ``workers`` threads (0: one a core) cut one image each; on a GPU images and blocks are cut in batches.
    Raises :class:`ConfigError` for features of another image size or blocks they lack, and for ``positions`` insid3
    without the network, :class:`DataError` if ids differ or features cannot be cut.
    """
    config: TokenCutConfig = given.settings
    multiscale, (store,), (dataset,) = given.multiscale, given.features.values(), given.labels.values()
    place = _places(store, dataset, multiscale)
    truth = [dataset.boxes(i) for i in place]
    groups: dict[str, tuple[int, ...]] = {str(block): (block,) for block in store.blocks}
    if multiscale:
        groups["+".join(map(str, multiscale))] = tuple(multiscale)
    given.out.mkdir(parents=True, exist_ok=True)
    results = CutResults(store, groups, config, given.out, given.backbone, given.parts)
    take_out_positions(results.positions, store, given.backbone, given.out, given.parts)
    _cut_all(results, config, choose_device(given.device), given.workers)
    recorded: list[RecordedRow] = []
    for number, (protocol, name) in enumerate(config.methods.items()):
        boxes = {label: results.boxes[number, group].tolist() for group, label in enumerate(groups)}
        template = row_like(given, "tokencut", "CorLoc", protocol=protocol)
        for group, label in enumerate(groups):
            row = replace(template, block=label, **results.degeneracy(number, group))
            recorded.append(hits_row(row, [is_hit(*pair) for pair in zip(boxes[label], truth, strict=True)]))
        if number:
            write_json(given.out / name, _by_image(store.ids, boxes))
    if config.object_dino is not None:
        recorded.append(_by_heads(given, config, store, [dataset.path(i) for i in place], truth))
    _warn_of_degenerate([record.row for record in recorded])
    _write(results, groups, given.out)
    if config.coco:
        _write_coco(results, groups, given.out)
    for i in range(min(config.overlays, len(store))):
        _draw(results, dataset.path(place[i]), i, truth[i], given.out / "overlays")
    recorded += _baseline_rows(recorded[0].row, given, store, dataset, place, truth)
    results.files.finish()
    return write_recorded_rows(given.out, store.ids, recorded)


def _by_heads(
    given: TaskInputs, config: TokenCutConfig, store: FeatureSet, paths: Sequence[Path], truth: Sequence[np.ndarray]
) -> RecordedRow:
    """The row of Object-DINO, whose boxes are of all blocks together."""
    assert config.object_dino is not None
    if given.backbone is None:
        raise ConfigError(
            "object_dino reads queries, keys and values of all blocks, which these features do not have",
            "evaluate the network itself",
        )
    found = HeadBoxes(store, given.backbone, config.object_dino, config.eps, given.out)
    found.find(paths)
    row = found.row(row_like(given, "tokencut", "CorLoc"))
    recorded = hits_row(row, [is_hit(*pair) for pair in zip(found.boxes.tolist(), truth, strict=True)])
    found.write(given.out / "boxes_object_dino.json")
    return recorded


def _baseline_rows(
    template: EvalResult,
    given: TaskInputs,
    store: FeatureSet,
    dataset: BoxDataset,
    place: Sequence[int],
    truth: Sequence[np.ndarray],
) -> list[RecordedRow]:
    """Rows of boxes without a network: of rules and, if asked for, of pixels by the first tau, as they are."""
    sizes = [store.image_size(i) for i in range(len(place))]
    rows = [
        hits_row(
            template.baseline(name, 0.0), [is_hit(rule(*size), boxes) for size, boxes in zip(sizes, truth, strict=True)]
        )
        for name, rule in BOXES.items()
    ]
    if not given.settings.pixels:
        return rows
    for name, cuts in cuts_of(given, store, dataset, place).items():
        hits = [
            is_hit(to_pixels(box, store.patch_size, size) if any(box) else full_image(*size), boxes)
            for box, size, boxes in zip(cuts.boxes.tolist(), sizes, truth, strict=True)
        ]
        degenerate, complete, ambiguous = cuts.flags
        shares = degeneracy(degenerate, complete, ambiguous=ambiguous)
        rows.append(hits_row(replace(template.baseline(name, 0.0), **shares), hits))
    return rows


def _cut_all(results: CutResults, config: TokenCutConfig, device: torch.device, workers: int) -> None:
    """Cut every image that is not done, part by part."""

    def work(part: FeatureStore) -> Iterator[tuple[int, tuple[tuple[int, ...], ImageCuts]]]:
        rule = CutRule(config.tau, config.eps, config.centre, config.lost_k, results.positions)
        for item, cuts in cut_store(part, results.groups, rule, device, workers):
            yield item.image, (item.blocks, cuts)

    results.files.fill("TokenCut", len(results.groups), work, lambda i, found: results.add(found[0], i, found[1]))


def _warn_of_degenerate(rows: Sequence[EvalResult]) -> None:
    """Say once at which blocks most images have no cut: the number says nothing of the network."""
    failed = [row for row in rows if (row.degenerate or 0) > 0.5]
    if failed:
        worst = max(failed, key=lambda row: (row.complete or 0, row.degenerate or 0))
        log.warning(
            "%s: most images have no cut at block %s; at block %s the graph is complete in %d of %d images, where the "
            "tokens' mean cosine is %.2f: centre: true, another facet or a higher tau may help (docs/tokencut.md)",
            worst.protocol, ", ".join(dict.fromkeys(row.block for row in failed)), worst.block,
            round((worst.complete or 0) * worst.n), worst.n,
            math.nan if worst.token_cosine is None else worst.token_cosine,
        )  # fmt: skip


def _places(store: FeatureSet, dataset: BoxDataset, multiscale: Sequence[int] | None) -> list[int]:
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


def _write(results: CutResults, groups: Mapping[str, tuple[int, ...]], out: Path) -> None:
    """Write boxes, seeds and ties of the first tau."""
    ids, boxes = results.features.ids, results.boxes[0].tolist()
    single = {label: group for group, (label, blocks) in enumerate(groups.items()) if len(blocks) == 1}
    for group, label in enumerate(groups):
        if label not in single:
            write_json(out / "boxes_multiscale.json", dict(zip(ids, boxes[group], strict=True)))
    write_json(out / "ties.json", {label: int(results.ties[0, group].sum()) for group, label in enumerate(groups)})
    write_json(out / "boxes.json", _by_image(ids, {label: boxes[group] for label, group in single.items()}))
    seeds = {label: results.seeds[group].tolist() for label, group in single.items()}
    write_json(out / "seeds.json", _by_image(ids, seeds))
    if small := sum(int(np.prod(results.features.grid(i))) < LEAST_TOKENS for i in range(len(ids))):
        log.warning("TokenCut: %d images have fewer than %d patches: boxed whole", small, LEAST_TOKENS)


def _write_coco(results: CutResults, groups: Mapping[str, tuple[int, ...]], out: Path) -> None:
    """Write ``coco_block{b}.json``: boxes and masks of the first tau; an image without a cut has no result."""
    store = results.features
    for group, (label, blocks) in enumerate(groups.items()):
        if len(blocks) > 1:
            continue
        found = (
            coco_result(
                name, results.boxes[0, group, i], 1.0,
                in_pixels(results.mask(blocks[0], i), store.patch_size, store.image_size(i)),
            )
            for i, name in enumerate(store.ids)
        )  # fmt: skip
        write_json(out / f"coco_block{label}.json", without_misses(found))


def _draw(results: CutResults, image: Path, i: int, truth: np.ndarray, folder: Path) -> None:
    """Save ``overlays/block{b}/{number}_{image}.png`` of image ``i`` at every block."""
    store, pixels = results.features, read_image(image)
    for group, block in enumerate(store.blocks):
        box = results.boxes[0, group, i].tolist()
        picture = overlay(pixels, results.mask(block, i), store.patch_size, box, truth)
        where = folder / f"block{block}" / f"{i + 1:04d}_{image.stem}.png"
        where.parent.mkdir(parents=True, exist_ok=True)
        picture.save(where)
