"""Live probes against plain torch on the same crops; scoring against interpolation at full size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json
from dinoskip.io.images import read_image
from dinoskip.models import Backbone, create_model
from dinoskip.runtime.randomness import numpy_rng
from eval.labelled import LabelledTokens
from eval.metrics import ConfusionMatrix
from eval.prefetch import prefetched
from eval.probe import ProbeConfig
from eval.probe.crops import augmented
from eval.probe.fit import fit_heads, score_heads, split_images
from eval.probe.heads import load_heads
from eval.probe.live import LiveTokenLoader, RunningNorm
from eval.probe.loaders import training_batches
from eval.probe.stack import HeadStack
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("probe")

CLASSES = ("dark", "light", "red")
TINY = {"protocol": "dinov2", "size": 32, "stride": 20, "iterations": 6, "batch_size": 4, "warmup": 0.2}


def some_dataset(root: Path, split: str, count: int) -> SegmentationDataset:
    """Images of several sizes in patches of three colours, with a border of 255."""
    rng = np.random.default_rng(len(split))
    colours = np.array([[20, 20, 20], [220, 220, 220], [200, 40, 30]])
    for i in range(count):
        label = rng.integers(0, 3, (3, 4)).repeat(14 + i % 3, 0).repeat(12, 1).astype(np.uint8)
        noise = rng.integers(-20, 20, (*label.shape, 3))
        Image.fromarray((colours[label] + noise).clip(0, 255).astype(np.uint8)).save(root / f"{split}{i}.png")
        label[:, :2] = 255
        Image.fromarray(label).save(root / f"{split}{i}_mask.png")
    names = tuple(f"{split}{i}" for i in range(count))
    images, masks = (tuple(root / f"{name}{end}.png" for name in names) for end in ("", "_mask"))
    return SegmentationDataset("patches", split, names, images, masks, class_names=CLASSES)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SegmentationDataset]:
    root = tmp_path_factory.mktemp("patches")
    return {split: some_dataset(root, split, count) for split, count in (("train", 9), ("val", 4))}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_vit(8)


def loader_of(
    backbone: Backbone, dataset: SegmentationDataset, config: ProbeConfig, keys: Any, norm: Any
) -> LiveTokenLoader:
    return LiveTokenLoader(backbone, dataset, LabelledTokens.labels_of(dataset), keys, config, norm, seed=0)


def crops_of(dataset: SegmentationDataset, config: ProbeConfig, visit: Any, backbone: Backbone) -> Any:
    """Normalised crops (n, 3, S, S) and labels (n, S, S), made here."""
    images, labels = [], []
    for row in visit.rows.tolist():
        rng = numpy_rng(0, "probe-augment", dataset.ids[row], visit.epoch)
        image = torch.from_numpy(read_image(dataset.path(row))).permute(2, 0, 1)
        crop, label = augmented(image, dataset.label(row), config, rng)
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in (backbone.mean, backbone.std))
        pixels = (crop.float() / 255 - mean) / std
        images.append(F.pad(pixels, (0, config.size - crop.shape[2], 0, config.size - crop.shape[1])))
        labels.append(torch.from_numpy(label.astype(np.int64)))
    return torch.stack(images), torch.stack(labels)


RECIPES: dict[str, dict[str, Any]] = {
    "dinov2": {**TINY, "learning_rates": (1e-3, 1e-2), "weight_decay": (1e-4, 0.1)},
    "paper": {"live": True, "size": 32, "iterations": 6, "batch_size": 4, "refine": 0, "learning_rates": (1e-2,)},
    "leopart": {"protocol": "leopart", "size": 32, "mask": 20, "iterations": 6, "batch_size": 4},
}


@pytest.mark.parametrize("name", RECIPES)
def test_live_heads_are_those_of_plain_torch(
    name: str, sets: dict[str, SegmentationDataset], backbone: Backbone
) -> None:
    """Step for step: crops, backbone, BatchNorm, convolution, interpolate, cross_entropy and torch's optimizer."""
    config, dataset = ProbeConfig(**RECIPES[name]), sets["train"]
    groups = [((norm, block),) for norm in ("final", "none") for block in (1, 2)]
    groups.append((("none", 1), ("none", 2)))
    norm = RunningNorm(active=config.batchnorm != "none")
    rows = split_images(len(dataset), 0.2, 0)[0]
    fresh = loader_of(backbone, dataset, config, sorted({k for g in groups for k in g}), norm)
    stack = fit_heads(fresh, groups, backbone.dim, rows, config, 0)
    rates = [rate for rate, _ in config.trials]
    start = HeadStack(groups, rates, 3, backbone.dim, 0.0, fresh.device, init_std=config.init_std)
    for g, group in enumerate(groups):
        for r, (rate, decay) in enumerate(config.trials):
            width = backbone.dim * len(group)
            batchnorm = nn.BatchNorm2d(width, affine=config.batchnorm == "affine")
            head = nn.Conv2d(width, 3, 1)
            slots = [slot for slot, (of, _) in enumerate(stack.slots) if of == g]
            head.weight.data = torch.cat([start.weight[s, r] for s in slots], -1)[..., None, None]
            nn.init.zeros_(head.bias)
            trained = nn.Sequential(nn.Identity() if config.batchnorm == "none" else batchnorm, head)
            if config.optimizer == "adamw":
                descent: Any = torch.optim.AdamW(trained.parameters(), lr=rate, weight_decay=decay)
            else:
                descent = torch.optim.SGD(trained.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
            for visit in training_batches(rows, config, 0):
                pixels, labels = crops_of(dataset, config, visit, backbone)
                maps = [
                    backbone.layers(pixels, [b], norm=n)[b].tokens.transpose(1, 2).unflatten(2, (4, 4))
                    for n, b in group
                ]
                if config.mask:
                    take = ((torch.arange(config.mask) + 0.5) * config.size / config.mask).long()
                    labels = labels[:, take][:, :, take]
                logits = F.interpolate(trained(torch.cat(maps, 1)), labels.shape[1:], mode="bilinear")
                loss = F.cross_entropy(logits, labels, ignore_index=255)
                share = visit.step / 6
                factor = 0.5 * (1 + np.cos(np.pi * share))
                if name == "dinov2":
                    factor = (1 - share) * min(1, max(visit.step / 1.2, 1e-6))
                elif name == "leopart":
                    factor = 0.1 if share >= 0.8 else 1
                descent.param_groups[0]["lr"] = rate * factor
                descent.zero_grad()
                loss.backward()
                descent.step()
            have, bias = stack.folded(g, r, norm.constants())
            ours = torch.cat([have[key] for key in group], -1)
            trained.eval()
            zero = trained(torch.zeros(1, width, 1, 1)).detach()
            wanted = (trained(torch.eye(width)[..., None, None]) - zero).detach()[..., 0, 0].T
            torch.testing.assert_close(ours, wanted, atol=3e-4, rtol=2e-3)
            torch.testing.assert_close(bias, zero[0, :, 0, 0], atol=1e-3, rtol=2e-3)


def test_dropped_channels_are_dropout2d_before_batchnorm(
    sets: dict[str, SegmentationDataset], backbone: Backbone
) -> None:
    config = ProbeConfig(**{**TINY, "protocol": "dinov3", "dropout": 0.5})
    loader = loader_of(backbone, sets["train"], config, [("none", 2)], RunningNorm(active=False))
    visit = next(iter(training_batches(np.arange(9), config, 0)))
    (tokens, _), *_ = loader.batches([visit])
    pixels, _ = crops_of(sets["train"], config, visit, backbone)
    whole = backbone.layers(pixels, [2])[2].tokens
    found = tokens["none", 2].view(whole.shape)
    kept = found != 0
    torch.testing.assert_close(found, 2 * whole * kept, atol=1e-5, rtol=1e-4)
    assert (kept == kept[:, :1]).all()  # a channel of an image is dropped whole
    assert 0.4 < kept.float().mean() < 0.6
    assert not (kept[0] == kept[1]).all()


@pytest.mark.parametrize("changes", [{}, {"stride": None}, {"size": 36, "stride": 36}])
def test_scores_are_those_of_full_size_logits(
    changes: dict[str, Any], sets: dict[str, SegmentationDataset], backbone: Backbone
) -> None:
    """mmsegmentation's slide mode, or whole squares, image after image; 36 pixels are not whole patches."""
    config = ProbeConfig(**{**TINY, **changes, "batchnorm": "none"})
    train, val = (
        loader_of(backbone, sets[split], config, [("final", 1)], RunningNorm(active=False))
        for split in ("train", "val")
    )
    stack = fit_heads(train, [(("final", 1),)], backbone.dim, np.arange(9), config, 0)
    val.statistics = train.statistics
    ((found,),), _ = score_heads(stack, val, np.arange(4), "")
    matrix = ConfusionMatrix(3)
    for i in range(4):
        label = sets["val"].label(i)
        matrix.update(_slide(sets["val"].path(i), label.shape, stack, backbone, config), label)
    np.testing.assert_allclose(found.iou, matrix.scores().iou, atol=2e-3)


def _slide(path: Path, label: Any, stack: Any, backbone: Backbone, config: ProbeConfig) -> np.ndarray:
    image = torch.from_numpy(read_image(path)).permute(2, 0, 1)
    height, width = image.shape[1:]
    size = (config.size, config.size)
    if config.stride:
        factor = config.size / min(height, width)
        size = (int(height * factor + 0.5), int(width * factor + 0.5))
    sized = F.interpolate(image[None], size, mode="bicubic", antialias=True)[0]
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (backbone.mean, backbone.std))
    pixels = (sized.float() / 255 - mean) / std
    stride, window = config.stride or config.size, config.size
    total, count = torch.zeros(1, 3, *size), torch.zeros(size)
    for y in range(max(size[0] - window + stride - 1, 0) // stride + 1):
        for x in range(max(size[1] - window + stride - 1, 0) // stride + 1):
            bottom, right = min(y * stride + window, size[0]), min(x * stride + window, size[1])
            part = pixels[None, :, bottom - window : bottom, right - window : right]
            extra = -window % 8
            padded = F.pad(part, (extra // 2, extra - extra // 2) * 2)
            features = backbone.layers(padded, [1], norm="final")[1]
            logits = (features.tokens[0] @ stack.weight[0, 0].T + stack.bias[0, 0]).T.unflatten(1, features.grid)
            if config.stride is None:
                return F.interpolate(logits[None], tuple(label), mode="bilinear")[0].argmax(0).numpy().astype(np.uint8)
            total[..., bottom - window : bottom, right - window : right] += F.interpolate(
                logits[None], (window, window), mode="bilinear"
            )
            count[bottom - window : bottom, right - window : right] += 1
    whole = F.interpolate(total / count, tuple(label), mode="bilinear")
    return whole[0].argmax(0).numpy().astype(np.uint8)


def test_live_evaluation_writes_what_it_found(
    sets: dict[str, SegmentationDataset], backbone: Backbone, tmp_path: Path
) -> None:
    config = ProbeConfig(**{**TINY, "seeds": 2, "distort": None, "learning_rates": (1e-2, 3e-2)})
    context = {"model": "tiny"}
    rows = evaluate(
        backbone,
        sets["train"],
        sets["val"],
        "all",
        tmp_path,
        config,
        context,
        seed=3,
        norms=["final", "layer"],
        workers=2,
    )
    (floor,) = [row for row in rows if row.is_baseline]
    assert floor.deviation is None
    means = [row for row in rows if row.deviation is not None]
    assert {(row.block, row.norm) for row in means} == {(b, n) for b in "12" for n in ("final", "layer")}
    for mean in means:
        same = ("metric", "block", "norm")
        of_seeds = [
            row
            for row in rows
            if row.deviation is None
            and all(getattr(row, name) == getattr(mean, name) for name in same)
            and row.note == f"{mean.note}, seed {row.seed}".lstrip(", ")
        ]
        assert [row.seed for row in of_seeds] == [3, 4]
        values = [row.value for row in of_seeds]
        assert mean.value == pytest.approx(np.mean(values))
        assert mean.deviation == pytest.approx(np.std(values, ddof=1))
    assert rows[0].resolution == "32 windows, stride 20, scored at label size"
    assert rows[0].protocol.startswith("dinov2, learning rates 0.01 0.03, warmup 0.2, 6 iterations")
    heads, _ = load_heads(tmp_path / "heads_layer.safetensors")
    assert [head.blocks for head in heads] == [(1,), (2,)]
    assert {probe["seed"] for probe in read_json(tmp_path / "probes.json")["probes"]} == {3, 4}
    again = evaluate(
        backbone, sets["train"], sets["val"], [2], tmp_path, config, context, seed=3, norms=["final"], workers=1
    )
    wanted = [row.value for row in rows if (row.block, row.norm) == ("2", "final")]
    assert [row.value for row in again if row.block == "2"] == wanted  # alone as in company, whatever the workers


def test_a_block_that_is_not_there(sets: dict[str, SegmentationDataset], backbone: Backbone, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="block 5 is beyond the 2 blocks"):
        evaluate(backbone, sets["train"], sets["val"], [1, 5], tmp_path, ProbeConfig(**TINY), {}, norms=["final"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_a_gpu_finds_what_a_cpu_finds(name: str, sets: dict[str, SegmentationDataset], tmp_path: Path) -> None:
    config, values = ProbeConfig(**RECIPES[name]), []
    for device in ("cpu", "cuda"):
        backbone = tiny_vit(8).to(device)
        (tmp_path / device).mkdir()
        rows = evaluate(backbone, sets["train"], sets["val"], "all", tmp_path / device, config, {}, norms=["final"])
        values.append([row.value for row in rows])
    np.testing.assert_allclose(values[1], values[0], atol=2.0)  # percent: pixels at the edge of two classes


def test_weights_that_have_diverged(sets: dict[str, SegmentationDataset], tmp_path: Path) -> None:
    model = create_model("vit_tiny_patch8", depth=2, img_size=32)
    nn.init.constant_(model.blocks[1].mlp.fc2.bias, float("nan"))
    with pytest.raises(DataError, match="features of block 2 are not finite"):
        evaluate(
            Backbone.from_model(model), sets["train"], sets["val"], [1, 2], tmp_path, ProbeConfig(**TINY), {},
            norms=["final"],
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_work_ahead_keeps_its_order_and_its_errors() -> None:
    assert list(prefetched(range(9), lambda i: i * i, 3)) == [(i, i * i) for i in range(9)]
    with pytest.raises(ZeroDivisionError):
        list(prefetched([1, 0], lambda i: 1 // i, 2))
