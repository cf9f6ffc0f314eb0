"""Linear probes on a data set: from feature stores, or from images that go through the backbone as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore
from dinoskip.models import Backbone
from dinoskip.read_points import usual_norm
from dinoskip.results import EvalResult
from eval.frozen import kind_at
from eval.labelled import LabelledTokens, places, token_cosine
from eval.pixels import PIXEL_FEATURES, pixel_tokens
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
from eval.probe.live import LiveTokenLoader, RunningNorm
from eval.probe.rows import ProbedData, publish


def evaluate(
    train_store: FeatureStore,
    val_store: FeatureStore,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    out: Path,
    config: ProbeConfig,
    context: Mapping[str, Any],
    *,
    seed: int = 0,
    multiscale: Sequence[int] | None = None,
    norms: Sequence[str] = (),
    backbone: Backbone | None = None,
    device: str = "auto",
) -> list[EvalResult]:
    """Probe every block of the stores and write heads, ``probes.json``, ``rows.json`` and ``records.npz`` into ``out``.

    ``seed`` is that of the first fit; one more head is fitted on the sum of the ``multiscale`` blocks. The norm is the
    stores' own; or ``norms``, which ``backbone`` applies when stores of norm ``none`` are read. Rows: mIoU with its
    interval, mAcc and aAcc in percent of the chosen heads, and mIoU with note ``best on validation``; then the mIoU of
    the majority class and, with ``config.pixels``, of probes of pixels. With several seeds: rows of each, and of their
    mean (:mod:`eval.probe.rows`).
    """
    train, val = LabelledTokens.pair(train_store, val_store, train_set, val_set)
    applied = _derivations(val_store, norms, backbone)
    groups = head_groups(val_store.blocks, multiscale, list(applied))
    seeds, where = range(seed, seed + config.seeds), choose_device(device)
    fits = [fit_stored(train, val, groups, applied, config, one, where) for one in seeds]
    tokens = tokens_under_norms(val, keys_of(groups), applied, where)
    about = ProbedData(
        train=train,
        val=val,
        train_set=train_set,
        val_set=val_set,
        facet=val_store.facet,
        weights=val_store.weights_hash,
        train_ids=train_store.ids,
        val_ids=val_store.ids,
        resolution=f"{val_store.transform.label}, scored at label size",
        seed=seed,
        multiscale=multiscale,
        cosines={key: token_cosine(x, where) for key, x in tokens.items() if x.shape[1] > 1},
    )
    floor = _pixel_probes(train_store, val_store, train, val, train_set, val_set, config, seed, where)
    return publish(out, fits, config, about, context, floor)


def _pixel_probes(
    train_store: FeatureStore,
    val_store: FeatureStore,
    train: LabelledTokens,
    val: LabelledTokens,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    config: ProbeConfig,
    seed: int,
    device: torch.device,
) -> dict[str, ProbeResult]:
    """Probes of pixels without a network, by their name, where ``config`` asks for them.

    Fitted as those of blocks are, also at 3 and 10 times the highest learning rate: their channels are less alike.
    """
    if not config.pixels:
        return {}
    pairs = [(train_store, train, train_set), (val_store, val, val_set)]
    tokens = [pixel_tokens(part, places(store, part), store.transform, store.patch_size) for store, _, part in pairs]
    rates = sorted({*config.learning_rates, *(times * max(config.learning_rates) for times in (3, 10))})
    recipe = config.model_copy(update={"learning_rates": tuple(rates)})
    found = {}
    for name in PIXEL_FEATURES:
        of_train, of_val = (
            replace(data, tokens={1: made[name]}) for (_, data, _), made in zip(pairs, tokens, strict=True)
        )
        (found[name],) = fit_stored(of_train, of_val, [(("", 1),)], {"": None}, recipe, seed, device)
    return found


def _derivations(store: FeatureStore, norms: Sequence[str], backbone: Backbone | None) -> Norms:
    """How every norm is made of what the store holds; :class:`ConfigError` if it cannot be."""
    if not norms or list(norms) == [store.norm]:
        return {store.norm: None}
    if store.norm != "none" or usual_norm(store.facet, "final") == "none" or backbone is None:
        raise ConfigError(
            f"{store.path}: holds {store.facet} of norm {store.norm}",
            "several norms need out or a branch of norm none",
        )
    if backbone.weights_hash != store.weights_hash:
        raise DataError(f"{store.path}: features of other weights than {backbone.spec}")

    def apply(norm: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda tokens: backbone.normed(tokens.to(backbone.device, backbone.dtype), norm)

    try:
        for norm in norms:
            backbone.normed(torch.zeros(1, 1, backbone.dim, device=backbone.device, dtype=backbone.dtype), norm)
    except ValueError as error:
        raise ConfigError(f"probe: {error}") from error
    return {norm: None if norm == "none" else apply(norm) for norm in norms}


def evaluate_live(
    backbone: Backbone,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    blocks: Sequence[int] | str,
    out: Path,
    config: ProbeConfig,
    context: Mapping[str, Any],
    *,
    seed: int = 0,
    multiscale: Sequence[int] | None = None,
    facets: Sequence[str] = ("out",),
    norms: Sequence[str] = ("final",),
    workers: int = 0,
) -> list[EvalResult]:
    """As :func:`evaluate`, with images that go through the backbone as they are needed; ``blocks`` may be ``"all"``.

    Every block is probed at each of ``facets``, equally wide; ``norms`` are of block outputs.
    """
    numbers = list(range(1, backbone.depth + 1)) if isinstance(blocks, str) else sorted(set(blocks))
    beyond = [b for b in {*numbers, *(multiscale or ())} if b > backbone.depth]
    if beyond:
        raise ConfigError(f"probe: block {beyond[0]} is beyond the {backbone.depth} blocks of {backbone.spec}")
    kinds = dict.fromkeys(kind_at(facet, usual_norm(facet, norm)) for facet in facets for norm in norms)
    groups = head_groups(numbers, multiscale, list(kinds))
    train, val = (LabelledTokens.labels_of(part) for part in (train_set, val_set))

    def fit(seed: int) -> list[ProbeResult]:
        statistics = RunningNorm(active=config.batchnorm != "none")
        loader, val_loader = (
            LiveTokenLoader(backbone, part, labels, keys_of(groups), config, statistics, seed=seed, workers=workers)
            for part, labels in ((train_set, train), (val_set, val))
        )
        fitted, held = split_images(train.count, config.holdout, seed)
        stack = fit_heads(loader, groups, backbone.width(facets[0]), fitted, config, seed)
        return choose_and_score(stack, loader, held, lambda: val_loader)

    fits = [fit(one) for one in range(seed, seed + config.seeds)]
    about = ProbedData(
        train=train,
        val=val,
        train_set=train_set,
        val_set=val_set,
        facet="out",
        weights=backbone.weights_hash,
        train_ids=train_set.ids,
        val_ids=val_set.ids,
        resolution=config.resolution,
        seed=seed,
        multiscale=multiscale,
    )
    return publish(out, fits, config, about, context)
