"""One DINO training step of dinoskip against the public DINO code's way: same models and crops, in turns, one process.

The baseline is written here as facebookresearch/dino works: crops grouped by size, attention as plain products, the
loss as a double loop over teacher and student views, Python loops over parameters for the clip (a host sync each) and
the EMA, on a GPU float16 autocast with a gradient scaler. Ours is what `dinoskip pretrain` runs: on a GPU bfloat16
autocast and compiled backbones. Printed: images a second, operations (dinoskip/settings/flops.py) and their share of
the machine's own matmul rate, measured here (bfloat16 on a GPU, float32 on a CPU), and time and peak memory of the loss
alone. On a CPU everything is one thread and its CPU time, so that other processes count little. Without arguments:
ViT-S/16, 2 x 224 + 8 x 96 pixels, batch 64, K 65,536 on a GPU; a small size on a CPU.

    python -m benchmarks.bench_step [--model NAME] [--batch N] [--out-dim K] [--size PIXELS] [--local PIXELS]
                                    [--num-local N] [--repeats N]
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dinoskip.data.loader import Batch
from dinoskip.optim import AdamWConfig, build_optimizer
from dinoskip.pipeline.estimate.costs import image_flops
from dinoskip.runtime.distributed import World
from dinoskip.runtime.environment import matmul_gflops
from dinoskip.training import PretrainJob
from dinoskip.training.dino import DINO, dino_loss, update_center, update_teacher
from dinoskip.training.gradients import clip_each_, gradients_of
from dinoskip.training.objective import Engine, Step

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
CLOCK = time.perf_counter if GPU else time.thread_time
SMALL = {"model": "vit_tiny_patch16", "batch": 16, "out_dim": 4096, "size": 96, "local": 48}
PAPER = {"model": "vit_small_patch16", "batch": 64, "out_dim": 65536, "size": 224, "local": 96}


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


def plain_clip(dino: DINO) -> None:
    for parameter in dino.student.parameters():
        if parameter.grad is not None:
            scale = 3.0 / (parameter.grad.norm(2) + 1e-6)
            if scale < 1:
                parameter.grad.mul_(scale)


def plain_ema(dino: DINO) -> None:
    with torch.no_grad():
        for q, k in zip(dino.student.parameters(), dino.teacher.parameters(), strict=True):
            k.mul_(0.996).add_((1 - 0.996) * q.detach())


def unfused(dino: DINO) -> DINO:
    """A copy whose attention writes its probabilities out."""
    copied = copy.deepcopy(dino)
    for network in (copied.student, copied.teacher):
        for module in network.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
    return copied


def plain_step(
    dino: DINO, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, views: list[Tensor], number: int
) -> None:
    with torch.autocast(DEVICE.type, torch.float16, enabled=GPU):
        with torch.no_grad():
            teacher = dino.teacher.head(dino.teacher.backbone(views[0]))
        student = dino.student.head(torch.cat([dino.student.backbone(view) for view in views]))
        loss = plain_loss(student, teacher, dino.center, 0.04, number)
    if not math.isfinite(loss.item()):
        raise SystemExit("not finite")
    optimizer.zero_grad()
    torch.autograd.backward(scaler.scale(loss))
    scaler.unscale_(optimizer)
    plain_clip(dino)
    scaler.step(optimizer)
    scaler.update()
    plain_ema(dino)
    dino.center = dino.center * 0.9 + teacher.float().mean(0) * 0.1


def our_update(dino: DINO, optimizer: torch.optim.Optimizer, batch_center: Tensor) -> None:
    gradients = gradients_of(dino.student)
    clip_each_(gradients, torch.stack(torch._foreach_norm(gradients)).tolist(), 3.0)
    optimizer.step()
    update_teacher(dino.averaged, 0.996)
    update_center(dino.center, batch_center, 0.9)


class SameViews:
    """A loader of one batch, whose views are given."""

    def __init__(self, views: list[Tensor]) -> None:
        self.given, self.batch = views, Batch(torch.zeros(1, dtype=torch.int64), {})

    def views(self, batch: Batch) -> list[Tensor]:
        """Return the views that were made beforehand."""
        return self.given


def seconds(action: Callable[[], object]) -> float:
    began = CLOCK()
    action()
    if GPU:
        torch.cuda.synchronize()
    return CLOCK() - began


def alternate(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Best time of each, taken in turns so that a busy machine harms both alike."""
    times = [(seconds(first), seconds(second)) for _ in range(repeats + 2)][2:]
    return min(a for a, _ in times), min(b for _, b in times)


