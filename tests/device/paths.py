"""Every hot path as it runs on a GPU, at tiny sizes: what one step, batch, image or look asks of the device.

A path prepares itself (data, networks, a first step that makes state and fills caches) and then runs ``amount`` units
inside ``device.counting()``. Data sets are written once a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from dinoskip.data import ImageFolder
from dinoskip.data.ahead import ViewsAhead
from dinoskip.data.classification import ClassLoader
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.loader import BatchSplit
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.diagnostics.live import LiveDiagnostics, gradient_rows
from dinoskip.features import Transform, export
from dinoskip.models import Backbone, create_model
from dinoskip.optim import build_optimizer
from dinoskip.runtime.console import Progress
from dinoskip.runtime.distributed import World
from dinoskip.settings import vit_config
from dinoskip.training.objective import Engine, Objective, Step
from dinoskip.training.objectives import PretrainJob
from dinoskip.training.supervised import Accuracy, Supervised
from eval.knn.classify import knn_predictions
from eval.labelled import LabelledTokens, batchnorm_statistics
from eval.online import OnlineEvaluation, OnlineKnn, OnlineKnnConfig, OnlineProbe, OnlineProbeConfig
from eval.probe.config import ProbeConfig
from eval.probe.fit import score_heads
from eval.probe.live import LiveTokenLoader, RunningNorm
from eval.probe.loaders import StoredTokenLoader, training_batches
from eval.probe.stack import HeadStack
from eval.retrieval.config import RetrievalConfig
from eval.retrieval.evaluation import retrieve
from eval.retrieval.memory import remember
from eval.tokencut.cut import tokencut
from eval.tokencut.graph import lengths, normalise, similarities
from eval.tokencut.lost import grow
from tests.helpers.labelled import make_classes, supervised_job
from tests.helpers.pretended_device import Counts, PretendedDevice, RealDevice
from tests.helpers.tiny import make_images
from visualize.pca import PatchPCA

Device = PretendedDevice | RealDevice


@dataclass(frozen=True)
class Reading:
    """Host reads, uploads that are waited for, kernels, and megabytes that these move, of one unit of a path.

    ``lines`` says which lines of the project read or uploaded, of all units.
    """

    reads: float
    uploads: float
    kernels: float
    megabytes: float
    lines: tuple[str, ...]

    @classmethod
    def of(cls, counts: Counts, amount: int) -> Reading:
        lines = tuple(f"{line} x{count}" for line, count in (counts.reads + counts.uploads).most_common())
        reads, uploads = counts.reads.total() / amount, counts.uploads.total() / amount
        return cls(reads, uploads, counts.kernels / amount, counts.traffic / amount / 1e6, lines)


# --- data ------------------------------------------------------------------------------------------------

CLASSES = ("dark", "light", "red")
SIDE, PATCH, DEPTH, DIM, HEAD_DIM = 32, 8, 2, 32, 16  # of vit_mini_patch8, made narrower
CELLS = SIDE // PATCH


@lru_cache
def data() -> SimpleNamespace:
    """``images`` (24), ``train`` and ``val`` of three classes, ``masks``: labelled images of one size."""
    keep = TemporaryDirectory()
    root = Path(keep.name)
    train = LabelledFolder.open(make_classes(root / "train", 8))
    val = LabelledFolder.open(make_classes(root / "val", 8, seed=1), train.class_names)
    images = ImageFolder.open(make_images(root / "images", 24))
    return SimpleNamespace(keep=keep, root=root, images=images, train=train, val=val, masks=_masks(root / "masks", 16))


def _masks(root: Path, count: int) -> SegmentationDataset:
    """Patches of three colours, 48 × 40 pixels."""
    root.mkdir()
    rng = np.random.default_rng(0)
    colours = np.array([[20, 20, 20], [220, 220, 220], [200, 40, 30]])
    names = tuple(f"{number:02d}" for number in range(count))
    for name in names:
        label = rng.integers(0, 3, (3, 4)).repeat(16, 0).repeat(10, 1).astype(np.uint8)
        Image.fromarray((colours[label] + rng.integers(-20, 20, (*label.shape, 3))).clip(0, 255).astype(np.uint8)).save(
            root / f"{name}.png"
        )
        Image.fromarray(label).save(root / f"{name}_mask.png")
    images, masks = (tuple(root / f"{name}{end}.png" for name in names) for end in ("", "_mask"))
    return SegmentationDataset("patches", "all", names, images, masks, class_names=CLASSES)


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("vit_mini_patch8", depth=DEPTH, img_size=SIDE)


def _backbone(device: Device) -> Backbone:
    return Backbone.from_model(_network().eval()).to(device.device)


# --- training --------------------------------------------------------------------------------------------


def _steps(device: Device, objective: Objective, loader: Any, optimizer: Any, warm: int, count: int) -> Counts:
    """Counts of ``count`` steps after ``warm`` others."""
    student = objective.networks["student"]
    built = build_optimizer(student, optimizer)
    here = World(0, 1, device.device)
    ahead = ViewsAhead(loader.views, device.device)
    engine = Engine(student, student, built, loader, here, seed=1, bf16=True, ahead=ahead)

    def batches() -> Iterator[Any]:
        epoch = 0
        while True:
            yield from loader.epoch(epoch)
            epoch += 1

    endless = batches()
    for number in range(warm):
        objective.step(Step(engine, number, endless))
    with device.counting() as counts:
        for number in range(warm, warm + count):
            step = Step(engine, number, endless)
            objective.step(step)
            assert step.finite
    endless.close()
    return counts


TEACHER = f"timm:vit_tiny_patch16_224,pretrained=false,img_size={SIDE},depth=2"


def dino(device: Device, optimizer: str, path: str, *, refresh: bool = False) -> Reading:
    """A DINO step, bfloat16; of SOAP and its like one without or with a refresh of the bases."""
    settings: dict[str, Any] = {"name": optimizer}
    if optimizer in {"soap", "klshampoo", "ecs"}:
        settings["precondition_frequency"] = 1 if refresh else 1000
    if optimizer == "ecs":
        settings["max_precond_dim"] = 64  # its eigenvectors of larger matrices take a CPU minutes
    job = PretrainJob.model_validate({
        "seed": 1, "optimizer": settings,
        "model": {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIDE},
        "pretrain": {
            "epochs": 4, "batch_size": 4, "warmup_epochs": 1, "out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16,
            "crops": {"global_size": SIDE, "local_size": 16, "num_local": 4}, "data_path": path, "freeze_last_layer": 0,
        },
    })  # fmt: skip
    return _pretraining(device, job)


def other_objective(device: Device, name: str) -> Reading:
    """A step of another objective, bfloat16, AdamW, with crops cut by the device."""
    heads = {"out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "freeze_last_layer": 0}
    ibot = {**heads, "crops": {"global_size": SIDE, "local_size": 16, "num_local": 4}}
    own: dict[str, dict[str, Any]] = {
        "ibot": ibot,
        "ibot with all that adds": {
            **ibot,
            "koleo": {},
            "gram": {"teacher": "ema"},
            "paka": {},
            "centering": "sinkhorn",
        },
        "distill": {"crop_size": SIDE, "hidden_dim": 32, "teachers": [{"backbone": TEACHER}]},
        "mae": {"crop_size": SIDE, "decoder_dim": 32, "decoder_depth": 1},
        "patch_contrast": {"crop_size": SIDE, "hidden_dim": 32, "out_dim": 16, "momentum_teacher": 0.9, "queue": 64},
    }
    job = PretrainJob.model_validate({
        "seed": 1, "optimizer": {"name": "adamw"},
        "model": {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIDE},
        "pretrain": {"objective": name.split()[0], "epochs": 4, "batch_size": 4, "warmup_epochs": 1,
                     "data_path": "decode", **own[name]},
    })  # fmt: skip
    return _pretraining(device, job)


def _pretraining(device: Device, job: PretrainJob) -> Reading:
    """A step after two others."""
    config = job.pretrain
    targets = config.targets(job.seed, job.model.patch_size)
    recipe = ViewRecipe(*config.views(), config.data_path, targets=targets)
    loader = TrainLoader(data().images, recipe, BatchSplit(4), seed=1, device=device.device)
    objective = config.build(job, loader.steps_per_epoch, device.device)
    objective.look_at(data().images)
    return Reading.of(_steps(device, objective, loader, job.optimizer, 2, 1), 1)


def supervised(device: Device) -> Reading:
    """A supervised step with all of its augmentation."""
    job = supervised_job(model={"name": "vit_mini_patch8", "drop_path": 0.1})
    config = job.supervise
    loader = ClassLoader(data().train, config.augment, BatchSplit(config.batch_size), seed=1, device=device.device)
    objective = Supervised(job, 3, loader.steps_per_epoch, device.device)
    return Reading.of(_steps(device, objective, loader, job.optimizer, 2, 1), 1)


def accuracy(device: Device) -> Reading:
    """Top-1 and top-5 accuracy of a classifier on 24 images in batches of 4, an evaluation."""
    job = supervised_job(model={"name": "vit_mini_patch8"})
    objective = Supervised(job, 3, 4, device.device)
    network = objective.networks["student"].eval()
    observer = Accuracy(data().val, SIDE, batch_size=4)
    with torch.no_grad(), device.counting() as counts:
        observer(network, World(0, 1, device.device))
    return Reading.of(counts, 1)


def live_diagnostics(device: Device) -> Reading:
    """A look inside a network between two steps, gradient norms included."""
    network: Any = _network().to(device.device)
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    look = LiveDiagnostics(data().images, SIDE)
    look.signals(network)
    with device.counting() as counts:
        look.signals(network)
        gradient_rows(network, lambda parameter: parameter.grad)
    return Reading.of(counts, 1)


def online(device: Device) -> Reading:
    """An online evaluation, k-NN and probe, of a network whose images have been decoded before."""
    network = torch.nn.Module()
    network.backbone = _network().eval().to(device.device)
    knn = OnlineKnnConfig(dataset="classes", size=SIDE, k=(3,))
    probe = OnlineProbeConfig(dataset="masks", size=SIDE, blocks=(1, 2), epochs=2)
    evaluation = OnlineEvaluation([
        OnlineKnn(data().train, data().val, knn), OnlineProbe(data().masks, data().masks, probe),
    ])  # fmt: skip
    here = World(0, 1, device.device)
    with torch.no_grad():
        evaluation(network, here)
        with device.counting() as counts:
            assert set(evaluation(network, here)) >= {"knn3_top1", "probe_miou"}
    return Reading.of(counts, 1)


# --- features --------------------------------------------------------------------------------------------


def feature_export(device: Device) -> Reading:
    """Features of every block, a batch of 8 images."""
    backbone = _backbone(device)
    assert backbone.weights_hash  # once a network, and not once an export
    with TemporaryDirectory() as folder, device.counting() as counts:
        export(backbone, data().masks, Path(folder) / "store", "all", transform=Transform(size=SIDE), batch_size=8)
    return Reading.of(counts, 2)


# --- probes ----------------------------------------------------------------------------------------------

_GROUPS = tuple((("final", block),) for block in range(1, DEPTH + 1))
_KEYS = [key for group in _GROUPS for key in group]
_RATES = (1e-3, 1e-2)


def _tokens(seed: int = 0) -> dict[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (len(data().masks), CELLS * CELLS, DIM)
    return {key: rng.normal(size=shape).astype(np.float16) for key in _KEYS}


def _labelled() -> LabelledTokens:
    masks = data().masks
    return LabelledTokens({block: _tokens()["final", block] for _, block in _KEYS}, masks.label, (CELLS, CELLS), 3, 16)


def _stack(loader: Any, config: ProbeConfig) -> HeadStack:
    return HeadStack(
        _GROUPS, _RATES, 3, DIM, 1e-4, loader.device, affine=config.batchnorm == "affine", init_std=config.init_std
    )


def _train(device: Device, loader: Any, stack: HeadStack, config: ProbeConfig, count: int) -> Reading:
    """Steps of all heads after a first one."""
    every = loader.batches(training_batches(np.arange(16), config, 0))
    stack.step(*next(every), 1.0)
    with device.counting() as counts:
        for _ in range(count):
            stack.step(*next(every), 1.0)
    every.close()
    return Reading.of(counts, count)


def _score(device: Device, loader: Any, stack: HeadStack) -> Reading:
    """All 16 images under all heads, the areas of one head a group among them; an image."""
    rows = np.arange(16)
    score_heads(stack, loader, rows, "warm", [0, 0])
    with device.counting() as counts:
        score_heads(stack, loader, rows, "scores", [0, 0])
    return Reading.of(counts, len(rows))


def _live(device: Device) -> tuple[LiveTokenLoader, HeadStack, ProbeConfig]:
    config = ProbeConfig.model_validate({
        "protocol": "dinov3", "size": SIDE, "stride": 20, "iterations": 8, "batch_size": 4, "learning_rates": _RATES
    })  # fmt: skip
    masks = data().masks
    statistics = RunningNorm(active=True)
    labels = LabelledTokens.labels_of(masks)
    loader = LiveTokenLoader(_backbone(device), masks, labels, _KEYS, config, statistics, seed=0, workers=1)
    return loader, _stack(loader, config), config


@torch.no_grad()
def live_probe_step(device: Device) -> Reading:
    """A training step of a probe on augmented images, protocol dinov3."""
    loader, stack, config = _live(device)
    return _train(device, loader, stack, config, 4)


@torch.no_grad()
def live_probe_scores(device: Device) -> Reading:
    """Scoring by sliding windows, an image."""
    loader, stack, config = _live(device)
    _train(device, loader, stack, config, 1)
    return _score(device, loader, stack)


def _cached(device: Device) -> tuple[StoredTokenLoader, HeadStack, ProbeConfig]:
    config = ProbeConfig(epochs=8, batch_size=4, learning_rates=_RATES)
    tokens, rows = _tokens(), np.arange(16)
    constants = {key: batchnorm_statistics(tokens[key], rows, device.device) for key in _KEYS}
    loader = StoredTokenLoader(_labelled(), tokens, constants, config, device.device, rows)
    return loader, _stack(loader, config), config


@torch.no_grad()
def cached_probe_step(device: Device) -> Reading:
    """A training step of a probe on stored features."""
    loader, stack, config = _cached(device)
    return _train(device, loader, stack, config, 4)


@torch.no_grad()
def cached_probe_scores(device: Device) -> Reading:
    """Scoring at label size, an image."""
    loader, stack, config = _cached(device)
    _train(device, loader, stack, config, 1)
    return _score(device, loader, stack)


# --- discovery, neighbours, colours ----------------------------------------------------------------------


def _graphs(device: Device, count: int) -> torch.Tensor:
    """Tokens (count, 81, 16) of two regions and noise."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(count, 1, 16)) + np.where(np.arange(81) % 9 < 4, 1.5, -1.0)[None, :, None]
    return torch.from_numpy((base + rng.normal(size=(count, 81, 16))).astype(np.float32)).to(device.device)


