"""The stage ``supervise``: a classifier, resumed where it was killed: the run directory, and its accuracy as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from dinoskip.pipeline.graph import SettingsOf
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import Problem, Stage, StudyNodes, Task
from dinoskip.pipeline.stages.inputs import dataset_of, open_split
from dinoskip.pipeline.stages.pretrain import PretrainSection, inputs_of, job_of, start_file
from dinoskip.pipeline.stages.settings import TrainingSettings, hashed_recipe
from dinoskip.pipeline.variants import Variant
from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.runtime.arithmetic import kernels
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.fields import Name
from dinoskip.settings.specs import exported_weights
from dinoskip.training.supervised_config import SupervisedConfig, SupervisedJob

KEY = "supervised"
"""Key of the recipe in a node's settings, older than the name ``supervise`` of the section."""


class SuperviseSection(SupervisedConfig):
    """The supervised recipe and the data set it is run on (a key of ``data``, of kind ``folder``)."""

    dataset: Name = Field(description="key of data, with classes")
    online_every: int = Field(10, ge=1, description="epochs between evaluations; the last is always one")


@dataclass(frozen=True)
class SupervisedSettings(TrainingSettings):
    """Settings of a supervised training; ``context`` are fields of its rows."""

    job: SupervisedJob
    context: Mapping[str, Any]

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        recipe = hashed_recipe(settings_of(self.job.supervise))
        return {**super().recorded(settings_of), KEY: recipe, "context": dict(self.context)}


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """One recipe a study; images must be whole patches, in labelled folders."""
    section = study.find(SuperviseSection)
    if section is None:
        return
    if study.find(PretrainSection) is not None:
        yield "supervise", "pretrain is given too: a study trains all its variants by one recipe"
    kind = study.data[section.dataset].kind if section.dataset in study.data else "folder"
    if kind != "folder":
        yield "supervise.dataset", f"is of kind {kind}: it must be a folder with train and val"
    for model in (variant.model for variant in variants if variant.model is not None):
        yield from ((f"supervise.{key}", text) for key, text in section.problems(model).items())


def add_nodes(nodes: StudyNodes) -> None:
    """A run for every variant that is to be trained."""
    section = nodes.study.find(SuperviseSection)
    if section is None:
        return
    for variant in nodes.variants:
        if variant.backbone is None:
            images, order_only = inputs_of(nodes, variant, section.dataset, ("train", "val"))
            context = {**nodes.context(variant, section.epochs), "dataset": section.dataset}
            job = job_of(SupervisedJob, variant, section)
            settings = SupervisedSettings(job, nodes.study.online, nodes.study.data, context)
            nodes.add(STAGE, variant.name, settings, data=images, variant=variant.name, order_only=order_only)


def run(task: Task) -> None:
    """Train, or go on; at the end write the accuracy."""
    from dinoskip.pipeline.stages.training_runs import Accuracy, keep_checkpoints, on_main, supervise  # torch

    settings: SupervisedSettings = task.settings
    job = settings.job
    train, val = (open_split(task, "classes", split) for split in ("train", "val"))
    final = supervise(
        job, train, val, task.out, device=task.device, workers=task.workers, start=start_file(task),
        images_format=dataset_of(task)[0].kind,
    )  # fmt: skip

    def finish() -> None:
        keep_checkpoints(task.out, job.supervise.keep_epochs, final, Accuracy.score)
        known = {
            "n": len(val), "classes": len(val.class_names), "split": "val", "protocol": "classifier of the run",
            "resolution": f"{job.supervise.augment.size} center_crop", **settings.context,
        }  # fmt: skip
        write_rows(task.out / "rows.json", _accuracy_rows(task.out, final, known))

    on_main(finish)


def _accuracy_rows(run_dir: Path, final: Path, known: Mapping[str, Any]) -> list[EvalResult]:
    """Top-1 and top-5 of the final checkpoint, as its row of metrics.jsonl has them."""
    from dinoskip.models.export import hash_weights, load_weights  # torch
    from dinoskip.training.checkpoint import step_of

    step = step_of(final)
    measured = next(row for row in read_metrics(run_dir / "metrics.jsonl") if row["step"] == step)
    state, model, _ = load_weights(exported_weights(final))
    depth = model.blocks
    about = {"task": "classify", "block": str(depth), "depth": depth, "weights": hash_weights(state), **known}
    about["kernels"] = kernels()
    return [EvalResult(metric=metric, value=measured[metric], **about) for metric in ("top1", "top5")]


STAGE = Stage(
    "supervise",
    run,
    add_nodes,
    SuperviseSection,
    place="supervise",
    required=False,
    use="classes",
    check=check,
    resumes=True,
    together=True,
)
