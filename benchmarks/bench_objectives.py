"""Steps of iBOT, MAE and patch contrast against the plain formulation of each: same networks and views, in turns.

The plain ones are written here as the public code works. iBOT: heads on every token of student and teacher, a double
loop for the CLS token, the patches' cross-entropy of all tokens times the mask. MAE: tokens sorted and unsorted by
gathering, the decoder's linear layer and the loss on all patches. Patch contrast: torch's cross-entropy of the matrix
of all scores, under autograd. Ours is what ``dinoskip pretrain`` runs. On a CPU everything is one thread and its CPU
time, so that other processes count little.

    python -m benchmarks.bench_objectives [--model NAME] [--batch N] [--size PIXELS] [--repeats N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.bench_step import DEVICE, GPU, SameViews, seconds
from dinoskip.data.correspondence import Correspondence
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.training import PretrainJob
from dinoskip.training.dino import update_center, update_teacher
from dinoskip.training.gradients import clip_each_, gradient_norms, gradients_of
from dinoskip.training.objective import Engine, Objective, Step
from dinoskip.training.patch_contrast import PatchContrast
from dinoskip_objectives.ibot import IBOT
from dinoskip_objectives.mae import MAE, patch_targets
from dinoskip_objectives.masks import BlockMasks, VisiblePatches

SMALL = {"model": "vit_tiny_patch16", "batch": 8, "size": 96}
LARGE = {"model": "vit_small_patch16", "batch": 64, "size": 224}


def job_of(objective: str, model: str, size: int, batch: int) -> PretrainJob:
    """A job with the objective's published settings, two local crops for iBOT."""
    options: dict[str, Any] = {"crop_size": size}
    if objective == "ibot":
        options = {"crops": {"global_size": size, "local_size": 48, "num_local": 2}, "out_dim": 8192 if GPU else 1024}
    settings = {"objective": objective, "batch_size": batch, "epochs": 100, "warmup_epochs": 0, **options}
    tree = {"model": {"name": model, "img_size": size, "drop_path": 0}, "pretrain": settings}
    return PretrainJob.model_validate(tree)


def views_of(job: PretrainJob, batch: int, size: int) -> list[Tensor]:
    """Random pixels, with masks or matches as training draws them."""
    rng, grid = np.random.default_rng(0), size // job.model.patch_size
    boxes = np.concatenate([rng.integers(0, 60, (batch, 2, 2)), rng.integers(120, 200, (batch, 2, 2))], axis=2)
    flips, indices = rng.random((batch, 2)) < 0.5, np.arange(batch)
    kinds = {
        "ibot": ([size, size, 48, 48], BlockMasks(grid, ((0.0, 0.0), (0.1, 0.5)), 0)),
        "mae": ([size], VisiblePatches(grid, 0.25, 0)),
        "patch_contrast": ([size, size], Correspondence(grid)),
    }
    sides, targets = kinds[job.pretrain.objective]
    pixels = [
        torch.randn(sides.count(side) * batch, 3, side, side, generator=torch.Generator().manual_seed(side))
        for side in dict.fromkeys(sides)
    ]
    return [tensor.to(DEVICE) for tensor in (*pixels, *targets(0, indices, boxes, flips))]


# --- the plain formulations ------------------------------------------------------------------------------


def _all_tokens(network: Any, images: Tensor, masks: Tensor | None = None) -> Tensor:
    vit = network.backbone
    patches = vit.patch_embed(images)
    if masks is not None:
        masks = masks.view(*patches.shape[:3], 1)
        patches = patches * (~masks) + network.head.mask_token * masks
    tokens: Tensor = vit.norm(vit.blocks(vit._pos_embed(patches)))
    return tokens


