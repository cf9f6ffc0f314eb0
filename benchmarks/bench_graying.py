"""Cost of Token Graying in a training step, one thread: ``python benchmarks/bench_graying.py``.

Claim (dinoskip/models/graying.py): on a CPU thread either variant adds about a per cent to a ViT-B step. The paper
(Always Skip Attention, table 1) reports +1 % for the DCT and +530 % for the SVD on GPUs, which are slow at SVDs.
"""

from __future__ import annotations

import statistics

import torch
from torch import nn

from benchmarks.measuring import seconds
from dinoskip.models import TokenGraying, create_model

BATCH = 4


def main() -> None:
    torch.set_num_threads(1)
    images = torch.rand(BATCH, 3, 224, 224)
    model = create_model("vit_base_patch16", num_classes=10)

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(images), torch.zeros(BATCH, dtype=torch.long)).backward()

    plain = statistics.median(seconds(step) for _ in range(3))
    print(f"ViT-B step of {BATCH} images: {plain:.2f} s")
    for kind in ("dct", "svd"):
        graying = TokenGraying(16, kind)  # type: ignore[arg-type]
        ours = statistics.median(seconds(lambda g=graying: g(images)) for _ in range(3))  # type: ignore[misc]
        print(f"{kind}: {ours / BATCH * 1e3:.0f} ms an image, {ours / plain:+.1%} of the step")


if __name__ == "__main__":
    main()
