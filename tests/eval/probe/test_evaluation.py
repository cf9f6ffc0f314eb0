"""Linear probes on stores of a tiny backbone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.io.files import read_json, write_json
from dinoskip.io.output import own_folder
from dinoskip.models import Backbone
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows
from dinoskip.results.statistics import score
from dinoskip.settings.tasks import FloorInputs
from eval.labelled import LabelledTokens, TokensUnderNorm
from eval.metrics import ConfusionMatrix
from eval.probe import ProbeConfig, make_floor
from eval.probe.heads import load_heads, predict
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("probe")

CPU = torch.device("cpu")


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
    backbone = tiny_vit(8)
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
    assert {(row.note, row.selected) for row in rows[:-1]} == {("", "held out"), ("best on validation", "shown")}
    assert rows[-1].selected == "fixed"
    floor = rows[-1]
    labels, pixels = [val_set.label(i) for i in range(5)], ConfusionMatrix(2)
    commonest = int(np.bincount(np.concatenate([train_set.label(i).ravel() for i in range(12)]))[:2].argmax())
    for label in labels:
        pixels.update(np.full_like(label, commonest), label)
    assert (floor.model, floor.value) == ("baseline: majority class", 100 * pixels.scores().miou)
    assert all(row.low is not None and row.low <= row.value <= row.high for row in rows[:-1:4])
    records = read_records(tmp_path)
    assert [(row.block, row.note) for row in records] == [("1", ""), ("2", ""), ("1+2", ""), ("", "")]
    assert {one.ids for one in records.values()} == {val_store.ids}
    assert all(100 * score(one.values) == pytest.approx(row.value) for row, one in records.items())
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
    for detail, row in zip(details, list(records)[:3], strict=True):
        assert row.heldout == pytest.approx(100 * max(detail["heldout_miou"]))
    tokens = torch.from_numpy(np.array(val_store.tokens(2), dtype=np.float32))
    assert [row.token_cosine is None for row in list(records)[:3]] == [False, False, True]
    assert list(records)[1].token_cosine == pytest.approx(token_cosine(tokens), abs=1e-6)


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
            derived = TokensUnderNorm(plain[1].tokens(2), lambda x, norm=norm: backbone.normed(x, norm), CPU)
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
    [(("none", "layer"), True, "several norms need out or a branch of norm none"), (("final",), False, "final")],
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
        held = [rows[i].heldout for rows in alone]
        assert three[i].heldout == (None if None in held else pytest.approx(np.mean(held)))
    assert three[0].shown == f"{three[0].value:.1f} ± {three[0].deviation:.1f}"


def test_pixels_are_baselines_and_change_no_other_row(sets: dict, tmp_path: Path) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]
    settings = {"epochs": 20, "learning_rates": (1e-3, 1e-2), "batch_size": 4}
    without, rows = (
        evaluate(
            train_store, val_store, train_set, val_set, tmp_path / str(pixels),
            ProbeConfig(**settings, pixels=pixels), {"model": "tiny"}, device="cpu",
        )
        for pixels in (False, True)
    )  # fmt: skip
    assert rows[: len(without)] == without
    colours, patch = rows[len(without) :]
    assert [row.model for row in (colours, patch)] == ["baseline: colours", "baseline: random patch"]
    assert colours.is_baseline
    assert colours.low is not None
    assert colours.low <= colours.value <= (colours.high or 0)
    assert colours.value > 80  # bright and dark squares: colour is the class
    assert (tmp_path / "True" / "records.npz").is_file()


def test_pixels_that_were_fitted_before_give_the_same_bytes(sets: dict, tmp_path: Path) -> None:
    (train_store, train_set), (val_store, val_set) = sets["train"], sets["val"]
    config = ProbeConfig(epochs=3, learning_rates=(1e-3, 1e-2), batch_size=4, pixels=True)
    made, other = tmp_path / "made", tmp_path / "other"
    labels = {"train": train_set, "val": val_set}
    transforms = dict.fromkeys(labels, train_store.transform)
    make_floor(FloorInputs(config, labels, transforms, train_store.patch_size, own_folder(made), device="cpu"))
    write_json(own_folder(other) / "floor.json", {"ids": {"train": [], "val": list(val_store.ids)}})
    for name, floor in (("own", None), ("read", made), ("of other images", other)):
        given = (train_store, val_store, train_set, val_set, tmp_path / name, config, {"model": "tiny"})
        evaluate(*given, device="cpu", floor=floor)
    assert contents(tmp_path / "own") == contents(tmp_path / "read") == contents(tmp_path / "of other images")


def test_pixels_are_of_whole_images() -> None:
    with pytest.raises(ValueError, match="pixels needs live=false"):
        ProbeConfig(live=True, pixels=True)
