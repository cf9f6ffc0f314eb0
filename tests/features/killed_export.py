"""Run by test_resume.py in a process of its own: exports of two blocks, each killed somewhere by SIGKILL, then resumed.

Prints one line a case: where it was killed, how it ended, how many batches were left, whether all files are the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import Images, make_images, tiny_backbone

import dinoskip.features.writer as writer
from dinoskip.features import Transform, export
from dinoskip.features.store import PROVENANCE
from dinoskip.io.files import list_files, sha256_file


def run(root: Path, images: Images, out: str, workers: int = 0) -> dict[str, str]:
    torch.set_num_threads(1)
    backbone = tiny_backbone()
    layers, calls = backbone.layers, []
    backbone.layers = lambda *a, **k: (calls.append(1), layers(*a, **k))[1]  # type: ignore[method-assign]
    transform = Transform(mode="native")
    export(backbone, images, root / out, "all", transform=transform, batch_size=2, workers=workers)
    files = [*(name for name in list_files(root / out) if name != PROVENANCE), "MANIFEST.json"]  # it has a date
    return {"calls": str(len(calls)), **{name: sha256_file(root / out / name) for name in files}}


def kill_at(count: int, name: str) -> Callable[[], None]:
    """Make the ``count``-th call of a StoreWriter method end with SIGKILL halfway, as the machine would."""

    def arm() -> None:
        original, seen = getattr(writer.StoreWriter, name), []

        def wrapped(self: Any, *args: Any) -> Any:
            seen.append(1)
            if len(seen) == count:
                if name == "write":
                    original(self, args[0], args[1], args[2][: len(args[2]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args)

        setattr(writer.StoreWriter, name, wrapped)

    return arm


def kill_before(name: str) -> Callable[[], None]:
    return lambda: setattr(writer, name, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))


def in_child(action: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        action()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main(root: Path) -> None:
    writer.FLUSH_SECONDS = 0.0
    finish = writer.StoreWriter.finish  # flushes in a thread; here each is waited for, so that its effect is known
    writer.StoreWriter.finish = lambda self, batch: (finish(self, batch), self.settle())[1]  # type: ignore[method-assign]
    images = make_images(root / "images", [(24, 16), (16, 24), (24, 16), (20, 10), (16, 24), (24, 16), (9, 8)])
    straight = root / "straight.txt"
    in_child(lambda: straight.write_text(repr(run(root, images, "straight", 2))) and None)
    expected = eval(straight.read_text())
    points = {"write3": kill_at(3, "write"), "write9": kill_at(9, "write"), "finish2": kill_at(2, "finish")}
    points |= {"flush4": kill_at(4, "flush"), "prepare": kill_before("write_json"), "publish": kill_at(1, "publish")}
    points |= {"manifest": kill_before("write_manifest"), "rename": kill_before("publish_directory")}
    points |= {"cleanup": kill_before("discard")}
    for point, arm in points.items():
        workers = 2 if point == "write3" else 0  # processes start in a second
        first = in_child(lambda arm=arm, point=point, n=workers: (arm(), run(root, images, point, n))[0])
        result = root / f"{point}.txt"
        in_child(lambda point=point, to=result, n=workers: to.write_text(repr(run(root, images, point, n))) and None)
        found = eval(result.read_text())
        left, whole = found.pop("calls"), {**expected, "calls": None}
        same = {**found, "calls": None} == whole
        leftovers = (root / f".partial-{point}").exists()
        print(point, os.WTERMSIG(first), left, same, leftovers)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
