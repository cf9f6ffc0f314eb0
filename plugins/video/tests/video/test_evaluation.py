"""Videos of moving objects through a tiny backbone: rows, records, baselines, strips, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import read_image
from dinoskip.io.parts import Parts
from dinoskip.models import Backbone
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import score
from dinoskip_video.sequences import SequenceDataset
from dinoskip_video.sets.scenes_video import ScenesVideoConfig
from dinoskip_video.video import (
    PropagationRule,
    VideoConfig,
    VideoMemory,
    at_size,
    first_masks,
    frame_scores,
    hard_labels,
    object_scores,
    unit_tokens,
)
from dinoskip_video.video.frames import FramePasses
from eval.places import Place
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = partial(evaluation_of("video"), norms=["final"])

CONFIG = VideoConfig(short_side=64, memory=2, radius=3, pictures=1)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_vit(8, 64, 2, embed_dim=24, num_heads=3)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> SequenceDataset:
    config = ScenesVideoConfig(videos=2, frames=5, size=60, max_objects=2)
    return config.open_sequences(config.generate(tmp_path_factory.mktemp("videos")), "val", None)


@pytest.fixture(scope="module")
def done(backbone: Backbone, videos: SequenceDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    out = tmp_path_factory.mktemp("out")
    return out, evaluate(backbone, videos, "all", out, CONFIG, {"model": "tiny"}, multiscale=[1, 2], norms=["layer"])


def test_videos_of_several_processes_are_the_files_of_one(
    done: tuple[Path, list], backbone: Backbone, videos: SequenceDataset, tmp_path: Path
) -> None:
    def found(out: Path, parts: Parts) -> object:
        given = (backbone, videos, "all", out, CONFIG, {"model": "tiny"})
        return evaluate(*given, multiscale=[1, 2], norms=["layer"], parts=parts)

    assert contents(in_parts(found, tmp_path)) == contents(done[0])


def by_hand(backbone: Backbone, videos: SequenceDataset, blocks: list[int]) -> tuple[float, float]:
    """Mean J and F of a block (or the concatenation of several), frame by frame."""
    every: list[list[np.ndarray]] = [[], []]
    for sequence in videos.sequences:
        truth = [np.asarray(Image.open(path)) for path in sequence.annotations]
        scores, memory = [], None
        for index, path in enumerate(sequence.frames):
            pixels = cv2.resize(read_image(path), (64, 64))  # 80 x 60: long side 85 pixels down to 64
            mean, std = torch.tensor(backbone.mean), torch.tensor(backbone.std)
            image = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(2, 0, 1)[None]
            layers = backbone.layers(image, blocks, "out", "layer")
            tokens = unit_tokens(torch.cat([unit_tokens(layers[block].tokens[0]) for block in blocks], 1))
            if memory is None:
                memory = VideoMemory(tokens, torch.from_numpy(first_masks(truth[0], (8, 8))), CONFIG.memory)
                continue
            soft = memory.follow(tokens, (8, 8), PropagationRule(CONFIG.radius))
            predicted = at_size(hard_labels(soft, (8, 8), 8), truth[0].shape)
            if index < len(sequence) - 1:
                scores.append(frame_scores(predicted, truth[index], int(truth[0].max())))
        for at in range(2):
            every[at].append(object_scores(np.stack(scores, -1)[:, at]).mean)
    return tuple(float(np.concatenate(one).mean()) for one in every)  # type: ignore[return-value]


def row_of(rows: list[EvalResult], metric: str, block: str) -> EvalResult:
    (row,) = (row for row in rows if (row.metric, row.block) == (metric, block))
    return row


def test_rows_equal_frames_followed_by_hand(
    done: tuple[Path, list], backbone: Backbone, videos: SequenceDataset
) -> None:
    for block, blocks in (("1", [1]), ("2", [2]), ("1+2", [1, 2])):
        j, f = by_hand(backbone, videos, blocks)
        values = [row_of(done[1], metric, block).value for metric in ("J", "F", "J&F")]
        np.testing.assert_allclose(values, [100 * j, 100 * f, 50 * (j + f)], atol=1e-3)


def test_rows_say_what_was_measured(done: tuple[Path, list], backbone: Backbone) -> None:
    row = row_of(done[1], "J&F", "2")
    assert (row.task, row.dataset, row.split, row.n, row.model) == ("video", "scenes_video", "val", 2, "tiny")
    assert (row.facet, row.norm, row.weights) == ("out", "layer", backbone.weights_hash)
    assert row.protocol == "dino, memory 2, radius 3"
    assert row.resolution == "64 short side, scored at original size"
    assert row.low is not None
    assert row.low <= row.value <= (row.high or 0)
    assert {row.metric for row in done[1] if row.block} == {
        "J&F", "J", "F", "J recall", "J decay", "F recall", "F decay",
    }  # fmt: skip


def test_records_give_the_rows(done: tuple[Path, list]) -> None:
    records = read_records(done[0])
    assert len(records) == 4 * 3
    for row, record in records.items():
        assert record.ids == ("video_0000", "video_0001")
        assert 100 * score(record.values) == pytest.approx(row.value, abs=1e-4)


def test_the_baseline_repeats_the_first_mask(done: tuple[Path, list], videos: SequenceDataset) -> None:
    means = []
    for sequence in videos.sequences:
        truth = [np.asarray(Image.open(path)) for path in sequence.annotations]
        frames = [frame_scores(truth[0], one, int(truth[0].max())) for one in truth[1:-1]]
        means.append(np.stack(frames, -1)[:, 0].mean(-1))
    row = row_of(done[1], "J", "")
    assert row.model == "baseline: first mask"
    assert row.value == pytest.approx(100 * np.concatenate(means).mean(), abs=1e-4)


def test_void_in_the_first_mask_is_no_object(backbone: Backbone, videos: SequenceDataset, tmp_path: Path) -> None:
    """255 counts as background, for the objects that are followed, their masks and the mask that is repeated."""
    first, found = videos.sequences[0], {}
    for value in (255, 0):
        labels = np.asarray(Image.open(first.annotations[0])).astype(np.uint8)
        labels[:20, :40] = value
        mask = tmp_path / f"{value}.png"
        Image.fromarray(labels).save(mask)
        one = replace(videos, sequences=(replace(first, annotations=(mask, *first.annotations[1:])),))
        rows = evaluate(backbone, one, [2], tmp_path / str(value), CONFIG, {})
        found[value] = [(row.metric, row.model, row.value) for row in rows]
    assert found[255] == found[0]


def test_objects_and_strips(done: tuple[Path, list]) -> None:
    objects = json.loads((done[0] / "objects.json").read_text())
    assert {len(one["2"]["J"]) for one in objects.values()} == {1, 2}
    folder = done[0] / "strips"
    assert [one.name for one in folder.iterdir()] == ["0000"]
    sizes = {Image.open(path).size for path in (folder / "0000").iterdir()}
    assert sizes == {(5 * 213, 160)}
    truth, predicted = (np.asarray(Image.open(folder / "0000" / f"{name}.png")) for name in ("truth", "block2"))
    assert (truth[:, :213] == predicted[:, :213]).all()  # the first frame's mask is given
    assert set(np.unique(predicted)) <= {0, 1}


@pytest.mark.parametrize(("protocol", "red"), [("dino", 0.229), ("dino-as-coded", 0.228)])
def test_the_deviation_of_red_is_an_option(
    protocol: str, red: float, backbone: Backbone, videos: SequenceDataset
) -> None:
    config = VideoConfig.model_validate({"protocol": protocol, "short_side": 64})
    assert config.label == protocol
    sequence = videos.sequences[0]
    places = {"1": Place("out", "none", (1,))}
    frames = list(FramePasses(backbone, places, config, 1).tokens(sequence, (64, 64)))
    pixels = torch.from_numpy(cv2.resize(read_image(sequence.frames[4]), (64, 64))) / 255
    image = (pixels - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([red, 0.224, 0.225])
    wanted = backbone.layers(image.permute(2, 0, 1)[None], [1])[1].tokens[0]
    assert len(frames) == 5
    torch.testing.assert_close(frames[4]["out", 1], wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("size", "patch", "short", "wanted"),
    [
        ((480, 854), 16, 480, (480, 832)),
        ((854, 480), 8, 480, (832, 480)),
        ((480, 910), 14, 480, (476, 910)),
        ((480, 480), 16, 480, (480, 480)),  # the script's long side, 448, would be the shorter one
        ((30, 50), 16, 16, (16, 16)),
    ],
)
def test_input_sizes(size: tuple[int, int], patch: int, short: int, wanted: tuple[int, int]) -> None:
    assert VideoConfig(short_side=short).input_size(*size, patch) == wanted


def test_bad_input_is_named(backbone: Backbone, videos: SequenceDataset, tmp_path: Path) -> None:
    empty, odd = tmp_path / "empty.png", tmp_path / "odd.png"
    Image.fromarray(np.zeros((60, 80), np.uint8)).save(empty)
    Image.fromarray(np.zeros((30, 40), np.uint8)).save(odd)
    first = videos.sequences[0]

    def failing(path: Path, at: int) -> str:
        masks = [*first.annotations]
        masks[at] = path
        bad = replace(videos, sequences=(replace(first, annotations=tuple(masks)),))
        with pytest.raises(DataError) as failure:
            evaluate(backbone, bad, [1], tmp_path / "out", CONFIG, {})
        return failure.value.message

    assert failing(empty, 0) == f"{empty}: has no object, there is nothing to follow"
    assert failing(odd, 2).startswith(f"{odd}: mask is 40×30 pixels, its frame 80×60")
    with pytest.raises(ConfigError, match="block 3 is beyond the 2 blocks"):
        evaluate(backbone, videos, [3], tmp_path / "out", CONFIG, {})


def test_features_that_are_not_finite_are_named(videos: SequenceDataset, tmp_path: Path) -> None:
    broken = tiny_vit(8, 64, 2, embed_dim=24, num_heads=3)
    broken.model.blocks[1].mlp.fc2.bias.data[3] = float("nan")
    with pytest.raises(DataError, match=r"00000\.jpg: features of block 2 are not finite"):
        evaluate(broken, videos, [1, 2], tmp_path, CONFIG, {})
