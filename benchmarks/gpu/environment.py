"""Part ``env``: versions against pyproject's bounds, `dinoskip doctor`, and the card's two ceilings."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib

import torch

from benchmarks.gpu.kit import ROOT, Kit
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.environment import describe, matmul_gflops

OTHERS = ("triton", "transformers", "pytest", "pillow")
VIT_S = ((384, 1152), (384, 384), (384, 1536), (1536, 384))
"""Products that a ViT-S is made of: channels in and out."""


def run(kit: Kit) -> None:
    """Write versions and ceilings."""
    with kit.attempt("machine"):
        kit.say("machine", **describe())
    with kit.attempt("versions"):
        versions(kit)
    with kit.attempt("doctor"):
        command = kit.command("-m", "dinoskip", "doctor")
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=ROOT, check=False)
        print(done.stdout, done.stderr[-1500:])
        kit.say("doctor", code=done.returncode, text=done.stdout[-1200:])
    if kit.cuda:
        card = torch.cuda.get_device_properties(0)
        kit.say("card", card=card.name, processors=card.multi_processor_count, memory_gib=card.total_memory / 2**30)
    with kit.attempt("ceilings"):
        ceilings(kit)


def versions(kit: Kit) -> None:
    """Versions of all that the project needs, and what lies outside its bounds."""
    from packaging.requirements import Requirement  # no dependency of the project: of pip's and pytest's

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(line) for line in project["dependencies"]]
    found, outside = {}, {}
    for name in (*(need.name for need in needed), *OTHERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    for need in needed:
        have = found[need.name]
        if have == "missing" or not need.specifier.contains(have, prereleases=True):
            outside[need.name] = f"{have}, wanted {need.specifier}"
    python = sys.version.split()[0]
    kit.say("versions", python=python, cores=available_cores(), cuda=torch.version.cuda, **found)
    kit.say("outside pyproject's bounds", **outside)


def tflops(kit: Kit, dtype: torch.dtype, side: int = 8192) -> float:
    """TFLOP/s of a large square product of random numbers."""
    side = 256 if kit.tiny else side
    a, b = (torch.randn(side, side, device=kit.device).to(dtype) for _ in range(2))
    return 2 * side**3 / kit.ms(lambda: a @ b) / 1e9


def copied(kit: Kit) -> float:
    """TB/s of a large copy, read and written."""
    count = 1 << (20 if kit.tiny else 30)
    a, b = torch.randn(count, device=kit.device), torch.empty(count, device=kit.device)
    return 2 * 4 * count / kit.ms(lambda: b.copy_(a)) / 1e9


def ceilings(kit: Kit) -> None:
    """Copies, and products of each dtype: square ones, and a ViT-S's own."""
    kit.say("copy", tb_s=copied(kit))
    kit.say("product bf16", tflops=tflops(kit, torch.bfloat16))
    kit.say("product fp16", tflops=tflops(kit, torch.float16))
    kit.say("product fp32", tflops=tflops(kit, torch.float32))
    if kit.cuda:
        torch.set_float32_matmul_precision("high")
        kit.say("product tf32", tflops=tflops(kit, torch.float32))
        torch.set_float32_matmul_precision("highest")
        kit.say("product fp64", tflops=tflops(kit, torch.float64, 4096))
    tokens = 8 if kit.tiny else 128 * 197  # of two global crops of 64 images
    for into, out in VIT_S:
        x = torch.randn(tokens, into, device=kit.device).bfloat16()
        w = torch.randn(into, out, device=kit.device).bfloat16()
        rate = 2 * tokens * into * out / kit.ms(lambda x=x, w=w: x @ w, 20) / 1e9  # type: ignore[misc]
        kit.say(f"product bf16 {tokens} x {into} x {out}", tflops=rate)
    rates = {dtype: matmul_gflops(kit.device, dtype) / 1e3 for dtype in (torch.bfloat16, torch.float32)}
    kit.say("the project's own rate", bf16_tflops=rates[torch.bfloat16], fp32_tflops=rates[torch.float32])
