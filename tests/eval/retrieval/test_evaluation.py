"""Dense retrieval against NumPy in float64, pixel counting, and over stores of a tiny backbone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import eval.retrieval.evaluation as evaluation
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from dinoskip.io.parts import ALONE, Parts
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows
from dinoskip.results.statistics import score
from eval.labelled import LabelledTokens
from eval.metrics import ConfusionMatrix
from eval.retrieval import Memory, RetrievalConfig, remember, retrieve
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("retrieve")

CPU = torch.device("cpu")


GRID, CLASSES, DIM = (3, 4), 4, 5


def made_up(count: int, seed: int) -> LabelledTokens:
    """Random tokens of one block and random label maps of two sizes, with ignored pixels."""
    rng = np.random.default_rng(seed)
    tokens = {1: rng.standard_normal((count, 12, DIM)).astype(np.float16)}
    labels = [rng.choice([0, 1, 2, 255], (9 + i % 2, 10)).astype(np.uint8) for i in range(count)]
    return LabelledTokens(tokens, lambda i: labels[i], GRID, CLASSES, count)


def brute_areas(train: LabelledTokens, val: LabelledTokens, memory: Memory, config: RetrievalConfig) -> np.ndarray:
    def unit(tokens: np.ndarray) -> np.ndarray:
        values = tokens.astype(np.float64)
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    keys = unit(np.asarray(train.tokens[1]))[memory.images, memory.patches]
    areas = []
    for i in range(val.count):
        cosines = unit(np.asarray(val.tokens[1][i])) @ keys.T
        mixes = []
        for row in cosines:
            best = np.argsort(-row)[: config.k]
            weights = np.exp((row[best] - row[best[0]]) / config.temperature)
            mixes.append(weights / weights.sum() @ memory.labels[best].astype(np.float64))
        z = torch.from_numpy(np.array(mixes)).T.reshape(1, CLASSES, *GRID)
        label = val.label(i)
        wide = torch.nn.functional.interpolate(z, label.shape, mode="bilinear", align_corners=False)
        matrix = ConfusionMatrix(CLASSES)
        matrix.update(wide[0].argmax(0), label)
        areas.append(matrix.areas)
    return np.array(areas)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.02), (7, 0.02), (30, 0.3)])
def test_equals_brute_force_whatever_is_read_at_once(
    k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, val = made_up(5, 0), made_up(4, 1)
    config = RetrievalConfig(k=k, temperature=temperature, memory=50)
    memory = remember(train, [f"{i}" for i in range(5)], config.memory, seed=0)
    wanted = brute_areas(train, val, memory, config)
    assert (retrieve(train, val, memory, 1, config, CPU) == wanted).all()
    monkeypatch.setattr(evaluation, "BATCH_VALUES", 12 * DIM)  # an image at a time
    assert (retrieve(train, val, memory, 1, config, CPU) == wanted).all()
    cells = RetrievalConfig(k=k, temperature=temperature, memory=50, index="ivf")
    assert (retrieve(train, val, memory, 1, cells, CPU) == wanted).all()  # fewer cells than are searched: exact


def some_dataset(root: Path, split: str, count: int) -> SegmentationDataset:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(count)
    names = [f"{split}{i}" for i in range(count)]
    for name in names:
        label = rng.integers(0, 2, (2, 2)).repeat(20, 0).repeat(15, 1).astype(np.uint8)
        noise = rng.integers(0, 40, (40, 30, 3))
        Image.fromarray((noise + 200 * label[..., None]).astype(np.uint8)).save(root / f"{name}.png")
        Image.fromarray(label).save(root / f"{name}_mask.png")
    paths, masks = (tuple(root / f"{name}{end}.png" for name in names) for end in ("", "_mask"))
    return SegmentationDataset("squares", split, tuple(names), paths, masks, class_names=("dark", "light"))


@pytest.mark.parametrize("windows", [False, True])
def test_parts_of_several_processes_are_the_files_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool
) -> None:
    backbone, square = tiny_vit(8), Transform(size=32)
    sets = {split: some_dataset(tmp_path / "images", split, n) for split, n in (("train", 6), ("val", 4))}
    train, val = (export(backbone, d, tmp_path / s, "all", transform=square) for s, d in sets.items())
    if windows:
        train = FeatureWindows(backbone, sets["train"], ExportSettings("all", batch_size=2, transform=square), limit=1)
    monkeypatch.setattr(evaluation, "BATCH_VALUES", 2 * 16 * 192)  # two images
    monkeypatch.setattr(evaluation, "IMAGES", 3)
    config = RetrievalConfig(memory=60, k=3, few=(2,), draws=(1, 2))

    def found(out: Path, parts: Parts) -> object:
        return evaluate(train, val, *sets.values(), out, config, {}, seed=3, device="cpu", parts=parts)

    found(tmp_path / "alone", ALONE)
    assert contents(in_parts(found, tmp_path)) == contents(tmp_path / "alone")


def test_evaluate_labels_by_every_block(tmp_path: Path) -> None:
    backbone = tiny_vit(8)
    sets = {split: some_dataset(tmp_path / "images", split, n) for split, n in (("train", 6), ("val", 4))}
    stores = {s: export(backbone, d, tmp_path / s, "all", transform=Transform(size=32)) for s, d in sets.items()}
    config = RetrievalConfig(memory=60, k=5)
    context = {"model": "tiny", "epoch": 7, "seed": 3}
    rows = evaluate(*stores.values(), *sets.values(), tmp_path / "out", config, context, seed=3, device="cpu")
    assert read_rows(tmp_path / "out" / "rows.json") == rows
    assert [(row.block, row.metric) for row in rows] == [
        *((block, metric) for block in "12" for metric in ("mIoU", "mAcc", "aAcc")),
        ("", "mIoU"),
    ]
    first, floor = rows[0], rows[-1]
    assert (first.task, first.model, first.dataset, first.split, first.n) == ("retrieve", "tiny", "squares", "val", 4)
    assert first.protocol == "hummingbird, memory 60, k 5, temperature 0.02, of train"
    assert (first.weights, first.seed, first.classes) == (stores["val"].weights_hash, 3, 2)
    assert first.value > 60  # light and dark squares are easy even for a fresh backbone
    assert first.low is not None
    assert first.low <= first.value <= first.high
    assert floor.model == "baseline: majority class"
    assert floor.value < first.value
    records = read_records(tmp_path / "out")
    assert [row.block for row in records] == ["1", "2", ""]
    assert all(100 * score(one.values) == pytest.approx(row.value) for row, one in records.items())
    tokens = torch.from_numpy(np.array(stores["val"].tokens(1), dtype=np.float32))
    assert first.token_cosine == pytest.approx(token_cosine(tokens), abs=1e-6)
    settings = ExportSettings("all", batch_size=2, transform=Transform(size=32))
    windows = FeatureWindows(backbone, sets["train"], settings, limit=1)
    again = evaluate(
        windows, stores["val"], *sets.values(), tmp_path / "windows", config, context, seed=3, device="cpu"
    )
    assert again == rows, "the same numbers, to the last bit, without a training store"
    assert sorted(path.name for path in (tmp_path / "windows").iterdir()) == ["records.npz", "rows.json"]
    few = RetrievalConfig(memory=10**4, k=99)
    with pytest.raises(ConfigError, match="k: 99 neighbours were asked of 96 remembered patches"):
        evaluate(*stores.values(), *sets.values(), tmp_path, few, {}, device="cpu")
    foreign = FeatureStore.open(stores["val"].path)
    foreign.weights_hash = "0" * 64
    with pytest.raises(DataError, match="weights_hash differs"):
        evaluate(stores["train"], foreign, *sets.values(), tmp_path, config, {}, device="cpu")
