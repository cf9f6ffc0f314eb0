"""Copies of the rows of metrics.jsonl on TensorBoard, W&B and MLflow. What fails there never touches the run.

Files lie in ``RUN/boards/``: ``tensorboard/``, ``wandb/`` and ``mlflow/``. Rank 0 alone writes them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dinoskip.errors import first_line
from dinoskip.io.files import read_json, write_json
from dinoskip.runtime.console import log
from dinoskip.settings.config import flatten

FOLDER = "boards"
_PATIENCE = 60  # seconds for W&B to answer; the other ranks wait meanwhile
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class _Board(Protocol):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show the values of a step."""

    def close(self) -> None:
        """Write out what is left."""


class _TensorBoard:
    def __init__(self, folder: Path, run: Path, step: int, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, flush_secs=10)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """One W&B run a run directory. Rows after a resumed step come again; W&B keeps the first, which has the same values
    (but for timing), for a run is a pure function of its job.
    """

    def __init__(self, folder: Path, run: Path, step: int, config: Mapping[str, Any]) -> None:
        import wandb

        identity = folder / "wandb.json"
        if not identity.exists():
            write_json(identity, {"id": uuid.uuid4().hex[:12]})
        # A key that is asked for on the terminal, or a host that does not answer, must not hold up the other ranks.
        settings = wandb.Settings(login_timeout=_PATIENCE, init_timeout=_PATIENCE, console="off")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dinoskip"), name=os.environ.get("WANDB_NAME", run.name),
            id=read_json(identity)["id"], resume="allow", dir=str(folder), config=dict(config), settings=settings,
        )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """One run of MLflow a run directory, on the server of ``MLFLOW_TRACKING_URI``, else in a database of its own.

    Rows after a resumed step come again with the same values (but for timing); MLflow shows both.
    """

    def __init__(self, folder: Path, run: Path, step: int, config: Mapping[str, Any]) -> None:
        for name, value in _MLFLOW_LIMITS.items():
            os.environ.setdefault(name, value)
        import mlflow

        place = folder / "mlflow"
        place.mkdir(exist_ok=True)
        self._entities = mlflow.entities
        where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{place.resolve() / 'mlflow.db'}")
        self._client: Any = mlflow.MlflowClient(tracking_uri=where)
        identity = folder / "mlflow.json"
        if not identity.exists():
            write_json(identity, {"run": self._begin(run, config)})
        self._run: str = read_json(identity)["run"]
        self._client.update_run(self._run, status="RUNNING")

    def _begin(self, run: Path, config: Mapping[str, Any]) -> str:
        """A new run with the settings as its parameters; its id."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dinoskip")
        experiment = self._client.get_experiment_by_name(name)
        known = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        begun = self._client.create_run(known, run_name=os.environ.get("MLFLOW_RUN_NAME", run.name)).info.run_id
        settings = {key: str(value)[:_MLFLOW_LONGEST] for key, value in flatten(dict(config)).items()}
        parameters = [self._entities.Param(key, settings[key]) for key in sorted(settings)]
        for at in range(0, len(parameters), _MLFLOW_PARAMETERS):
            self._client.log_batch(begun, params=parameters[at : at + _MLFLOW_PARAMETERS])
        return str(begun)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


_MLFLOW_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(_PATIENCE), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""MLflow's own are 120 s and 7 retries, for which all ranks would wait."""
_MLFLOW_PARAMETERS, _MLFLOW_LONGEST = 100, 6000  # of one request, and characters of one: MLflow refuses more


_KINDS: dict[str, Callable[[Path, Path, int, Mapping[str, Any]], _Board]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
}


def _reason(name: str, error: Exception) -> str:
    """One line on what went wrong; what the environment keeps as a secret is masked."""
    if isinstance(error, ImportError):
        return f"its package cannot be imported ({error}): pip install 'dinoskip[{name}]'"
    text = first_line(error)
    for key, value in os.environ.items():
        if len(value) >= 6 and any(word in key.upper() for word in _SECRET):
            text = text.replace(value, "***")
    return text


class Boards:
    """The boards of a run from ``step`` on. The first failure of a board is one warning and its end."""

    def __init__(self, names: Sequence[str], run: Path, step: int, config: Mapping[str, Any]) -> None:
        self._boards: dict[str, _Board] = {}
        for name in dict.fromkeys(names):
            self._try(name, lambda name=name: self._open(name, run, step, config))  # type: ignore[misc]

    def _open(self, name: str, run: Path, step: int, config: Mapping[str, Any]) -> None:
        folder = run / FOLDER
        folder.mkdir(exist_ok=True)
        self._boards[name] = _KINDS[name](folder, run, step, config)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # side services raise anything; training matters more than any of it
            self._boards.pop(name, None)
            log.warning("%s: %s; training goes on without it", name, _reason(name, error))

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Show the numbers of a row."""
        values = {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "step"}
        for name, board in list(self._boards.items()):
            self._try(name, lambda board=board: board.write(step, values))  # type: ignore[misc]

    def close(self) -> None:
        """Close all that are still there."""
        for name, board in list(self._boards.items()):
            self._try(name, board.close)
        self._boards.clear()
