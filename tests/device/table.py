"""Stated demands of every hot path on a GPU: ``python -m tests.device.table`` measures and prints them.

The unit is one step, batch, chunk, image, look or evaluation, as the path's name says; sizes are those of
:mod:`tests.device.paths`. Host reads and uploads that are waited for hold exactly, kernels within a tenth: more is a
loss, and fewer are to be stated here. DINOSKIP_TEST_DEVICE=cuda measures on this machine's GPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.device.paths import PATHS, Device, Reading, measure
from tests.helpers.pretended_device import PretendedDevice, RealDevice

NEAR = 0.1  # share by which kernels may differ from what is stated


@dataclass(frozen=True)
class Stated:
    """Host reads, uploads that are waited for, and kernels of one unit of a path."""

    reads: float
    uploads: float
    kernels: int

    def faults(self, reading: Reading, *, exact: bool = True) -> list[str]:
        """Return the demands that do not hold; on a real device (``exact`` false) kernels may be fewer or more."""
        pairs = (("host reads", reading.reads, self.reads), ("uploads", reading.uploads, self.uploads))
        wrong = [
            f"{got:g} {what} for {stated:g} stated ({', '.join(reading.lines)})"
            for what, got, stated in pairs
            if round(got, 2) != stated
        ]
        if exact and abs(reading.kernels - self.kernels) > max(1, NEAR * self.kernels):
            wrong.append(f"{reading.kernels:g} kernels for {self.kernels} stated")
        return wrong


STATED: dict[str, Stated] = {
    "DINO step, adamw, crops": Stated(1, 0, 1030),
    "DINO step, adamw, decode": Stated(1, 0, 1240),
    "DINO step, adamw, resident": Stated(1, 0, 1240),
    "DINO step, soap, crops": Stated(1, 0, 1102),
    "DINO step, soap, decode": Stated(1, 0, 1312),
    "DINO step, soap, resident": Stated(1, 0, 1312),
    "DINO step, ecs, crops": Stated(1, 0, 1154),
    "DINO step, ecs, decode": Stated(1, 0, 1364),
    "DINO step, ecs, resident": Stated(1, 0, 1364),
    "DINO step, klshampoo, crops": Stated(1, 0, 1421),
    "DINO step, klshampoo, decode": Stated(1, 0, 1631),
    "DINO step, klshampoo, resident": Stated(1, 0, 1631),
    "DINO step, muon, crops": Stated(1, 0, 1283),
    "DINO step, muon, decode": Stated(1, 0, 1493),
    "DINO step, muon, resident": Stated(1, 0, 1493),
    "DINO step, soap, crops, refresh": Stated(2, 0, 1711),
    "DINO step, ecs, crops, refresh": Stated(28, 0, 1258),
    "DINO step, klshampoo, crops, refresh": Stated(2, 0, 1555),
    "iBOT step, adamw, decode": Stated(1, 0, 1356),
    "MAE step, adamw, decode": Stated(1, 0, 622),
    "patch contrast step, adamw, decode": Stated(1, 0, 740),
    "iBOT + KoLeo + Gram + PaKA + Sinkhorn step, adamw, decode": Stated(1, 0, 1658),
    "distillation step, adamw, decode": Stated(1, 0, 669),
    "supervised step": Stated(1, 0, 208),
    "accuracy, 6 batches": Stated(1, 0, 349),
    "live diagnostics, a look": Stated(2, 0, 244),
    "online evaluation": Stated(20, 0, 778),
    "feature export, a batch": Stated(0, 0, 59),
    "live probe, a step": Stated(1, 0, 194),
    "live probe scores, an image": Stated(1.12, 0, 107),
    "cached probe, a step": Stated(0, 0, 74),
    "cached probe scores, an image": Stated(0.19, 0, 5),
    "TokenCut, a batch": Stated(13, 0, 552),  # two regions nearly fall apart, so a second search looks for a tie
    "LOST, a batch": Stated(1, 0, 32),
    "k-NN, a chunk": Stated(2, 0, 28),
    "retrieval, an image": Stated(0.19, 0, 5),
    "PCA, fit and apply": Stated(3, 0, 0),
}


def chosen_device() -> type[Device]:
    """The pretended device, or this machine's where DINOSKIP_TEST_DEVICE=cuda."""
    return RealDevice if os.environ.get("DINOSKIP_TEST_DEVICE") == "cuda" else PretendedDevice


def main() -> None:
    device = chosen_device()
    print(f"{'path':40s} {'host reads':>10s} {'uploads':>8s} {'kernels':>8s} {'MB':>9s}")
    for name in PATHS:
        reading = measure(name, device)
        print(
            f"{name:40s} {reading.reads:10.2f} {reading.uploads:8.2f} {reading.kernels:8.0f} {reading.megabytes:9.2f}",
            *(f"  NOT AS STATED: {fault}" for fault in STATED[name].faults(reading, exact=not device.real)),
        )


if __name__ == "__main__":
    main()
