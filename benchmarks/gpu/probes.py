"""Part ``probe``: a sweep of probes on stored tokens of every block, and k-NN."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.bench_scoring import regions
from benchmarks.gpu.kit import Kit
from eval.knn.classify import knn_predictions
from eval.labelled import LabelledTokens
from eval.probe import fit_probes

DIM = 384


def run(kit: Kit) -> None:
    """Measure both."""
    with kit.attempt("sweep"):
        sweep(kit)
    with kit.attempt("k-NN"):
        neighbours(kit)


def sweep(kit: Kit) -> None:
    """Seconds of fit and scoring of 12 blocks with one rate and with eight, 150 classes, 512 pixels."""
    images, val, blocks, classes, epochs = (6, 2, 2, 5, 1) if kit.tiny else (256, 64, 12, 150, 4)
    side, label = (4, 32) if kit.tiny else (32, 512)
    rng = np.random.default_rng(0)
    maps = [regions(classes, (label, label), rng) for _ in range(8)]

    def data(count: int) -> LabelledTokens:
        tokens = rng.standard_normal((count, side * side, DIM), dtype=np.float32).astype(np.float16)
        # all blocks alike: drawing others would take longer than the fit
        return LabelledTokens(
            dict.fromkeys(range(1, blocks + 1), tokens), lambda i: maps[i % 8], (side, side), classes, count
        )

    train, test = data(images), data(val)
    for count in (1,) if kit.tiny else (1, 8):
        if not kit.has(12):
            return
        rates = tuple(np.geomspace(1e-4, 1e-2, count).tolist())
        kit.fresh()
        took, _ = kit.taken(
            lambda rates=rates: fit_probes(  # type: ignore[misc]
                train, test, range(1, blocks + 1), rates, epochs, batch_size=16, refine=2, device=kit.device.type
            )
        )
        name = f"probes of {blocks} blocks x {count} rates, {images} + {val} images, {classes} classes, {epochs} epochs"
        kit.say(name, s=took, peak_gib=kit.peak_gib())


def neighbours(kit: Kit) -> None:
    """Seconds of k-NN of every block, and of its products and ``topk`` written plainly."""
    known, asked, blocks = (50, 10, 2) if kit.tiny else (200_000, 4_096, 12)
    x, queries = (torch.randn(blocks, count, DIM, device=kit.device) for count in (known, asked))
    labels = np.random.default_rng(0).integers(0, 1000, known)
    ours = kit.ms(lambda: knn_predictions(x, labels, queries, [20]), 2, 1) / 1e3
    unit_x, unit_q = (torch.nn.functional.normalize(value, dim=-1) for value in (x, queries))

    def plain() -> None:
        for block in range(blocks):
            for part in torch.split(unit_q[block], 1024):
                (part @ unit_x[block].T).topk(min(20, known))

    name = f"k-NN of {blocks} blocks, {asked} queries among {known}"
    kit.say(name, s=ours, plain_s=kit.ms(plain, 2, 1) / 1e3)
