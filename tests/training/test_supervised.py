"""Supervised training from end to end at its smallest, its numbers against closed forms, and its accuracy on ranks."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dinoskip.cli import main
from dinoskip.data import LabelledFolder
from dinoskip.data.classification import ClassLoader, normalise, soft_targets
from dinoskip.errors import ConfigError, DataError, Interrupted
from dinoskip.io.files import load_tensors, read_json, save_tensors, verify_manifest, write_json
from dinoskip.io.resize import centre_crop
from dinoskip.models import load_backbone
from dinoskip.optim import build_optimizer
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.distributed import World
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training.objective import Engine, Step
from dinoskip.training.rates import Schedules
from dinoskip.training.supervised import (
    Accuracy,
    Classifier,
    ClassifierHead,
    Supervised,
    build,
    clip_together_,
    hits,
    labelled_batches,
    soft_cross_entropy,
    supervise,
    trained_classifier,
)
from dinoskip.training.supervised_config import SupervisedJob
from tests.helpers.labelled import make_classes, supervised_job
from tests.helpers.launch import rank_environments
from tests.helpers.ranks import on_ranks
from tests.helpers.tiny import tensor_hashes

HERE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_classes(root / "train", 16)
    make_classes(root / "val", 5, seed=1)
    return root


@pytest.fixture(scope="module")
def train(data: Path) -> LabelledFolder:
    return LabelledFolder.open(data / "train")


@pytest.fixture(scope="module")
def val(data: Path) -> LabelledFolder:
    return LabelledFolder.open(data / "val")


@pytest.fixture(scope="module")
def straight(train: LabelledFolder, val: LabelledFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return supervise(supervised_job(), train, val, tmp_path_factory.mktemp("straight") / "run", device="cpu")


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in {"images_per_s", "data_wait"}} for row in rows]


# --- whole runs ----------------------------------------------------------------------------------------


def test_a_run_leaves_what_the_format_promises(straight: Path) -> None:
    run = straight.parent.parent
    assert {p.name for p in straight.iterdir()} == {
        "student.safetensors", "head.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json",
    }  # fmt: skip
    assert verify_manifest(straight) == []
    head = load_tensors(straight / "head.safetensors")
    assert {name: tuple(t.shape) for name, t in head.items()} == {"student.weight": (3, 192), "student.bias": (3,)}
    rows = rows_of(run)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert ["top1" in row for row in rows] == [False, False, False, True] * 2
    assert rows[-1]["top5"] == 100
    assert [row["wd"] for row in rows] == [0.05] * 8
    assert read_json(run / "config.json")["model"]["drop_path"] == 0
    before = build(supervised_job(), 3, torch.device("cpu")).state_dict()
    after = load_tensors(straight / "student.safetensors")
    assert all(not torch.equal(before[f"backbone.{name}"], tensor) for name, tensor in after.items())


def test_the_backbone_is_found_where_there_is_no_teacher(straight: Path) -> None:
    backbone = load_backbone(f"run:{straight.parent.parent}")
    assert backbone.info["role"] == "student"
    state = load_tensors(straight / "student.safetensors")
    assert torch.equal(backbone.model.state_dict()["blocks.1.attn.qkv.weight"], state["blocks.1.attn.qkv.weight"])


def test_an_interrupted_run_resumes_bit_for_bit_with_any_number_of_workers(
    straight: Path, train: LabelledFolder, val: LabelledFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = ClassLoader.views, []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(ClassLoader, "views", interrupted)
    with pytest.raises(Interrupted, match="after step 3"):
        supervise(supervised_job(), train, val, tmp_path / "run", device="cpu")
    final = supervise(supervised_job(), train, val, tmp_path / "run", device="cpu", workers=2)
    assert tensor_hashes(final) == tensor_hashes(straight)
    assert rows_of(tmp_path / "run") == rows_of(straight.parent.parent)


def test_a_checkpoint_is_the_classifier_that_was_measured(straight: Path, val: LabelledFolder) -> None:
    accuracy = Accuracy(val, 32, batch_size=4)
    with torch.no_grad():
        network = trained_classifier(supervised_job(), straight)
        found = accuracy.hits(network, HERE)
        pixels = torch.stack([centre_crop(torch.from_numpy(val.read(i)).permute(2, 0, 1), 32) for i in range(len(val))])
        predicted = network(normalise(pixels)).argmax(1).numpy()
    assert found[0].tolist() == (predicted == val.labels).tolist()
    assert {"top1": 100 * found[0].mean(), "top5": 100.0} == pytest.approx(
        {key: rows_of(straight.parent.parent)[-1][key] for key in ("top1", "top5")}
    )


def test_a_checkpoint_has_the_skips_that_its_training_left(
    train: LabelledFolder, val: LabelledFolder, tmp_path: Path
) -> None:
    """Weights that end at a half give other logits than whole skips would."""
    short = {"epochs": 1, "warmup_epochs": 0}
    job = supervised_job(**short, model={"skip_weight": {"end": 0.5, "fraction": 0.5}})
    final = supervise(job, train, val, tmp_path / "run", device="cpu")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = trained_classifier(job, final)(images)
        whole = trained_classifier(supervised_job(**short), final)(images)
        backbone = load_backbone(f"run:{tmp_path / 'run'}").model.eval()
        head = load_tensors(final / "head.safetensors")
        expected = backbone(images) @ head["student.weight"].T + head["student.bias"]
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, whole, atol=1e-4)


def test_accumulation_changes_nothing_beyond_rounding(straight: Path, train: LabelledFolder, tmp_path: Path) -> None:
    final = supervise(supervised_job(accumulate=3), train, None, tmp_path / "run", device="cpu")
    losses = [[row["loss"] for row in rows_of(path.parent.parent)] for path in (final, straight)]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-5, atol=1e-5)
    assert "top1" not in rows_of(tmp_path / "run")[-1]


@pytest.mark.parametrize("skip", [pytest.param(True, marks=pytest.mark.slow), False])
def test_it_learns(skip: bool, train: LabelledFolder, val: LabelledFolder, tmp_path: Path) -> None:
    model = {"skip": skip} if skip else {"skip": False, "init": {"name": "skipless", "alpha": 2, "beta": 0.6}}
    light = {"mixup": 0, "cutmix": 0, "erase": 0, "rand_magnitude": 0, "label_smoothing": 0}
    job = supervised_job(model=model, epochs=8, augment=light, pooling="token" if skip else "avg", online_every=8)
    supervise(job, train, val, tmp_path / "run", device="cpu")
    rows = rows_of(tmp_path / "run")
    assert rows[0]["loss"] == pytest.approx(math.log(3), abs=0.5)
    assert np.mean([row["loss"] for row in rows[-4:]]) < 0.5 * math.log(3)
    assert rows[-1]["top1"] >= 80


def test_what_cannot_work_is_said_before_training(
    train: LabelledFolder, val: LabelledFolder, straight: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="micro-batches of 3, which cannot be mixed in pairs"):
        supervise(supervised_job(accumulate=4), train, val, tmp_path / "odd", device="cpu")
    with pytest.raises(ValueError, match=r"supervise.augment.size: 40 is not a multiple of the patch size 16"):
        supervised_job(augment={"size": 40})
    other = LabelledFolder(val.root, val.names, val.labels, ("a", "b", "c"))
    with pytest.raises(DataError, match="its classes are not those of"):
        supervise(supervised_job(), train, other, tmp_path / "other", device="cpu")
    one = LabelledFolder.open(make_classes(tmp_path / "one", 4, classes=("red",)))
    with pytest.raises(DataError, match="one class only, red"):
        supervise(supervised_job(), one, None, tmp_path / "single", device="cpu")
    with pytest.raises(ConfigError, match=r"supervise.augment.mixup: 0.8 → 0.2"):
        supervise(supervised_job(augment={"mixup": 0.2}), train, val, straight.parent.parent, device="cpu")


def test_a_run_of_the_version_that_said_supervised_goes_on(
    train: LabelledFolder, val: LabelledFolder, straight: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(straight.parent.parent, tmp_path / "run")
    recorded = read_json(run / "config.json")
    write_json(
        run / "config.json", {{"supervise": "supervised"}.get(key, key): value for key, value in recorded.items()}
    )
    assert supervise(supervised_job(log_every=2), train, val, run, device="cpu").name == straight.name
    assert read_json(run / "config.json")["supervise"]["log_every"] == 2


def test_recipe_defaults_are_the_recipes() -> None:
    job = SupervisedJob.model_validate({"model": {"name": "vit_base_patch16"}})
    recipe, optimizer = job.supervise, job.optimizer
    assert (recipe.epochs, recipe.batch_size, recipe.warmup_epochs, recipe.clip_grad) == (300, 4096, 50, 0)
    assert optimizer.lr * recipe.batch_size / 256 == pytest.approx(4e-3)
    assert (optimizer.weight_decay, optimizer.weight_decay_end, optimizer.min_lr) == (0.05, 0.05, 1e-6)
    assert job.model.drop_path == 0
    assert SupervisedJob.model_validate(json.loads(job.model_dump_json())) == job
    set_ = SupervisedJob.model_validate({"optimizer": {"lr": 1.0, "weight_decay": 0.1}, "model": {"drop_path": 0.2}})
    assert (set_.optimizer.lr, set_.optimizer.weight_decay, set_.model.drop_path) == (1.0, 0.1, 0.2)


# --- mathematics ---------------------------------------------------------------------------------------


def test_schedules_in_closed_form() -> None:
    job = supervised_job(epochs=6, warmup_epochs=2, batch_size=64)
    schedules, peak = Schedules(job.supervise, job.optimizer, 5), 2e-2 * 64 / 256
    for step in range(30):
        if step < 10:
            expected = peak * step / 9
        else:
            expected = 1e-6 + (peak - 1e-6) * (1 + math.cos(math.pi * (step - 10) / 20)) / 2
        assert schedules.at(step).lr == pytest.approx(expected, rel=1e-12)
        assert schedules.at(step).weight_decay == pytest.approx(0.05, rel=1e-12)


@given(st.integers(2, 9), st.integers(1, 8), st.floats(0, 0.9), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_the_loss_is_torchs_with_label_smoothing(classes: int, count: int, smoothing: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits, labels = 4 * torch.randn(count, classes, generator=rng), torch.randint(classes, (count,), generator=rng)
    found = soft_cross_entropy(logits, soft_targets(labels, classes, smoothing))
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@given(st.integers(2, 8), st.integers(1, 10), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_hits_are_numpys_stable_ranking(classes: int, count: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.integers(0, 4, (count, classes)).astype(np.float32), rng.integers(0, classes, count)  # ties
    ranked = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    expected = (ranked == labels[:, None]).any(1)
    assert hits(torch.from_numpy(logits), torch.from_numpy(labels), k).tolist() == expected.tolist()


def test_logits_that_are_no_numbers_hit_nothing() -> None:
    assert not hits(torch.full((2, 3), torch.nan), torch.tensor([0, 1]), 3).any()


def test_the_head_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = ClassifierHead(16, 5, seed=3)
    torch.manual_seed(2)
    assert torch.equal(first.weight, ClassifierHead(16, 5, seed=3).weight)
    assert not torch.equal(first.weight, ClassifierHead(16, 5, seed=4).weight)
    assert float(first.weight.detach().std()) == pytest.approx(0.02, rel=0.3)
    assert not first.bias.any()


@pytest.mark.parametrize("pooling", ["token", "avg"])
def test_what_the_classifier_reads(pooling: str) -> None:
    network = build(supervised_job(pooling=pooling), 3, torch.device("cpu")).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = network.backbone.forward_features(images)
    features = tokens[:, 0] if pooling == "token" else tokens[:, 1:].mean(1)
    torch.testing.assert_close(network(images), features @ network.head.weight.T)


def test_clipping_bounds_the_common_norm() -> None:
    for bound, expected in ((0.0, 5.0), (10.0, 5.0), (1.0, 1.0)):
        gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
        clip_together_(gradients, [3.0, 4.0], bound)
        assert torch.cat([g.flatten() for g in gradients]).norm() == pytest.approx(expected)


# --- several ranks (faults: eval_exact_under_dist) -----------------------------------------------------


class Colour(nn.Module):
    """Scores of five classes, of which the images have three at most, from an image's mean colour."""

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean((2, 3))
        return torch.stack([mean[:, 2], mean[:, 1] - 0.3, mean[:, 0] - 0.7, mean.sum(1), -mean[:, 1]], 1).double()


