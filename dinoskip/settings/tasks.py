"""Evaluation tasks: the record that the module of each in ``eval`` declares, and the one table of all records.

All other modules (report, board, gallery, estimate, command line, ...) read the facts about a task from its record.
A record's module imports the task's settings, and its arithmetic only when it is used: records cost no import of torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dinoskip.errors import ConfigError
from dinoskip.io.parts import ALONE, Parts
from dinoskip.plugins import LAST, Table
from dinoskip.settings.config import Config

OWN: Mapping[str, str] = MappingProxyType(
    {
        "probe": "eval.probe.task",
        "tokencut": "eval.tokencut.task",
        "knn": "eval.knn.task",
        "retrieve": "eval.retrieval.task",
    }
)
"""The module of ``TASK`` of each of the core's tasks, by its name."""

StudySetting = Literal["seed", "multiscale", "blocks", "norms"]


@dataclass(frozen=True, eq=False)
class SurfacePictures:
    """Maps of images in ``maps.npz``: ``ids`` (N,), and for each block b ``block{b}`` (N, ...).

    ``truth`` of a labelled split and the number of an image is the true map, which the gallery's layer of the task's
    name draws beside.
    """

    truth: Callable[[Any, int], Any]


@dataclass(frozen=True)
class StripPictures:
    """Folders of pictures below ``folder``: in each the photograph ``photo``, ``truth.png`` and a ``block{b}.png`` a
    block, label maps (H, W) in VOC's palette."""

    folder: str
    photo: str


@dataclass(frozen=True)
class BlockPictures:
    """A picture a block, ``block{b}.jpg`` below ``folder``: the report shows that of each network's chosen block.

    ``caption`` is a sentence that says what is seen, ``alt`` the same for those who do not see it.
    """

    folder: str
    caption: str
    alt: str


Pictures = Literal["", "heads", "maps"] | SurfacePictures | StripPictures
"""Pictures of a task for the gallery: none, the probe's heads, maps (:mod:`eval.picture_maps`), or one of these."""


@dataclass(frozen=True)
class TaskMetric:
    """A metric of rows: its name, how tables say it (``label``; "": as its name), its unit and range.

    A ``*`` at the end of a name stands for whatever follows, and in the label for the same: ``accuracy_k*`` and
    ``k-NN (k = *)``. ``order`` is its place where results are read, the smallest first.
    """

    name: str
    label: str = ""
    unit: str = "%"
    range: tuple[float, float] = (0.0, 100.0)
    lower_is_better: bool = False
    order: int = 100

    @property
    def varies(self) -> bool:
        """Whether it is one metric at several settings."""
        return self.name.endswith("*")

    def is_of(self, name: str) -> bool:
        """Whether rows of metric ``name`` are of this one."""
        return name.startswith(self.name[:-1]) if self.varies else name == self.name

    def said(self, name: str) -> str:
        """Return the name in tables of the metric ``name`` of a row."""
        return self.label.replace("*", name[len(self.name) - 1 :]) or name


@dataclass(frozen=True)
class FeatureRequest:
    """Features of a split that a task reads at the facets of its settings, in the ``role`` that it calls them by.

    ``transform`` are settings of :class:`dinoskip.features.Transform`. A request ``in_windows`` is met without a store
    where the study says so: its features are read once, in order; one that is ``streamed`` also by default, if no other
    task reads the same: its results are those of a store to the byte, after as many passes. ``version`` is part of what
    is stored. ``tokens`` and ``cls``: whether patch and CLS tokens are read; None: as tasks with the label do.
    """

    role: str
    split: str
    transform: Mapping[str, Any]
    in_windows: bool = False
    streamed: bool = False
    version: Mapping[str, str] = field(default_factory=dict)
    tokens: bool | None = None
    cls: bool | None = None


@dataclass(frozen=True)
class TaskOption:
    """A flag of a task's command that stands for a setting.

    ``setting`` has ``{}`` for the value, which the help calls ``metavar``; without one the flag has no value.
    """

    flag: str
    metavar: str | None
    setting: str
    help: str


