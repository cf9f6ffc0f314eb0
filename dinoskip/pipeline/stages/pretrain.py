"""The stage ``pretrain``: a self-supervised run, resumed where it was killed. The output is the run directory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, create_model

from dinoskip.data import sets as datasets
from dinoskip.data.shards import Source
from dinoskip.init.config import ModelConfig, WeightSelectionInit
from dinoskip.io.files import read_json
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import (
    DataInputs,
    Problem,
    Stage,
    StudyNodes,
    Task,
    beyond_depth,
    not_multiples,
    unknown_data,
)
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import dataset_of
from dinoskip.pipeline.stages.settings import PretrainSettings
from dinoskip.pipeline.variants import Variant
from dinoskip.plugins import ByName
from dinoskip.settings.config import RawConfig, dump, validate
from dinoskip.settings.fields import Name
from dinoskip.training.objectives import OwnObjective, PretrainJob, dino_by_default
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import Job, TrainConfig

J = TypeVar("J", bound=Job)
SWEEP_RESULT = "sweep.json"
WEIGHTS = "weights.safetensors"


class PretrainSection(PretrainConfig):
    """The pretraining recipe and the data set it is run on (a key of ``data``). Every objective has one of its own."""

    dataset: Name = Field(description="key of data whose images are trained on")

    def __reduce__(self) -> tuple[Any, ...]:
        """Classes of :func:`section_of` have no place of their own: another process makes them from the objective's."""
        kind = type(self)
        objective = kind if kind is PretrainSection else kind.__bases__[0]
        return _unpickled, (objective, dict(self.__dict__), set(self.model_fields_set))


@functools.cache
def section_of(objective: type[BaseModel]) -> type[BaseModel]:
    """The settings of an objective, with the data set."""
    return create_model(f"{objective.__name__}Section", __base__=(objective, PretrainSection))


def _unpickled(objective: type[BaseModel], values: dict[str, Any], given: set[str]) -> BaseModel:
    kind = objective if objective is PretrainSection else section_of(objective)
    return kind.model_construct(given, **values)


_OF_OBJECTIVES: Any = functools.reduce(operator.or_, map(section_of, get_args(OwnObjective)))
AnySection: Any = Annotated[
    _OF_OBJECTIVES,
    Field(discriminator="objective"),
    ByName("objectives", PretrainConfig, "objective", section_of),
    BeforeValidator(dino_by_default),
]


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Crops must be whole patches, and what is evaluated while training must be asked for."""
    section, online = study.find(PretrainSection), study.online
    if section is not None:
        for model in (variant.model for variant in variants if variant.model is not None):
            yield from ((f"pretrain.{key}", text) for key, text in section.problems(model).items())
        if section.online_every and not online.parts:
            yield "pretrain.online_every", "there is nothing to evaluate: add online.knn or online.probe"
    yield from not_multiples({f"online.{name}.size": part.size for name, part in online.parts.items()}, variants)
    for name, part in online.parts.items():
        yield from unknown_data(study, f"online.{name}.dataset", part.dataset)
    counted = {
        f"online.{name}.blocks": [block if block > 0 else 1 - block for block in part.blocks]
        for name, part in online.parts.items()
        if part.blocks != "all"
    }
    yield from beyond_depth(counted, variants)
    timms = [variant.model.name for variant in variants if variant.model and len(set(_levels(variant.model))) > 1]
    for name, part in online.parts.items() if timms else ():
        if part.blocks == "all" or len(part.blocks) > 1:
            yield f"online.{name}.blocks", f"the levels of {timms[0]} have widths of their own: name one, such as [0]"


def _levels(model: ModelConfig) -> tuple[int, ...]:
    """Widths of what a network of timm's is read at; () of one of ours."""
    return () if model.timm_name is None else model.facts.widths


def job_of(kind: type[J], variant: Variant, recipe: TrainConfig) -> J:
    """The job of a variant by a recipe, a section of a study."""
    settings = {"seed": variant.seed, "model": variant.model, "optimizer": variant.optimizer}
    recipe_settings = {setting: value for setting, value in dump(recipe).items() if setting != "dataset"}
    return validate(kind, RawConfig({**settings, recipe.section: recipe_settings}))


