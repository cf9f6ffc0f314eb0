"""Few labelled images: what is drawn, and what is reported of the draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from dinoskip.models import Backbone
from dinoskip.results.rows import EvalResult
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.keys import settings_for_key
from eval.labelled import LabelledTokens
from eval.metrics import scores_of_areas
from eval.retrieval import RetrievalConfig, remember, retrieve
from eval.retrieval.few import balanced_draw, draws, images_per_class
from eval.retrieval.task import TASK, RetrieveSection
from tests.eval.retrieval.test_evaluation import CPU, some_dataset
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("retrieve")


@pytest.mark.parametrize(
    ("images", "classes", "sizes"), [(10_582, 20, (1320, 160, 80)), (20_210, 150, (2550, 300, 150))]
)
def test_sizes_are_those_of_the_published_lists(images: int, classes: int, sizes: tuple[int, ...]) -> None:
    assert tuple(classes * images_per_class(images, classes, n) for n in (8, 64, 128)) == sizes


@given(seed=st.integers(0, 999), count=st.integers(20, 300), classes=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_draws_are_balanced_nested_and_of_ids_alone(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    has = rng.random((count, classes)) < rng.uniform(0.05, 0.9, classes)
    ids = [f"image{i}" for i in range(count)]
    drawn = balanced_draw(has, ids, (8, 16, 64), seed)
    assert set(drawn[64]) <= set(drawn[16]) <= set(drawn[8])
    for n, chosen in drawn.items():
        assert (np.diff(chosen) > 0).all()
        assert len(chosen) <= classes * images_per_class(count, classes, n)
        assert has[chosen].any(1).all(), "every image was taken for a class"
    together = balanced_draw(has, ids, (2, 4, 8, 16), seed)
    for n, chosen in together.items():
        assert (balanced_draw(has, ids, (n,), seed)[n] == chosen).all(), "whatever else is asked for"
    assert (together[16] == drawn[16]).all()
    order = rng.permutation(count)
    moved = balanced_draw(has[order], [ids[i] for i in order], (8,), seed)[8]
    assert sorted(order[moved]) == drawn[8].tolist(), "whatever order the list has"


def test_the_rarest_class_chooses_first() -> None:
    has = np.zeros((80, 2), dtype=np.bool_)
    has[:, 0] = True
    has[:5, 1] = True  # all of these have the frequent class, too
    for seed in range(20):
        chosen = balanced_draw(has, [f"{i}" for i in range(80)], (8,), seed)[8]
        assert len(chosen) == 10
        assert (chosen < 5).sum() == 5
    others = {tuple(balanced_draw(has, [f"{i}" for i in range(80)], (8,), seed)[8]) for seed in range(20)}
    assert len(others) == 20


def test_the_background_is_no_class_of_a_draw(tmp_path: Path) -> None:
    """All images have the background, four each of three classes: of 1/8 one image of each class."""
    names, ids = ("background", "cat", "dog", "cow"), tuple(f"image{i}" for i in range(24))
    pixels = np.zeros((24, 4), dtype=np.int64)
    pixels[:, 0] = 60
    for number in (1, 2, 3):
        pixels[8 * (number - 1) : 8 * number - 4, number] = 4
    dataset = SegmentationDataset(
        "sets", "train", ids, (tmp_path,) * 24, class_names=names, label_paths=(tmp_path,) * 24
    )
    for draw in draws(RetrievalConfig(few=(8,)), dataset, ids, pixels, {}):
        assert draw.part == "1/8 of train by class (3 images)"
        assert (pixels[draw.images, 1:] > 0).sum(0).tolist() == [1, 1, 1]


def test_settings() -> None:
    for tree, message in (
        ({"few": [1]}, "greater than or equal to 2"),
        ({"few": [8, 8]}, "twice|duplicate|once"),
        ({"draws": [1]}, "at least 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            validate(RetrievalConfig, RawConfig(tree))


Measured = tuple[Backbone, dict[str, FeatureStore], dict[str, SegmentationDataset]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    root = tmp_path_factory.mktemp("few")
    backbone = tiny_vit(8)
    sets = {split: some_dataset(root / "images", split, n) for split, n in (("train", 12), ("val", 4))}
    stores = {s: export(backbone, d, root / s, "all", transform=Transform(size=32)) for s, d in sets.items()}
    return backbone, stores, sets


def of_parts(rows: list[EvalResult]) -> dict[tuple[str, str, str], float]:
    scored = [row for row in rows if row.metric == "mIoU"]
    return {(row.protocol.partition(", of ")[2], row.block, row.note): row.value for row in scored}


def test_means_and_draws_of_one_export(measured: Measured, tmp_path: Path) -> None:
    backbone, stores, sets = measured
    config = RetrievalConfig(memory=60, k=5, few=(2, 4), draws=(7, 9, 11))
    without = config.model_copy(update={"few": ()})
    whole = evaluate(*stores.values(), *sets.values(), tmp_path / "all", without, {}, device="cpu")
    train, val = sets.values()
    config = RetrieveSection(**config.model_dump(), lists=("first", "second", "long"))
    data = train, train.part(range(2)), train.part(range(4, 6)), train.part(range(5)), val
    rows = evaluate(*stores.values(), *data, tmp_path / "few", config, {"model": "tiny"}, device="cpu")
    assert [replace(row, model="") for row in rows[: len(whole) - 1]] == whole[:-1], "all images: as without"
    values = of_parts(rows)
    part = "1/4 of train by class (4 images)"
    for block in "12":
        own = [values[part, block, f"seed {seed}"] for seed in config.draws]
        (mean,) = (row for row in rows if row.protocol.endswith(part) and row.block == block and not row.note)
        assert mean.value == pytest.approx(np.mean(own))
        assert mean.deviation == pytest.approx(np.std(own, ddof=1))
    (alone,) = (row for row in rows if row.protocol.endswith("lists of 5 images of train") and row.block == "1")
    assert (alone.note, alone.deviation) == ("", None)
    train, val = LabelledTokens.pair(*stores.values(), *sets.values())
    memory = remember(train, stores["train"].ids, 60, 0, np.arange(5))
    areas = retrieve(train, val, memory, 1, config, CPU)
    assert alone.value == pytest.approx(100 * scores_of_areas(areas.sum(0)).miou)
    assert set(np.bincount(memory.images)) == {12}, "the memory is divided among the images of the list"
    assert {row.note for row in rows if "lists of 2" in row.protocol} == {"", "first, seed 1", "second, seed 2"}
    settings = ExportSettings("all", batch_size=2, transform=Transform(size=32))
    windows = FeatureWindows(backbone, sets["train"], settings, limit=5)
    out = tmp_path / "windows"
    again = evaluate(windows, stores["val"], *data, out, config, {"model": "tiny"}, device="cpu")
    assert again == rows, "the same numbers, to the last bit, from one pass without a store"


def test_what_cannot_be_drawn_is_said(measured: Measured, tmp_path: Path) -> None:
    _, stores, sets = measured
    config = RetrieveSection(memory=60, k=5, lists=("other",))
    with pytest.raises(DataError, match="list other: image 'val0' is not in squares train"):
        evaluate(
            *stores.values(), sets["train"], sets["val"].part([0]), sets["val"], tmp_path, config, {}, device="cpu"
        )
    small = RetrievalConfig(memory=60, k=40, few=(12,))
    with pytest.raises(ConfigError, match="k: 40 neighbours were asked of 32 remembered patches"):
        evaluate(*stores.values(), *sets.values(), tmp_path, small, {}, device="cpu")


def test_lists_are_splits_and_the_key_without_them_is_as_it_was() -> None:
    section = RetrieveSection(datasets=("voc",), lists=("a", "b"))
    assert list(TASK.splits(section).values()) == ["train", "a", "b", "val"]
    assert not {"few", "draws", "lists"} & settings_for_key(RetrieveSection(datasets=("voc",))).keys()