@dataclass(frozen=True, eq=False)
class TaskInputs:
    """Inputs of a task that measures one network on one data set.

    ``labels`` are the opened splits by role, ``features`` what was requested by role. A task that requests none, takes
    several norms or says that it needs it has the ``backbone``, and reads ``blocks`` at ``facets`` under ``norms``.
    ``multiscale`` are blocks to be read together, ``floor`` is the folder of its :class:`PixelFloor`, if it was made.
    ``context`` are fields of its rows, ``out`` the folder that it writes into: ``rows.json`` at least. ``parts`` are of
    work that other processes may share.
    """

    settings: Any
    labels: Mapping[str, Any]
    features: Mapping[str, Any]
    backbone: Any
    out: Path
    context: Mapping[str, Any]
    blocks: Sequence[int] | str = "all"
    facets: Sequence[str] = ("out",)
    norms: Sequence[str] = ()
    multiscale: Sequence[int] | None = None
    seed: int = 0
    device: str = "auto"
    workers: int = 0
    floor: Path | None = None
    parts: Parts = ALONE

    @property
    def block_numbers(self) -> list[int]:
        """The ``blocks``, ascending; :class:`ConfigError` for one, or one of ``multiscale``, that the network lacks."""
        depth = self.backbone.depth
        numbers = list(range(1, depth + 1)) if isinstance(self.blocks, str) else sorted(set(self.blocks))
        if beyond := [block for block in (*numbers, *(self.multiscale or ())) if block > depth]:
            raise ConfigError(f"block {beyond[0]} is beyond the {depth} blocks of {self.backbone.spec}")
        return numbers


@dataclass(frozen=True, eq=False)
class FloorInputs:
    """Inputs of a task that measures pixels without a network: its settings, labels and image sizes, both by role."""

    settings: Any
    labels: Mapping[str, Any]
    transforms: Mapping[str, Any]
    patch_size: int
    out: Path
    seed: int = 0
    device: str = "auto"
    workers: int = 0


@dataclass(frozen=True, eq=False)
class PixelFloor:
    """Baselines of pixels without a network, which are the same for all networks with patches of one size.

    ``asked`` by these settings, ``make`` writes them into ``out``. :attr:`TaskInputs.floor` is that folder for those
    that write rows; where it is None, or of other images, they make the baselines themselves.
    """

    asked: Callable[[Any], bool]
    make: Callable[[FloorInputs], None]


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _asks_nothing(*_: Any) -> Iterator[tuple[str, str, str]]:
    yield from ()


def _no_memory(*_: Any) -> int:
    return 0