def measured(here: World, root: str, out: str, batch: int) -> None:
    folder = LabelledFolder.open(root, ("blue", "gone", "green", "red", "void"))
    accuracy = Accuracy(folder, 32, batch_size=batch, workers=1)
    found = {**accuracy(Colour(), here), "hits": accuracy.hits(Colour(), here).tolist()}
    write_json(Path(f"{out}-{here.rank}.json"), found)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_accuracy_is_exact_whatever_the_ranks(size: int, tmp_path: Path) -> None:
    root = make_classes(tmp_path / "val", 4)
    (root / "red" / "03.png").unlink()
    (root / "blue" / "03.png").unlink()  # ten images: 3 ranks do not divide them, batches of 3 leave one of 1
    if size == 1:
        measured(HERE, str(root), str(tmp_path / "out"), 3)
    else:
        on_ranks(size, tmp_path, measured, str(root), str(tmp_path / "out"), 3)
    folder = LabelledFolder.open(root, ("blue", "gone", "green", "red", "void"))
    pixels = torch.stack([centre_crop(torch.from_numpy(folder.read(i)).permute(2, 0, 1), 32) for i in range(10)])
    ranked = np.argsort(-Colour()(normalise(pixels)).numpy(), axis=1, kind="stable")
    top1 = 100.0 * float((ranked[:, 0] == folder.labels).mean())
    assert 0 < top1 < 100
    each = [(ranked[:, 0] == folder.labels).tolist(), [True] * 10]  # in the folder's order, each image once
    for rank in range(size):
        assert read_json(tmp_path / f"out-{rank}.json") == {"top1": top1, "top5": 100.0, "hits": each}


