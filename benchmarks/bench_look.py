"""``dinoskip look`` on files of many architectures: how it ends, its CPU time and its peak memory.

    python -m benchmarks.bench_look [--only resnet50]          # ten minutes on one core

Each network has random weights: named ``timm:NAME,pretrained=false``, or its state dict saved as a file of that library
(timm, torchvision, a contrastive training that wraps a ResNet) whose path alone is given. ``look`` runs in a process of
its own, as users start it, on two photographs of 224 pixels, of 500 for the first network. Seconds are of CPU. The
memory is the process's peak, the page's pictures included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.pages import markdown_table
from dinoskip.data.sprites import photo_path

SIDES = (500, 224)  # pixels of the photographs: for the first network, and for the others
PHOTOGRAPHS = ("chelsea", "coffee")
_SHOWN = 110  # characters of what it said


def _timm(name: str, **more: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, **more).state_dict()


def _torchvision(name: str) -> Any:
    from torchvision.models import get_model

    return get_model(name, weights=None).state_dict()


def _wrapped(name: str) -> Any:
    """As MoCo saves a ResNet: the encoder's names below those of wrappers, and a head that is none of it."""
    tensors = {f"module.encoder_q.{key}": value for key, value in _torchvision(name).items() if key[:3] != "fc."}
    head = {"module.encoder_q.fc.0.weight": torch.zeros(2048, 2048), "module.encoder_q.fc.0.bias": torch.zeros(2048)}
    return {"epoch": 1, "arch": name, "state_dict": {**tensors, **head}}


NETWORKS: Mapping[str, str | Callable[[], Any]] = {
    "timm:resnet50": "timm:resnet50,pretrained=false",
    "timm ResNet-50": lambda: _timm("resnet50"),
    "timm Swin-T": lambda: _timm("swin_tiny_patch4_window7_224"),
    "timm ConvNeXt-T": lambda: _timm("convnext_tiny"),
    "timm hybrid ViT-Ti": lambda: _timm("vit_tiny_r_s16_p8_224"),
    "timm RegNetY-400": lambda: _timm("regnety_004"),
    "timm ViT-Ti/16": lambda: _timm("vit_tiny_patch16_224"),
    "torchvision ResNet-50": lambda: _torchvision("resnet50"),
    "torchvision Swin-T": lambda: _torchvision("swin_t"),
    "torchvision ConvNeXt-T": lambda: _torchvision("convnext_tiny"),
    "torchvision ViT-B/16": lambda: _torchvision("vit_b_16"),
    "MoCo's ResNet-50": lambda: _wrapped("resnet50"),
}
"""What ``look`` is given, or what makes the file that it is given."""


def _photographs(folder: Path, side: int) -> Path:
    folder.mkdir()
    for name in PHOTOGRAPHS:
        with Image.open(photo_path(name)) as image:
            image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{name}.jpg", quality=95)
    return folder


def look(network: str, photographs: Path, out: Path) -> tuple[int, float, float, str]:
    """Run the command; return its exit code, CPU seconds, peak in GB, and the last line that it said."""
    command = [sys.executable, "-m", "dinoskip", "look", network, "--data", str(photographs), "--out", str(out)]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([*command, "--device", "cpu"], stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    taken = usage.ru_utime + usage.ru_stime
    return child.returncode, taken, usage.ru_maxrss * 1024 / 1e9, lines[-1].strip() if lines else ""


def rows(only: str) -> list[Sequence[str]]:
    """A row for each network whose name has ``only`` in it."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        large, small = (_photographs(Path(folder) / f"photographs{side}", side) for side in SIDES)
        for number, (name, given) in enumerate(NETWORKS.items()):
            if only not in name:
                continue
            network = given if isinstance(given, str) else str(Path(folder) / f"network{number}.pth")
            if not isinstance(given, str):
                torch.save(given(), network)
            code, taken, peak, said = look(network, small if number else large, Path(folder) / f"page{number}")
            text = said.replace(folder, "...").replace("|", "/")
            does = "a page" if code == 0 else text[:_SHOWN]
            found.append((name, str(code), does, f"{taken:.0f}", f"{peak:.2f}"))
            print(*found[-1], sep="  ", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name has this")
    args = parser.parse_args()
    head = ("weights", "exit code", "what look does", "CPU seconds", "peak, GB")
    print("\n".join(markdown_table(head, rows(args.only))))


if __name__ == "__main__":
    main()