def inputs_of(
    nodes: StudyNodes, variant: Variant, dataset: str, splits: Sequence[str]
) -> tuple[DataInputs, dict[str, str]]:
    """Return the inputs of a node that trains a variant on a data set, and the nodes that make data of ``online``."""
    images = data.of_dataset(nodes, dataset, "train", *(("images", "pretraining", split) for split in splits))
    outside = {**images.outside, **selected_from(variant), **taught_by(nodes.study)}
    inputs = {**images.inputs, **start_of(nodes, variant)}
    order_only = {
        f"online {name}": node
        for name, part in nodes.study.online.parts.items()
        for node in data.of_dataset(nodes, part.dataset, "train").inputs.values()
    }
    return replace(images, inputs=inputs, outside=outside), order_only


def selected_from(variant: Variant) -> dict[str, tuple[Any, ...]]:
    """The hash of the network from which a variant's first weights are selected, if they are."""
    init = variant.model.init if variant.model else None
    return {"weights selected from": ("backbone", init.teacher)} if isinstance(init, WeightSelectionInit) else {}


def taught_by(study: StudyBase) -> dict[str, tuple[Any, ...]]:
    """The hashes of the frozen networks, or the stores of their features, that pretraining reads."""
    section = study.find(PretrainSection)
    if section is None:
        return {}
    networks = {f"teacher {place}": ("backbone", spec) for place, spec in enumerate(section.backbones(), 1)}
    return networks | {f"store {place}": ("store", path) for place, path in enumerate(section.stores(), 1)}


def start_of(nodes: StudyNodes, variant: Variant) -> dict[str, str]:
    """The node that makes a variant's first weights, as the input ``start``, if its initialisation is measured."""
    node = f"calibrate/{variant.name}"
    return {"start": node} if node in nodes.nodes else {}


def start_file(task: Task) -> Path | None:
    """The first weights among a task's inputs."""
    return task.inputs["start"] / WEIGHTS if "start" in task.inputs else None


def add_nodes(nodes: StudyNodes) -> None:
    """A run for every variant that is to be trained, at the learning rate that its sweep chose, if there is one."""
    section = nodes.study.find(PretrainSection)
    if section is None:
        return
    for variant in nodes.variants:
        if variant.backbone is None:
            images, order_only = inputs_of(nodes, variant, section.dataset, ("train",))
            job = job_of(PretrainJob, variant, section)
            nodes.add(
                STAGE,
                variant.name,
                PretrainSettings(job, nodes.study.online, nodes.study.data),
                inputs={"sweep": variant.sweep} if variant.sweep in nodes.nodes else {},
                data=images,
                variant=variant.name,
                order_only=order_only,
            )


def images_of(task: Task) -> Source:
    """The training images of a task."""
    config, root = dataset_of(task)
    return datasets.open_training_images(config, root, split="train")


def at_rate(job: PretrainJob, lr: float) -> PretrainJob:
    """Return ``job`` with another learning rate."""
    return validate(PretrainJob, RawConfig({**dict(job), "optimizer": {**dump(job.optimizer), "lr": lr}}))


def chosen_rate(task: Task) -> float | None:
    """The learning rate that a variant's sweep chose; None without a sweep."""
    return float(read_json(task.inputs["sweep"] / SWEEP_RESULT)["lr"]) if "sweep" in task.inputs else None


def run(task: Task) -> None:
    """Train at the rate that was chosen, or go on where a run was killed."""
    from dinoskip.pipeline.stages.training_runs import keep_checkpoints, observer_of, on_main, pretrain  # torch

    settings: PretrainSettings = task.settings
    lr, observer = chosen_rate(task), observer_of(task)
    job = settings.job if lr is None else at_rate(settings.job, lr)
    final = pretrain(
        job, images_of(task), task.out, device=task.device, workers=task.workers, observer=observer,
        start=start_file(task), images_format=dataset_of(task)[0].kind,
    )  # fmt: skip
    score = observer.score if observer else None
    on_main(lambda: keep_checkpoints(task.out, job.pretrain.keep_epochs, final, score))


STAGE = Stage(
    "pretrain",
    run,
    add_nodes,
    PretrainSection,
    AnySection,
    place="pretrain",
    required=False,
    use="pretraining",
    check=check,
    resumes=True,
    together=True,
    version=2,
)
