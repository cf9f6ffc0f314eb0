"""CorLoc of TokenCut, of TokenCut without position, and of Object-DINO on photographs with boxes, with intervals.

    python -m benchmarks.bench_discovery VOCDEVKIT [SPEC ...] [--year 2012] [--side 128] [--out DIR]

The networks that ship with dinoskip, or those named. Images are made small (longest side ``--side``), as the shipped
networks were trained on 64 pixels; boxes with them. Prints a table for docs/tokencut.md: the last block, which nothing
chose, and the block that is best on these images, an upper estimate; differences to TokenCut's last block are paired
over images (Student's interval).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

from benchmarks.pages import markdown_table
from dinoskip.cli import main as dinoskip
from dinoskip.data.sets.voc import voc_detection
from dinoskip.io.files import write_json
from dinoskip.io.images import read_image
from dinoskip.results.records import read_records
from dinoskip.runtime.environment import describe
from dinoskip.settings.shipped import PAIR

WAYS = {"TokenCut": "keep", "TokenCut, position removed": "mean_kept"}
"""Ways to treat position that are cut: as it is, and less the mean of each position over the set's images."""


@dataclass(frozen=True)
class Found:
    """A method's hits on every image, bool (N,), at one block, or at all of them together."""

    method: str
    block: str
    hits: NDArray[np.bool_]
    low: float
    high: float


def small_copy(voc: Path, year: int, side: int, out: Path) -> int:
    """Write the photographs of ``Main/trainval`` with their boxes, small, as COCO's JSON has them; their number."""
    dataset = voc_detection(voc, "trainval", year)
    images, annotations = [], []
    (out / "images").mkdir(parents=True)
    for number in range(len(dataset)):
        pixels = read_image(dataset.path(number))
        height, width = pixels.shape[:2]
        scale = side / max(height, width)
        size = max(8, round(width * scale)), max(8, round(height * scale))
        name = f"images/{number:05d}.png"
        Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS).save(out / name)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        for x1, y1, x2, y2 in np.asarray(dataset.boxes(number), dtype=float):
            across, down = size[0] / width, size[1] / height
            box = [x1 * across, y1 * down, (x2 - x1) * across, (y2 - y1) * down]
            about = {"id": len(annotations) + 1, "image_id": number, "category_id": 1, "iscrowd": 0}
            annotations.append({**about, "bbox": [round(value, 3) for value in box], "area": box[2] * box[3]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "object"}]}
    write_json(out / "boxes.json", content)
    return len(images)


def found(spec: str, data: Path, out: Path) -> list[Found]:
    """Return the CorLoc of each way and of Object-DINO at every block."""
    results: list[Found] = []
    for method, positions in WAYS.items():
        folder = out / positions
        command = [
            "eval", "tokencut", spec, "--data", str(data), "--kind", "coco_json", "data.annotations=boxes.json",
            "--out", str(folder), f"evaluate.tokencut.positions={positions}", "--device", "cpu", "-q",
        ]  # fmt: skip
        command += ["evaluate.tokencut.object_dino={}"] if positions == "keep" else []
        if dinoskip(command):
            raise SystemExit(f"{spec}: dinoskip {' '.join(command)} failed")
        for rows in sorted(folder.glob("stages/tokencut/**/rows.json")):
            for row, record in read_records(rows.parent).items():
                if row.is_baseline:
                    continue
                name = "Object-DINO" if row.protocol.startswith("object_dino") else method
                assert isinstance(record.values, np.ndarray)
                interval = (row.low or 0.0, row.high or 0.0)
                results.append(Found(name, row.block, record.values.astype(bool), *interval))
    return results


def paired(hits: NDArray[np.bool_], reference: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Mean difference of two networks' or methods' hits on the same images in points, and its 95 % interval."""
    difference = 100 * (hits.astype(float) - reference.astype(float))
    mean, error = float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)
    half = float(stats.t.ppf(0.975, len(difference) - 1)) * error
    return mean, mean - half, mean + half


def lines_of(spec: str, results: Sequence[Found]) -> list[list[str]]:
    """Lines of the table of one network."""
    lines: list[list[str]] = []
    first = [one for one in results if one.method == next(iter(WAYS))]
    reference = max(first, key=lambda one: int(one.block))
    for method in dict.fromkeys(one.method for one in results):
        of_method = [one for one in results if one.method == method]
        shown = {"all": of_method[0]} if len(of_method) == 1 else {}
        if not shown:
            last = max(of_method, key=lambda one: int(one.block))
            best = max(of_method, key=lambda one: (int(one.hits.sum()), -int(one.block)))
            shown = {f"{last.block}, the last": last, f"{best.block}, the best shown": best}
        for block, one in shown.items():
            difference = (
                "" if one is reference else "{:+.1f} ({:+.1f} to {:+.1f})".format(*paired(one.hits, reference.hits))
            )
            value = f"{100 * one.hits.mean():.1f} ({one.low:.1f}-{one.high:.1f})"
            lines.append([spec, method, block, value, difference])
    return lines


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("voc", type=Path)
    parser.add_argument("specs", nargs="*", default=list(PAIR), metavar="SPEC")
    parser.add_argument("--year", type=int, default=2012)
    parser.add_argument("--side", type=int, default=128, help="longest side in pixels (default: 128)")
    parser.add_argument("--out", type=Path, help="keep images and outputs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        count = small_copy(args.voc, args.year, args.side, out / "data")
        lines: list[list[str]] = []
        for number, spec in enumerate(args.specs):
            lines += lines_of(spec, found(spec, out / "data", out / f"network{number}"))
    machine = describe()
    print(f"{count} images, {args.side} pixels; {machine['cores']} cores, torch {machine['torch']}\n")
    print(
        "\n".join(markdown_table(["network", "method", "block", "CorLoc (95 %)", "less TokenCut's last block"], lines))
    )


if __name__ == "__main__":
    main()