def _no_problems(*_: Any) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True, eq=False)
class EvaluationTask:
    """One way to measure frozen features.

    Args:
        name: of the section below ``evaluate``, of the command and of the stage; rows have it as ``task``.
        order: its place among the tasks where they are executed, listed and printed, the smallest first; equal ones
            by name. Those of dinoskip are below 1,000.
        measures: what it measures, in a few words.
        help: what its command does.
        example: a setting that the command's help shows.
        section: the class of its settings: ``datasets``, the splits, the facets, and what is its own.
        label: the kind of label that it needs (:mod:`dinoskip.data.sets`).
        evaluate: measures one network on one data set and writes rows.
        headline: the metric that stands in tables, curves and rankings, of which more is better: an error stands
            among the ``further`` ones, or as what is left of 100 %.
        splits: the splits whose labels it opens, by role; the last is scored.
        features: which features it reads; none: images go through the network while it fits and scores.
        reads_images: whether it opens the images itself where it reads features.
        needs_network: whether it is given the network beside the features.
        study_settings: what it reads of the study beside its section.
        norm_of_facets: whether it reads each facet under its usual norm of the study's, not under a norm of its own.
        sizes: sides of images that must be whole patches, by setting.
        check: problems of its settings with the data sets that they name, by setting.
        asks_of_labels: what its settings ask of the opened splits, by role, that these do not have: a setting, what is
            wrong and what to do.
        further: its other metrics, where they are not in percent or a lower one is better.
        spoken: what tables say before the metric where that alone does not tell the task.
        baselines: the rules that look at no image, whose rows stand beside.
        floor: baselines of pixels, which several networks share; None: it has none.
        pictures: what it leaves for the gallery.
        block_pictures: what it leaves for the report, a picture a block.
        data_kind: the kind of data set that its command expects.
        options: flags of its command.
        hub: the task's name on the Hugging Face hub.
        look: settings of its section with which ``look`` measures photographs quickly; None: it does not.
        pairwise: whether every token of an image is compared with every other.
        disk_per_token: bytes that it leaves on disk of a token at a block.
        part: about how many scored images a part of its work has that other workers may make; 0: it has no parts.
        parts_of_windows: whether it has parts where its features are computed as they are read, too.
        held: peak bytes of features of all images at once on a CPU, by its settings and what it reads: the images,
            tokens, channels and blocks of each split; 0 where it reads some images after others.
        memory: peak bytes of its work on a CPU, by its settings, the tokens of an image and their channels: the rule
            that bounds them; 0 where they do not grow with pairs of tokens.
        version: part of the key of its results: raised when code changes them.
        resumes: whether it goes on in what a killed run has left.
        not_in_key: settings that say what is read, which its key has as inputs.
        as_published: how many of a paper's settings a row has, to prefer it.
    """

    name: str
    measures: str
    help: str
    example: str
    section: type[Config]
    label: str
    evaluate: Callable[[TaskInputs], object]
    headline: TaskMetric
    splits: Callable[[Any], Mapping[str, str]]
    features: Callable[[Any], Sequence[FeatureRequest]] = lambda _: ()
    reads_images: Callable[[Any], bool] = lambda _: False
    needs_network: Callable[[Any], bool] = lambda _: False
    study_settings: tuple[StudySetting, ...] = ()
    norm_of_facets: bool = False
    sizes: Callable[[Any], Mapping[str, int | None]] = _nothing
    check: Callable[[Any, Mapping[str, Any]], Iterator[tuple[str, str]]] = _no_problems
    asks_of_labels: Callable[[Any, Mapping[str, Any]], Iterator[tuple[str, str, str]]] = _asks_nothing
    further: tuple[TaskMetric, ...] = ()
    spoken: str = ""
    baselines: tuple[str, ...] = ()
    floor: PixelFloor | None = None
    pictures: Pictures = ""
    block_pictures: BlockPictures | None = None
    data_kind: str = "voc"
    options: tuple[TaskOption, ...] = ()
    hub: str = "image-feature-extraction"
    look: Mapping[str, Any] | None = None
    pairwise: bool = False
    disk_per_token: int = 0
    part: int = 0
    parts_of_windows: bool = True
    held: Callable[[Any, Sequence[tuple[int, int, int, int]]], int] = _no_memory
    memory: Callable[[Any, int, int], int] = _no_memory
    version: int = 1
    resumes: bool = False
    not_in_key: Collection[str] = ("datasets", "facet")
    as_published: Callable[[Any], int] = lambda _: 0
    order: int = LAST

    def __post_init__(self) -> None:
        if self.headline.lower_is_better:
            raise ValueError(f"{self.name}: of the headline {self.headline.name!r} lower is better: pages rank upwards")

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets it by its name: its functions cannot be sent."""
        return task, (self.name,)

    @property
    def asked_by(self) -> str:
        """The setting that names its data sets."""
        return f"evaluate.{self.name}.datasets"

    def scored_split(self, section: Any) -> str:
        """Return the split whose images are scored by these settings."""
        return list(self.splits(section).values())[-1]

    def fitted_splits(self, section: Any) -> dict[str, str]:
        """Return, by role, the splits of which something is fitted or remembered: all that are read but the scored."""
        scored = list(self.splits(section))[-1]
        read = {**{ask.role: ask.split for ask in self.features(section)}, **self.splits(section)}
        return {role: split for role, split in read.items() if role != scored}


class _Records(Mapping[str, EvaluationTask]):
    """The records of the core's tasks; each is imported when it is asked for."""

    def __getitem__(self, name: str) -> EvaluationTask:
        record: EvaluationTask = importlib.import_module(OWN[name]).TASK
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(OWN)

    def __len__(self) -> int:
        return len(OWN)


TASKS: Mapping[str, EvaluationTask] = Table("tasks", _Records(), EvaluationTask)
"""The records of all tasks by name, in order of execution."""


def task(name: str) -> EvaluationTask:
    """The record of a task. Raises :class:`KeyError` for a name that no task has."""
    return TASKS[name]


def tasks() -> list[EvaluationTask]:
    """Return the records of all tasks, in order of execution."""
    return list(TASKS.values())


@cache
def headline(name: str, metric: str) -> TaskMetric | None:
    """The headline metric of rows of task ``name``, if ``metric`` is it.

    Rows of another task, such as a trained classifier's ``classify``, have that of the first record that names it.
    """
    records = [task(name)] if name in TASKS else tasks()
    return next((task.headline for task in records if task.headline.is_of(metric)), None)


@cache
def range_of(metric: str) -> tuple[float, float]:
    """Lowest and highest value of rows of a metric, in its unit: 0 and 100 % unless a record says otherwise."""
    every = (shown for task in tasks() for shown in (task.headline, *task.further))
    return next((shown.range for shown in every if shown.is_of(metric)), (0.0, 100.0))


@cache
def is_error(metric: str) -> bool:
    """Whether of two rows of this metric the lower is better; those are in a unit of their own, not in percent."""
    return any(
        shown.lower_is_better and shown.is_of(metric) for task in tasks() for shown in (task.headline, *task.further)
    )
