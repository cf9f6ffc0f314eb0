"""Whether the labels that a study reads mean what its settings say, judged before anything is exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.kind import Synthetic
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.meaning import has_rules, label_verdicts
from dinoskip.data.verdicts import DataVerdict
from dinoskip.errors import ConfigError, DataError
from dinoskip.pipeline.leaks import KEPT
from dinoskip.pipeline.sections import StudyBase
from dinoskip.settings.tasks import tasks
from eval.online.config import OnlineKnnConfig, OnlineProbeConfig


@dataclass(frozen=True)
class _Reading:
    """Splits of a data set that are read with a label, ``by`` a task with its section, or in training by ``part``."""

    data: str
    use: str
    splits: tuple[str, ...]
    by: tuple[Any, Any] | None = None
    part: OnlineKnnConfig | OnlineProbeConfig | None = None


def _readings(study: StudyBase) -> Iterator[_Reading]:
    for record in tasks():
        section: Any = study.section(record.section)
        splits = tuple({*record.fitted_splits(section).values(), record.scored_split(section)})
        for name in section.datasets:
            yield _Reading(name, record.label, tuple(sorted(splits)), (record, section))
    for part in study.online.parts.values():
        yield _Reading(part.dataset, part.use, tuple(part.splits), part=part)


def verdicts(study: StudyBase) -> list[DataVerdict]:
    """Return what is to be said of the labels of a study; counts are kept in its folder.

    Sets that are composed are not read: their labels are right by construction. What cannot be opened is left to the
    stage that reads it.
    """
    opened: dict[tuple[str, str, str], Any] = {}
    splits: dict[tuple[str, str], dict[str, Any]] = {}
    found = list[DataVerdict]()
    for one in _readings(study):
        config = study.data.get(one.data)
        if config is None or isinstance(config, Synthetic) or not has_rules(one.use):
            continue
        for split in one.splits:
            if (one.data, one.use, split) not in opened:
                opened[one.data, one.use, split] = _opened(config, one.use, split)
            if (labels := opened[one.data, one.use, split]) is not None:
                splits.setdefault((one.data, one.use), {})[split] = labels
        if one.by is not None:
            found += _of_settings(one, opened)
        if isinstance(one.part, OnlineKnnConfig):
            found += _of_online_knn(one.part, opened[one.data, one.use, "train"])
    for (data, use), labels in splits.items():
        with suppress(DataError):
            found += label_verdicts(data, study.data[data], use, list(labels.values()), study.directory / KEPT)
    return list(dict.fromkeys(found))


def _opened(config: Any, use: str, split: str) -> Any:
    try:
        listed = config.model_copy(update={"skip_broken": False})  # that would decode every image
        return open_labels(LABELS[use], listed, split, faults=[])
    except (ConfigError, DataError):
        return None


def _of_settings(one: _Reading, opened: dict[tuple[str, str, str], Any]) -> Iterator[DataVerdict]:
    """Yield the requirements of a task's settings that its splits do not meet."""
    assert one.by is not None
    record, section = one.by
    labels = {role: opened[one.data, one.use, split] for role, split in record.splits(section).items()}
    if all(labels.values()):
        for setting, problem, remedy in record.asks_of_labels(section, labels):
            text = f"evaluate.{record.name}.{setting}: {problem} of {one.data}"
            yield DataVerdict(setting, one.data, "refused", text, remedy)


def _of_online_knn(config: OnlineKnnConfig, train: Any) -> Iterator[DataVerdict]:
    """Yield a verdict if the k-NN during training asks for more neighbours than there are training images.

    Nothing is yielded where these cannot be opened.
    """
    if train is None:
        return
    count, k = config.neighbours(len(train)), max(config.k)
    if k > count:
        text = f"online.knn.k: {k} neighbours are asked of {count} training images of {config.dataset}"
        held_out = f"; of {len(train)} the others are held out, unless online.knn.held_out=false"
        yield DataVerdict(
            "online-k", config.dataset, "refused", text, f"choose fewer{held_out if config.held_out else ''}"
        )
