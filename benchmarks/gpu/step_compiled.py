"""Part ``compiled``: the step that `dinoskip pretrain` takes on a GPU, its profile, and the public style compiled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.public_dino import Style
from benchmarks.gpu.steps import SKIPLESS, Asked, Made, Reporter, ours, public

PROFILED = 3  # steps


def run(kit: Kit) -> None:
    """Measure with and without skips, AdamW and SOAP, ours and public; the most telling first."""
    torch._logging.set_logs(recompiles=True)
    reporter, batch = Reporter(kit), 4 if kit.tiny else 64
    backend = "aot_eager" if kit.tiny else "inductor"
    with kit.attempt("ours, compiled"):
        made = ours(kit, batch, Asked())
        reporter.report(f"ours, compiled, adamw, batch {batch}", made, 15)
        with kit.attempt("profile"):
            profile(kit, "ours, compiled", made)
        del made
    for label, style, seconds in (
        ("modern, compiled, bf16, fused attention", Style(torch.bfloat16, "sdpa", True, True, backend), 40),
        ("public, compiled, fp16, plain attention", Style(torch.float16, "plain", False, True, backend), 45),
    ):
        if kit.has(seconds):
            with kit.attempt(label):
                torch.compiler.reset()
                reporter.report(f"{label}, batch {batch}", public(kit, batch, style), 15)
    soap = {"name": "soap", "precondition_frequency": 10}
    more: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any], int]] = (
        ("without skips, adamw", SKIPLESS, {"name": "adamw"}, batch),
        ("soap", {}, soap, batch),
        ("without skips, soap", SKIPLESS, soap, batch),
        ("adamw", {}, {"name": "adamw"}, 4 * batch),
    )
    for label, model, optimizer, count in more:
        if kit.has(40):
            with kit.attempt(label):
                asked = Asked(model, optimizer)
                reporter.report(f"ours, compiled, {label}, batch {count}", ours(kit, count, asked), 20)


def profile(kit: Kit, name: str, made: Made) -> None:
    """Write where a step's time goes on the device, by kernel, and how long the device idles."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kit.cuda else [])]
    with profiler(activities=kinds) as seen:
        began = time.perf_counter()
        for _ in range(PROFILED):
            made.take()
        kit.sync()
        wall = (time.perf_counter() - began) / PROFILED
    averages = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:14]
    events: Any = seen.events()
    spans = sorted((e.time_range.start, e.time_range.end) for e in events if str(e.device_type).endswith("CUDA"))
    busy, reach = 0.0, 0.0
    for start, end in spans:  # kernels of several streams may overlap
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    top = {event.key[:70]: round(event.self_device_time_total / 1e3 / PROFILED, 3) for event in averages}
    share = busy / 1e6 / PROFILED / wall
    kit.say(
        f"profile, {name}", wall_ms=1e3 * wall, busy_ms=busy / 1e3 / PROFILED, busy_share=share,
        kernels=len(spans) / PROFILED, top=top,
    )  # fmt: skip
