"""Evaluation of a network while it trains: k-NN on CLS features and a quick linear segmentation probe.

Both look at a fixed sample of a labelled data set. Its images are decoded once, brought to size and kept as bytes,
shared out among the ranks in whole batches: batch j is rank j mod size's, so that features, and with them the measures,
are the same to the last bit for any number of ranks. Rank 0 classifies and fits, all ranks get its numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError, DinoskipError, first_line
from dinoskip.features import Transform
from dinoskip.features.transform import Normalise, load_pixels
from dinoskip.io.files import hash_of
from dinoskip.models import Backbone
from dinoskip.runtime.console import Progress, log
from dinoskip.runtime.distributed import World, agree, gather, on_main, run_together
from dinoskip.runtime.randomness import numpy_rng
from eval.baselines import majority_areas
from eval.knn.classify import knn_predictions
from eval.labelled import LabelledTokens
from eval.metrics import scores_of_areas
from eval.online.config import Blocks, OnlineKnnConfig, OnlineProbeConfig, numbered
from eval.probe.fit import fit_probes

T = TypeVar("T")
Tokens = dict[int, NDArray[np.floating]]  # block -> features of images
_BATCH = 32  # images a forward pass, the same for any number of ranks
_READERS = 4  # threads that decode, the first time


def balanced_sample(labels: NDArray[np.int64], limit: int, seed: int, name: str) -> NDArray[np.int64]:
    """Sorted numbers (at most ``limit``) of images with ``labels`` (N,), as many of every class as there are.

    Class sizes in the sample differ by one at most, but where a class has no more images. A function of labels, limit,
    seed and name alone.
    """
    rng = numpy_rng(seed, "online-sample", name)
    turn = np.empty(len(labels))
    for value in np.unique(labels):
        members = np.flatnonzero(labels == value)
        turn[members] = rng.permutation(len(members)) + rng.random()  # the fraction: whose class comes first in a turn
    return np.sort(np.argsort(turn, kind="stable")[:limit])


@dataclass
class _Images:
    """Images of a sample: this rank's batches of them as bytes, once they have been read."""

    paths: Sequence[Path]
    transform: Transform
    check: Callable[[int], object] = lambda _: None  # reads what else belongs to an image
    pixels: dict[int, torch.Tensor] | None = field(default=None, repr=False)

    def read(self, here: World, patch: int) -> None:
        """Decode this rank's images, all ranks together; those that cannot be read are left out, with a warning."""
        if self.pixels is not None:
            return
        agree(hash_of([str(path) for path in self.paths]), "images of the online evaluation")
        batches = range(here.rank * _BATCH, len(self.paths), here.size * _BATCH)
        indices = [i for start in batches for i in range(start, min(start + _BATCH, len(self.paths)))]

        def read_image(i: int) -> torch.Tensor | str:
            try:
                self.check(i)
                return load_pixels(self.transform, self.paths[i], patch).contiguous()
            except DataError as error:
                return str(error)

        with ThreadPoolExecutor(_READERS) as pool:
            decoded = dict(zip(indices, pool.map(read_image, indices), strict=True))
        faults = [fault for part in gather([v for v in decoded.values() if isinstance(v, str)]) for fault in part]
        if faults and here.is_main:
            log.warning("online evaluation: %d images left out, such as %s", len(faults), faults[0])
        self.pixels = {i: value for i, value in decoded.items() if isinstance(value, torch.Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of the images of all ranks."""
        return len(self.paths) * 3 * self.transform.size**2

    def features(
        self, backbone: Backbone, here: World, blocks: Sequence[int], *, cls: bool
    ) -> tuple[NDArray[np.int64], Tokens]:
        """Numbers (n,) of the readable images, and their features after the final norm, on every rank.

        float32 (n, C) CLS tokens, or float16 (n, T, C) patch tokens. Raises :class:`DataError` on all ranks alike.
        """
        self.read(here, backbone.patch_size)
        parts = run_together(lambda: self._encode(backbone, blocks, cls), "online features")
        index = np.concatenate([np.array(numbers, dtype=np.int64) for numbers, _ in parts])
        if not len(index):
            raise DataError(f"{self.paths[0].parent}: none of the {len(self.paths)} images can be read")
        order = np.argsort(index)
        full = [tokens for numbers, tokens in parts if numbers]
        return index[order], {block: np.concatenate([part[block] for part in full])[order] for block in blocks}

    @torch.no_grad()
    def _encode(self, backbone: Backbone, blocks: Sequence[int], cls: bool) -> tuple[list[int], Tokens]:
        assert self.pixels is not None
        normalise = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
        side, features = self.transform.size, dict[int, list[NDArray[np.floating]]]({block: [] for block in blocks})
        for start in range(0, len(self.paths), _BATCH):
            batch = [self.pixels[i] for i in range(start, start + _BATCH) if i in self.pixels]
            if not batch:
                continue
            layers = backbone.layers(normalise(batch, side, side), blocks, norm="final")
            values = [layer.cls if cls else layer.tokens.half() for layer in layers.values()]
            if any(value is None for value in values):
                raise DataError("the model has no class token, which k-NN needs")
            together = torch.stack([value for value in values if value is not None])  # a GPU is waited for once
            for block, value in zip(layers, (together.float() if cls else together).cpu().numpy(), strict=True):
                features[block].append(value)
        return sorted(self.pixels), {block: np.concatenate(parts) for block, parts in features.items() if parts}


def _on_main(what: str, action: Callable[[], T]) -> T:
    """Rank 0's ``action()`` on all ranks; :class:`DataError` on all if it fails."""

    def guarded() -> T:
        try:
            return action()
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{what}: {first_line(error)}") from error

    return on_main(guarded)


class OnlineMetric(Protocol):
    """Part of an online evaluation."""

    score: str  # the name of its headline value

    def trivial(self) -> float:
        """Headline value in percent of the rule that always answers the most frequent class of the training sample."""

    @property
    def nbytes(self) -> int:
        """Bytes of the images that it keeps."""

    def __call__(self, backbone: Backbone, here: World) -> dict[str, float]:
        """Values in percent by name, the same on all ranks; :class:`DinoskipError` on all ranks alike."""


class OnlineKnn:
    """DINO's k-NN (see :mod:`eval.knn`) on the CLS token after the final norm: ``knn{k}_top1`` in percent.

    Of several blocks, ``knn{k}_top1`` is the accuracy of the best one, chosen for each half of the validation sample on
    the other half, and ``knn{k}_block{b}_top1`` is that of each block.
    ``train`` and ``val`` share their class numbers; at most ``config.train_images`` and ``config.val_images`` of them
    are looked at, a class-balanced sample by ``seed``. Without ``val`` images of ``train``, half of them at most and
    leaving the largest k, are held out in its place, which leaves the real validation set untouched. Raises
    :class:`ConfigError` if a k exceeds the training sample.
    """

    def __init__(
        self, train: LabelledFolder, val: LabelledFolder | None, config: OnlineKnnConfig, *, seed: int = 0
    ) -> None:
        transform = Transform(mode="center_crop", size=config.size)
        self.k, self.blocks, self._parts = config.k, config.blocks, []
        scored = len(val) if val else max(1, min(len(train) // 2, len(train) - max(self.k)))
        rows = {"val": balanced_sample((val or train).labels, min(config.val_images, scored), seed, "val")}
        rest = np.arange(len(train)) if val else np.setdiff1d(np.arange(len(train)), rows["val"])
        rows["train"] = rest[balanced_sample(train.labels[rest], config.train_images, seed, "train")]
        for name, part in (("train", train), ("val", val or train)):
            paths = [part.path(int(i)) for i in rows[name]]
            self._parts.append((_Images(paths, transform), part.labels[rows[name]]))
        if max(self.k) > len(self._parts[0][1]):
            raise ConfigError(f"online k-NN: k {max(self.k)} exceeds the {len(self._parts[0][1])} training images")
        self.score = f"knn{self.k[0]}_top1"

    @property
    def nbytes(self) -> int:
        """Bytes of the images that it keeps, over all ranks."""
        return sum(images.nbytes for images, _ in self._parts)

    def trivial(self) -> float:
        train, val = (labels for _, labels in self._parts)
        return 100.0 * float((val == np.bincount(train).argmax()).mean())

    def __call__(self, backbone: Backbone, here: World) -> dict[str, float]:
        blocks, parts, labels = existing_blocks("k-NN", self.blocks, backbone), [], []
        for images, truth in self._parts:
            numbers, features = images.features(backbone, here, blocks, cls=True)
            parts.append(torch.from_numpy(np.stack([features[block] for block in blocks])))
            labels.append(truth[numbers])

        def classify() -> dict[str, float]:
            train, val = (part.to(here.device, non_blocking=True) for part in parts)
            predicted = knn_predictions(train, labels[0], val, self.k)
            values = {}
            for k in self.k:
                hits = predicted[k] == labels[1]
                values[f"knn{k}_top1"] = 100.0 * accuracy_of_best(hits)
                if len(blocks) > 1:
                    shares = zip(blocks, hits.mean(1), strict=True)
                    values |= {f"knn{k}_block{block}_top1": 100.0 * float(share) for block, share in shares}
            return values

        return _on_main("online k-NN", classify)


def existing_blocks(what: str, blocks: Blocks, backbone: Backbone) -> list[int]:
    """Return the numbers of ``blocks`` in ``backbone``; :class:`ConfigError` for one that it does not have."""
    listed = numbered(blocks, backbone.depth)
    if listed[0] < 1 or listed[-1] > backbone.depth:
        raise ConfigError(f"online {what}: blocks {list(blocks)} are not all among 1..{backbone.depth}")
    return listed


def accuracy_of_best(hits: NDArray[np.bool_]) -> float:
    """Return the accuracy (0..1) of the best block of ``hits`` (blocks, n), chosen without the images it is scored on.

    The first and second half of the images (even and odd numbers) choose for each other. One image chooses nothing:
    the first block is scored.
    """
    halves = hits[:, ::2], hits[:, 1::2]
    if not halves[1].size:
        return float(hits[0].mean())
    right = sum(int(halves[i][halves[1 - i].mean(1).argmax()].sum()) for i in (0, 1))
    return float(right / hits.shape[1])


def drawn(numbers: NDArray[np.int64], limit: int, seed: int, name: str) -> NDArray[np.int64]:
    """Return at most ``limit`` of some numbers of images, sorted, drawn by seed and name."""
    return np.sort(numbers[numpy_rng(seed, "online-sample", name).permutation(len(numbers))[:limit]])


class OnlineProbe:
    """A quick linear segmentation probe (see :mod:`eval.probe`) on a small sample: mIoU in percent.

    ``probe_miou`` is the validation mIoU of the block that was best on held-out training images,
    ``probe_block{b}_miou`` that of each block. Without ``val`` images of ``train``, half of them at most, are held out
    in its place. The loss is the fast one, tokens with soft labels (``refine`` 1), so
    values are close to, but not, those of the full protocol.
    """

    score = "probe_miou"

    def __init__(
        self, train: SegmentationDataset, val: SegmentationDataset | None, config: OnlineProbeConfig, *, seed: int = 0
    ) -> None:
        transform = Transform(mode="square", size=config.size)
        self.config, self.seed = config, seed
        self.classes = train.num_classes
        self._parts = []
        scored = len(val) if val else len(train) // 2
        rows_of = {"val": drawn(np.arange(len(val or train)), min(config.val_images, scored), seed, "val")}
        rest = np.arange(len(train)) if val else np.setdiff1d(np.arange(len(train)), rows_of["val"])
        rows_of["train"] = drawn(rest, config.train_images, seed, "train")
        for name, part in (("train", train), ("val", val or train)):
            rows = rows_of[name]
            images = _Images([part.path(int(i)) for i in rows], transform, _label_of(part, rows))
            self._parts.append((images, _label_of(part, rows)))

    @property
    def nbytes(self) -> int:
        """Bytes of the images that it keeps, over all ranks."""
        return sum(images.nbytes for images, _ in self._parts)

    def trivial(self) -> float:
        """See :class:`OnlineMetric`; its mean IoU."""
        train, val = (
            LabelledTokens({}, label, (1, 1), self.classes, len(images.paths)).pixels_per_image()
            for images, label in self._parts
        )
        areas = majority_areas(train, val).sum(0)
        return 100.0 * float(scores_of_areas(areas).miou)

    def __call__(self, backbone: Backbone, here: World) -> dict[str, float]:
        blocks = existing_blocks("probe", self.config.blocks, backbone)
        encoded = [images.features(backbone, here, blocks, cls=False) for images, _ in self._parts]

        def fit() -> dict[str, float]:
            side = self._parts[0][0].transform.size // backbone.patch_size
            train, val = (
                self._labelled(tokens, numbers, label, side)
                for (numbers, tokens), (_, label) in zip(encoded, self._parts, strict=True)
            )
            rates, epochs, device = self.config.learning_rates, self.config.epochs, here.device.type
            results = fit_probes(train, val, blocks, rates, epochs, refine=1, seed=self.seed, device=device)
            best = max(results, key=lambda result: float(np.nan_to_num(result.heldout[result.chosen], nan=-1.0)))
            values = {f"probe_block{result.name}_miou": 100 * result.scores.miou for result in results}
            return {"probe_miou": 100 * best.scores.miou} | values

        return {name: value for name, value in _on_main("online probe", fit).items() if np.isfinite(value)}

    def _labelled(
        self, tokens: Mapping[int, NDArray[np.floating]], numbers: NDArray[np.int64],
        label: Callable[[int], NDArray[np.uint8]], side: int,
    ) -> LabelledTokens:  # fmt: skip
        return LabelledTokens(tokens, lambda i: label(int(numbers[i])), (side, side), self.classes, len(numbers))


def _label_of(part: SegmentationDataset, rows: NDArray[np.int64]) -> Callable[[int], NDArray[np.uint8]]:
    return lambda i: part.label(int(rows[i]))


class OnlineEvaluation:
    """The observer of a DINO run (:class:`dinoskip.training.loop.Observer`): ``measures``, one after the other.

    ``score`` is the first one's headline. What fails (an unreadable data set, no device memory) is a warning on rank 0,
    and its values are missing from that row: training goes on. Its cost is logged. The passes are in bfloat16 on a GPU,
    as training is by default: no key depends on what is measured while training.
    """

    def __init__(self, measures: Sequence[OnlineMetric]) -> None:
        self.measures, self.score = tuple(measures), measures[0].score
        self._ready = False

    def trivial(self) -> float:
        """Return the ``score``, in percent, of always answering the most frequent class; reads labels, on one rank."""
        return self.measures[0].trivial()

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """Measures of ``network.backbone`` in percent, by name, equal on all ranks."""
        began, values = time.perf_counter(), dict[str, float]()
        with Progress.hidden():
            for measure in self.measures:
                try:
                    backbone = Backbone.from_model(network.get_submodule("backbone"))
                    backbone.precision = "bf16" if here.device.type == "cuda" else "fp32"
                    values |= measure(backbone, here)
                except DinoskipError as error:  # raised on all ranks alike
                    if here.is_main:
                        log.warning("online evaluation: %s: left out, training goes on", error)
        if here.is_main and not self._ready:
            kept = sum(measure.nbytes for measure in self.measures) / 2**20
            log.info("online evaluation: %.1f MiB of images decoded once and kept, over all ranks", kept)
            self._ready = True
        if here.is_main:
            shown = ", ".join(f"{name} {value:.1f}" for name, value in values.items())
            log.info("online evaluation: %s (%s)", shown, f"{time.perf_counter() - began:.1f} s")
        return values
