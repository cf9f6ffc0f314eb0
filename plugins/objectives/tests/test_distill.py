"""Distillation: golden cases, ten steps beside a plain loop, ranks, teachers of other sizes, bad settings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.data.augment import MEAN, STD
from dinoskip.errors import ConfigError, DinoskipError
from dinoskip.io.files import load_tensors
from dinoskip.models.load import load_backbone
from dinoskip.runtime.distributed import World
from dinoskip.training import pretrain
from dinoskip_objectives.distill import Distill
from dinoskip_objectives.feature_losses import intra_kl, point_loss, queue_kl, resized, update_queue_
from dinoskip_objectives.standardise import Standardisation, by_channel, hadamard, phi_s
from tests.helpers.dino_reference import Values, vit_tokens
from tests.helpers.golden_next import arrays, assert_close, golden
from tests.helpers.plain_training import Driver, PlainTraining, job_of
from tests.helpers.ranks import assert_two_ranks_equal_one
from tests.helpers.tiny import objective_job
from tests.training.test_resume import folder

SIZE, IMAGES, DEPTH, STEPS, EPOCH = 32, 4, 2, 10, 4
TEACHER = "timm:vit_tiny_patch16_224,pretrained=false,img_size=32,depth=2"


# --- golden cases ------------------------------------------------------------------------------------


@golden("distill", loss="queue_kl")
def test_golden_queue(case: dict[str, Any]) -> None:
    given = arrays(case)
    queue = torch.zeros(case["queue"], case["dim"])
    for step in range(case["steps"]):
        student = given[f"student_{step}"].requires_grad_()
        update_queue_(queue, given[f"teacher_{step}"])
        torch.testing.assert_close(queue.double(), given[f"queue_{step + 1}"], rtol=0, atol=1e-6)
        loss = queue_kl(student, given[f"teacher_{step}"], queue, case["temperature"])
        (gradient,) = torch.autograd.grad(loss, student)
        wanted = case["expected"]["loss"][step]
        assert loss.item() == pytest.approx(wanted, abs=1e-5 * max(1, wanted))
        assert_close(gradient, given[f"grad_student_{step}"], 2e-4)


@golden("distill", loss="patch_mse")
def test_golden_patches(case: dict[str, Any]) -> None:
    given = arrays(case)
    leaves = [given[name].requires_grad_() for name in ("student", "weight", "bias")]
    target = torch.cat([given[f"teacher_block_{i}"] for i in range(case["teacher_blocks"])], dim=-1)
    projected = resized(F.linear(*leaves), tuple(case["student_grid"]), tuple(case["teacher_grid"]))
    torch.testing.assert_close(projected, given["projected"], rtol=0, atol=1e-5)
    loss = point_loss(projected, target, "mse")
    assert float(loss) == pytest.approx(case["expected"]["loss"], rel=1e-5)
    for name, gradient in zip(("student", "weight", "bias"), torch.autograd.grad(loss, leaves), strict=True):
        assert_close(gradient, given[f"grad_{name}"], 1e-5)


@golden("distill", loss="intra_kl")
def test_golden_similarities(case: dict[str, Any]) -> None:
    given = arrays(case)
    student = given["student"].requires_grad_()
    loss = intra_kl(student, given["teacher"], case["temperature"])
    assert float(loss) == pytest.approx(case["expected"]["loss"], abs=1e-5)
    assert_close(torch.autograd.grad(loss, student)[0], given["grad_student"], 2e-4)


@golden("distill", loss="cosine_smooth_l1")
def test_golden_cosine_and_smooth_l1(case: dict[str, Any]) -> None:
    given, expected = arrays(case), case["expected"]
    student, target = given["student"].requires_grad_(), given["teacher"]
    if case["standardised"]:
        target = Standardisation(given["mean"], 1 / given["std"])(target)
    over = case["cosine_over"]
    loss = point_loss(student, target, "cosine_smooth_l1", over)
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-5)
    assert float(point_loss(student, target, "cosine", over)) == pytest.approx(expected["cosine"], rel=1e-5)
    assert float(point_loss(student, target, "smooth_l1")) == pytest.approx(expected["smooth_l1"], rel=1e-5)
    assert_close(torch.autograd.grad(loss, student)[0], given["grad_student"], 1e-5)


@golden("phis")
def test_golden_phi_s(case: dict[str, Any]) -> None:
    given = arrays(case)
    found = phi_s(given["features"])
    torch.testing.assert_close(found.mean.double(), given["mean"], rtol=0, atol=1e-5)
    turned = found.weight.double() @ found.weight.double().T * case["expected"]["phi"] ** 2
    torch.testing.assert_close(turned, torch.eye(case["dim"], dtype=torch.float64), rtol=0, atol=1e-5)
    variances = found(given["features"]).double().var(0)
    torch.testing.assert_close(variances, torch.ones(case["dim"], dtype=torch.float64), rtol=0, atol=1e-4)


# --- standardisation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 96, 128, 192, 384, 768, 1024, 1280, 1408])
def test_every_width_of_a_vit_has_a_hadamard_matrix(size: int) -> None:
    matrix = hadamard(size)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, size**-0.5), rtol=0, atol=1e-12)


def test_a_size_without_one_is_only_orthonormal() -> None:
    matrix = hadamard(22)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(22, dtype=torch.float64), rtol=0, atol=1e-12)
    assert matrix.abs().std() > 0.01


def test_standardised_channels_have_mean_0_and_variance_1_and_a_constant_one_stays_finite() -> None:
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(6) + 3
    found = by_channel(features)(features)
    torch.testing.assert_close(found.mean(0), torch.zeros(6), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.std(0, unbiased=False), torch.tensor([0.0, 1, 1, 1, 1, 1]), rtol=0, atol=1e-5)


def test_a_teacher_is_what_phi_s_made_of_it_turned_back() -> None:
    features = torch.randn(200, 12, generator=torch.Generator().manual_seed(1)) @ torch.randn(12, 12) + 2
    found = phi_s(features)
    phi = features.double().var(0).mean()  # the trace of the covariance by D
    back = found(features).double() @ found.weight.double() * phi + found.mean.double()
    torch.testing.assert_close(back, features.double(), rtol=1e-4, atol=1e-4)


# --- whole steps -------------------------------------------------------------------------------------


def job(**settings: Any) -> Any:
    model = {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIZE, "skip": False, "drop_path": 0,
             "init": {"name": "skipless"}}  # fmt: skip
    given = {"objective": "distill", "crop_size": SIZE, "epochs": 3, "warmup_epochs": 1, "batch_size": 64,
             "clip_grad": 0.5, "teachers": [{"backbone": TEACHER}], **settings}  # fmt: skip
    return job_of(model=model, optimizer={"lr": 4e-3}, pretrain=given)


def images(step: int, rows: slice = slice(None)) -> Tensor:
    rng = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, SIZE, SIZE, generator=rng, dtype=torch.float64)[rows]


class Pictures:
    """Eight pictures by number."""

    def __len__(self) -> int:
        return 8

    def read(self, index: int) -> np.ndarray:
        return np.random.default_rng(index).integers(0, 256, (40, 40, 3), dtype=np.uint8)


def double_driver(job: Any, here: World | None = None) -> Driver:
    """Drives a distillation whose teachers compute in float64, and whose targets are measured."""
    driver = Driver(job, EPOCH, here)
    assert isinstance(driver.objective, Distill)
    driver.objective.look_at(Pictures())  # type: ignore[arg-type]
    for teacher in driver.objective.teachers:
        teacher.backbone.to("cpu", torch.float64)
    return driver


@cache
def teacher_features(step: int) -> tuple[Tensor, Tensor]:
    backbone = load_backbone(TEACHER, dtype=torch.float64)
    assert backbone.mean == backbone.std == (0.5, 0.5, 0.5)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    found = backbone.layers((images(step) * std + mean) * 2 - 1, [2], norm="final")[2]
    assert found.cls is not None
    return found.tokens, found.cls


@pytest.mark.parametrize("standardise", ["none", "channel", "phi_s"])
def test_ten_steps_are_those_of_a_plain_loop(standardise: str) -> None:
    """Patches of a 4 × 4 grid on a teacher's 2 × 2: projected, resized, compared; and CLS tokens by their cosine."""
    driver = double_driver(job(teachers=[{"backbone": TEACHER, "standardise": standardise}]))
    objective = driver.objective
    buffers = {name.rpartition(".")[2]: value.double() for name, value in objective.buffers.items()}
    assert len(buffers) == (0 if standardise == "none" else 4)

    def target(features: Tensor, what: str) -> Tensor:
        if standardise == "none":
            return features
        weight = buffers[f"{what}_weight"]
        centred = features - buffers[f"{what}_mean"]
        return centred * weight if weight.ndim == 1 else centred @ weight.T

    def loss(values: Values, step: int) -> Tensor:
        own = {name.removeprefix("backbone."): value for name, value in values.items()}
        tokens = vit_tokens(own, images(step), DEPTH, 2, False, "dino")
        patches = F.linear(tokens[:, 1:], values["head.of.0_patches.0.weight"], values["head.of.0_patches.0.bias"])
        plane = patches.unflatten(1, (4, 4)).permute(0, 3, 1, 2)
        halved = (plane[..., ::2, :] + plane[..., 1::2, :]) / 2  # bilinear sampling of 4 at 2 places: their means
        halved = ((halved[..., ::2] + halved[..., 1::2]) / 2).flatten(2).transpose(1, 2)
        theirs, theirs_cls = (target(one, what) for one, what in zip(teacher_features(step), ("patches", "cls"),
                                                                       strict=True))  # fmt: skip
        cosine = (halved * theirs).sum(-1) / halved.norm(dim=-1) / theirs.norm(dim=-1)
        difference = (halved - theirs).abs()
        smooth = torch.where(difference < 1, difference**2 / 2, difference - 0.5)
        cls = F.linear(tokens[:, 0], values["head.of.0_cls.0.weight"], values["head.of.0_cls.0.bias"])
        cls_cosine = (cls * theirs_cls).sum(-1) / cls.norm(dim=-1) / theirs_cls.norm(dim=-1)
        return 0.9 * (1 - cosine.mean()) + 0.1 * smooth.mean() + 1 - cls_cosine.mean()

    plain = PlainTraining(driver.values(), loss, 1e-3, 1e-6, (0.04, 0.4), EPOCH, 3 * EPOCH, 0.5)
    for step in range(STEPS):
        taken = driver.step(step, [images(step)])
        assert float(taken.means["loss"]) == pytest.approx(plain.step(step), rel=2e-5), step
        parts = float(taken.means["patches_loss"] + taken.means["cls_loss"])
        assert parts == pytest.approx(float(taken.means["loss"]), rel=1e-6)
    for name, value in plain.values.items():
        torch.testing.assert_close(driver.values()[name], value, rtol=2e-4, atol=2e-6, msg=name)


