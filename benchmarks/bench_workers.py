"""A study of some 70 stages by 1, 2 and 4 workers of one thread each: wall time, efficiency, whether rows agree.

    python -m benchmarks.bench_workers [--jobs 1,2,4] [--images 60] [--backbones 4]

Backbones with random weights are evaluated on two composed data sets by k-NN, probes and TokenCut. Each run begins
from nothing, in a process of its own, so that the start of workers (some seconds each) is in its time. Efficiency is
the time of one worker / (workers x time); on a machine with fewer quiet cores than workers it says nothing.
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

from dinoskip.io.files import MANIFEST, find_below


def study_of(images: int, backbones: int) -> dict[str, Any]:
    """Settings of the study."""
    scenes = {"kind": "scenes", "size": 96, "val_fraction": 0.5, "images": images}
    network = "timm:vit_small_patch16_224,pretrained=false,depth=6,img_size=96"
    return {
        "name": "workers",
        "data": {"one": {**scenes, "seed": 1}, "two": {**scenes, "seed": 2}},
        "variants": {"model": [{"backbone": f"{network},seed={seed}"} for seed in range(backbones)]},
        "evaluate": {
            "probe": {"datasets": ["one", "two"], "size": 96, "epochs": 10, "learning_rates": [1e-3, 1e-2]},
            "knn": {"datasets": ["one", "two"], "size": 96, "k": [5]},
            "tokencut": {"datasets": ["one", "two"]},
        },
    }


def run(config: Path, output: Path, jobs: int) -> float:
    """Seconds of ``dinoskip run`` with so many workers of one thread."""
    words = ["run", str(config), f"output={output}", "--device", "cpu", "--jobs", str(jobs), "-q"]
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-P", "-m", "dinoskip", *words], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def rows(output: Path) -> dict[str, bytes]:
    """Bytes of all rows below a folder, by the outputs that they are of."""
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("rows.json")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="1,2,4")
    parser.add_argument("--images", type=int, default=40, help="of each data set")
    parser.add_argument("--backbones", type=int, default=4)
    given = parser.parse_args()
    found: dict[int, float] = {}
    first: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "workers.yaml"
        config.write_text(json.dumps(study_of(given.images, given.backbones)))
        for jobs in map(int, given.jobs.split(",")):
            output = Path(folder) / str(jobs)
            found[jobs] = run(config, output, jobs)
            made, stages = rows(output), len(find_below(output / "workers/stages", MANIFEST))
            first = first or made
            efficiency = found[min(found)] * min(found) / (jobs * found[jobs])
            equal = "equal" if made == first else "NOT EQUAL"
            about = f"{stages} stages in {found[jobs]:.0f} s, efficiency {efficiency:.2f}, rows {equal}"
            print(f"{jobs} workers: {about}", flush=True)


if __name__ == "__main__":
    main()
