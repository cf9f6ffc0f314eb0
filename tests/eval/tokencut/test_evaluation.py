"""TokenCut and LOST over a small real feature store."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

import eval.resumed
import eval.tokencut.evaluation
import eval.tokencut.store
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from dinoskip.features.transform import Normalise
from dinoskip.io.images import read_image
from dinoskip.io.output import own_folder
from dinoskip.io.parts import ALONE, Parts
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows
from dinoskip.results.statistics import clopper_pearson
from dinoskip.runtime.arithmetic import kernels
from dinoskip.settings.tasks import FloorInputs
from eval.coco_results import coco_image_id
from eval.discovery import is_hit
from eval.pixels import pixel_tokens
from eval.tokencut import TokenCut, TokenCutConfig, make_floor, to_pixels, tokencut
from eval.tokencut.config import ObjectDinoConfig
from eval.tokencut.heads import HeadBoxes
from eval.tokencut.lost import lost
from eval.tokencut.object_dino import object_dino
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("tokencut")

SIZES = ((40, 56), (64, 33), (24, 24), (41, 80))


@dataclass
class Boxes:
    root: Path
    ids: tuple[str, ...] = ("b", "a", "d", "c")
    name: str = "toy"
    split: str = "val"

    def path(self, index: int) -> Path:
        return self.root / f"{self.ids[index]}.png"

    def boxes(self, index: int) -> np.ndarray:
        height, width = SIZES[("b", "a", "d", "c").index(self.ids[index])]
        if index == 2:
            return np.zeros((0, 4), dtype=np.float32)
        return np.array([[0, 0, 1, 1], [0, 0, width, height]], dtype=np.float32)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    boxes = Boxes(tmp_path_factory.mktemp("images"))
    rng = np.random.default_rng(0)
    for index, (height, width) in enumerate(SIZES):
        pixels = rng.integers(0, 60, (height, width, 3), dtype=np.uint8)
        pixels[: height // 2, : width // 2] += 150
        Image.fromarray(pixels).save(boxes.path(index))
    return boxes


def windows_of(dataset: Boxes) -> FeatureWindows:
    """A window an image."""
    settings = ExportSettings("all", "key", "none", "float32", transform=Transform(mode="native"))
    return FeatureWindows(tiny_vit(8), dataset, settings, limit=1)


def store_of(dataset: Boxes, out: Path, mode: str = "native") -> FeatureStore:
    backbone = tiny_vit(8)
    transform = Transform.model_validate({"mode": mode, "size": 32})
    return export(backbone, dataset, out, "all", facet="key", norm="none", dtype="float32", transform=transform)


@pytest.fixture(scope="module")
def store(dataset: Boxes, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return store_of(dataset, tmp_path_factory.mktemp("stores") / "native")


@pytest.mark.parametrize("positions", ["keep", "mean"])
@pytest.mark.parametrize("windows", [False, True])
def test_parts_of_several_processes_are_the_files_of_one(
    dataset: Boxes, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool, positions: str
) -> None:
    monkeypatch.setattr(eval.resumed, "IMAGES", 1)
    config = TokenCutConfig.model_validate({"positions": positions, "lost_k": 5, "coco": True})
    features = windows_of(dataset) if windows else store

    def found(out: Path, parts: Parts) -> object:
        return evaluate(features, dataset, out, config, {}, multiscale=(1, 2), device="cpu", parts=parts)

    found(tmp_path / "alone", ALONE)
    assert contents(in_parts(found, tmp_path)) == contents(tmp_path / "alone")


def test_evaluate_writes_what_tokencut_finds(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    config, context = TokenCutConfig(), {"model": "tiny", "seed": 3}
    rows = evaluate(store, dataset, tmp_path, config, context, multiscale=(1, 2))
    assert read_rows(tmp_path / "rows.json") == rows
    assert {row.kernels for row in rows} == {kernels()}
    floor = rows[3:]
    assert [row.model for row in floor] == ["baseline: full image", "baseline: centre box"]
    # image d has no box, the others one that is the whole image
    assert [row.value for row in floor] == [75.0, 0.0]
    assert {(row.block, row.weights, row.facet, row.n) for row in floor} == {("", "", "", 4)}
    rows = rows[:3]
    assert [row.block for row in rows] == ["1", "2", "1+2"]
    assert all(row.low is not None and row.high is not None and row.low <= row.value <= row.high for row in rows)
    assert {(row.metric, row.task, row.model, row.seed, row.n, row.facet) for row in rows} == {
        ("CorLoc", "tokencut", "tiny", 3, 4, "key")
    }
    assert {(row.dataset, row.split, row.resolution, row.weights) for row in rows} == {
        ("toy", "val", "native", store.weights_hash)
    }
    boxes = json.loads((tmp_path / "boxes.json").read_text())
    seeds = json.loads((tmp_path / "seeds.json").read_text())
    for block in (1, 2):
        vectors = np.load(tmp_path / f"vectors_block{block}.npy")
        masks = np.load(tmp_path / f"masks_block{block}.npy")
        assert vectors.dtype == np.float16
        assert masks.dtype == bool
        start = 0
        for index, name in enumerate(store.ids):
            cut = tokencut(store.tokens(block, index), store.grid(index))
            assert isinstance(cut, TokenCut)
            assert boxes[name][str(block)] == list(to_pixels(cut.box, 8, SIZES[index]))
            assert seeds[name][str(block)] == cut.seed
            stop = start + cut.mask.size
            assert (masks[start:stop] == cut.mask.ravel()).all()
            assert vectors[start + cut.seed] == 1
            np.testing.assert_allclose(vectors[start:stop], cut.eigenvector / np.abs(cut.eigenvector).max(), atol=1e-3)
            start = stop
        assert start == len(masks) == len(vectors)
        found = [boxes[name][str(block)] for name in store.ids]
        truth = [dataset.boxes(index) for index in range(4)]
        assert rows[block - 1].value == 100 * np.mean([is_hit(*pair) for pair in zip(found, truth, strict=True)])


def test_coco_reads_boxes_and_masks(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    """pycocotools loads them, and its boxes and pixels are those of the other files."""
    evaluate(store, dataset, tmp_path / "out", TokenCutConfig(coco=True), {})
    boxes = json.loads((tmp_path / "out" / "boxes.json").read_text())
    images = [
        {"id": coco_image_id(name), "height": SIZES[i][0], "width": SIZES[i][1], "file_name": name}
        for i, name in enumerate(store.ids)
    ]
    known = {"images": images, "categories": [{"id": 1, "name": "object"}], "annotations": []}
    (tmp_path / "truth.json").write_text(json.dumps(known))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "truth.json"))
        loaded = truth.loadRes(str(tmp_path / "out" / "coco_block2.json"))
    masks, start = np.load(tmp_path / "out" / "masks_block2.npy"), 0
    for index, name in enumerate(store.ids):
        rows, columns = store.grid(index)
        mask = masks[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        found = loaded.loadAnns(loaded.getAnnIds(imgIds=[coco_image_id(name)]))
        x1, y1, x2, y2 = boxes[name]["2"]
        if x1 < 0:
            assert not found
            continue
        assert [one["bbox"] for one in found] == [[x1, y1, x2 - x1, y2 - y1]]
        decoded = loaded.annToMask(found[0])
        assert decoded.shape == SIZES[index]
        for row, column in itertools.product(range(rows), range(columns)):
            patch = decoded[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
            assert (patch == mask[row, column]).all()


@pytest.mark.parametrize(
    ("name", "number"), [("000000000139", 139), ("val2017/000000000139.jpg", 139), ("2007_000027", "2007_000027")]
)
def test_image_ids_of_coco(name: str, number: int | str) -> None:
    assert coco_image_id(name) == number


def test_windows_give_the_files_of_a_store(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    config = TokenCutConfig(tau=(0.2, 0.1), lost_k=10, overlays=2)
    evaluate(store, dataset, tmp_path / "store", config, {}, multiscale=(1, 2))
    evaluate(windows_of(dataset), dataset, tmp_path / "windows", config, {}, multiscale=(1, 2))
    there = contents(tmp_path / "store")
    assert contents(tmp_path / "windows") == there
    assert {"rows.json", "records.npz", "boxes_multiscale.json", "masks_block2.npy"} < set(there)
    assert not any("progress" in name for name in there)


def test_windows_continue_after_the_last_whole_one(
    dataset: Boxes, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, cut = eval.tokencut.evaluation.cut_store, []

    def stopped(part: FeatureStore, *args: object) -> object:
        cut.append(part.ids)
        if len(cut) == 3:
            raise KeyboardInterrupt
        return original(part, *args)

    monkeypatch.setattr(eval.tokencut.evaluation, "cut_store", stopped)
    config, out = TokenCutConfig(), tmp_path / "windows"
    with pytest.raises(KeyboardInterrupt):
        evaluate(windows_of(dataset), dataset, out, config, {})
    evaluate(windows_of(dataset), dataset, out, config, {})
    assert cut[3] == cut[2], "the window that was stopped, then the one after it"
    assert len(cut) == 3 + 2
    evaluate(store, dataset, tmp_path / "store", config, {})
    assert contents(out) == contents(tmp_path / "store")


def test_work_of_other_settings_is_begun_again(dataset: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(eval.resumed.ResumedArrays, "finish", interrupted)  # all is cut, nothing published
        with pytest.raises(KeyboardInterrupt):
            evaluate(windows_of(dataset), dataset, tmp_path / "one", TokenCutConfig(tau=(0.9,)), {})
    evaluate(windows_of(dataset), dataset, tmp_path / "one", TokenCutConfig(), {})
    evaluate(windows_of(dataset), dataset, tmp_path / "two", TokenCutConfig(), {})
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_multiscale_is_the_mean_similarity(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    evaluate(store, dataset, tmp_path, TokenCutConfig(), {}, multiscale=(1, 2))
    boxes = json.loads((tmp_path / "boxes_multiscale.json").read_text())
    for index, name in enumerate(store.ids):
        units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (store.tokens(b, index) for b in (1, 2))]
        mean = sum(unit.astype(np.float64) @ unit.T for unit in units) / 2
        values, vectors = np.linalg.eigh(mean)  # any features with these inner products will do
        cut = tokencut(vectors * np.sqrt(np.clip(values, 0, None)), store.grid(index))
        assert isinstance(cut, TokenCut)
        assert boxes[name] == list(to_pixels(cut.box, 8, SIZES[index]))


def test_several_taus_and_lost_are_rows_and_files_beside_the_first(
    dataset: Boxes, store: FeatureStore, tmp_path: Path
) -> None:
    config = TokenCutConfig(tau=(0.2, 0.6), lost_k=5)
    rows = evaluate(store, dataset, tmp_path / "all", config, {}, multiscale=(1, 2))
    alone = evaluate(store, dataset, tmp_path / "one", TokenCutConfig(), {}, multiscale=(1, 2))
    other = evaluate(store, dataset, tmp_path / "other", TokenCutConfig(tau=(0.6,)), {}, multiscale=(1, 2), workers=1)
    assert rows[:6] == alone[:3] + other[:3]
    assert [(row.protocol, row.block) for row in rows[6:9]] == [("lost k=5", block) for block in ("1", "2", "1+2")]
    assert rows[9:] == alone[3:]  # the baselines, once
    for name in (
        "boxes.json",
        "seeds.json",
        "ties.json",
        "boxes_multiscale.json",
        "vectors_block1.npy",
        "masks_block2.npy",
    ):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    second = json.loads((tmp_path / "all" / "boxes_tau0.6.json").read_text())
    single = json.loads((tmp_path / "other" / "boxes.json").read_text())
    assert {name: {b: box for b, box in boxes.items() if b.isdigit()} for name, boxes in second.items()} == single
    found = json.loads((tmp_path / "all" / "boxes_lost.json").read_text())
    for index, name in enumerate(store.ids):
        expected = lost(store.tokens(2, index), store.grid(index), 5)
        assert found[name]["2"] == list(to_pixels(expected.box, 8, SIZES[index]))
        assert set(found[name]) == {"1", "2", "1+2"}


def test_taus_that_are_nearly_equal_have_rows_and_files_of_their_own(
    dataset: Boxes, store: FeatureStore, tmp_path: Path
) -> None:
    rows = evaluate(store, dataset, tmp_path, TokenCutConfig(tau=(0.0, 0.2, 0.20000001)), {})
    assert list(dict.fromkeys(row.protocol.split()[1] for row in rows[:6])) == ["tau=0", "tau=0.2", "tau=0.20000001"]
    assert {path.name for path in tmp_path.glob("boxes_*")} == {"boxes_tau0.2.json", "boxes_tau0.20000001.json"}


def test_batches_of_images_and_blocks_find_the_same(
    store: FeatureStore, dataset: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TokenCutConfig(tau=(0.2, 0.5), lost_k=100)
    expected = evaluate(store, dataset, tmp_path / "1", config, {}, multiscale=(1, 2))
    monkeypatch.setattr(eval.tokencut.store, "batch_size", lambda *_: 3)
    monkeypatch.setattr(eval.tokencut.store, "in_batches", lambda _: True)
    assert evaluate(store, dataset, tmp_path / "2", config, {}, multiscale=(1, 2)) == expected
    for file in (tmp_path / "1").glob("*.json"):
        assert file.read_text() == (tmp_path / "2" / file.name).read_text()


def test_overlays_show_mask_box_and_truth(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    evaluate(store, dataset, tmp_path, TokenCutConfig(overlays=2), {})
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == [
        f"overlays/block{block}/{name}.png" for block in (1, 2) for name in ("0001_b", "0002_a")
    ]
    picture = read_image(tmp_path / "overlays" / "block2" / "0001_b.png")
    assert picture.shape == (*SIZES[0], 3)
    x1, y1, _, _ = json.loads((tmp_path / "boxes.json").read_text())["b"]["2"]
    assert tuple(picture[y1, x1]) == (255, 140, 0)
    assert tuple(picture[-1, -1]) in {(0, 200, 255), (255, 140, 0)}  # the truth is the whole image


def test_an_image_too_small_to_cut_is_boxed_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Small(Boxes):
        ids: tuple[str, ...] = ("s",)

        def boxes(self, index: int) -> np.ndarray:
            return np.array([[0, 0, 12, 8]], dtype=np.float32)

    small = Small(tmp_path, ("s",))
    Image.fromarray(np.zeros((8, 12, 3), dtype=np.uint8)).save(small.path(0))
    with caplog.at_level("WARNING", logger="dinoskip"):
        rows = evaluate(store_of(small, tmp_path / "store"), small, tmp_path / "out", TokenCutConfig(lost_k=3), {})
    assert {row.value for row in rows[:4]} == {100.0}
    assert json.loads((tmp_path / "out" / "boxes.json").read_text()) == {"s": {"1": [0, 0, 12, 8], "2": [0, 0, 12, 8]}}
    assert "1 images have fewer than 3 patches" in caplog.text


def test_features_that_are_not_finite_name_image_and_block(dataset: Boxes, tmp_path: Path) -> None:
    store = store_of(dataset, tmp_path / "store")
    tokens = np.array(store.tokens(2))
    tokens[store.offsets[2]] = np.nan
    np.save(store.path / "tokens_block2.npy", tokens)
    with pytest.raises(DataError, match="d: block 2: features must be finite"):
        evaluate(FeatureStore.open(store.path, verify=False), dataset, tmp_path / "out", TokenCutConfig(), {})


def test_store_order_may_differ_from_the_dataset(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    class Reversed(Boxes):
        def boxes(self, index: int) -> np.ndarray:
            return dataset.boxes(3 - index)

    same = evaluate(store, dataset, tmp_path / "1", TokenCutConfig(), {})
    other = evaluate(store, Reversed(dataset.root, dataset.ids[::-1]), tmp_path / "2", TokenCutConfig(), {})
    assert [row.value for row in same] == [row.value for row in other]


def test_unfit_input_is_refused_in_one_line(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiscale: block 7"):
        evaluate(store, dataset, tmp_path, TokenCutConfig(), {}, multiscale=(1, 7))
    with pytest.raises(DataError, match="'b' is not in toy val"):
        evaluate(store, Boxes(dataset.root, ("x",)), tmp_path, TokenCutConfig(), {})
    with pytest.raises(ConfigError, match="native"):
        evaluate(store_of(dataset, tmp_path / "square", "square"), dataset, tmp_path, TokenCutConfig(), {})
    assert not (tmp_path / "rows.json").exists()


def test_records_are_the_hits_of_every_row(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    rows = evaluate(store, dataset, tmp_path, TokenCutConfig(tau=(0.2, 0.6), lost_k=5), {}, multiscale=(1, 2))
    records = read_records(tmp_path)
    assert list(records) == rows
    for row, one in records.items():
        assert one.ids == store.ids
        assert 100 * one.values.mean() == pytest.approx(row.value)
        assert (row.low, row.high) == pytest.approx(tuple(100 * x for x in clopper_pearson(int(one.values.sum()), 4)))
    boxes = json.loads((tmp_path / "boxes.json").read_text())
    hits = [is_hit(boxes[name]["2"], dataset.boxes(i)) for i, name in enumerate(dataset.ids)]
    assert records[rows[1]].of(dataset.ids).tolist() == hits


def test_degenerate_cuts_are_in_the_rows_and_logged_once(
    dataset: Boxes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(dataset, tmp_path / "store")
    tokens = np.array(store.tokens(2))
    tokens[:] = tokens[0] + 1e-3 * tokens
    np.save(store.path / "tokens_block2.npy", tokens)
    with caplog.at_level("WARNING", logger="dinoskip"):
        rows = evaluate(FeatureStore.open(store.path, verify=False), dataset, tmp_path / "out", TokenCutConfig(), {})
    alive, collapsed, *floor = rows
    assert (collapsed.complete, collapsed.degenerate) == (1.0, 1.0)
    assert collapsed.token_cosine == pytest.approx(1.0, abs=1e-3)
    assert alive.complete == 0.0
    assert alive.degenerate is not None
    assert alive.degenerate < 0.5
    values = [torch.from_numpy(store.tokens(1, i))[None] for i in range(4)]
    assert alive.token_cosine == pytest.approx(np.mean([token_cosine(one) for one in values]), abs=1e-5)
    assert all((row.complete, row.degenerate, row.token_cosine) == (None, None, None) for row in floor)
    assert 100 * (1 - collapsed.degenerate) == collapsed.value == 0.0, "no box is a miss"
    boxes = json.loads((tmp_path / "out" / "boxes.json").read_text())
    assert {tuple(boxes[name]["2"]) for name in boxes} == {(-1, -1, -1, -1)}
    said = [record.getMessage() for record in caplog.records if "no cut" in record.getMessage()]
    assert said == [
        "tokencut tau=0.2 eps=1e-05: most images have no cut at block 2; at block 2 the graph is complete in 4 of 4 "
        "images, where the tokens' mean cosine is 1.00: centre: true, another facet or a higher tau may help "
        "(docs/tokencut.md)"
    ]


def test_centring_removes_an_offset_that_completes_every_graph(dataset: Boxes, tmp_path: Path) -> None:
    store = store_of(dataset, tmp_path / "store")
    plain = np.array(store.tokens(2))
    shifted = plain + 100 * np.abs(plain).max()
    np.save(store.path / "tokens_block2.npy", shifted)
    moved = FeatureStore.open(store.path, verify=False)
    rows = evaluate(moved, dataset, tmp_path / "offset", TokenCutConfig(), {})
    assert rows[1].complete == 1.0
    config = TokenCutConfig(centre=True, lost_k=10)
    rows = evaluate(moved, dataset, tmp_path / "centred", config, {}, multiscale=(1, 2))
    assert {row.protocol for row in rows if not row.is_baseline} == {
        "tokencut tau=0.2 eps=1e-05, centred", "lost k=10, centred",
    }  # fmt: skip
    assert rows[1].complete == 0.0
    assert rows[1].token_cosine == pytest.approx(1.0, abs=1e-3), "the cosine stays that of the features themselves"
    boxes = json.loads((tmp_path / "centred" / "boxes.json").read_text())
    for index, name in enumerate(moved.ids):
        tokens = np.asarray(moved.tokens(2, index), np.float64)
        own = tokencut(tokens - tokens.mean(0), moved.grid(index))
        assert boxes[name]["2"] == list(to_pixels(own.box, 8, SIZES[index]))


def test_pixels_without_a_network_are_baselines(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    def rows_with(pixels: bool) -> list:
        return evaluate(store, dataset, tmp_path / str(pixels), TokenCutConfig(pixels=pixels), {"model": "tiny"})

    without, rows = rows_with(False), rows_with(True)
    assert rows[: len(without)] == without
    assert [row.model for row in rows[len(without) :]] == ["baseline: colours", "baseline: random patch"]
    assert all(row.metric == "CorLoc" and row.block == "" for row in rows[len(without) :])
    tokens = pixel_tokens(dataset, range(4), store.transform, store.patch_size)["colours"].standardised()
    boxes = [to_pixels(tokencut(tokens(i), store.grid(i)).box, 8, SIZES[i]) for i in range(4)]
    hits = [is_hit(box, dataset.boxes(i)) for i, box in enumerate(boxes)]
    assert rows[-2].value == 100 * np.mean(hits)
    cuts = [tokencut(tokens(i), store.grid(i)) for i in range(4)]
    shares = [np.mean([getattr(cut, name) for cut in cuts]) for name in ("degenerate", "complete", "ambiguous")]
    assert [rows[-2].degenerate, rows[-2].complete, rows[-2].ambiguous] == shares
    assert rows[-2].token_cosine is None


def test_pixels_that_were_cut_before_give_the_same_bytes(dataset: Boxes, store: FeatureStore, tmp_path: Path) -> None:
    config, made = TokenCutConfig(pixels=True), own_folder(tmp_path / "made")
    make_floor(FloorInputs(config, {"store": dataset}, {"store": store.transform}, store.patch_size, made, workers=1))
    for name, floor in (("own", None), ("read", made)):
        evaluate(store, dataset, tmp_path / name, config, {"model": "tiny"}, floor=floor)
    assert contents(tmp_path / "own") == contents(tmp_path / "read")


def test_object_dino_stands_beside_tokencut(
    dataset: Boxes, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, network = TokenCutConfig(object_dino=ObjectDinoConfig(clusters=3)), tiny_vit(8)
    with pytest.raises(ConfigError):
        evaluate(store, dataset, tmp_path / "none", config, {})
    evaluate(store, dataset, tmp_path / "whole", config, {}, backbone=network)
    (row,) = (row for row in read_rows(tmp_path / "whole" / "rows.json") if row.protocol.startswith("object_dino"))
    assert (row.block, row.facet, row.norm) == ("1+2", "query+key+value", "none")
    assert row.protocol == "object_dino tau=0.2 clusters=3"
    boxes = json.loads((tmp_path / "whole" / "boxes_object_dino.json").read_text())
    image = torch.from_numpy(read_image(dataset.path(1))).permute(2, 0, 1)
    rows, columns = store.grid(1)
    pixels = Normalise(network.mean, network.std, network.device, network.dtype)([image], 8 * rows, 8 * columns)
    layers = network.layers(pixels, [1, 2], ["query", "key", "value"])
    parts = [
        torch.stack([layers[facet][block].tokens[0].unflatten(1, (network.num_heads, -1)) for block in (1, 2)])
        for facet in ("query", "key", "value")
    ]
    found = object_dino(*(part.transpose(1, 2) for part in parts), store.grid(1), config.object_dino)
    assert boxes["a"]["1+2"] == list(to_pixels(found.cut.box, 8, SIZES[1]))
    original, calls = HeadBoxes._find, []

    def stops(self: HeadBoxes, i: int, path: Path) -> None:
        calls.append(i)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(self, i, path)

    monkeypatch.setattr(eval.resumed, "_TOGETHER", 1)
    monkeypatch.setattr(HeadBoxes, "_find", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(store, dataset, tmp_path / "stopped", config, {}, backbone=network)
    evaluate(store, dataset, tmp_path / "stopped", config, {}, backbone=network)
    assert calls == [0, 1, 2, 2, 3]
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