TWO = [
    {"backbone": TEACHER, "cls": "queue_kl", "queue": 6, "weight": 0.5},
    {"backbone": "timm:vit_tiny_patch16_224,pretrained=false,seed=1,img_size=48,depth=3", "size": 48,
     "blocks": [-1, 0], "patches": "intra_kl", "cls": None},
]  # fmt: skip


def steps_on_ranks(here: World, out: str, strategy: Any) -> None:
    """Four steps with two teachers."""
    driver = double_driver(job(teachers=TWO, head_layers=2, hidden_dim=24, parallel=strategy), here)
    driver.write_steps(out, IMAGES, lambda step, part: [images(step, part)])


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ranks_together_take_the_steps_of_one(strategy: str, tmp_path: Path) -> None:
    assert_two_ranks_equal_one(tmp_path, steps_on_ranks, strategy)


def test_each_teacher_sees_a_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(job(teachers=TWO, head_layers=2, hidden_dim=24), EPOCH)
    assert isinstance(driver.objective, Distill)
    seen: list[tuple[int, ...]] = []
    for teacher in driver.objective.teachers:
        inner = teacher.backbone.layers

        def counted(pixels: Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            seen.append(tuple(pixels.shape))
            return inner(pixels, *args, **kwargs)

        monkeypatch.setattr(teacher.backbone, "layers", counted)
    taken = driver.step(0, [images(0)])
    assert seen == [(IMAGES, 3, 32, 32), (IMAGES, 3, 48, 48)]
    names = ["loss", "patches_loss_1", "cls_loss_1", "patches_loss_2"]
    assert list(taken.means) == names
    total = 0.5 * (taken.means["patches_loss_1"] + taken.means["cls_loss_1"]) + taken.means["patches_loss_2"]
    assert float(taken.means["loss"]) == pytest.approx(float(total), rel=1e-6)


def test_the_sample_is_decoded_once_for_all_teachers() -> None:
    read: list[int] = []

    class Counted(Pictures):
        def read(self, index: int) -> np.ndarray:
            read.append(index)
            return super().read(index)

    driver = Driver(job(teachers=[{"backbone": TEACHER}, {"backbone": TEACHER, "standardise": "phi_s"}]), EPOCH)
    assert isinstance(driver.objective, Distill)
    driver.objective.look_at(Counted())  # type: ignore[arg-type]
    assert sorted(read) == list(range(8))


def test_teachers_are_neither_trained_nor_stored(tmp_path: Path) -> None:
    final = pretrain(objective_job("distill", epochs=1, warmup_epochs=0), folder(), tmp_path / "run", device="cpu")
    head = load_tensors(final / "head.safetensors")
    assert {name.split(".")[0] for name in head} == {"student", "teachers"}
    assert sum(value.numel() for value in head.values()) < 200_000  # a teacher has 900,000 parameters


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backbone": TEACHER, "size": 40}, "size 40 is not a multiple of the patch size 16"),
        ({"backbone": TEACHER, "blocks": [3]}, r"blocks \[3\] must be within the 2"),
        ({"backbone": "weights:nowhere.safetensors"}, "nowhere"),
    ],
)
def test_a_teacher_that_does_not_suit_is_said_in_a_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DinoskipError, match=said):
        Driver(job(teachers=[given]), EPOCH)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"teachers": [{"backbone": TEACHER, "patches": None, "cls": None}]}, "one of the two losses is needed"),
        ({"teachers": [{"backbone": TEACHER, "cls": "queue_kl"}], "accumulate": 2}, "accumulate: must be 1"),
        ({"teachers": []}, "teachers"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job(**settings)