def failing(here: World, root: str) -> None:
    with pytest.raises(DataError, match=r"03\.png"):
        Accuracy(LabelledFolder.open(root), 32, workers=1)(Colour(), here)


def test_an_unreadable_image_ends_every_rank(tmp_path: Path) -> None:
    root = make_classes(tmp_path / "val", 4)
    (root / "red" / "03.png").write_bytes(b"no image")
    on_ranks(2, tmp_path, failing, str(root))


def two_ranks(here: World, data: str, out: str) -> None:
    job, folder = supervised_job(), LabelledFolder.open(data)
    loader = labelled_batches(job, folder, here, 0)
    objective = Supervised(job, len(folder.class_names), loader.steps_per_epoch, here.device)
    network, optimizer = objective.networks["student"], build_optimizer(objective.networks["student"], job.optimizer)
    step = Step(Engine(network, network, optimizer, loader, here, job.seed), 0, loader.epoch(0))
    objective.step(step)  # its learning rate is 0: the gradients are left as they were
    tensors = {name: p.grad for name, p in network.named_parameters()} | {"loss": step.means["loss"]}
    for tensor in tensors.values():
        assert tensor is not None
        if here.size > 1:
            dist.all_reduce(tensor)
            tensor /= here.size
    if here.is_main:
        save_tensors(Path(out), {name: t for name, t in tensors.items() if t is not None})


