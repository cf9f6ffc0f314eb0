"""The section ``sweep`` of a study: the learning rate of every variant, chosen by short runs before the long one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from dinoskip.config import Config, merge, no_duplicates
from dinoskip.console import log, read_metrics
from dinoskip.distributed import on_main
from dinoskip.errors import NonFiniteError
from dinoskip.files import read_json, write_json
from dinoskip.pipeline.runner import Task

if TYPE_CHECKING:
    from dinoskip.data.shards import Source as Images
    from dinoskip.training.objective import Observer

RESULT = "sweep.json"


class SweepSection(Config):
    """Every variant is first trained shortly with each learning rate; the best by ``online`` trains it for long.

    The measure is the headline of the first part of ``online`` at the end of a short run, the smaller rate on a tie.
    ``online.knn.held_out`` keeps the validation set out of the choice. A run that ends non-finite counts as the worst.
    """

    lr: Annotated[tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(no_duplicates)] = Field(
        min_length=2, description="peak learning rates per 256 images, in place of optimizer.lr"
    )
    pretrain: dict[str, Any] = Field(
        default_factory=lambda: {"epochs": 1, "warmup_epochs": 0},
        description="what the short runs change of the recipe: length, warm-ups",
    )


def short_recipe(recipe: Mapping[str, Any], section: SweepSection) -> dict[str, Any]:
    """The recipe of a short run: ``recipe`` with the section's changes, nothing kept, evaluated at its end."""
    tree: dict[str, Any] = merge({**recipe, "keep_epochs": []}, section.pretrain)
    return {**tree, "online_every": tree["epochs"]}


def best(rates: list[dict[str, Any]]) -> float:
    """The learning rate of the highest value, the smaller on a tie; a failed run's value is None.

    Raises :class:`NonFiniteError` if every run failed.
    """
    if all(row["value"] is None for row in rates):
        raise NonFiniteError(
            "sweep: no learning rate has a value: every short run failed", "add smaller ones to sweep.lr"
        )
    return float(max(rates, key=lambda row: (-math.inf if row["value"] is None else row["value"], -row["lr"]))["lr"])


def sweep(task: Task) -> None:
    """``sweep``: the short runs, each resumed where it was killed. The output is ``sweep.json`` alone."""
    from dinoskip.pipeline.make import images_of
    from dinoskip.pipeline.online import observer_of

    if on_main(lambda: (task.out / RESULT).is_file()):  # killed after the choice, while it removed the runs
        on_main(lambda: _leave_only(task.out, read_json(task.out / RESULT)))
        return
    images, observer = images_of(task), observer_of(task)
    assert observer is not None  # a study with a sweep has something to measure
    rows = [_short_run(task, lr, images, observer) for lr in sorted(task.settings["lr"])]
    result = {"measure": observer.score, "epochs": task.settings["pretrain"]["epochs"], "lr": best(rows), "rates": rows}
    log.info("sweep: learning rate %g is the best by %s", result["lr"], observer.score)
    on_main(lambda: _leave_only(task.out, result))


def _short_run(task: Task, lr: float, images: Images, observer: Observer) -> dict[str, Any]:
    """One run, and what came out: its value by the measure (None if it failed), its mean loss over the last 10 %."""
    from dinoskip.pipeline.make import pretrain_job
    from dinoskip.training.pretraining import pretrain

    out = _place(task.out, lr)
    try:
        pretrain(pretrain_job(task, lr), images, out, device=task.device, workers=task.workers, observer=observer)
    except NonFiniteError as error:
        log.warning("sweep: learning rate %g: %s", lr, error)
        return {"lr": lr, "value": None, "loss": None}
    return on_main(lambda: {"lr": lr, **_outcome(out, observer.score)})


def _outcome(run_dir: Path, score: str) -> dict[str, float | None]:
    rows = read_metrics(run_dir / "metrics.jsonl")
    if not rows or "loss" not in rows[-1]:  # its last step was not finite
        return {"value": None, "loss": None}
    losses = [row["loss"] for row in rows if "loss" in row]
    last = losses[-max(1, len(losses) // 10) :]
    return {"value": rows[-1].get(score), "loss": sum(last) / len(last)}


def _leave_only(out: Path, result: dict[str, Any]) -> None:
    """Write the result and remove the runs: they hold timings, and the output must not depend on those."""
    write_json(out / RESULT, result)
    for row in result["rates"]:
        if (run := _place(out, row["lr"])).exists():
            shutil.rmtree(run)


def _place(out: Path, lr: float) -> Path:
    """The directory of a short run; rates that differ in their last digit have different ones."""
    return out / f"lr{lr!r}"


def chosen_rate(task: Task) -> float | None:
    """The learning rate that this variant's sweep chose; None without a sweep."""
    found = task.inputs.get("sweep")
    return None if found is None else float(read_json(found / RESULT)["lr"])
