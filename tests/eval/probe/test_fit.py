"""Linear probes on arrays, and on stores of a tiny backbone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import eval.labelled as labelled
from dinoskip.config import RawConfig, validate
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.files import read_json
from dinoskip.models import Backbone, create_model
from dinoskip.results import read_rows
from eval.labelled import Derived, LabelledTokens, batchnorm_statistics
from eval.metrics import ConfusionMatrix, scores_of_areas
from eval.probe import ProbeConfig, evaluate, fit_probes
from eval.probe.heads import load_heads, predict

CPU = torch.device("cpu")
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
    from eval.probe.fit import split_images

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


def test_batchnorm_statistics_are_those_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    stored = (1000 + rng.standard_normal((7, 5, 3)) * [1, 2, 0]).astype(np.float32)
    rows = np.array([0, 2, 3, 6])
    exact = stored[rows].reshape(-1, 3).astype(np.float64)
    for chunk in (2**22, 15):
        monkeypatch.setattr(labelled, "_CHUNK_VALUES", chunk)
        mean, inverse = batchnorm_statistics(stored, rows, CPU)
        np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6)
        np.testing.assert_allclose(inverse, (exact.var(0) + 1e-5) ** -0.5, rtol=1e-3)
    stored[3, 0, 0] = np.inf
    with pytest.raises(DataError, match="not finite"):
        batchnorm_statistics(stored, rows, CPU)


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


def some_dataset(root: Path, split: str, count: int) -> SegmentationDataset:
    rng = np.random.default_rng(len(split))
    names = [f"{split}{i}" for i in range(count)]
    root.mkdir(exist_ok=True)
    for name in names:
        label = rng.integers(0, 2, (2, 2)).repeat(20, 0).repeat(15, 1).astype(np.uint8)
        noise = rng.integers(0, 40, (40, 30, 3))
        Image.fromarray((noise + 200 * label[..., None]).astype(np.uint8)).save(root / f"{name}.png")
        label[:, :2] = 255
        Image.fromarray(label).save(root / f"{name}_mask.png")
    return SegmentationDataset(
        name="squares",
        split=split,
        ids=tuple(names),
        class_names=("dark", "light"),
        image_paths=tuple(root / f"{name}.png" for name in names),
        label_paths=tuple(root / f"{name}_mask.png" for name in names),
    )


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict:
    root = tmp_path_factory.mktemp("squares")
    torch.manual_seed(0)
    backbone = Backbone.from_model(create_model("vit_tiny_patch8", depth=2, img_size=32))
    found = {}
    for split, count in (("train", 12), ("val", 5)):
        dataset = some_dataset(root / "images", split, count)
        store = export(backbone, dataset, root / split, "all", transform=Transform(size=32))
        found[split] = (store, dataset)
    found["backbone"] = backbone
    return found


def test_evaluate_writes_rows_heads_and_details(sets: dict, tmp_path: Path) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]
    config = ProbeConfig(epochs=10, learning_rates=(1e-3, 1e-2), batch_size=4)
    context = {"model": "tiny", "epoch": 7}
    how = {"seed": 3, "multiscale": (1, 2), "device": "cpu"}
    rows = evaluate(train_store, val_store, train_set, val_set, tmp_path, config, context, **how)
    assert read_rows(tmp_path / "rows.json") == rows
    assert {(r.block, r.metric, r.note) for r in rows} == {
        (block, metric, note)
        for block in ("1", "2", "1+2")
        for metric, note in (("mIoU", ""), ("mAcc", ""), ("aAcc", ""), ("mIoU", "best on validation"))
    } | {("", "mIoU", "")}
    floor = rows[-1]
    labels, pixels = [val_set.label(i) for i in range(5)], ConfusionMatrix(2)
    commonest = int(np.bincount(np.concatenate([train_set.label(i).ravel() for i in range(12)]))[:2].argmax())
    for label in labels:
        pixels.update(np.full_like(label, commonest), label)
    assert (floor.model, floor.value) == ("baseline: majority class", 100 * pixels.scores().miou)
    assert all(row.low is not None and row.low <= row.value <= row.high for row in rows[:-1:4])
    first = rows[0]
    assert (first.model, first.epoch, first.seed, first.n, first.classes) == ("tiny", 7, 3, 5, 2)
    assert (first.dataset, first.split, first.facet, first.norm) == ("squares", "val", "out", "final")
    assert (first.protocol, first.weights) == (
        "paper, learning rates 0.001 0.01, 10 epochs, batch size 4, fitted on train",
        train_store.weights_hash,
    )
    assert first.value > 60  # of 100: light and dark squares are easy even for a fresh backbone
    heads, info = load_heads(tmp_path / "heads.safetensors")
    assert info["classes"] == ["dark", "light"]
    matrix = ConfusionMatrix(2)
    for i in range(5):
        tokens = {b: val_store.tokens(b, i) for b in heads[-1].blocks}
        matrix.update(predict(heads[-1], tokens, val_store.grid(i), (40, 30)), val_set.label(i))
    wanted = next(r.value for r in rows if (r.block, r.metric, r.note) == ("1+2", "mIoU", ""))
    assert 100 * matrix.scores().miou == pytest.approx(wanted, abs=0.2)
    details = read_json(tmp_path / "probes.json")["probes"]
    assert [len(d["heldout_miou"]) for d in details] == [2, 2, 2]


def test_stores_that_do_not_belong_together(sets: dict, tmp_path: Path) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]
    config = ProbeConfig(epochs=1)
    foreign = FeatureStore.open(val_store.path)
    foreign.weights_hash = "0" * 64
    with pytest.raises(DataError, match="other weights"):
        evaluate(train_store, foreign, train_set, val_set, tmp_path, config, {})
    foreign = FeatureStore.open(val_store.path)
    foreign.norm = "none"
    with pytest.raises(DataError, match="norm differs"):
        evaluate(train_store, foreign, train_set, val_set, tmp_path, config, {})
    with pytest.raises(DataError, match="'val0' is not in squares train"):
        evaluate(train_store, val_store, train_set, train_set, tmp_path, config, {})
    assert not (tmp_path / "rows.json").exists()


def test_cropped_features_do_not_fit_labels(sets: dict) -> None:
    store, dataset = sets["val"]
    cropped = FeatureStore.open(store.path)
    cropped.transform = Transform(mode="center_crop", size=32)
    with pytest.raises(ConfigError, match="mode=square"):
        LabelledTokens.of(cropped, dataset)


def test_derived_norms_are_the_exported_ones(sets: dict, tmp_path: Path) -> None:
    """One store of norm none gives all norms, within what float16 rounds; heads of all are fitted together."""
    backbone: Backbone = sets["backbone"]
    stores = {
        (norm, split): export(
            backbone, sets[split][1], tmp_path / f"{norm}-{split}", "all", norm=norm, transform=Transform(size=32)
        )
        for norm in ("none", "final", "layer")
        for split in ("train", "val")
    }
    data = [sets[split][1] for split in ("train", "val")]
    config = ProbeConfig(epochs=4, learning_rates=(1e-2,), batch_size=4)
    (tmp_path / "out").mkdir()
    plain = [stores["none", split] for split in ("train", "val")]
    rows = evaluate(
        *plain,
        *data,
        tmp_path / "out",
        config,
        {},
        multiscale=(1, 2),
        norms=("none", "final", "layer"),
        backbone=backbone,
        device="cpu",
    )
    for norm in ("none", "final", "layer"):
        exported = stores[norm, "val"]
        if norm != "none":
            derived = Derived(plain[1].tokens(2), lambda x, norm=norm: backbone.normed(x, norm), CPU)
            have = derived[np.arange(5)]
            wanted = exported.tokens(2).astype(np.float32)
            assert derived.shape == wanted.shape
            np.testing.assert_allclose(have, wanted, rtol=2**-9, atol=2**-9 * np.abs(wanted).max())
        (tmp_path / norm).mkdir()
        how = {"multiscale": (1, 2), "device": "cpu"}
        alone = evaluate(stores[norm, "train"], exported, *data, tmp_path / norm, config, {}, **how)
        mine = [row for row in rows if row.norm == norm]
        assert [(r.block, r.metric, r.note) for r in mine] == [(r.block, r.metric, r.note) for r in alone[:-1]]
        np.testing.assert_allclose([r.value for r in mine], [r.value for r in alone[:-1]], atol=0.3)
    names = {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    assert names == {"heads.safetensors", "heads_final.safetensors", "heads_layer.safetensors"}


@pytest.mark.parametrize(
    ("norms", "with_backbone", "message"),
    [(("none", "layer"), True, "several norms need out of norm none"), (("final",), False, "final")],
)
def test_norms_that_cannot_be_derived(
    sets: dict, tmp_path: Path, norms: tuple[str, ...], with_backbone: bool, message: str
) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]
    arguments = (train_store, val_store, train_set, val_set, tmp_path, ProbeConfig(epochs=1), {})
    backbone = sets["backbone"] if with_backbone else None
    if norms == (val_store.norm,):
        assert evaluate(*arguments, norms=norms, device="cpu")[0].norm == message
        return
    with pytest.raises(ConfigError, match=message):
        evaluate(*arguments, norms=norms, backbone=backbone, device="cpu")


def test_seeds_are_fits_of_their_own_and_their_mean(sets: dict, tmp_path: Path) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]

    def fit(seed: int, seeds: int) -> list:
        config = ProbeConfig(iterations=5, learning_rates=(1e-2,), batch_size=4, seeds=seeds)
        return evaluate(train_store, val_store, train_set, val_set, tmp_path, config, {}, seed=seed, device="cpu")[:-1]

    three, alone = fit(4, 3), [fit(seed, 1) for seed in (4, 5, 6)]
    count = len(alone[0])
    assert len(three) == 4 * count
    for i in range(count):
        values = [rows[i].value for rows in alone]
        assert [three[count * (1 + k) + i].value for k in range(3)] == values
        assert [three[count * (1 + k) + i].seed for k in range(3)] == [4, 5, 6]
        assert three[i].value == pytest.approx(np.mean(values))
        assert three[i].deviation == pytest.approx(np.std(values, ddof=1))
        assert three[i].note == alone[0][i].note
        assert three[i].low is None
    assert three[0].shown == f"{three[0].value:.1f} ± {three[0].deviation:.1f}"


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
        for result in fit(train, val, learning_rates=(1e30,), **given):
            assert np.isnan([result.scores.miou, result.scores.aacc, result.best_scores.miou]).all()
            assert not result.areas.any()
    assert [record.getMessage() for record in caplog.records] == [
        f"probe: block {name}: every head has diverged; lower the learning rates" for name in ("1", "2", "1+2")
    ]
