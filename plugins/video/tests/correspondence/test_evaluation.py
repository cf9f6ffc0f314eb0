"""Pairs with known correspondence through a tiny backbone: rows, records, baselines, windows, pictures, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.parts import Parts
from dinoskip.models import Backbone
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import score
from dinoskip_video.correspondence import CorrespondenceConfig, Matcher, Placement, pck
from dinoskip_video.correspondence.windows import groups_of_pairs, load_square
from dinoskip_video.keypoints import KeypointDataset
from dinoskip_video.sets.scenes_pairs import ScenesPairsConfig
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = partial(evaluation_of("correspondence"), facets=["key"], norms=["none"])

CONFIG = CorrespondenceConfig(size=64, alphas=(0.1, 0.3), pictures=1)


def tiny() -> Backbone:
    return tiny_vit(8, 64, 2, embed_dim=24, num_heads=3)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> KeypointDataset:
    config = ScenesPairsConfig(classes=2, objects=2, views=2, size=96, points=5)
    return config.open_keypoints(config.generate(tmp_path_factory.mktemp("pairs")), "test", None)


@pytest.fixture(scope="module")
def done(backbone: Backbone, pairs: KeypointDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    out = tmp_path_factory.mktemp("out")
    return out, evaluate(backbone, pairs, "all", out, CONFIG, {"model": "tiny"}, multiscale=[1, 2])


def test_groups_of_several_processes_are_the_files_of_one(
    done: tuple[Path, list], backbone: Backbone, pairs: KeypointDataset, tmp_path: Path
) -> None:
    assert len(groups_of_pairs(pairs)) > 1

    def found(out: Path, parts: Parts) -> object:
        return evaluate(backbone, pairs, "all", out, CONFIG, {"model": "tiny"}, multiscale=[1, 2], parts=parts)

    assert contents(in_parts(found, tmp_path)) == contents(done[0])


def by_hand(backbone: Backbone, pairs: KeypointDataset, block: int, alpha: float) -> list[np.ndarray]:
    """Hits of each pair, one image at a time."""

    def tokens(image: int) -> torch.Tensor:
        pixels = load_square(pairs.path(image), CONFIG).permute(1, 2, 0) / 255
        normal = (pixels - torch.tensor(backbone.mean)) / torch.tensor(backbone.std)
        return backbone.layers(normal.permute(2, 0, 1)[None], [block], "key")[block].tokens[0]

    matcher, place = Matcher(CONFIG, (8, 8), 8), Placement.of((96, 96), CONFIG)
    hits = []
    for pair in pairs.pairs:
        descriptors = matcher.descriptors(tokens(pair.source), pair.source_points, place)
        target = matcher.prepared(tokens(pair.target), place)
        hits.append(
            matcher.match(descriptors, target, pair.target_points, pair.extent, place).hits(alpha, strict=False)
        )
    return hits


def value_of(rows: list[EvalResult], metric: str, block: str) -> float:
    (row,) = (row for row in rows if (row.metric, row.block) == (metric, block))
    return row.value


def test_rows_equal_pairs_matched_by_hand(done: tuple[Path, list], backbone: Backbone, pairs: KeypointDataset) -> None:
    for block, alpha in ((1, 0.1), (2, 0.1), (2, 0.3)):
        hits = by_hand(backbone, pairs, block, alpha)
        scores = pck(hits)
        assert value_of(done[1], f"PCK@{alpha} per point", str(block)) == pytest.approx(
            100 * scores.per_point, abs=1e-4
        )
        assert value_of(done[1], f"PCK@{alpha} per image", str(block)) == pytest.approx(
            100 * scores.per_image, abs=1e-4
        )
        kinds = [pair.category for pair in pairs.pairs]
        own = [pck([one for one, kind in zip(hits, kinds, strict=True) if kind == name]) for name in pairs.class_names]
        mean = value_of(done[1], f"PCK@{alpha} per point, mean of categories", str(block))
        assert mean == pytest.approx(100 * np.mean([one.per_point for one in own]), abs=1e-6)
        written = json.loads((done[0] / "categories.json").read_text())[str(block)]
        assert [written[name][f"{alpha}"] for name in pairs.class_names] == [list(one) for one in own]


def test_rows_and_records(done: tuple[Path, list], pairs: KeypointDataset) -> None:
    (row,) = (row for row in done[1] if (row.metric, row.block) == ("PCK@0.1 per image", "1+2"))
    assert (row.task, row.dataset, row.split, row.n, row.classes) == ("correspondence", "scenes_pairs", "test", 8, 2)
    assert (row.facet, row.norm, row.protocol, row.resolution) == ("key", "none", "dift", "64 square")
    records = read_records(done[0])
    assert len(records) == 4 * 4  # blocks 1, 2, both together and the baseline; two alphas, by point and by image
    for one, record in records.items():
        assert record.ids == tuple(pair.id for pair in pairs.pairs)
        assert 100 * score(record.values) == pytest.approx(one.value, abs=1e-4)


def test_the_baseline_is_the_same_place(done: tuple[Path, list], pairs: KeypointDataset) -> None:
    hits = [
        np.linalg.norm(pair.source_points - pair.target_points, axis=1) <= 0.3 * pair.extent for pair in pairs.pairs
    ]
    (row,) = (row for row in done[1] if row.is_baseline and row.metric == "PCK@0.3 per point")
    assert row.model == "baseline: same place"
    assert row.value == pytest.approx(100 * np.concatenate(hits).mean(), abs=1e-4)


def test_the_right_features_find_every_point(pairs: KeypointDataset, tmp_path: Path) -> None:
    """A pair of an image with itself, by the two rules that compare by the cosine what they read in one way."""
    one = pairs.pairs[0]
    itself = replace(one, target=one.source, target_points=one.source_points)
    for protocol in ("dift", "sd-dino"):
        config = CorrespondenceConfig(protocol=protocol, size=96, alphas=(0.2,))  # type: ignore[arg-type]
        rows = evaluate(tiny(), replace(pairs, pairs=(itself,)), [1], tmp_path / protocol, config, {}, facets=["out"])
        assert value_of(rows, "PCK@0.2 per point", "1") == 100


def test_each_image_goes_through_the_network_once(pairs: KeypointDataset, tmp_path: Path) -> None:
    network, seen = tiny(), []
    layers = network.layers

    def counted(images: torch.Tensor, *rest: object) -> object:
        seen.append(len(images))
        return layers(images, *rest)  # type: ignore[arg-type]

    network.layers = counted  # type: ignore[method-assign,assignment]
    evaluate(network, pairs, "all", tmp_path, CONFIG, {})
    assert sum(seen) == len(pairs) == 8


def test_a_window_in_a_file_gives_the_same(
    done: tuple[Path, list], backbone: Backbone, pairs: KeypointDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINOSKIP_MEMORY", "1e-6")
    rows = evaluate(backbone, pairs, "all", tmp_path, CONFIG, {"model": "tiny"}, multiscale=[1, 2])
    assert rows == done[1]
    assert {path.name for path in tmp_path.iterdir()} == {"rows.json", "records.npz", "categories.json", "pairs"}


def test_groups_share_no_image(pairs: KeypointDataset) -> None:
    groups = groups_of_pairs(pairs)
    assert sorted(number for group in groups for number in group) == list(range(8))
    images = [{image for i in group for image in (pairs.pairs[i].source, pairs.pairs[i].target)} for group in groups]
    assert [len(one) for one in images] == [2, 2, 2, 2]
    assert len(set.union(*images)) == 8


def test_pictures(done: tuple[Path, list]) -> None:
    folder = done[0] / "pairs"
    assert [path.name for path in folder.iterdir()] == ["0000"]
    assert {path.name for path in (folder / "0000").iterdir()} == {
        "pair.jpg", "truth.png", "block1.png", "block2.png", "block1+2.png",
    }  # fmt: skip
    truth, found = (np.asarray(Image.open(folder / "0000" / f"{name}.png")) for name in ("truth", "block2"))
    assert truth.shape == found.shape == (240, 480)
    assert (truth[:, :240] == found[:, :240])[truth[:, :240] > 0].mean() > 0.9  # the points that are given
    assert set(np.unique(truth)) == {0, 1, 2, 3, 4, 5}


def test_points_that_are_not_visible_do_not_count(backbone: Backbone, pairs: KeypointDataset, tmp_path: Path) -> None:
    first = replace(pairs.pairs[0], visible=np.zeros(5, bool))
    hidden = replace(pairs, pairs=(first, *pairs.pairs[1:3]))
    seen = replace(pairs, pairs=pairs.pairs[1:3])
    one, two = (evaluate(backbone, some, [2], tmp_path / str(len(some.pairs)), CONFIG, {}) for some in (hidden, seen))
    for metric in ("PCK@0.3 per point", "PCK@0.3 per image", "PCK@0.3 per point, mean of categories by pairs"):
        assert value_of(one, metric, "2") == pytest.approx(value_of(two, metric, "2"))


def test_bad_input_is_named(backbone: Backbone, pairs: KeypointDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="size: 60 is not a multiple of the patch size 8"):
        evaluate(backbone, pairs, "all", tmp_path, CorrespondenceConfig(size=60), {})
    with pytest.raises(ConfigError, match="block 3 is beyond the 2 blocks"):
        evaluate(backbone, pairs, [3], tmp_path, CONFIG, {})
    with pytest.raises(DataError, match="there is no pair"):
        evaluate(backbone, replace(pairs, pairs=()), [1], tmp_path, CONFIG, {})
    broken = tiny()
    broken.model.blocks[1].attn.qkv.bias.data[30] = float("nan")
    with pytest.raises(DataError, match=r"00_00\.jpg: features of block 2 are not finite"):
        evaluate(broken, pairs, [1, 2], tmp_path, CONFIG, {})


@pytest.mark.parametrize(
    ("size", "inside"), [((40, 80), (16, 0, 48, 64)), ((80, 40), (0, 16, 64, 48)), ((50, 50), (0, 0, 64, 64))]
)
def test_padded_images_lie_in_the_middle(size: tuple[int, int], inside: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", size[::-1], (255, 255, 255)).save(path)
    square = load_square(path, CorrespondenceConfig(protocol="lift", size=64)).numpy()
    top, left, bottom, right = inside
    assert (square[:, top:bottom, left:right] == 255).all()
    assert square.sum() == 255 * 3 * (bottom - top) * (right - left)
