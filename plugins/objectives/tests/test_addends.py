"""Losses added to DINO, iBOT and patch contrast: golden cases, closed forms, kills, ranks, schedules, settings."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.data.correspondence import Correspondence
from dinoskip.errors import ConfigError
from dinoskip.models.load import load_backbone
from dinoskip.runtime.distributed import World
from dinoskip.training import pretrain
from dinoskip.training.addends_config import AddendConfig, GramConfig, PakaConfig
from dinoskip_objectives.extended import sinkhorn, targets
from dinoskip_objectives.feature_losses import gram_loss, koleo, koleo_of_crops, resized
from dinoskip_objectives.ibot_config import IbotConfig
from dinoskip_objectives.overlaps import Overlaps, in_patches, intersections
from dinoskip_objectives.paka import PakaHead, aligned, paka, paka_per_image
from tests.helpers.golden_next import arrays, assert_close, golden
from tests.helpers.plain_training import Driver, job_of
from tests.helpers.ranks import assert_two_ranks_equal_one
from tests.helpers.tiny import SMALL_OBJECTIVES, objective_job, rows_of, tensor_hashes, tiny_job
from tests.training.test_resume import folder, killed_before

# --- golden cases ------------------------------------------------------------------------------------


@golden("koleo")
def test_golden_koleo(case: dict[str, Any]) -> None:
    given, crops = arrays(case), case["crops"]
    cls = given["student_cls"].requires_grad_()
    parts = [koleo(one, case["topk"], case["groups"]) for one in cls.chunk(crops)]
    for part, wanted in zip(parts, case["expected"]["loss_per_crop"], strict=True):
        assert part.item() == pytest.approx(wanted, abs=1e-5)
    total = koleo_of_crops(cls, crops, case["topk"]) if case["groups"] == 1 else torch.stack(parts).sum()
    assert total.item() == pytest.approx(case["expected"]["loss"], abs=1e-5)
    if "grad_student_cls" in given:
        assert_close(torch.autograd.grad(total, cls)[0], given["grad_student_cls"], 5e-5)


def test_koleo_needs_as_many_others_as_it_asks_for() -> None:
    """A token is at distance 0 of itself: with C = 128, one image added 31.82, whatever the network."""
    cls = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="1 nearest others among 1 images"):
        koleo(cls[:1])
    with pytest.raises(ValueError, match="3 nearest others among 3 images"):
        koleo(cls, 3)
    with pytest.raises(ValueError, match="1 nearest others among 1 images"):
        koleo(cls, groups=3)
    assert koleo(cls[:2]).item() == pytest.approx(-math.log((cls[0] / cls[0].norm() - cls[1] / cls[1].norm()).norm()))
    for given in ({"koleo": {"weight": 0}, "batch_size": 1}, {"koleo": {"neighbours": 3}, "batch_size": 4}):
        job_of(pretrain=given)


@golden("sinkhorn")
def test_golden_sinkhorn(case: dict[str, Any]) -> None:
    given = arrays(case)
    student = given["student"].requires_grad_()
    found = sinkhorn(given["teacher"], case["teacher_temp"], case["iterations"]).exp()
    torch.testing.assert_close(found.double(), given["assignment"], rtol=0, atol=2e-5)
    loss = -(found * F.log_softmax(student / case["student_temp"], -1)).sum(-1).mean()
    assert loss.item() == pytest.approx(case["expected"]["cross_entropy"], rel=2e-5)
    torch.testing.assert_close(torch.autograd.grad(loss, student)[0], given["grad_student"], rtol=0, atol=2e-6)


@golden("gram")
def test_golden_gram(case: dict[str, Any]) -> None:
    given = arrays(case)
    student = given["student"].requires_grad_()
    grids = tuple(case["teacher_grid"]), tuple(case["student_grid"])
    teacher = resized(given["teacher"], *grids, "bicubic", antialias=case["antialias"])
    if "teacher_resized" in given:
        torch.testing.assert_close(teacher, given["teacher_resized"], rtol=0, atol=2e-5)
    mask = given.get("mask")
    mask = ~mask if mask is not None and case["tokens"] == "unmasked" else mask
    loss = gram_loss(student, teacher, mask, level=case["level"], negatives=case["negatives"],
                     normalised=case["normalised"])  # fmt: skip
    assert loss.item() == pytest.approx(case["expected"]["loss"], rel=1e-5)
    assert_close(torch.autograd.grad(loss, student)[0], given["grad_student"], 1e-5)


@golden("paka", kind="loss")
def test_golden_paka(case: dict[str, Any]) -> None:
    given = arrays(case)
    student = given["student"].requires_grad_()
    every = paka_per_image(student, given["teacher"], given["valid"])
    torch.testing.assert_close(every.double(), given["loss_per_image"], rtol=0, atol=2e-5, equal_nan=True)
    loss = every[every.isfinite()].mean()
    assert loss.item() == pytest.approx(case["expected"]["loss"], abs=2e-5)
    (gradient,), wanted = torch.autograd.grad(loss, student), given["grad_student"]
    for image in range(len(gradient)):
        share = 2e-2 if image in case["constant_images"] else 2e-5
        assert float((gradient[image] - wanted[image]).abs().max()) <= share * float(wanted.abs().max())


@golden("paka", kind="cross_view")
def test_golden_patch_alignment_of_two_views(case: dict[str, Any]) -> None:
    given, side = arrays(case), case["out_grid"][0]
    boxes, flips, tokens = [], [], []
    given["student"].requires_grad_()
    for who in ("student", "teacher"):
        geometry = given[f"{who}_geometry"].numpy()
        x0, y0, x1, y1, _, _, flipped, upside = geometry.T
        boxes.append(np.stack([y0, x0, y1 - y0, x1 - x0], axis=1))
        flips.append(flipped > 0)
        grid = case[f"{who}_grid"]
        rows = given[who].unflatten(1, grid)  # our crops are never upside down: those here are put upright first
        upright = torch.where(torch.from_numpy(upside > 0)[:, None, None, None], rows.flip(1), rows)
        tokens.append(upright.flatten(1, 2))
    common, valid = intersections(boxes[0], boxes[1], side)
    assert valid.tolist() == given["overlaps"].tolist()
    outputs = {}
    for who, own, box, flip in zip(("student", "teacher"), tokens, boxes, flips, strict=True):
        grid = case[f"{who}_grid"][0]
        places = np.concatenate([np.arange(len(box))[:, None], in_patches(common, box, flip, grid)], axis=1)
        sampled = aligned(own, torch.from_numpy(places).float(), torch.from_numpy(flip), side)
        sampled = torch.where(torch.from_numpy(valid)[:, None, None], sampled, 0)
        torch.testing.assert_close(sampled, given[f"{who}_aligned"], rtol=0, atol=1e-5)
        head = PakaHead(case["dim"], PakaConfig(hidden_dim=16, out_dim=6))
        for place, layer in enumerate((0, 2, 4)):
            for name in ("weight", "bias"):
                head.get_parameter(f"{layer}.{name}").data.copy_(given[f"{who}_head.{place}.{name}"])
        outputs[who] = head(sampled)
    loss = paka(outputs["student"], outputs["teacher"], torch.from_numpy(valid))
    assert loss.item() == pytest.approx(case["expected"]["loss"], abs=2e-5)
    assert_close(torch.autograd.grad(loss, given["student"])[0], given["grad_student"], 5e-5)


# --- closed forms ------------------------------------------------------------------------------------


def test_sinkhorn_of_scores_alike_is_uniform_and_of_large_ones_stays_finite() -> None:
    torch.testing.assert_close(sinkhorn(torch.zeros(6, 4), 0.05).exp(), torch.full((6, 4), 0.25))
    scores = torch.tensor([[1e6, 0.0], [0.0, 1e6]])
    torch.testing.assert_close(sinkhorn(scores, 0.04).exp(), torch.eye(2))
    aim = targets(scores, torch.ones(2), 0.04, "sinkhorn")
    torch.testing.assert_close(F.softmax((aim.scores - aim.centre) / aim.temperature, -1), torch.eye(2))
    assert aim.scores.isfinite().all()
    assert targets(scores, torch.ones(2), 0.04, "centre").scores is scores


def test_patch_alignment_is_0_for_turned_scaled_and_moved_features() -> None:
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 9, 5, generator=rng, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=torch.float64)).Q
    valid = torch.ones(2, 9, dtype=torch.bool)
    torch.testing.assert_close(paka_per_image(tokens @ turn * 3 + 7, tokens, valid), torch.zeros(2).double())


def test_pairs_that_nowhere_overlap_have_no_loss_and_no_gradient() -> None:
    student = torch.randn(3, 4, 5, requires_grad=True)
    loss = paka(student, torch.randn(3, 4, 5), torch.zeros(3, dtype=torch.bool))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, student)[0].any()


def test_local_crops_are_compared_with_one_global_crop_each() -> None:
    boxes = np.array([[[0, 0, 40, 40], [20, 20, 40, 40], [10, 10, 10, 10], [0, 0, 10, 10]]])
    flips = np.array([[False, False, True, False]])
    student, teacher, turned, valid = Overlaps(4, 2, 2)(0, np.arange(1), boxes, flips)
    assert student.tolist() == [[0, 0, 0, 2, 2], [1, 2, 2, 2, 2]]  # the second pair has nothing in common
    assert teacher[0].tolist() == [0, 1, 1, 2, 2]
    assert turned.tolist() == [[True, False], [False, False]]
    assert valid.tolist() == [True, False]
    student, teacher, _, valid = Overlaps(4, 4, 0)(0, np.arange(1), boxes[:, :2], flips[:, :2])
    assert student.tolist() == [[0, 2, 2, 4, 4], [1, 0, 0, 2, 2]]
    assert teacher.tolist() == [[1, 0, 0, 2, 2], [0, 2, 2, 4, 4]]
    assert valid.all()


def test_a_weight_waits_rises_and_stays() -> None:
    weight = AddendConfig(weight=2.0, start=0.2, rise=0.4)
    values = [weight.at(step, 10) for step in range(10)]
    rising = [(1 - math.cos(math.pi * step / 4)) for step in range(4)]
    assert values == pytest.approx([0, 0, *rising, 2, 2, 2, 2])
    assert [AddendConfig().at(step, 3) for step in range(3)] == [1, 1, 1]


def test_snapshots_are_taken_when_the_weight_comes_in_and_then_as_often_as_asked() -> None:
    gram = GramConfig(start=0.3, refresh_every=2, refresh_most=2)
    assert [step for step in range(10) if gram.snapshot_after(step, 10)] == [2, 4, 6]
    assert [step for step in range(10) if GramConfig(start=0.3).snapshot_after(step, 10)] == [2]
    assert not any(GramConfig(teacher="ema").snapshot_after(step, 10) for step in range(10))


# --- runs --------------------------------------------------------------------------------------------

EVERY = {
    "koleo": {"neighbours": 2},
    "gram": {"start": 0.25, "rise": 0.5, "refresh_every": 2, "refresh_most": 1, "scale": 2},
    "paka": {"hidden_dim": 16, "out_dim": 8, "rise": 0.5},
}
RUNS: dict[str, dict[str, Any]] = {
    "dino": {**EVERY, "centering": "sinkhorn"},
    "ibot": {**EVERY, "centering": "sinkhorn", "gram": {"tokens": "masked", "level": "batch", "teacher": "ema"}},
    "patch_contrast": EVERY,
}


def job(objective: str, **more: Any) -> Any:
    if objective != "dino":
        return objective_job(objective, **{**RUNS[objective], **more})
    own = {"epochs": 2, "batch_size": 4, "warmup_epochs": 1, "log_every": 1, "checkpoint_every_steps": 1}
    tree = tiny_job(**{**RUNS["dino"], **more}).model_dump(mode="json")
    model = {"name": "vit_mini_patch8", "depth": 2, "img_size": 32, "drop_path": 0.3}
    return job_of(**{**tree, "model": model, "pretrain": {**tree["pretrain"], **own}})


@pytest.mark.parametrize(  # with iBOT there is all that is added, and an anchor that comes late
    "objective", [name if name == "ibot" else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_killed_run_ends_with_the_bits_of_a_straight_one(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    straight = pretrain(job(objective), folder(), tmp_path / "straight", device="cpu")
    for step in (3, 6):
        killed_before(step, job(objective), run_dir, monkeypatch)
    assert tensor_hashes(pretrain(job(objective), folder(), run_dir, device="cpu")) == tensor_hashes(straight)
    rows = rows_of(run_dir)
    assert rows == rows_of(tmp_path / "straight")
    assert {"koleo", "gram", "paka"} <= set(rows[-1])
    assert ("gram" in rows[0]) == (objective == "ibot"), "there is no anchor before its weight comes in"
    assert all(0 <= row["paka"] <= 2 and math.isfinite(row["loss"]) for row in rows)
    features = load_backbone(f"run:{run_dir}").layers(torch.zeros(1, 3, 32, 32), [2])[2]
    assert features.tokens.shape == (1, 16, 128)


@pytest.mark.parametrize(  # crops are cut by the loader, which asks no objective
    "objective", [name if name == "dino" else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_crops_cut_on_the_device_give_the_same_run(objective: str, tmp_path: Path) -> None:
    for path in ("crops", "decode"):
        short = job(objective, data_path=path)
        pretrain(short, folder(), tmp_path / path, device="cpu")
    assert rows_of(tmp_path / "crops") == rows_of(tmp_path / "decode")


def views(objective: str, step: int, images: slice) -> list[Tensor]:
    """Return the tensors of the loader for some of four images."""
    rng = np.random.default_rng(step)
    local = 2 if objective == "dino" else 0
    boxes = np.concatenate([rng.integers(0, 20, (4, 2 + local, 2)), rng.integers(30, 60, (4, 2 + local, 2))], axis=2)
    flips = rng.random((4, 2 + local)) < 0.5
    pixels = [rng.standard_normal((count, 4, 3, side, side)) for count, side in ((2, 64), (local, 16)) if count]
    tensors = [torch.from_numpy(one[:, images]).flatten(0, 1) for one in pixels]
    part = (0, np.arange(4)[images], boxes[images], flips[images])
    own = [] if objective == "dino" else Correspondence(4)(*part)
    return [*tensors, *own, *Overlaps(4, 2 if local else 4, local)(*part)]


def steps_on_ranks(here: World, out: str, objective: str, strategy: str) -> None:
    plain = job(objective, parallel=strategy)
    model = plain.model.model_copy(update={"drop_path": 0.0})
    Driver(plain.model_copy(update={"model": model}), 4, here).write_steps(out, 4, partial(views, objective), steps=5)


@pytest.mark.parametrize("objective", ["dino", "patch_contrast"])
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ranks_together_take_the_steps_of_one(objective: str, strategy: str, tmp_path: Path) -> None:
    names = assert_two_ranks_equal_one(tmp_path, steps_on_ranks, objective, strategy, atol=1e-8)
    assert any(name.startswith("gram.") for name in names)


def test_an_anchor_may_be_another_network(tmp_path: Path) -> None:
    teacher = "timm:vit_tiny_patch16_224,pretrained=false,img_size=64,depth=2"
    made = job("dino", koleo=None, paka=None, gram={"teacher": teacher, "scale": 2})
    assert made.pretrain.backbones() == (teacher,)
    pretrain(made, folder(), tmp_path, device="cpu")
    assert all(row["gram"] > 0 for row in rows_of(tmp_path))


def test_an_anchor_that_is_the_network_itself_pulls_nowhere(tmp_path: Path) -> None:
    made = job("patch_contrast", koleo=None, paka=None, gram={"rise": 0.0})
    pretrain(made, folder(), tmp_path, device="cpu")
    rows = rows_of(tmp_path)
    assert rows[0]["gram"] < 0.1 < rows[-1]["loss"]
    assert rows[-1]["gram"] > rows[0]["gram"]


def test_the_preset_is_dino_ibot_koleo_and_sinkhorn() -> None:
    preset = IbotConfig.model_validate({"objective": "ibot", "preset": "dinov2_like"})
    assert preset.centering == "sinkhorn"
    assert preset.koleo is not None
    assert (preset.koleo.weight, preset.cls_weight, preset.patch_weight) == (0.1, 1, 1)
    assert preset.momentum_teacher == 0.992
    assert IbotConfig.model_validate({"objective": "ibot", "preset": "dinov2_like", "koleo": None}).koleo is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gram": {"tokens": "masked"}}, "take level=batch"),
        ({"gram": {"teacher": "ema", "refresh_every": 5}}, "only teacher=snapshot"),
        ({"gram": {"teacher": "ema", "scale": 2}}, "take a snapshot or a backbone"),
        ({"gram": {"tokens": "masked", "level": "batch"}}, "are iBOT's alone"),
        ({"objective": "patch_contrast", "gram": {}}, "gram: it compares with the teacher"),
        ({"paka": {"weight": -1}}, "weight"),
        ({"objective": "mae", "koleo": {}}, "unknown key"),
        ({"koleo": {}, "batch_size": 1}, "koleo.neighbours"),
        ({"koleo": {}, "batch_size": 8, "accumulate": 8}, "koleo.neighbours"),
        ({"koleo": {"neighbours": 4}, "batch_size": 4}, "koleo.neighbours"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job_of(pretrain=settings)


def test_settings_without_addends_are_written_as_before() -> None:
    from dinoskip.settings.keys import settings_for_key

    for objective in ("dino", *SMALL_OBJECTIVES):
        given = {} if objective == "dino" else {"objective": objective, **SMALL_OBJECTIVES[objective]}
        written = settings_for_key(job_of(pretrain=given).pretrain)
        assert not {"koleo", "gram", "paka", "centering"} & set(written), objective
