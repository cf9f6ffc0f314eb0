"""Linear probes on arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import eval.probe.fit as fit_module
import eval.probe.loaders as loaders
import eval.upsampling as upsampling
from dinoskip.errors import ConfigError, DataError
from dinoskip.settings.config import RawConfig, validate
from eval.labelled import LabelledTokens
from eval.metrics import ConfusionMatrix, scores_of_areas
from eval.probe import ProbeConfig, fit_probes
from eval.probe.fit import score_heads, split_images
from eval.probe.heads import predict
from eval.probe.loaders import StoredTokenLoader
from eval.probe.stack import HeadStack

CPU, PAPER = torch.device("cpu"), ProbeConfig()


GRID, CLASSES, DIM = (4, 4), 3, 6


def made_up(count: int, seed: int, blocks: tuple[int, ...] = (1, 2)) -> LabelledTokens:
    """Tokens of block b that show the class of their cell in noise of b's strength; labels of several sizes."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, CLASSES, (count, 2, 2)).repeat(2, 1).repeat(2, 2)
    directions = np.random.default_rng(99).standard_normal((CLASSES, DIM))
    tokens = {
        b: (10 + directions[cells.reshape(count, -1)] + 3 * (b - 1) * rng.standard_normal((count, 16, DIM))).astype(
            np.float16
        )
        for b in blocks
    }
    labels = []
    for i in range(count):
        label = cells[i].repeat(5 + i % 2, 0).repeat(6, 1).astype(np.uint8)
        label[0] = 255
        labels.append(label)
    return LabelledTokens(tokens, lambda i: labels[i], GRID, CLASSES, count)


def fit(train: LabelledTokens, val: LabelledTokens, **change: object) -> list:
    settings = {"blocks": (1, 2), "learning_rates": (1e-3, 3e-2), "epochs": 12, "batch_size": 4, "multiscale": (1, 2)}
    return fit_probes(train, val, device="cpu", **settings | change)


def test_learns_what_is_there_and_scores_at_label_size() -> None:
    train, val = made_up(24, 0), made_up(9, 1)
    results = fit(train, val)
    assert [result.name for result in results] == ["1", "2", "1+2"]
    assert results[0].scores.miou > 0.85  # cells are seen without noise; only their borders are blurred
    assert results[0].scores.miou > results[1].scores.miou + 0.2
    for result in results:  # by the artifact alone: folded head, prediction, confusion matrix
        matrix = ConfusionMatrix(CLASSES)
        for i in range(val.count):
            tokens = {b: val.tokens[b][i].astype(np.float32) for b in result.blocks}
            matrix.update(predict(result.head, tokens, GRID, val.label(i).shape), val.label(i))
        np.testing.assert_allclose(matrix.scores().iou, result.scores.iou, atol=2e-3)
        assert result.areas.shape == (val.count, 3, CLASSES)
        np.testing.assert_array_equal(scores_of_areas(result.areas.sum(0)).iou, result.scores.iou)


def test_choice_is_made_on_held_out_images_and_the_other_is_reported() -> None:
    train, val = made_up(24, 0), made_up(9, 1)
    for result in fit(train, val, learning_rates=(1e-5, 1e-3, 3e-2)):
        chosen = result.learning_rates.index(result.learning_rate)
        assert result.heldout[chosen] == max(result.heldout)
        assert result.scores.miou == result.validation[chosen]
        assert result.best_scores.miou == max(result.validation)
        assert len(set(result.heldout)) > 1


def test_held_out_images_are_not_fitted_and_not_in_the_statistics() -> None:
    train, val = made_up(10, 0), made_up(3, 1)
    before = fit(train, val, holdout=0.3)
    held = split_images(10, 0.3, 0)[1]
    assert len(held) == 3
    for block in train.tokens:
        train.tokens[block][held] = 77
    after = fit(train, val, holdout=0.3)
    for a, b in zip(before, after, strict=True):
        assert a.validation == b.validation
        assert a.heldout != b.heldout


def test_deterministic_by_seed_and_independent_of_where_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    train, val = made_up(12, 0), made_up(4, 1)
    first, again, other = fit(train, val), fit(train, val), fit(train, val, seed=1)
    monkeypatch.setenv("DINOSKIP_MEMORY", "1e-9")
    streamed = fit(train, val)
    for a, b, c, d in zip(first, again, streamed, other, strict=True):
        for block in a.blocks:
            assert torch.equal(a.head.weights[block], b.head.weights[block])
            assert torch.equal(a.head.weights[block], c.head.weights[block])
            assert not torch.equal(a.head.weights[block], d.head.weights[block])


