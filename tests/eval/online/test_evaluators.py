"""Evaluation while training: the numbers, the same on any number of ranks, and that a run does not notice it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from dinoskip.data import ImageFolder, voc_segmentation
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.errors import ConfigError
from dinoskip.features import Transform, export
from dinoskip.features.transform import load_pixels
from dinoskip.models import Backbone, create_model
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.distributed import World
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import pretrain
from eval.labelled import LabelledTokens
from eval.online import OnlineEvaluation, OnlineKnn, OnlineKnnConfig, OnlineProbe, OnlineProbeConfig, balanced_sample
from eval.online.evaluators import accuracy_of_best
from eval.probe import fit_probes
from tests.helpers.failpoints import install
from tests.helpers.knn import knn_classify
from tests.helpers.ranks import on_ranks
from tests.helpers.tiny import STEPS, make_images, tensor_hashes, tiny_job

ALONE = World(0, 1, torch.device("cpu"))


class Network(nn.Module):
    """A network as the training loop observes it: something with a backbone."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = create_model("vit_tiny_patch16", depth=depth, img_size=32).eval()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes that differ in colour, 27 training and 15 validation images of each, of several sizes."""
    root, rng = tmp_path_factory.mktemp("classes"), np.random.default_rng(0)
    for split, count in (("train", 27), ("val", 15)):
        for number, name in enumerate("abc"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 200, (40 + i, 45, 3))
                pixels[..., number] += 6
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:02d}.png")
    return root


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes") / "set"
    ScenesConfig(images=24, size=64, val_fraction=0.5).generate(root)
    return root


def folders(root: Path) -> tuple[LabelledFolder, LabelledFolder]:
    train = LabelledFolder.open(root / "train")
    return train, LabelledFolder.open(root / "val", train.class_names)


def knn_config(k: tuple[int, ...]) -> OnlineKnnConfig:
    return OnlineKnnConfig(dataset="classes", size=32, k=k)


def segmentation(root: Path) -> tuple[SegmentationDataset, SegmentationDataset]:
    return voc_segmentation(root, "train", 2012), voc_segmentation(root, "val", 2012)


