"""The stage ``sweep``: the learning rate of every variant, chosen by short runs before the long one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from dinoskip.data.shards import Source
from dinoskip.errors import NonFiniteError
from dinoskip.io.files import read_json, write_json
from dinoskip.io.output import remove
from dinoskip.pipeline.graph import SettingsOf
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import Problem, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.pretrain import (
    SWEEP_RESULT,
    PretrainSection,
    at_rate,
    images_of,
    inputs_of,
    job_of,
    start_file,
)
from dinoskip.pipeline.stages.settings import PretrainSettings
from dinoskip.pipeline.variants import Variant
from dinoskip.runtime.console import log, read_metrics
from dinoskip.settings.config import Config, Distinct, Positive, dump, merge
from dinoskip.settings.tasks import tasks
from dinoskip.training.objectives import PretrainJob

if TYPE_CHECKING:
    from dinoskip.training.loop import Observer

FEWEST = 5
"""Learning rates that a choice is made among, at least."""


class SweepSection(Config):
    """Every variant is first trained shortly with each learning rate; the best by ``online`` trains it for long.

    The measure is the headline of the first part of ``online`` at the end of a short run, of the best of all blocks
    (chosen apart from the images it is scored on), the smaller rate on a tie. Its images must not be those that an
    evaluation reports: ``online.knn.held_out``, the default, takes training images. A run that ends non-finite counts
    as the worst. While the best rate is the lowest or highest, the next one beyond it is tried too, at the same factor.
    The rate is resolved if at least :data:`FEWEST` were tried, the best is neither the lowest nor the highest, and it
    is above the rule that always answers the most frequent class; a report gives no verdict on a network whose rate is
    not.
    """

    lr: Distinct[Positive] = Field(
        min_length=2, description="peak learning rates per 256 images, in place of optimizer.lr; five or more"
    )
    extend: int = Field(4, ge=0, description="further rates tried at most, while the best is the lowest or highest")
    pretrain: dict[str, Any] = Field(
        default_factory=lambda: {"epochs": 1, "warmup_epochs": 0},
        description="what the short runs change of the recipe: length, warm-ups",
    )


@dataclass(frozen=True)
class ShortRun:
    """A rate, what its run reached by the measure (None if it failed), and its mean loss over the last 10 %."""

    lr: float
    value: float | None
    loss: float | None


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep: its runs by ascending rate, the rate chosen, and the reason if that is unresolved.

    ``trivial`` is the ``measure`` of always answering the most frequent class, ``epochs`` the length of a run.
    """

    measure: str
    epochs: int
    lr: float
    unresolved: str
    trivial: float
    rates: Sequence[ShortRun]

    @classmethod
    def read(cls, out: Path) -> SweepResult:
        """The result in the output of a sweep."""
        stored = read_json(out / SWEEP_RESULT)
        return cls(**{**stored, "rates": [ShortRun(**row) for row in stored["rates"]]})


@dataclass(frozen=True)
class SweepSettings(PretrainSettings):
    """Settings of a sweep: the job of a short run, of which the learning rate is replaced."""

    section: SweepSection

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Settings as they are hashed, with those by which the rate is chosen."""
        optimizer = {name: value for name, value in settings_of(self.job.optimizer).items() if name != "lr"}
        return {
            **super().recorded(settings_of),
            "optimizer": optimizer,
            "lr": list(self.section.lr),
            "extend": self.section.extend,
            "online": {name: settings_of(part) for name, part in self.online.parts.items()},
        }


def short_recipe(recipe: Mapping[str, Any], section: SweepSection) -> dict[str, Any]:
    """The recipe of a short run: ``recipe`` with the section's changes, nothing kept, evaluated at its end."""
    tree: dict[str, Any] = merge({**recipe, "keep_epochs": []}, section.pretrain)
    return {**tree, "online_every": tree["epochs"]}


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """There must be something to choose by, and a short run must be possible."""
    section, recipe, online = study.find(SweepSection), study.find(PretrainSection), study.online
    if online.parts and not (recipe and (recipe.online_every or section)):
        yield "online", "never happens: set pretrain.online_every, the epochs between evaluations"
    if section is None:
        return
    if not recipe or not online.parts:
        yield "sweep", "needs pretrain, and online.knn or online.probe to choose by"
        return
    try:
        type(recipe).model_validate(short_recipe(dump(recipe), section))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("sweep.pretrain", *first["loc"])))
        yield where, first["msg"].removeprefix("Value error, ")
    yield from _reported(study)


def _reported(study: StudyBase) -> Iterator[Problem]:
    """The rate must not be chosen by images that an evaluation reports."""
    name, part = next(iter(study.online.parts.items()))
    chosen, config = part.splits[-1], study.data.get(part.dataset)
    for record in tasks():
        section: Any = study.section(record.section)
        for data_name in section.datasets:
            same = data_name == part.dataset or (config is not None and study.data.get(data_name) == config)
            if same and record.scored_split(section) == chosen:
                asked = f"evaluate.{record.name} reports: the learning rate must be chosen by others"
                text = f"{chosen!r} of {part.dataset} is what {asked}: set online.{name}.held_out=true"
                yield f"online.{name}.{'held_out' if not part.held_out else 'dataset'}", text


