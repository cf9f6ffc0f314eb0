"""A reader of one DINO step of a skipless ViT, with its data and its optimizer, opens few files.

The files counted are all of ours with a function that runs in the step, from a JPEG of a folder to the teacher's next
weights, in one process, with AdamW. The rooms below all others (images, random numbers, ranks) are left out: their
names say what they do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from PIL import Image

import dinoskip
from dinoskip.data import ImageFolder
from dinoskip.data.loader import BatchSplit
from dinoskip.data.sprites import photo
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import world
from dinoskip.training.dino import DINO
from dinoskip.training.objective import Engine, Step
from dinoskip.training.objectives import PretrainJob

PACKAGE = Path(dinoskip.__file__).parent
BELOW = {PACKAGE, *(PACKAGE / room for room in ("settings", "runtime", "io", "results"))}
CROPS = {"global_size": 32, "local_size": 16, "num_local": 2}
JOB = {
    "model": {"name": "vit_mini_patch8", "skip": False, "depth": 2, "img_size": 32, "init": {"name": "skipless"}},
    "pretrain": {"out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "epochs": 20, "batch_size": 4, "crops": CROPS},
}


@contextmanager
def files_that_run() -> Iterator[set[Path]]:
    """The files of the package, but for those below all others, of which a function is called."""
    files: set[Path] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and path.parent not in BELOW:
            files.add(path)

    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(None)


def test_a_step_is_read_in_12_files_and_1700_lines(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(photo("coffee")[number : number + 80, :90]).save(tmp_path / f"{number}.jpg")
    job, images = PretrainJob.model_validate(JOB), ImageFolder.open(tmp_path)
    config = job.pretrain
    with world("cpu") as here:
        loader = TrainLoader(
            images, ViewRecipe(config.crops, config.augment), BatchSplit(config.batch_size), seed=0, min_side=8
        )
        objective = DINO(job, config, loader.steps_per_epoch, here.device)
        optimizer = build_optimizer(objective.student, job.optimizer)
        engine = Engine(objective.student, objective.student, optimizer, loader, here, job.seed)
        with files_that_run() as files:
            objective.step(Step(engine, 0, loader.epoch(0)))
    lines = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in files}
    assert {"data/augment.py", "models/vit.py", "training/dino.py", "training/objective.py"} <= lines.keys()
    assert len(lines) <= 12, lines
    assert sum(lines.values()) <= 1700, lines