def plain_ibot(objective: IBOT, views: list[Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """bytedance/ibot's forward pass and loss; what follows the update."""
    images, local, masks = views[:3]

    def score(network: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
        units = F.normalize(network.head.mlp(tokens), dim=-1)
        return network.head.score(units[:, 0]), network.head.score_patches(units[:, 1:])

    with torch.no_grad():
        teacher_cls, teacher_patches = score(objective.teacher, _all_tokens(objective.teacher, images))
    cls, patches = score(objective.student, _all_tokens(objective.student, images, masks))
    cls = torch.cat([cls, score(objective.student, _all_tokens(objective.student, local))[0]]).float() / 0.1
    targets = F.softmax((teacher_cls.float() - objective.center) / 0.04, -1).chunk(2)
    of_patches = F.softmax((teacher_patches.float() - objective.patch_center) / 0.04, -1).chunk(2)
    students, total, terms = (patches.float() / 0.1).chunk(2), torch.zeros((), device=DEVICE), 0
    patch_total = torch.zeros((), device=DEVICE)
    for q, target in enumerate(targets):
        for v, view in enumerate(cls.chunk(len(cls) // len(target))):
            if v == q:
                loss = torch.sum(-of_patches[q] * F.log_softmax(students[v], -1), -1)
                mask = masks.chunk(2)[v].float()
                patch_total = patch_total + (torch.sum(loss * mask, -1) / mask.sum(-1).clamp(min=1.0)).mean()
            else:
                total, terms = total + torch.sum(-target * F.log_softmax(view, -1), -1).mean(), terms + 1

    def after() -> None:
        update_teacher(objective.averaged, 0.996)
        update_center(objective.center, teacher_cls.float().mean(0), 0.9)
        update_center(objective.patch_center, teacher_patches.float().mean((0, 1)), 0.9)

    return total / terms + patch_total / 2, after


def plain_mae(objective: MAE, views: list[Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """facebookresearch/mae's forward pass and loss."""
    images, kept, removed = views
    vit, decoder = objective.student.backbone, objective.student.head
    x = vit._pos_embed(vit.patch_embed(images))
    x = torch.cat([x[:, :1], x[:, 1:].gather(1, kept[..., None].expand(-1, -1, x.shape[2]))], 1)
    x = decoder.embed(vit.norm(vit.blocks(x)))
    hidden = decoder.mask_token.expand(len(x), removed.shape[1], -1)
    order = torch.cat([kept, removed], 1).argsort(1)[..., None].expand(-1, -1, x.shape[2])
    x = torch.cat([x[:, :1], torch.cat([x[:, 1:], hidden], 1).gather(1, order)], 1) + decoder.positions
    painted = decoder.pixels(decoder.norm(decoder.blocks(x)))[:, 1:].float()
    mask = torch.ones(painted.shape[:2], device=DEVICE).scatter_(1, kept, 0.0)
    target = patch_targets(images, objective.job.model.patch_size, True)
    return (((painted - target) ** 2).mean(-1) * mask).sum() / mask.sum(), lambda: None


def plain_contrast(objective: PatchContrast, views: list[Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """The matrix of all scores under autograd."""
    images, *matches = views
    features = objective.student(images).flatten(0, 1).float()
    losses = []
    for tokens, weights in (matches[:2], matches[2:]):
        positives = F.normalize((features[tokens[:, 1:]] * weights[..., None]).sum(1), dim=-1)
        scores = F.normalize(features[tokens[:, 0]], dim=-1) @ positives.T / 0.1
        losses.append(F.cross_entropy(scores, torch.arange(len(scores), device=DEVICE)))
    return (losses[0] + losses[1]) / 2, lambda: None


PLAIN: dict[str, Callable[[Any, list[Tensor]], tuple[Tensor, Callable[[], None]]]] = {
    "ibot": plain_ibot, "mae": plain_mae, "patch_contrast": plain_contrast,
}  # fmt: skip


# --- timing ----------------------------------------------------------------------------------------------


def steps_of(objective: Objective, job: PretrainJob, views: list[Tensor]) -> dict[str, Callable[[], float]]:
    """One step of ours and one of the plain formulation, on the same networks; both return the loss."""
    student = objective.networks["student"]
    optimizer = build_optimizer(student, job.optimizer)
    loader = SameViews(views)
    engine = Engine(student, student, optimizer, loader, World(0, 1, DEVICE), seed=0, bf16=GPU)

    def ours() -> float:
        step = Step(engine, 8, iter([loader.batch]))
        objective.step(step)
        return float(step.means["loss"])

    def plain() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            loss, after = PLAIN[job.pretrain.objective](objective, views)
        torch.autograd.backward(loss)
        gradients = gradients_of(student)
        clip_each_(gradients, gradient_norms(gradients).tolist(), getattr(job.pretrain, "clip_grad", 0.0))
        optimizer.step()
        after()
        return float(loss.detach())

    return {"ours": ours, "plain": plain}


def measure(objective: str, model: str, batch: int, size: int, repeats: int) -> None:
    """Print the seconds of both, in turns, and the ratio."""
    job = job_of(objective, model, size, batch)
    views = views_of(job, batch, size)
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    losses = {}
    for name in times:  # the first step of each begins with the same weights
        losses[name] = steps_of(job.pretrain.build(job, 10, DEVICE), job, views)[name]()
    steps = steps_of(job.pretrain.build(job, 10, DEVICE), job, views)
    for _ in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(seconds(step))
    best = {name: sorted(taken[1:])[len(taken) // 2 - 1] for name, taken in times.items()}
    print(
        f"{objective:15} plain {best['plain']:.3f} s, ours {best['ours']:.3f} s a step of {batch} images: "
        f"{best['plain'] / best['ours']:.2f} times; losses {losses['plain']:.5f} {losses['ours']:.5f}"
    )


def main() -> None:
    """Measure the step of all three objectives and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = LARGE if GPU else SMALL
    parser.add_argument("--model", default=defaults["model"])
    parser.add_argument("--batch", type=int, default=defaults["batch"])
    parser.add_argument("--size", type=int, default=defaults["size"])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if not GPU:
        torch.set_num_threads(1)
    for objective in PLAIN:
        measure(objective, args.model, args.batch, args.size, args.repeats)


if __name__ == "__main__":
    main()