def matmul_rate() -> float:
    """FLOP/s of large matrix products: bfloat16 on a GPU, float32 on a CPU."""
    return 1e9 * matmul_gflops(DEVICE, torch.bfloat16 if GPU else torch.float32, CLOCK)


def peak_mib(action: Callable[[], object]) -> float:
    """Memory that an action needs at its peak, beyond what is there before; on a CPU resident memory (Linux)."""
    if GPU:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed earlier is not to hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew

    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(key)))

    before = resident("VmRSS")
    action()
    return max(4, resident("VmHWM") - before) / 2**10


def compare_loss(batch: int, number: int, out_dim: int, repeats: int) -> None:
    """The loss alone, on scores in the dtype that the head gives there."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    shapes = ((number * batch, out_dim), (2 * batch, out_dim))
    student, teacher = (torch.rand(shape, device=DEVICE, generator=generator) * 2 - 1 for shape in shapes)
    center = torch.zeros(out_dim, device=DEVICE)

    def run(dtype: torch.dtype, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        scores, others = student.to(dtype).requires_grad_(), teacher.to(dtype)
        return lambda: torch.autograd.grad(loss(scores, others), scores)

    def plain(scores: Tensor, others: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.float16, enabled=GPU):
            return plain_loss(scores, others, center, 0.04, number)

    ours = run(torch.bfloat16 if GPU else torch.float32, lambda s, t: dino_loss(s, t, center, 0.1, 0.04).loss)
    theirs = run(torch.float16 if GPU else torch.float32, plain)
    report("loss, forward and backward", *alternate(ours, theirs, repeats))
    mib = peak_mib(ours), peak_mib(theirs)
    print(f"{'  peak memory':28s} ours {mib[0]:8.0f} MiB  plain {mib[1]:8.0f} MiB  ratio {mib[1] / mib[0]:.2f}")


def report(label: str, a: float, b: float) -> None:
    print(f"{label:28s} ours {1e3 * a:8.1f} ms   plain {1e3 * b:8.1f} ms   ratio {b / a:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (PAPER if GPU else SMALL).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--num-local", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    crops = {"global_size": given.size, "local_size": given.local, "num_local": given.num_local}
    recipe = {"out_dim": given.out_dim, "batch_size": given.batch, "crops": crops, "freeze_last_layer": 0}
    model = {"name": given.model, "img_size": given.size}
    job = PretrainJob.model_validate({"model": model, "pretrain": recipe})
    counts = ((2 * given.batch, given.size), (given.num_local * given.batch, given.local))
    views = [torch.randn(count, 3, side, side, device=DEVICE) for count, side in counts]
    number = 2 + given.num_local
    ours = DINO(job, job.pretrain, 1, DEVICE)
    plain = unfused(ours)
    if GPU:
        for network in (ours.student, ours.teacher):
            network.backbone.compile(dynamic=False)
    optimizer = build_optimizer(ours.student, AdamWConfig())
    plain_optimizer = torch.optim.AdamW(plain.student.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=GPU)
    loader = SameViews(views)
    engine = Engine(ours.student, ours.student, optimizer, loader, World(0, 1, DEVICE), seed=0, bf16=GPU)
    card = torch.cuda.get_device_name() if GPU else "CPU, one thread"
    print(f"{card}; {given.model}, batch {given.batch}, 2 x {given.size} + {given.num_local} x {given.local}", end="")
    print(f", K {given.out_dim}")
    rate = matmul_rate()
    best = alternate(
        lambda: ours.step(Step(engine, 1, iter([loader.batch]))),
        lambda: plain_step(plain, plain_optimizer, scaler, views, number),
        given.repeats,
    )
    report("whole step", *best)
    print(f"{'images a second':28s} ours {given.batch / best[0]:8.1f}      plain {given.batch / best[1]:8.1f}")
    rate = max(rate, matmul_rate())  # a busy machine may have slowed the first
    operations = given.batch * image_flops(job.model, job.pretrain)
    shares = [100 * operations / time_ / rate for time_ in best]
    print(f"{'operations of a step':28s} {operations / 1e12:.3f} TFLOP; matmul rate {rate / 1e12:.3f} TFLOP/s")
    print(f"{'FLOP utilisation':28s} ours {shares[0]:8.1f} %    plain {shares[1]:8.1f} %")
    compare_loss(given.batch, number, given.out_dim, given.repeats)

    def plain_update() -> None:
        plain_clip(plain)
        plain_optimizer.step()
        plain_ema(plain)

    center = torch.zeros_like(ours.center)
    report("clip, AdamW, EMA", *alternate(lambda: our_update(ours, optimizer, center), plain_update, given.repeats))


if __name__ == "__main__":
    main()