def test_two_ranks_give_the_gradient_of_one(data: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 2):
        on_ranks(size, tmp_path, two_ranks, str(data / "train"), str(tmp_path / f"of-{size}"))
        found.append(load_tensors(tmp_path / f"of-{size}"))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-5, atol=1e-6)


def whole_run(job: dict[str, Any], data: str, out: str, env: dict[str, str]) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    train = LabelledFolder.open(f"{data}/train")
    val = LabelledFolder.open(f"{data}/val")
    supervise(SupervisedJob.model_validate(job), train, val, out, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "optimizer", "network"),
    [
        ("ddp", "adamw", None), ("fsdp", "adamw", None), ("ddp", "soap", None), ("fsdp", "soap", None),
        ("fsdp", "adamw", "timm:pvt_v2_b0"), ("fsdp", "adamw", "timm:swin_tiny_patch4_window7_224"),
        ("fsdp", "adamw", "timm:cait_xxs24_224"),
    ],
)  # fmt: skip
def test_two_processes_train_as_one(
    strategy: str, optimizer: str, network: str | None, data: Path, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    model = {"name": network, "depth": None} if network else None
    job = supervised_job(model=model, parallel=strategy).model_dump(mode="json")
    job["optimizer"] = {"name": optimizer, "lr": 2e-3}
    for size in (1, 2):
        environments = rank_environments(size) if size > 1 else [{}]
        arguments = [(job, str(data), str(tmp_path / f"of-{size}"), env) for env in environments]
        started = [context.Process(target=whole_run, args=one) for one in arguments]
        for process in started:
            process.start()
        for process in started:
            process.join(120)
            process.kill()
        assert [process.exitcode for process in started] == [0] * size
    one, two = (rows_of(tmp_path / f"of-{size}") for size in (1, 2))
    assert [row["step"] for row in one] == [row["step"] for row in two] == list(range(1, 9))
    losses = [torch.tensor([row["loss"] for row in rows]) for rows in (two, one)]
    # SOAP divides directions in which a small batch has no gradient by their own rounding noise.
    tolerance = 1e-5 if optimizer == "adamw" else 1e-2
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    if optimizer == "adamw":
        assert [row.get("top1") for row in one] == [row.get("top1") for row in two]


# --- the command ---------------------------------------------------------------------------------------

TINY = [
    "model.name=vit_tiny_patch16", "model.depth=1", "model.img_size=32", "supervise.augment.size=32",
    "supervise.epochs=1", "supervise.warmup_epochs=0", "supervise.batch_size=12",
]  # fmt: skip


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--data", str(data / "train"), "--val", str(data / "val"), "--device", "cpu"]
    assert main(["supervise", *TINY, *folders, "--out", str(tmp_path / "run"), "-q"]) == 0
    final = Path(capsys.readouterr().out.strip())
    assert final == next(iter(list_checkpoints(tmp_path / "run").values()))
    assert {"top1", "top5"} <= read_metrics(tmp_path / "run" / "metrics.jsonl")[-1].keys()
    assert main(["supervise", *TINY, "supervise.mixup=1", *folders, "--out", str(tmp_path / "x"), "-q"]) == 2
    assert "supervise.mixup: unknown key" in capsys.readouterr().err
    wrong = ["--data", str(tmp_path / "none"), "--out", str(tmp_path / "x")]
    assert main(["supervise", *TINY, *wrong, "-q"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plain_classifier_is_made_of_backbone_and_head() -> None:
    network = build(supervised_job(), 3, torch.device("cpu"))
    assert isinstance(network, Classifier)
    assert {name.partition(".")[0] for name, _ in network.named_parameters()} == {"backbone", "head"}
