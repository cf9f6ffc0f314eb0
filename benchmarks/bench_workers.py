"""A study of some 70 stages by 1, 2 and 4 workers of one thread each: wall time, efficiency, whether rows agree.

    python -m benchmarks.bench_workers [--jobs 1,2,4] [--images 60] [--backbones 4]
    python -m benchmarks.bench_workers --jobs 2 --engines local,dask,submitit,slurm

Backbones with random weights are evaluated on two composed data sets by k-NN, probes and TokenCut. Each run begins
from nothing, in a process of its own, so that the start of workers (some seconds each) is in its time. Efficiency is
the time of one worker / (workers x time); on a machine with fewer quiet cores than workers it says nothing. Engines
other than local workers are Dask's ``LocalCluster``, submitit's local executor, and a SLURM that the tests pretend.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dinoskip.io.files import MANIFEST, find_below
from tests.helpers.slurm import RunningSlurm


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


DASK = """
from dask.distributed import Client, LocalCluster

def workers():
    return Client(LocalCluster(n_workers={jobs}, threads_per_worker=1)).get_executor()
"""
SUBMITIT = """
import sys
from functools import partial
from dinoskip.cli import clusters, main
clusters.ClusterWorkers = partial(clusters.ClusterWorkers, kind="local")
sys.exit(main(sys.argv[1:]))
"""
"""``dinoskip submit --spread`` with the jobs of submitit's local executor."""


def run(config: Path, output: Path, jobs: int, engine: str = "local") -> float:
    """Seconds of ``dinoskip run`` with so many workers of one thread, or of an engine with so many jobs at once."""
    words, path = [str(config), f"output={output}", "-q"], os.environ["PATH"]
    program = ["-P", "-m", "dinoskip"]
    if engine == "local":
        words = ["run", *words, "--device", "cpu", "--jobs", str(jobs)]
    elif engine == "dask":
        (config.parent / "engines.py").write_text(DASK.format(jobs=jobs))
        words = ["run", *words, "--device", "cpu", "run.executor=engines:workers", f"run.workers={jobs}"]
    else:
        cluster = config.with_name("cluster.yaml")
        cluster.write_text(json.dumps({"gpus_per_node": 0, "jobs": jobs, "time": "60"}))
        words = ["submit", *words, "--cluster", str(cluster), "--spread"]
        if engine == "slurm":
            path = RunningSlurm(output.with_name("slurm")).path
        else:
            program = ["-P", "-c", SUBMITIT]
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    subprocess.run(
        [sys.executable, *program, *words], env=environment, check=True, stdout=subprocess.DEVNULL, cwd=config.parent
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
    parser.add_argument("--engines", default="local", help="local, dask, submitit, slurm (default: local)")
    given = parser.parse_args()
    found: dict[int, float] = {}
    first: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "workers.yaml"
        config.write_text(json.dumps(study_of(given.images, given.backbones)))
        for jobs, engine in itertools.product(map(int, given.jobs.split(",")), given.engines.split(",")):
            output = Path(folder) / f"{engine}{jobs}"
            taken = run(config, output, jobs, engine)
            found.setdefault(jobs, taken)
            made, stages = rows(output), len(find_below(output / "workers/stages", MANIFEST))
            first = first or made
            efficiency = found[min(found)] * min(found) / (jobs * taken)
            equal = "equal" if made == first else "NOT EQUAL"
            about = f"{stages} stages in {taken:.0f} s, efficiency {efficiency:.2f}, rows {equal}"
            print(f"{jobs} workers, {engine}: {about}", flush=True)


if __name__ == "__main__":
    main()
