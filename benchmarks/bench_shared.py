"""TokenCut of one set of images by 1 and 2 workers of one thread each: seconds of the stage, speed-up, equal rows.

    python -m benchmarks.bench_shared [--jobs 1,2] [--images 2000] [--size 224] [--depth 12]

The study has one stage, which is cut into parts of 128 images: a worker without a stage of its own makes parts of it.
Each run begins from nothing, in a process of its own. The stage's time is its own worker's from begin to end, with the
start of the helper in it but not that of the first worker; wall is the whole command. On a machine with fewer quiet
cores than workers the speed-up says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_json

ONE = ("--workers", "1", "-q")  # thread that cuts and reads images: of one process there would be one a core


def study_of(data: Path, size: int, depth: int) -> dict[str, Any]:
    """Settings of the study: a network with random weights, whose graphs are as large as a trained one's."""
    network = f"timm:vit_small_patch16_224,pretrained=false,depth={depth},img_size={size}"
    return {
        "name": "shared",
        "data": {"scenes": {"kind": "voc", "root": str(data), "year": 2012}},
        "variants": {"model": [{"label": "net", "backbone": network}]},
        "evaluate": {"tokencut": {"datasets": ["scenes"]}},
        "accept": "all",
    }


def dinoskip(*words: str) -> None:
    """Run a command with one thread of arithmetic a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "dinoskip", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def run(config: Path, output: Path, jobs: int) -> tuple[float, float, bytes]:
    """Seconds of the stage and of the command by so many workers, and the bytes of its rows."""
    began = time.perf_counter()
    dinoskip("run", str(config), f"output={output}", "--device", "cpu", "--only", "tokencut", "--jobs", str(jobs), *ONE)
    wall = time.perf_counter() - began
    (rows,) = (output / "shared/stages/tokencut").rglob("rows.json")
    return float(read_json(rows.parent / "timing.json")["seconds"]), wall, rows.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="1,2")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224, help="side of an image, pixels; patches have 16")
    parser.add_argument("--depth", type=int, default=12, help="blocks that are cut")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, config = Path(folder) / "scenes", Path(folder) / "shared.yaml"
        dinoskip("data", "scenes", str(data), f"images={given.images}", f"size={given.size}", "-q")
        config.write_text(json.dumps(study_of(data, given.size, given.depth)))
        first: tuple[float, float, bytes] | None = None
        for jobs in map(int, given.jobs.split(",")):
            seconds, wall, rows = run(config, Path(folder) / str(jobs), jobs)
            first = first or (seconds, wall, rows)
            equal = "equal" if rows == first[2] else "NOT EQUAL"
            faster = f"{first[0] / seconds:.2f} times as fast (whole command {first[1] / wall:.2f})"
            print(f"{jobs} workers: stage {seconds:.1f} s, wall {wall:.1f} s, {faster}, rows {equal}", flush=True)


if __name__ == "__main__":
    main()
