"""One CPU or GPU training step of dinoskip against a straightforward DINO loop, same models, same crops, same process.

The baseline is written here as the public DINO code works: crops grouped by size, the loss as a double loop over
teacher and student views, Python loops over parameters for the clip (with a host sync each), AdamW and the EMA.
Prints images a second of both, the ratio, and how the parts compare.

    python benchmarks/bench_step.py [--model vit_tiny_patch16] [--batch 16] [--out-dim 4096] [--size 96] [--local 48]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from dinoskip.optim import AdamWConfig, build_optimizer, set_rates
from dinoskip.training import PretrainJob
from dinoskip.training.dino import (
    Dino,
    Schedules,
    clip_each_,
    compute_gradients,
    dino_loss,
    follow,
)
from dinoskip.training.pretraining import build
from dinoskip.training.recipe import gradients_of


def plain_loss(student: Tensor, teacher: Tensor, center: Tensor, temp: float, views: int) -> Tensor:
    chunks = (student / 0.1).chunk(views)
    targets = torch.softmax((teacher - center) / temp, -1).detach().chunk(2)
    total, terms = torch.zeros((), device=student.device), 0
    for i, q in enumerate(targets):
        for v in range(views):
            if v != i:
                total = total + torch.sum(-q * torch.log_softmax(chunks[v], -1), -1).mean()
                terms += 1
    return total / terms


def plain_clip(dino: Dino) -> None:
    for parameter in dino.student.parameters():
        if parameter.grad is not None:
            scale = 3.0 / (parameter.grad.norm(2) + 1e-6)
            if scale < 1:
                parameter.grad.mul_(scale)


def plain_ema(dino: Dino) -> None:
    with torch.no_grad():
        for q, k in zip(dino.student.parameters(), dino.teacher.parameters(), strict=True):
            k.mul_(0.996).add_((1 - 0.996) * q.detach())


def plain_step(dino: Dino, optimizer: torch.optim.Optimizer, views: list[Tensor], number: int) -> None:
    with torch.no_grad():
        teacher = dino.teacher.head(dino.teacher.backbone(views[0]))
    student = dino.student.head(torch.cat([dino.student.backbone(view) for view in views]))
    loss = plain_loss(student, teacher, dino.center, 0.04, number)
    if not torch.isfinite(loss):
        raise SystemExit("not finite")
    optimizer.zero_grad()
    loss.backward()
    plain_clip(dino)
    optimizer.step()
    plain_ema(dino)
    dino.center = dino.center * 0.9 + teacher.mean(0) * 0.1


def our_step(
    dino: Dino, optimizer: torch.optim.Optimizer, views: list[Tensor], job: PretrainJob, plan: Schedules
) -> None:
    rates = plan.at(1)
    set_rates(optimizer, rates.lr, rates.weight_decay)
    optimizer.zero_grad(set_to_none=True)
    result = compute_gradients(dino, dino.student, views, rates, job.pretrain, nullcontext())
    gradients = gradients_of(dino.student)
    norms = torch.stack(torch._foreach_norm(gradients))
    clip_each_(gradients, norms.tolist(), 3.0)
    optimizer.step()
    follow(dino, result.batch_center, rates.momentum, 0.9)


def alternate(first: Callable[[], None], second: Callable[[], None], repeats: int, cuda: bool) -> tuple[float, float]:
    """Best time of each, taken in turns so that a busy machine harms both alike."""
    best = [float("inf"), float("inf")]
    for repeat in range(repeats + 2):
        for i, action in enumerate((first, second)):
            began = time.perf_counter()
            action()
            if cuda:
                torch.cuda.synchronize()
            if repeat >= 2:
                best[i] = min(best[i], time.perf_counter() - began)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out-dim", type=int, default=4096)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--local", type=int, default=48)
    parser.add_argument("--num-local", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    crops = {"global_size": arguments.size, "local_size": arguments.local, "num_local": arguments.num_local}
    recipe = {"out_dim": arguments.out_dim, "batch_size": arguments.batch, "crops": crops, "freeze_last_layer": 0}
    model = {"name": arguments.model, "img_size": arguments.size}
    job = PretrainJob.model_validate({"model": model, "pretrain": recipe})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    views = [
        torch.randn(2 * arguments.batch, 3, arguments.size, arguments.size, device=device),
        torch.randn(arguments.num_local * arguments.batch, 3, arguments.local, arguments.local, device=device),
    ]
    number = 2 + arguments.num_local
    ours = build(job, device)
    plain = copy.deepcopy(ours)
    our_optimizer = build_optimizer(ours.student, AdamWConfig())
    plain_optimizer = torch.optim.AdamW(plain.student.parameters(), lr=1e-4, foreach=False)
    plan = Schedules(job.pretrain, job.optimizer, 1)
    cuda = device.type == "cuda"

    def report(label: str, a: float, b: float) -> None:
        print(f"{label:28s} ours {1e3 * a:8.1f} ms   plain {1e3 * b:8.1f} ms   ratio {b / a:.2f}")

    best = alternate(
        lambda: our_step(ours, our_optimizer, views, job, plan),
        lambda: plain_step(plain, plain_optimizer, views, number),
        arguments.repeats,
        cuda,
    )
    print(
        f"{device}, {torch.get_num_threads()} threads, {arguments.model}, "
        f"batch {arguments.batch}, K {arguments.out_dim}"
    )
    report("whole step", *best)
    print(f"{'images a second':28s} ours {arguments.batch / best[0]:8.1f}      plain {arguments.batch / best[1]:8.1f}")

    student = torch.randn(number * arguments.batch, arguments.out_dim, device=device, requires_grad=True)
    teacher = torch.randn(2 * arguments.batch, arguments.out_dim, device=device)
    center = torch.zeros(arguments.out_dim, device=device)
    times = alternate(
        lambda: dino_loss(student, teacher, center, 0.1, 0.04)[0].backward(),
        lambda: plain_loss(student, teacher, center, 0.04, number).backward(),
        arguments.repeats,
        cuda,
    )
    report("loss, forward and backward", *times)

    def our_update() -> None:
        gradients = gradients_of(ours.student)
        clip_each_(gradients, torch.stack(torch._foreach_norm(gradients)).tolist(), 3.0)
        our_optimizer.step()
        follow(ours, center, 0.996, 0.9)

    def plain_update() -> None:
        plain_clip(plain)
        plain_optimizer.step()
        plain_ema(plain)

    report("clip, AdamW, EMA", *alternate(our_update, plain_update, arguments.repeats, cuda))


if __name__ == "__main__":
    main()
