"""Linear probes on a data set: from feature stores, or from images that go through the backbone as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore
from dinoskip.models import Backbone
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.read_points import ReadAt, usual_norm
from dinoskip.settings.tasks import TaskInputs
from eval.labelled import LabelledTokens, token_cosine
from eval.probe.config import ProbeConfig
from eval.probe.fit import (
    Norms,
    ProbeResult,
    choose_and_score,
    fit_heads,
    fit_stored,
    head_groups,
    keys_of,
    split_images,
    tokens_under_norms,
)
from eval.probe.floor import probes_of
from eval.probe.live import LiveTokenLoader, RunningNorm
from eval.probe.rows import publish


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Probe every block and write heads, ``probes.json``, ``rows.json`` and ``records.npz``.

    Features and labels (:class:`SegmentationDataset`) are ``train`` and ``val``; without features (``config.live``)
    images go through the network as they are needed. ``seed`` is that of the first fit; one more head is fitted on the
    sum of the ``multiscale`` blocks. The norm is the stores' own; or ``norms``, which the network applies when stores
    of norm ``none`` are read. Rows: mIoU with its interval, mAcc and aAcc in percent of the chosen heads, and mIoU with
    note ``best on validation``; then the mIoU of the majority class and, with ``config.pixels``, of probes of pixels.
    With several seeds: rows of each, and of their mean (:mod:`eval.probe.rows`).
    """
    config: ProbeConfig = given.settings
    if not given.features:
        return _evaluate_live(given)
    train_store, val_store = given.features["train"], given.features["val"]
    train, val = LabelledTokens.pair(train_store, val_store, given.labels["train"], given.labels["val"])
    applied = _derivations(val_store, given.norms, given.backbone)
    groups = head_groups(val_store.blocks, given.multiscale, list(applied))
    seeds, device = range(given.seed, given.seed + config.seeds), choose_device(given.device)
    fits = [fit_stored(train, val, groups, applied, config, seed, device) for seed in seeds]
    tokens = tokens_under_norms(val, keys_of(groups), applied, device)
    cosines = {key: token_cosine(x, device) for key, x in tokens.items() if x.shape[1] > 1}
    floor = probes_of(train, val, given) if config.pixels else {}
    return publish(given, fits, train, val, cosines, floor)


def _derivations(store: FeatureStore, norms: Sequence[str], backbone: Backbone | None) -> Norms:
    """Return, for every norm, the function that makes it from the stored features, None where they have it already.

    :class:`ConfigError` if a norm cannot be made of them, :class:`DataError` if ``backbone`` has other weights.
    """
    if not norms or list(norms) == [store.norm]:
        return {store.norm: None}
    if store.norm != "none" or usual_norm(store.facet, "final") == "none" or backbone is None:
        raise ConfigError(
            f"{store.path}: holds {store.facet} of norm {store.norm}", "several norms need out or a branch of norm none"
        )
    if backbone.weights_hash != store.weights_hash:
        raise DataError(f"{store.path}: features of other weights than {backbone.spec}")

    def apply(norm: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda tokens: backbone.normed(tokens.to(backbone.device, backbone.dtype), norm)

    for norm in norms:  # said before anything is fitted
        backbone.normed(torch.zeros(1, 1, backbone.dim, device=backbone.device, dtype=backbone.dtype), norm)
    return {norm: None if norm == "none" else apply(norm) for norm in norms}


def _evaluate_live(given: TaskInputs) -> list[EvalResult]:
    """Probe every block at each of the facets, equally wide; ``norms`` are of block outputs."""
    config: ProbeConfig = given.settings
    backbone, sets = given.backbone, (given.labels["train"], given.labels["val"])
    kinds = dict.fromkeys(str(ReadAt(usual_norm(facet, norm), facet)) for facet in given.facets for norm in given.norms)
    groups = head_groups(given.block_numbers, given.multiscale, list(kinds))
    train, val = (LabelledTokens.labels_of(part) for part in sets)

    def fit(seed: int) -> list[ProbeResult]:
        statistics = RunningNorm(active=config.batchnorm != "none")
        loader, val_loader = (
            LiveTokenLoader(
                backbone, part, labels, keys_of(groups), config, statistics, seed=seed, workers=given.workers
            )
            for part, labels in zip(sets, (train, val), strict=True)
        )
        fitted, held = split_images(train.count, config.holdout, seed)
        stack = fit_heads(loader, groups, backbone.width(given.facets[0]), fitted, config, seed)
        return choose_and_score(stack, loader, held, lambda: val_loader)

    return publish(given, [fit(seed) for seed in range(given.seed, given.seed + config.seeds)], train, val)