def add_nodes(nodes: StudyNodes) -> None:
    """A sweep for every variant that is to be trained, seeds sharing the first one's.

    What the rate is chosen by is part of its key.
    """
    section, recipe = nodes.study.find(SweepSection), nodes.study.find(PretrainSection)
    if section is None or recipe is None:
        return
    parts = {name: part.model_copy(update={"blocks": "all"}) for name, part in nodes.study.online.parts.items()}
    online = nodes.study.online.model_copy(update=parts)
    short = type(recipe).model_validate(short_recipe(dump(recipe), section))
    measured: dict[str, tuple[Any, ...]] = {}
    for part in online.parts.values():
        for split in part.splits:
            hashes = (("images", part.use, split), ("targets", part.use, split))
            measured |= data.of_dataset(nodes, part.dataset, split, *hashes).outside
    for variant in nodes.variants:
        if variant.backbone is not None or variant.sweep in nodes.nodes:
            continue
        images, order_only = inputs_of(nodes, variant, short.dataset, ("train",))
        job = job_of(PretrainJob, variant, short)
        nodes.add(
            STAGE,
            variant.family or variant.name,
            SweepSettings(job, online, nodes.study.data, section),
            inputs={f"data of {role}": node for role, node in order_only.items()},
            data=images,
            outside=measured,
            variant="" if variant.family else variant.name,
            order_only=order_only,
        )


def best(rates: Sequence[ShortRun]) -> float:
    """The learning rate of the highest value, the smaller on a tie.

    Raises :class:`NonFiniteError` if every run failed.
    """
    if all(row.value is None for row in rates):
        raise NonFiniteError(
            "sweep: no learning rate has a value: every short run failed", "add smaller ones to sweep.lr"
        )
    return min(row.lr for row in _best_rows(rates))


def _highest(rates: Sequence[ShortRun]) -> float:
    return max((row.value for row in rates if row.value is not None), default=math.nan)


def _best_rows(rates: Sequence[ShortRun]) -> list[ShortRun]:
    """The rows of the highest value, several on a tie."""
    return [row for row in rates if row.value == _highest(rates)]


def beyond_edge(rates: Sequence[ShortRun]) -> float | None:
    """The rate to try next: beyond the lowest of ``rates`` (ascending) if that is among the best, or the highest.

    It lies as far from the edge, as a factor, as the edge from its neighbour. None if the best lies between others.
    """
    tied = _best_rows(rates)
    if rates[0] in tied:
        return float(rates[0].lr ** 2 / rates[1].lr)
    return float(rates[-1].lr ** 2 / rates[-2].lr) if rates[-1] in tied else None


def unresolved(rates: Sequence[ShortRun], trivial: float) -> str:
    """Return the reason why no rate of ``rates`` (ascending) can be called the best, or an empty text.

    ``trivial`` is the value of always answering the most frequent class.
    """
    if _highest(rates) <= trivial:
        return f"no rate is above always answering the most frequent class ({trivial:.1f})"
    if len(rates) < FEWEST:
        return f"{len(rates)} rates were tried, {FEWEST} are needed"
    return "the best rate is the lowest or highest tried" if beyond_edge(rates) is not None else ""


def run(task: Task) -> None:
    """The short runs, each resumed where it was killed. The output is ``sweep.json`` alone."""
    from dinoskip.pipeline.stages.training_runs import observer_of, on_main  # torch

    if on_main(lambda: (task.out / SWEEP_RESULT).is_file()):  # killed after the choice, while it removed the runs
        on_main(lambda: _leave_only(task.out, SweepResult.read(task.out)))
        return
    settings: SweepSettings = task.settings
    images, observer = images_of(task), observer_of(task)
    assert observer is not None  # a study with a sweep has something to measure
    rows = [_short_run(task, lr, images, observer) for lr in sorted(settings.section.lr)]
    for _ in range(settings.section.extend):
        if (further := beyond_edge(rows)) is None:
            break
        rows = sorted([*rows, _short_run(task, further, images, observer)], key=lambda row: row.lr)
    lr, trivial = best(rows), on_main(observer.trivial)
    why = unresolved(rows, trivial)
    result = SweepResult(observer.score, settings.job.pretrain.epochs, lr, why, trivial, rows)
    log.info("sweep: learning rate %g is the best by %s%s", lr, observer.score, f"; unresolved: {why}" if why else "")
    on_main(lambda: _leave_only(task.out, result))


def _short_run(task: Task, lr: float, images: Source, observer: Observer) -> ShortRun:
    from dinoskip.pipeline.stages.training_runs import on_main, pretrain  # torch

    out = _place(task.out, lr)
    try:
        pretrain(
            at_rate(task.settings.job, lr), images, out, device=task.device, workers=task.workers, observer=observer,
            start=start_file(task),
        )  # fmt: skip
    except NonFiniteError as error:
        log.warning("sweep: learning rate %g: %s", lr, error)
        return ShortRun(lr, None, None)
    return on_main(lambda: _outcome(out, lr, observer.score))


def _outcome(run_dir: Path, lr: float, score: str) -> ShortRun:
    rows = read_metrics(run_dir / "metrics.jsonl")
    if not rows or "loss" not in rows[-1]:  # its last step was not finite
        return ShortRun(lr, None, None)
    losses = [row["loss"] for row in rows if "loss" in row]
    last = losses[-max(1, len(losses) // 10) :]
    return ShortRun(lr, rows[-1].get(score), sum(last) / len(last))


def _leave_only(out: Path, result: SweepResult) -> None:
    """Write the result and remove the runs: they hold timings, and the output must not depend on those."""
    write_json(out / SWEEP_RESULT, asdict(result))
    for row in result.rates:
        remove(_place(out, row.lr))


def _place(out: Path, lr: float) -> Path:
    """The directory of a short run; rates that differ in their last digit have different ones."""
    return out / f"lr{lr!r}"


STAGE = Stage(
    "sweep",
    run,
    add_nodes,
    SweepSection,
    place="sweep",
    required=False,
    check=check,
    resumes=True,
    together=True,
    tells=lambda out: SweepResult.read(out).lr,
    version=3,
)