def test_bfloat16_tokens_are_read_as_such() -> None:
    train, val = made_up(12, 0), made_up(4, 1)

    def encode(data: LabelledTokens) -> LabelledTokens:
        tokens = {
            b: torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16) for b, x in data.tokens.items()
        }
        return LabelledTokens(tokens, data.label, data.grid, data.num_classes, data.count)

    exact, rounded = fit(train, val), fit(encode(train), encode(val))
    for a, b in zip(exact, rounded, strict=True):
        assert abs(a.scores.aacc - b.scores.aacc) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [({"blocks": (1, 5)}, "block 5 is not in the features"), ({"multiscale": (2, 9)}, "block 9")],
)
def test_missing_blocks(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(made_up(4, 0), made_up(2, 1), **change)


def test_one_training_image_or_a_foreign_label_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        fit(made_up(1, 0), made_up(2, 1))
    bad = made_up(4, 0)
    bad = LabelledTokens(bad.tokens, lambda i: np.full((8, 8), CLASSES, np.uint8), GRID, CLASSES, 4)
    with pytest.raises(DataError, match="value 3 is outside the 3 classes"):
        fit(bad, made_up(2, 1))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"learning_rates": [0.1, 0.0]}, "greater than 0"),
        ({"learning_rates": []}, "learning_rates"),
        ({"holdout": 1.0}, "holdout"),
        ({"learning_rate": [0.1]}, "did you mean learning_rates"),
        ({"epochs": 2.5}, "epochs"),
    ],
)
def test_config_is_checked(tree: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(ProbeConfig, RawConfig(tree))


@pytest.mark.parametrize(
    ("protocol", "changes"),
    [("fast", {}), ("paper", {"batchnorm": "none"}), ("paper", {"batchnorm": "affine", "mask": 20, "refine": 0})],
)
def test_cached_recipes_learn(protocol: str, changes: dict) -> None:
    train, val = made_up(24, 0), made_up(9, 1)
    results = fit(train, val, learning_rates=(3e-2,), protocol=protocol, **changes)
    assert results[0].scores.miou > 0.8


def test_several_decays_are_trials_of_their_own() -> None:
    train, val = made_up(12, 0), made_up(4, 1)
    both = fit(train, val, weight_decay=(1e-4, 10.0))
    for result, one in zip(both, fit(train, val, weight_decay=10.0), strict=True):
        assert result.trials == ((1e-3, 1e-4), (1e-3, 10.0), (3e-2, 1e-4), (3e-2, 10.0))
        assert result.validation[1::2] == one.validation


def test_diverged_heads_have_no_score_and_are_never_chosen(caplog: pytest.LogCaptureFixture) -> None:
    train, val = made_up(12, 0), made_up(4, 1)
    given = {"optimizer": "sgd", "schedule": "constant", "batchnorm": "affine", "init_std": 0.01}
    with caplog.at_level("WARNING", logger="dinoskip"):
        for result in fit(train, val, learning_rates=(1e-2, 1e30), **given):
            assert result.chosen == 0
            assert np.isfinite(result.scores.miou)
            assert np.isnan(result.heldout[1])
            assert np.isnan(result.validation[1])
        assert not caplog.records
    with pytest.raises(DataError, match=r"block 1: every head has diverged \(lower the learning rates"):
        fit(train, val, learning_rates=(1e30,), **given)


def test_no_head_is_chosen_by_held_out_images_without_labels() -> None:
    train, val = made_up(10, 0), made_up(3, 1)
    held = set(split_images(10, 0.1, 0)[1].tolist())
    label = train.label
    empty = replace(train, label=lambda i: np.full_like(label(i), 255) if i in held else label(i))
    with pytest.raises(DataError, match="the held-out training images have no labelled pixel"):
        fit(empty, val)


class HostReads(TorchDispatchMode):
    """Counts what makes a GPU's host wait: values read, sizes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in {"_local_scalar_dense", "nonzero", "bincount", "unique_dim"}
        return func(*args, **(kwargs or {}))


def test_a_gpu_scores_all_images_without_a_read_and_as_a_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    train, val = made_up(24, 0), made_up(9, 1)
    counts = []
    for gpu in (False, True):
        if gpu:
            for module in (fit_module, upsampling):
                monkeypatch.setattr(module, "on_gpu", lambda _: True)
            monkeypatch.setitem(loaders._IMAGES, "cpu", 4)  # images of one label size together
        results = fit(train, val)
        plain = {("", 1): (torch.zeros(DIM), torch.ones(DIM))}
        loader = StoredTokenLoader(val, {("", 1): val.tokens[1]}, plain, PAPER, CPU)
        stack = HeadStack([(("", 1),)], (1e-3,), CLASSES, DIM, 0.0, CPU, init_std=1.0)
        with HostReads() as reads:
            scores, _ = score_heads(stack, loader, np.arange(9), "", [0])
        counts.append((reads.count, [r.validation for r in results], [r.areas.tolist() for r in results], scores))
    assert counts[1][0] == 1, "whether all features were finite, once at the end"
    assert counts[0][0] > 9
    assert counts[0][1:3] == counts[1][1:3]
    assert counts[0][3][0][0].miou == counts[1][3][0][0].miou


@pytest.mark.parametrize("batchnorm", ["plain", "none"])
@pytest.mark.parametrize("which", ["train", "val"])
@pytest.mark.parametrize("memory", ["1", "1e-9"])
def test_features_that_are_not_finite_are_refused(
    batchnorm: str, which: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINOSKIP_MEMORY", memory)  # kept, or read batch by batch
    data = {"train": made_up(10, 0), "val": made_up(3, 1)}
    data[which].tokens[2][-1, 3, 2] = np.nan
    with pytest.raises(DataError, match="features are not finite"):
        fit(data["train"], data["val"], batchnorm=batchnorm, epochs=1)
