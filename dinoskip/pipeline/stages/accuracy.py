"""The stage ``accuracy``: which validation images a classifier's final checkpoint has right, beside its run's rows.

It reads what ``supervise`` has left and trains nothing, so that a training that was finished before there were records
is not repeated for them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.pipeline.stage import Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import open_split
from dinoskip.pipeline.stages.pretrain import job_of
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.results.records import RECORDS, ROWS, write_records
from dinoskip.results.rows import read_rows
from dinoskip.runtime.console import log
from dinoskip.training.supervised_config import SupervisedJob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_APART = 0.1
"""Percent points between a row and its records: one image in a thousand. On one machine they are equal; with another
number of ranks, or on another device, rounding may move an image whose two best classes are equal."""


@dataclass(frozen=True)
class AccuracySettings(NodeSettings):
    """The training whose checkpoint is measured, and on images of which data set.

    The job is the run's own, which is among the inputs: only how images are sized is part of the key beside that.
    """

    job: SupervisedJob
    dataset: str

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        return {"size": self.job.supervise.augment.size}


def add_nodes(nodes: StudyNodes) -> None:
    """A measurement of every variant that is trained with labels."""
    section = nodes.study.find(SuperviseSection)
    if section is None:
        return
    for variant in nodes.variants:
        if variant.backbone is None:
            images = data.of_dataset(nodes, section.dataset, "val", ("images", "pretraining", "val"))
            settings = AccuracySettings(job_of(SupervisedJob, variant, section), section.dataset)
            run_of = {"run": f"supervise/{variant.name}"}
            nodes.add(STAGE, variant.name, settings, inputs=run_of, data=images, variant=variant.name)


def run(task: Task) -> None:
    """Classify the images of ``val`` on all ranks; write the run's rows again, and records of hits beside them."""
    import torch

    from dinoskip.runtime.distributed import on_main, world  # torch, as all of these
    from dinoskip.training.checkpoint import of_epoch
    from dinoskip.training.supervised import Accuracy, trained_classifier

    settings: AccuracySettings = task.settings
    job, val = settings.job, open_split(task, "classes", "val")
    with world(task.device) as here:
        network = trained_classifier(job, of_epoch(task.inputs["run"], job.supervise.epochs)).to(here.device)
        with torch.no_grad():
            hits = Accuracy(val, job.supervise.augment.size, workers=task.workers).hits(network, here)
        on_main(
            lambda: write_measured(
                task.inputs["run"], task.out, val.ids, dict(zip(("top1", "top5"), hits, strict=True))
            )
        )


def write_measured(run_dir: Path, out: Path, ids: Sequence[str], hits: Mapping[str, NDArray[np.bool_]]) -> None:
    """The run's rows as they are, so that they are the same rows wherever both are read, and what images contribute.

    No records where the rows say otherwise: the comparison is then unpaired, as it was before.
    """
    shutil.copyfile(run_dir / ROWS, out / ROWS)
    records = {}
    for number, row in enumerate(read_rows(out / ROWS)):
        found = 100.0 * float(hits[row.metric].mean())
        if abs(found - row.value) > _APART:
            log.warning(
                "%s: %s is %.2f, measured again from its checkpoint, and %.2f in its rows: no records of images",
                row.model, row.metric, found, row.value,
            )  # fmt: skip
        else:
            records[number] = hits[row.metric]
    write_records(out / RECORDS, ids, records)


STAGE = Stage("accuracy", run, add_nodes, together=True)