def token_cut(device: Device) -> Reading:
    """Six images of one grid, cut in one batch."""
    features = _graphs(device, 6)
    with device.counting() as counts:
        cuts = tokencut(features, (9, 9))
    assert len(cuts) == 6
    return Reading.of(counts, 1)


def lost(device: Device) -> Reading:
    """Six images of one grid, in one batch."""
    features = _graphs(device, 6)
    with device.counting() as counts:
        length = lengths(features)
        boxes = grow(similarities(normalise(features, length)), length, [(9, 9)] * 6, 25)
    assert len(boxes) == 6
    return Reading.of(counts, 1)


def knn(device: Device) -> Reading:
    """k-NN of two blocks and two values of k in one chunk of queries."""
    rng = np.random.default_rng(0)
    train, test = (torch.from_numpy(rng.normal(size=(2, n, 8)).astype(np.float32)) for n in (60, 20))
    train, test, labels = train.to(device.device), test.to(device.device), rng.integers(0, 3, 60)
    with device.counting() as counts:
        knn_predictions(train, labels, test, [5, 10])
    return Reading.of(counts, 1)


def retrieval(device: Device) -> Reading:
    """Dense retrieval with a block, an image."""
    labelled, config = _labelled(), RetrievalConfig(memory=120, k=5)
    memory = remember(labelled, data().masks.ids, config.memory, 0)
    retrieve(labelled, labelled, memory, 1, config, device.device)
    with device.counting() as counts:
        retrieve(labelled, labelled, memory, 1, config, device.device)
    return Reading.of(counts, labelled.count)


