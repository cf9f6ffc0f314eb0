"""Clusters over stores of a tiny backbone, against maps made one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.decisions.cross_fitting import SPLITS
from dinoskip.errors import ConfigError
from dinoskip.features import ExportSettings, FeatureSet, FeatureStore, FeatureWindows, Transform, export
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip.results.statistics import score
from dinoskip.runtime.randomness import numpy_rng
from dinoskip_dense.cluster import ClusteringConfig, confusion, kmeans_clustering, match
from dinoskip_dense.cluster.evaluation import scored_label
from eval.metrics import ConfusionMatrix
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("cluster")

CONTEXT = {"model": "tiny", "seed": 3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> SegmentationDataset:
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    ids = tuple("dbca")
    for name in ids:
        label = rng.integers(0, 3, (3, 2)).repeat(15, 0).repeat(20, 1).astype(np.uint8)
        pixels = np.eye(3)[label] * 200 + rng.integers(0, 50, (45, 40, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{name}.png")
        label[20:23] = 255
        Image.fromarray(label).save(root / f"{name}_mask.png")
    paths, masks = (tuple(root / f"{name}{end}.png" for name in ids) for end in ("", "_mask"))
    return SegmentationDataset("toy", "val", ids, paths, masks, class_names=("red", "green", "blue"))


def store_of(dataset: SegmentationDataset, out: Path, config: ClusteringConfig, part: str = "val") -> FeatureStore:
    backbone = tiny_vit(8)
    transform = Transform.model_validate(config.transform("train" if part == "train" else "val"))
    return export(backbone, dataset, out, "all", "out", "final", "float32", transform=transform)


def run(
    store: FeatureStore,
    dataset: SegmentationDataset,
    out: Path,
    config: ClusteringConfig,
    fit: FeatureSet | None = None,
) -> list[EvalResult]:
    features = (fit or store, store) if config.fitted_on == "train" else (store,)
    return evaluate(*features, dataset, out, config, CONTEXT, seed=3)


def test_every_block_equals_maps_made_one_by_one(dataset: SegmentationDataset, tmp_path: Path) -> None:
    config = ClusteringConfig(size=32, clusters=(3, 5))
    store = store_of(dataset, tmp_path / "store", config)
    rows = run(store, dataset, tmp_path / "out", config)
    assert read_rows(tmp_path / "out" / "rows.json") == rows
    assert [(row.metric, row.block) for row in rows] == [
        *[(metric, block) for _ in range(2) for block in "12" for metric in ("mIoU", "mAcc", "aAcc")],
        ("mIoU", ""),
    ]
    records = read_records(tmp_path / "out")
    assert all(100 * score(one.values) == pytest.approx(row.value) for row, one in records.items())
    labels = [dataset.label(i) for i in range(4)]
    for row in rows[:-1:3]:
        clusters = int(row.protocol.rpartition(", ")[2].split()[0])
        assert row.protocol == f"ours, matched on other images, fitted on train, {clusters} clusters"
        clustering = kmeans_clustering(store.tokens(int(row.block)), clusters, config, 3, int(row.block))
        maps = []
        for i, label in enumerate(labels):
            scores = clustering.scores(torch.from_numpy(store.tokens(int(row.block), i))).T.view(1, clusters, 4, 4)
            wide = torch.nn.functional.interpolate(scores, label.shape, mode="bilinear", align_corners=False)
            maps.append(wide[0].argmax(0).numpy())
        counts = sum(confusion(*pair, (clusters, 3)) for pair in zip(maps, labels, strict=True))
        assert isinstance(counts, np.ndarray)
        matrix, rng = ConfusionMatrix(3), numpy_rng(3, "matching", 4)
        for order in (rng.permutation(4).tolist() for _ in range(SPLITS)):
            for half, other in ((order[:2], order[2:]), (order[2:], order[:2])):
                apart = match(np.sum([confusion(maps[i], labels[i], (clusters, 3)) for i in other], axis=0))
                for i in half:
                    matrix.update(apart[maps[i]], labels[i])
        assert row.value == pytest.approx(100 * matrix.scores().miou, abs=1e-9)
        if clusters == 3:
            written = json.loads((tmp_path / "out" / "clusters.json").read_text())
            assert written[row.block] == match(counts).tolist()
    assert rows[0].resolution == "32 square, scored at label size"
    assert rows[-1].model == "baseline: one cluster"
    assert [row.selected for row in rows] == ["cross-fitted"] * (len(rows) - 1) + ["fixed"]
    commonest = max(np.bincount(np.concatenate(labels).ravel())[:3])
    known = sum(int((label != 255).sum()) for label in labels)
    assert rows[-1].value == pytest.approx(100 * commonest / known / 3)
    stored = np.load(tmp_path / "out" / "clusters_block2.npy")
    assert stored.shape == (4, 4, 4)
    assert stored.max() < 3


def test_windows_give_the_files_of_a_store(dataset: SegmentationDataset, tmp_path: Path) -> None:
    config = ClusteringConfig(size=32, clusters=(2, 3), points=9, seeds=2)
    store = store_of(dataset, tmp_path / "features", config)
    settings = ExportSettings("all", dtype="float32", batch_size=3, transform=store.transform)
    windows = FeatureWindows(tiny_vit(8), dataset, settings, limit=1)
    assert len(windows.windows()) == 2
    run(store, dataset, tmp_path / "store", config)
    run(store, dataset, tmp_path / "windows", config, windows)
    assert contents(tmp_path / "windows") == contents(tmp_path / "store")
    whole = ClusteringConfig(size=32, scale="standard")
    assert config.passes_once
    assert not whole.passes_once
    with pytest.raises(ConfigError, match="need features that are stored"):
        run(store, dataset, tmp_path / "no", whole, windows)


def test_several_seeds_have_their_mean_first(dataset: SegmentationDataset, tmp_path: Path) -> None:
    config = ClusteringConfig(protocol="leopart", size=32, scored_at=10, pca=6, seeds=2)
    store = store_of(dataset, tmp_path / "store", config)
    rows = run(store, dataset, tmp_path / "out", config)
    means, seeds = rows[:6], rows[6:-1]
    assert [row.note for row in seeds] == ["seed 3"] * 6 + ["seed 4"] * 6
    for mean, one, other in zip(means, seeds[:6], seeds[6:], strict=True):
        assert mean.value == pytest.approx((one.value + other.value) / 2)
        assert mean.deviation is not None
    assert rows[0].resolution == "32 square, bilinear, scored at 10 square"


def test_crops_are_scored_as_cropped(dataset: SegmentationDataset, tmp_path: Path) -> None:
    config = ClusteringConfig(protocol="stego", size=32, steps=3, batch_size=2)
    store, fit = store_of(dataset, tmp_path / "val", config), store_of(dataset, tmp_path / "train", config, "train")
    rows = run(store, dataset, tmp_path / "out", config, fit)
    assert (rows[0].protocol, rows[0].resolution) == (
        "stego, steps 3, batch size 2, fitted on train, 3 clusters",
        "32 short_crop, nearest, flip, scored at the crop's size",
    )
    assert {row.selected for row in rows[:-1]} == {"shown"}, "as published, matched on the images reported"
    label = scored_label(dataset.label(0), config)
    picture = Image.open(dataset.label_paths[0]).resize((32, 36), Image.Resampling.NEAREST).crop((0, 2, 32, 34))
    np.testing.assert_array_equal(label, np.asarray(picture))
    with pytest.raises(ConfigError, match="export with 224 short_crop, nearest"):
        run(store, dataset, tmp_path / "other", config)


def test_labels_are_brought_to_size_as_the_reference_does(dataset: SegmentationDataset) -> None:
    config = ClusteringConfig(protocol="leopart", size=32, scored_at=10)
    first = np.array(Image.fromarray(dataset.label(1)).resize((32, 32), Image.Resampling.NEAREST))
    wanted = torch.nn.functional.interpolate(torch.from_numpy(first)[None, None].float(), size=(10, 10), mode="nearest")
    np.testing.assert_array_equal(scored_label(dataset.label(1), config), wanted[0, 0].numpy())
    assert scored_label(dataset.label(1), replace_size(config)).shape == dataset.label(1).shape


def replace_size(config: ClusteringConfig) -> ClusteringConfig:
    return ClusteringConfig(size=config.size)


def test_names_of_images_must_be_known(dataset: SegmentationDataset, tmp_path: Path) -> None:
    config = ClusteringConfig(size=32)
    store = store_of(dataset, tmp_path / "store", config)
    rows = run(store, dataset, tmp_path / "out", config)
    turned = replace(
        dataset, ids=dataset.ids[::-1], image_paths=dataset.image_paths[::-1], label_paths=dataset.label_paths[::-1]
    )
    assert run(store, turned, tmp_path / "other", config) == rows
