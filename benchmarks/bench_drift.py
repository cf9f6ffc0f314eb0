"""Changes of each task's numbers if frozen networks compute in bfloat16, or TF32 on a GPU, and not in float32.

    python -m benchmarks.bench_drift SPEC --data SAMPLES [--tasks NAME ...] [--images 4] [--every] [--device auto]

SAMPLES as for `python -m benchmarks.real_size`, whose cases these are, with detection and two more ways to cut, on few
images: differences are of rounding, so they say more than the scores. For each task's headline (``--every``: for each
metric) are printed the number of rows (blocks, heads), the score of the last block in float32, the mean and the largest
difference from float32 over rows, in the metric's unit. `features` is the length of the difference of tokens after the
final norm, as a share of float32's, at the last block.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.pages import markdown_table
from benchmarks.real_size import CASES, Case
from dinoskip.models import load_backbone
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.stages.settings import TaskSettings
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.results.rows import EvalResult, rows_in
from dinoskip.runtime.arithmetic import Precision
from dinoskip.runtime.environment import machine
from dinoskip.settings.config import RawConfig
from dinoskip.settings.tasks import task

Key = tuple[str, ...]
MORE = (
    Case("tokencut", {"kind": "voc", "root": "voc_mini/VOCdevkit", "year": 2012}, (378, 504),
         {"split": "val", "centre": True, "lost_k": 100}, "tokencut, centred, and LOST, VOC2012, native", 16),
    Case("detection", {"kind": "scenes", "images": 12, "size": 224, "classes": 3, "val_fraction": 0.5}, (224, 224),
         {"short_side": 224, "long_side": 224, "epochs": 2, "batch_size": 2, "channels": 32, "lr": 1e-3},
         "detection, scenes, 224"),
)  # fmt: skip
"""Beside those of real_size. Late tokens of the measured network have an offset: without centring most graphs are
complete, and then no cut has anything to drift."""


def rows_of(
    case: Case, spec: str, samples: Path, images: int, out: Path, precision: str, device: str
) -> list[EvalResult]:
    """Rows of a case's network in a precision; float32 and another share what does not depend on it."""
    data = dict(case.data)
    if "root" in data:
        data |= {"root": str(samples / data["root"]), "limit": images}
    tree = {
        "name": precision, "output": str(out), "stages": "shared",
        "data": {"d": data},
        "variants": {"model": [{"backbone": spec, "label": "n"}]},
        "evaluate": {case.task: {**case.settings, "datasets": ["d"]}, "precision": precision},
    }  # fmt: skip
    study, variants = study_of(RawConfig(tree, {"": "benchmark"}), open_backbones=True)
    nodes = only(build_nodes(study, variants), {case.task}, gathering="")
    runner = study_runner(study, variants, nodes, device=device, workers=1)
    runner.run({node.id for node in runner.planner.nodes})
    places = [runner.output(node.id) for node in nodes if isinstance(node.settings, TaskSettings)]
    return [row for place in places if place is not None for row in rows_in(place) if not row.is_baseline]


def drift(
    case: Case, exact: Sequence[EvalResult], other: Sequence[EvalResult], precision: str, *, every: bool
) -> Iterator[list[str]]:
    """A line for the task's headline, or for each metric of both."""

    def key(row: EvalResult) -> Key:
        return (row.metric, row.block, row.facet, row.norm, row.split, row.protocol, row.note.partition(",")[0])

    values = {key(row): row for row in other}
    if len(values) < len(other):
        raise ValueError(f"{case.name}: rows that only their values tell apart")
    pairs = [(row, values[key(row)]) for row in exact if key(row) in values]
    headline = task(case.task).headline
    for metric in dict.fromkeys(row.metric for row, _ in pairs if every or headline.is_of(row.metric)):
        mine = [(a.value, b.value) for a, b in pairs if a.metric == metric]
        differences = [b - a for a, b in mine if a == a and b == b]
        if differences:
            mean, largest = sum(differences) / len(differences), max(differences, key=abs)
            yield [case.name, precision, metric, str(len(differences)), f"{mine[-1][0]:.2f}", f"{mean:+.3f}",
                   f"{largest:+.3f}"]  # fmt: skip


def of_features(spec: str, device: torch.device, precision: Precision) -> float:
    """The relative difference of the last block's tokens from float32's, of two noise images of 224 pixels or so."""
    backbone = load_backbone(spec, device=str(device))
    side = 224 // backbone.size_multiple * backbone.size_multiple
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    read = {}
    for name in ("fp32", precision):
        backbone.precision = name
        read[name] = backbone.layers(images, [backbone.depth], norm="final")[backbone.depth].tokens.double()
    return float((read[precision] - read["fp32"]).norm() / read["fp32"].norm())


COLUMNS = ("task", "precision", "metric", "rows", "fp32, last", "mean difference", "largest difference")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--tasks", nargs="+", default=[], help="tasks, or the beginning of a case's name (default: all)"
    )
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--every", action="store_true", help="every metric of a task, not its headline alone")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    args = parser.parse_args(argv)
    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_gpu else "cpu")
    others: tuple[Precision, ...] = ("bf16", "tf32") if on_gpu else ("bf16",)
    table = [
        ["features", precision, "relative", "1", "", "", f"{of_features(args.spec, device, precision):.4f}"]
        for precision in others
    ]
    for case in (*CASES, *MORE):
        if args.tasks and not any(case.task == name or case.name.startswith(name) for name in args.tasks):
            continue
        with tempfile.TemporaryDirectory() as out:
            given = (case, args.spec, args.data.resolve(), case.images or args.images, Path(out))
            exact = rows_of(*given, "fp32", device.type)
            for precision in others:
                table += drift(case, exact, rows_of(*given, precision, device.type), precision, every=args.every)
        print(" ".join(table[-1]), file=sys.stderr, flush=True)
    print(f"{machine(args.device)}; torch {torch.__version__}; {os.cpu_count()} cores\n")
    print("\n".join(markdown_table(COLUMNS, table)))


if __name__ == "__main__":
    main()
