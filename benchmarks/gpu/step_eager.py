"""Part ``eager``: a DINO step without compiling, ours and the public style's, in fp16 and bf16."""

from __future__ import annotations

import torch

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.public_dino import Style
from benchmarks.gpu.steps import Asked, Reporter, ours, public

STYLES = {
    "public, eager, fp16, plain attention": Style(torch.float16),
    "public, eager, bf16, plain attention": Style(torch.bfloat16),
    "modern, eager, bf16, fused attention": Style(torch.bfloat16, "sdpa", modern=True),
}


def run(kit: Kit) -> None:
    """Measure each at two batches."""
    reporter, batches = Reporter(kit), (4,) if kit.tiny else (64, 256)
    for batch in batches:
        with kit.attempt(f"ours, eager, batch {batch}"):
            made = ours(kit, batch, Asked(compiled=False))
            reporter.report(f"ours, eager, adamw, batch {batch}", made)
            if batch == batches[0]:
                with kit.waits("a DINO step"):
                    made.take()
            del made
    for label, style in STYLES.items():
        for batch in batches:
            if not kit.has(12):
                return
            with kit.attempt(f"{label}, batch {batch}"):
                reporter.report(f"{label}, batch {batch}", public(kit, batch, style), 8)