def cls_by_hand(network: Network, folder: LabelledFolder) -> torch.Tensor:
    """CLS after the final norm, by timm's own forward, one image at a time."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    crop = Transform(mode="center_crop", size=32)
    with torch.no_grad():
        return torch.cat(
            [
                network.backbone.forward_features(
                    ((load_pixels(crop, folder.path(i), 16).float() / 255 - mean) / std)[None]
                )[:, 0]
                for i in range(len(folder))
            ]
        )


# --- the sample ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 3))
def test_the_sample_is_balanced_sorted_and_repeatable(labels: list[int], limit: int, seed: int) -> None:
    values = np.array(labels)
    rows = balanced_sample(values, limit, seed, "train")
    assert len(rows) == min(limit, len(labels))
    assert np.all(np.diff(rows) > 0)
    assert np.array_equal(rows, balanced_sample(values, limit, seed, "train"))
    present, have = np.unique(values, return_counts=True)
    taken = np.array([(values[rows] == value).sum() for value in present])
    short = taken < taken.max() - 1
    assert np.array_equal(taken[short], have[short]), "a class is behind only where it has no more images"


def test_a_smaller_sample_is_of_another_draw_by_seed(classes: Path) -> None:
    labels = folders(classes)[0].labels
    one, other = (balanced_sample(labels, 9, seed, "train") for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_held_out_images_are_of_the_training_split_and_no_others_fit(classes: Path, scenes: Path) -> None:
    train, val = folders(classes)[0], segmentation(scenes)[0]
    for k, few, counts in ((5, 9, (72, 9)), (5, 1000, (41, 40)), (70, 1000, (70, 11))):
        config = OnlineKnnConfig(dataset="classes", size=32, k=(k,), val_images=few)
        assert config.splits == ("train",)
        parts = [set(images.paths) for images, _ in OnlineKnn(train, None, config)._parts]
        assert tuple(map(len, parts)) == counts, "half of 81 at most, and as many neighbours as k"
        assert parts[0].isdisjoint(parts[1])
    probe = OnlineProbeConfig(dataset="scenes", size=64, held_out=True, val_images=4)
    assert probe.splits == ("train",)
    parts = [set(images.paths) for images, _ in OnlineProbe(val, None, probe)._parts]
    assert tuple(map(len, parts)) == (8, 4)
    assert parts[0].isdisjoint(parts[1])


# --- the numbers -----------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_best_block_is_chosen_on_other_images_than_it_is_scored_on(blocks: int, n: int, seed: int) -> None:
    hits = np.random.default_rng(seed).random((blocks, n)) < 0.5
    expected = 0
    for images, others in ((range(0, n, 2), range(1, n, 2)), (range(1, n, 2), range(0, n, 2))):
        counts = [sum(hits[block, i] for i in others) for block in range(blocks)]
        expected += sum(hits[counts.index(max(counts)), i] for i in images)
    assert accuracy_of_best(hits) == pytest.approx(expected / n)


def test_trivial_answers_are_those_of_the_most_frequent_class(classes: Path, scenes: Path) -> None:
    train, val = folders(classes)
    assert OnlineKnn(train, val, knn_config((1,))).trivial() == pytest.approx(100 / 3)
    parts = segmentation(scenes)
    probe = OnlineProbe(*parts, OnlineProbeConfig(dataset="scenes", size=64, train_images=200, val_images=100))
    labels = [np.concatenate([part.label(i).ravel() for i in range(len(part))]) for part in parts]
    train_pixels, val_pixels = (part[part != 255] for part in labels)
    most = np.bincount(train_pixels).argmax()
    expected = 100 * (val_pixels == most).mean() / len(np.unique(val_pixels))
    assert probe.trivial() == pytest.approx(expected)


def test_every_block_is_measured_where_all_are_asked_for(classes: Path) -> None:
    train, val = folders(classes)
    network = Network(depth=3)
    config = knn_config((3,))
    every = OnlineKnn(train, val, config.model_copy(update={"blocks": "all"}))
    last = OnlineKnn(train, val, config)
    values = every(Backbone.from_model(network.backbone), ALONE)
    assert set(values) == {"knn3_top1", *(f"knn3_block{block}_top1" for block in (1, 2, 3))}
    assert values["knn3_block3_top1"] == last(Backbone.from_model(network.backbone), ALONE)["knn3_top1"]


def test_knn_is_that_of_features_computed_by_hand(classes: Path) -> None:
    train, val = folders(classes)
    network = Network()
    x, y = cls_by_hand(network, train), cls_by_hand(network, val)
    expected = {f"knn{k}_top1": 100 * float((knn_classify(x, train.labels, y, k) == val.labels).mean()) for k in (1, 5)}
    found = OnlineEvaluation([OnlineKnn(train, val, knn_config((1, 5)))])(network, ALONE)
    assert found == pytest.approx(expected)
    assert 0 < found["knn5_top1"] < 100


def test_the_probe_is_that_of_exported_features(scenes: Path, tmp_path: Path) -> None:
    train, val = segmentation(scenes)
    network = Network()
    backbone = Backbone.from_model(network.backbone)
    tokens = [
        LabelledTokens.of(
            export(backbone, part, tmp_path / part.split, [1, 2], transform=Transform(size=64), batch_size=4), part
        )
        for part in (train, val)
    ]
    by_hand = fit_probes(*tokens, [1, 2], (1e-3, 1e-2), 4, refine=1)
    probe = OnlineProbe(train, val, OnlineProbeConfig(dataset="scenes", size=64, epochs=4))
    assert probe.score == "probe_miou"
    found = probe(backbone, ALONE)
    for result in by_hand:
        assert found[f"probe_block{result.name}_miou"] == pytest.approx(100 * result.scores.miou, abs=0.3)
    assert found["probe_miou"] in (found["probe_block1_miou"], found["probe_block2_miou"])


def test_what_cannot_be_is_said_at_once(classes: Path, scenes: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="k 90 exceeds the 81 training images"):
        OnlineKnn(*folders(classes), knn_config((90,)))
    probe = OnlineProbe(*segmentation(scenes), OnlineProbeConfig(dataset="scenes", size=64, blocks=(3,)))
    with caplog.at_level(logging.WARNING, "dinoskip"):
        assert OnlineEvaluation([probe])(Network(), ALONE) == {}
    assert "not all among 1..2" in caplog.text


def test_an_unreadable_image_is_left_out_with_one_warning(
    classes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, val = folders(classes)
    for name in val.names[:2]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    for name in val.names[2:]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(val.path(val.names.index(name)).read_bytes())
    damaged = LabelledFolder(tmp_path, val.names, val.labels, val.class_names)
    observer = OnlineEvaluation([OnlineKnn(train, damaged, knn_config((5,)))])
    with caplog.at_level(logging.WARNING, "dinoskip"):
        found = [observer(Network(), ALONE) for _ in range(2)]
    assert len(caplog.records) == 1
    assert "2 images left out" in caplog.text
    rest = LabelledFolder(val.root, val.names[2:], val.labels[2:], val.class_names)
    assert found[0] == found[1] == OnlineEvaluation([OnlineKnn(train, rest, knn_config((5,)))])(Network(), ALONE)


# --- ranks -----------------------------------------------------------------------------------------------


class Failing(Network):
    """A network that fails on the last rank alone."""

    def __init__(self, world: World) -> None:
        super().__init__()
        if world.rank == world.size - 1:
            self.backbone.patch_embed.register_forward_pre_hook(self._fail)

    @staticmethod
    def _fail(*_: object) -> None:
        raise RuntimeError("CUDA out of memory\nand more")


def _observe(world: World, classes: str, scenes: str, out: str) -> None:
    knn = OnlineKnn(*folders(Path(classes)), knn_config((5, 10)))
    probe = OnlineProbe(*segmentation(Path(scenes)), OnlineProbeConfig(dataset="scenes", size=64, epochs=2))
    observer = OnlineEvaluation([knn, probe])
    failed = observer(Failing(world), world)  # the probe's few images lie on rank 0 alone
    assert not {"knn5_top1", "knn10_top1"} & failed.keys(), "what fails on one rank is left out on all, and none waits"
    values = observer(Network(), world)
    kept = [sorted(images.pixels or ()) for images, _ in knn._parts]
    Path(f"{out}-{world.rank}.json").write_text(json.dumps({"values": values, "kept": kept}))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_numbers(size: int, classes: Path, scenes: Path, tmp_path: Path) -> None:
    found = []
    for ranks in (1, size):
        out = tmp_path / f"seen{ranks}"
        on_ranks(ranks, tmp_path, _observe, str(classes), str(scenes), str(out))
        found.append([json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(ranks)])
    alone, together = found
    expected = alone[0]["values"]
    assert set(expected) == {"knn5_top1", "knn10_top1", "probe_miou", "probe_block1_miou", "probe_block2_miou"}
    assert all(one["values"] == expected for one in together)
    for ranks in found:
        for part, count in ((0, 81), (1, 45)):
            assert sorted(i for one in ranks for i in one["kept"][part]) == list(range(count)), "each image once"
    assert all(one["kept"][0] for one in together), "every rank has its share"


# --- whole runs ------------------------------------------------------------------------------------------


def comparable(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in {"images_per_s", "data_wait"}} for row in rows]


class Scores:
    """An observer whose first evaluation is the best; it draws random numbers, as a careless one would."""

    score = "mark"

    def __init__(self) -> None:
        self.marks = iter([9.0, 1.0, 3.0, 2.0])

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        assert not network.training
        torch.rand(7)
        return {"mark": next(self.marks)}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder.open(make_images(tmp_path_factory.mktemp("data") / "images"))


def observer_of(classes: Path) -> OnlineEvaluation:
    config = OnlineKnnConfig(dataset="classes", size=32, k=(5,), train_images=12, val_images=9)
    return OnlineEvaluation([OnlineKnn(*folders(classes), config)])


def test_a_run_that_is_evaluated_has_the_bits_of_one_that_is_not(
    classes: Path, images: ImageFolder, tmp_path: Path
) -> None:
    plain = pretrain(tiny_job(), images, tmp_path / "plain", device="cpu")
    observer = observer_of(classes)
    seen = pretrain(tiny_job(online_every=1), images, tmp_path / "seen", device="cpu", observer=observer)
    assert tensor_hashes(seen) == tensor_hashes(plain)
    rows, expected = comparable(tmp_path / "seen"), comparable(tmp_path / "plain")
    assert [row["step"] for row in rows if "knn5_top1" in row] == [STEPS // 2, STEPS]
    assert [{k: v for k, v in row.items() if k != "knn5_top1"} for row in rows] == expected
    network = nn.Module()
    from dinoskip.models import load_backbone

    network.backbone = load_backbone(f"run:{tmp_path / 'seen'}").model
    assert observer(network, ALONE)["knn5_top1"] == rows[-1]["knn5_top1"]


def test_the_best_checkpoint_outlives_the_others(images: ImageFolder, tmp_path: Path) -> None:
    job = tiny_job(epochs=4, online_every=1, checkpoint_every_steps=None)
    pretrain(job, images, tmp_path / "run", device="cpu", observer=Scores())
    assert list(list_checkpoints(tmp_path / "run")) == [24, 18, 6]


def _killed(classes: str, images: str, run: str, failpoint: str) -> None:
    torch.set_num_threads(1)
    install(failpoint)
    job = tiny_job(online_every=1, checkpoint_every_steps=5)
    pretrain(job, ImageFolder.open(images), run, device="cpu", observer=observer_of(Path(classes)))


def _run_in_a_process(*arguments: str) -> int | None:
    process = multiprocessing.get_context("forkserver").Process(target=_killed, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.fixture(scope="module")
def straight(classes: Path, images: ImageFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run that nothing disturbs."""
    run = tmp_path_factory.mktemp("straight") / "run"
    assert _run_in_a_process(str(classes), str(images.root), str(run), "") == 0
    return run


@pytest.mark.parametrize(("passage", "step"), [(2, 6), pytest.param(4, 12, marks=pytest.mark.slow)])
def test_a_kill_between_evaluation_and_checkpoint_neither_loses_nor_doubles_a_row(
    passage: int, step: int, straight: Path, classes: Path, images: ImageFolder, tmp_path: Path
) -> None:
    """Checkpoints come after steps 5, 6 (evaluated), 10, 12 (evaluated)."""
    arguments = (str(classes), str(images.root), str(tmp_path / "run"))
    assert _run_in_a_process(*arguments, f"checkpoint.before_save:kill@{passage}") == -signal.SIGKILL
    last = comparable(tmp_path / "run")[-1]
    assert last["step"] == step
    assert "knn5_top1" in last, "the row was there, its checkpoint not"
    assert step not in list_checkpoints(tmp_path / "run")
    assert _run_in_a_process(*arguments, "") == 0
    assert comparable(tmp_path / "run") == comparable(straight)
    final = f"checkpoints/step-{STEPS:08d}"
    assert tensor_hashes(tmp_path / "run" / final) == tensor_hashes(straight / final)
