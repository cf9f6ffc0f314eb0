"""Part ``export``: feature export against plain forward passes in fp32, TF32 and bf16; decoding."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.bench_features import Photos
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.photographs import jpegs
from benchmarks.gpu.steps import sizes
from dinoskip.features import Transform, export
from dinoskip.features.forward import decoding_threads
from dinoskip.features.transform import load_pixels
from dinoskip.models import Backbone, create_model
from dinoskip.runtime.arithmetic import Precision
from dinoskip.runtime.precision import frozen_passes

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


def run(kit: Kit) -> None:
    """Measure passes, decoding and whole exports."""
    size = sizes(kit)
    model = create_model(size.model, img_size=size.large, depth=size.depth).eval().to(kit.device)
    backbone = Backbone.from_model(model)
    batches = (2,) if kit.tiny else (16, 128)
    for batch in batches:
        passes(kit, model, backbone, torch.randn(batch, 3, size.large, size.large, device=kit.device))
    with kit.scratch() as root:
        count = 6 if kit.tiny else 2048
        photos = jpegs(root / "jpeg", count)
        with kit.attempt("decode"):
            for threads in (1, decoding_threads(0)):
                decode(kit, photos, size.large, threads, min(count, 1024 if threads > 1 else 128))
        for batch in reversed(batches):
            if kit.has(8):
                with kit.attempt(f"export {batch}"):
                    whole(kit, backbone, photos, root, Transform(size=size.large), batch)


@torch.inference_mode()
def passes(kit: Kit, model: torch.nn.Module, backbone: Backbone, x: torch.Tensor) -> None:
    """Images a second of timm's ``forward_features``, and of all blocks with the last norm."""
    blocks, batch = range(1, backbone.depth + 1), len(x)
    for precision in PRECISIONS:
        backbone.precision = precision
        with kit.attempt(precision):
            with frozen_passes(precision, kit.device):
                plain = kit.ms(lambda: model.forward_features(x))  # type: ignore[operator]
            ours = kit.ms(lambda: backbone.layers(x, blocks, norm="final"))
            rates = {"timm_images_s": 1e3 * batch / plain, "all_blocks_images_s": 1e3 * batch / ours}
            kit.say(f"frozen passes, {precision}, batch {batch}", **rates)
    backbone.precision = "fp32"


def decode(kit: Kit, photos: Photos, side: int, threads: int, count: int) -> None:
    """Images a second that threads decode and resize."""
    way = Transform(size=side)
    with ThreadPoolExecutor(threads) as pool:
        took, _ = kit.taken(lambda: list(pool.map(lambda i: load_pixels(way, photos.path(i), 16), range(count))))
    kit.say(f"decode and resize, threads {threads}", images_s=count / took)


def whole(kit: Kit, backbone: Backbone, photos: Photos, root: Path, way: Transform, batch: int) -> None:
    """Images a second from JPEGs to a published store of all blocks; the second export counts."""
    kit.fresh()
    for turn in range(2):
        out = root / f"store-{batch}-{turn}"
        took, _ = kit.taken(
            lambda out=out: export(backbone, photos, out, "all", transform=way, batch_size=batch)  # type: ignore[misc]
        )
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        shutil.rmtree(out)
    count = len(photos.ids)
    kit.say(f"export of all blocks, batch {batch}", images_s=count / took, mb_s=size / took / 1e6, mb=size / 1e6)