def pca(device: Device) -> Reading:
    """PCA of tokens that lie on the device: fitted and applied, by the host."""
    tokens = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 64, 16)).astype(np.float32)).to(device.device)
    with device.counting() as counts:
        PatchPCA().fit(tokens).transform(tokens)
    return Reading.of(counts, 1)


OPTIMIZERS = ("adamw", "soap", "ecs", "klshampoo", "muon")
PATHS: dict[str, Callable[[Device], Reading]] = {
    **{
        f"DINO step, {optimizer}, {path}": partial(dino, optimizer=optimizer, path=path)
        for optimizer in OPTIMIZERS
        for path in ("crops", "decode", "resident")
    },
    **{
        f"DINO step, {optimizer}, crops, refresh": partial(dino, optimizer=optimizer, path="crops", refresh=True)
        for optimizer in ("soap", "ecs", "klshampoo")
    },
    **{
        f"{title} step, adamw, decode": partial(other_objective, name=name)
        for title, name in (
            ("iBOT", "ibot"),
            ("MAE", "mae"),
            ("patch contrast", "patch_contrast"),
            ("iBOT + KoLeo + Gram + PaKA + Sinkhorn", "ibot with all that adds"),
            ("distillation", "distill"),
        )
    },
    "supervised step": supervised,
    "accuracy, 6 batches": accuracy,
    "live diagnostics, a look": live_diagnostics,
    "online evaluation": online,
    "feature export, a batch": feature_export,
    "live probe, a step": live_probe_step,
    "live probe scores, an image": live_probe_scores,
    "cached probe, a step": cached_probe_step,
    "cached probe scores, an image": cached_probe_scores,
    "TokenCut, a batch": token_cut,
    "LOST, a batch": lost,
    "k-NN, a chunk": knn,
    "retrieval, an image": retrieval,
    "PCA, fit and apply": pca,
}


def measure(name: str, device: type[Device]) -> Reading:
    """Return the reading of path ``name`` on a fresh device of that kind."""
    data()
    narrow = (
        mock.patch.dict(vit_config.SHAPES, vit_mini_patch8=(DIM, PATCH)),
        mock.patch.object(vit_config, "HEAD_DIM", HEAD_DIM),
    )
    with narrow[0], narrow[1], device() as here, Progress.hidden():
        return PATHS[name](here)
