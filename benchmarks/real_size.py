"""Cost of every task at its real resolution on a trained network, beside plain forward passes of the same images.

python -m benchmarks.real_size SPEC --data SAMPLES [--tasks NAME ...] [--images 4]

SAMPLES holds ``voc_mini``, ``coco_mini``, ``ade_mini`` and ``imagenette_mini``: a few images of each data set in its
published layout; depth, normals, video and pairs are composed. Each task runs in a process of its own, one thread, on
half of the images and then on all: the second run is what is shown, ``planned`` what `dinoskip plan` expected of it
after the first. ``forward`` is the time of as many images of the first one's size through the bare network; ``own`` the
share of the seconds that are not forward passes; memory the highest of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import markdown_table
from dinoskip.models import load_backbone
from dinoskip.pipeline.estimate.costs import costs
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.progress import rates
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.runtime.environment import machine
from dinoskip.settings.config import RawConfig


@dataclass(frozen=True)
class Case:
    """A task: its data set's settings (``root`` below the samples), its own, pixels (height, width) of its inputs."""

    task: str
    data: Mapping[str, Any]
    pixels: tuple[int, int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    images: int = 0
    """Instead of the usual number."""


_VOC = {"kind": "voc", "root": "voc_mini/VOCdevkit", "year": 2012}
_COCO = {"kind": "coco_json", "root": "coco_mini/val2017", "annotations": "../annotations/instances_val2017.json"}
_CLASSES = {"kind": "folder", "root": "imagenette_mini"}
_ROOMS = {"kind": "rooms", "images": 6, "size": 560}
_SLIDES = {"protocol": "dinov2", "size": 644, "stride": 420, "iterations": 2, "batch_size": 1}
CASES = (
    Case("probe", _VOC, (518, 518), {"size": 518, "protocol": "fast", "epochs": 10}, "probe, VOC2012, 518"),
    Case("probe", {"kind": "ade20k", "root": "ade_mini/ADEChallengeData2016"}, (644, 644), _SLIDES,
         "probe, ADE20K, 644 slides"),
    Case("cluster", {"kind": "coco_stuff", "root": "coco_mini"}, (448, 448), {}, "cluster, COCO-Stuff, 448"),
    Case("tokencut", {**_VOC, "year": 2007}, (378, 504), {}, "tokencut, VOC2007, native"),
    Case("objects", _COCO, (476, 476), {}, "objects, COCO, 476"),
    Case("saliency", _VOC, (378, 504), {"split": "val", "solver": True}, "saliency, VOC2012, rounded, solver"),
    Case("retrieve", _VOC, (518, 518), {"size": 518}, "retrieve, VOC2012, 518"),
    Case("knn", _CLASSES, (224, 224), {"k": [5]}, "knn, Imagenette, 224", 16),
    Case("linear", _CLASSES, (224, 224), {"protocol": "dino", "epochs": 1}, "linear, Imagenette, 224", 16),
    Case("depth", _ROOMS, (560, 560), {"iterations": 2, "batch_size": 2}, "depth, rooms, 560"),
    Case("normals", _ROOMS, (560, 560), {"epochs": 1, "batch_size": 2}, "normals, rooms, 560"),
    Case("video", {"kind": "scenes_video", "videos": 2, "frames": 4}, (476, 476), {}, "video, scenes, 476"),
    Case("correspondence", {"kind": "scenes_pairs", "classes": 1, "objects": 1}, (770, 770), {},
         "correspondence, scenes, 770"),
)  # fmt: skip


def measured(case: Case, spec: str, samples: Path, images: int, out: Path) -> dict[str, Any]:
    """Run a case on half of the images, then on all; times in seconds, sizes in bytes, of the second."""
    torch.set_num_threads(1)
    half: dict[str, float] = {}
    if "root" in case.data:  # composed sets are as large as they are
        half, _ = _done(case, spec, samples, max(1, images // 2), out, {})
    seconds, about = _done(case, spec, samples, images, out, half)
    backbone = load_backbone(spec)
    batch = torch.zeros(1, 3, *case.pixels)
    with torch.inference_mode():
        backbone.layers(batch, [backbone.depth])
        began, passes = time.perf_counter(), 2
        for _ in range(passes):
            backbone.layers(batch, [backbone.depth])
    forward = (time.perf_counter() - began) / passes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "forward": forward * about["passes"], "memory": peak, **about}


def _done(
    case: Case, spec: str, samples: Path, images: int, out: Path, before: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of the stages of one run; images that it passes, bytes that it leaves, seconds that were planned."""
    data = dict(case.data)
    if "root" in data:
        data |= {"root": str(samples / data["root"]), "limit": images}
    tree = {
        "name": f"s{images}", "output": str(out), "stages": "shared",
        "data": {"d": data},
        "variants": {"model": [{"backbone": spec, "label": "n"}]},
        "evaluate": {case.task: {**case.settings, "datasets": ["d"]}},
    }  # fmt: skip
    study, variants = study_of(RawConfig(tree, {"": "benchmark"}), open_backbones=True)
    nodes = only(build_nodes(study, variants), {case.task}, gathering="")
    runner = study_runner(study, variants, nodes, device="cpu", workers=1)
    runner.plan()
    planned = costs(StudyImages(study), study, variants, nodes)
    works = {cost.node: (cost.kind, cost.work) for cost in planned}
    known = rates(before, works)
    told = [
        known[kind] * work for name, (kind, work) in works.items() if kind in known and not name.startswith("data/")
    ]
    runner.run({node.id for node in runner.planner.nodes})
    runner.plan()
    seconds = {name: taken for name, taken in runner.seconds().items() if not name.startswith("data/")}
    outputs = [output for node in nodes if not node.id.startswith("data/") and (output := runner.output(node.id))]
    disk = sum(path.stat().st_size for folder in outputs for path in folder.rglob("*") if path.is_file())
    passes = sum(cost.images for cost in planned)
    return seconds, {"passes": passes, "disk": disk, "planned": sum(told) if before else None}


def _alone(case: Case, spec: str, samples: Path, images: int) -> dict[str, Any]:
    """:func:`measured` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.real_size", spec, "--data", str(samples), "--images", str(images)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--case", case.name], capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def row(case: Case, measured: Mapping[str, Any]) -> list[str]:
    """A line of the table."""
    if "failed" in measured:
        return [case.name, "failed", *[""] * 7]
    stages = measured["seconds"]
    features = sum(taken for name, taken in stages.items() if name.startswith("features/"))
    total = sum(stages.values())
    rest = max(0.0, 1 - measured["forward"] / total)
    planned = "" if measured["planned"] is None else f"{measured['planned']:.0f}"
    return [
        case.name, str(measured["passes"]), f"{measured['forward']:.0f}", f"{features:.0f}", f"{total - features:.0f}",
        f"{100 * rest:.0f} %", planned, f"{measured['memory'] / 2**30:.1f}", f"{measured['disk'] / 2**20:.0f}",
    ]  # fmt: skip


COLUMNS = ("task", "passes", "forward, s", "features, s", "task, s", "own", "planned, s", "memory, GiB", "disk, MiB")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, a line as soon as it is known to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=[], help="(default: all)")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    samples = args.data.resolve()
    if args.case:
        (case,) = (case for case in CASES if case.name == args.case)
        with tempfile.TemporaryDirectory() as out:
            print(json.dumps(measured(case, args.spec, samples, args.images, Path(out))))
        return
    rows = []
    for case in CASES:
        if not args.tasks or case.task in args.tasks:
            measurement = _alone(case, args.spec, samples, case.images or args.images)
            rows.append(row(case, measurement))
            print(" ".join(rows[-1]), *measurement.get("failed", ()), file=sys.stderr, flush=True)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{machine()}; one thread; load of the machine at the end {load} on {os.cpu_count()} cores\n")
    print("\n".join(markdown_table(COLUMNS, rows)))


if __name__ == "__main__":
    main()
