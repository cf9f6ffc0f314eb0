"""Published numbers of a network measured again, as far as the data at hand allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dinoskip.data import sets as datasets
from dinoskip.data.recognise import recognise
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import hash_of
from dinoskip.pipeline.look.evaluate import run_tasks
from dinoskip.pipeline.look.study import dataset_of
from dinoskip.pipeline.study import study_of
from dinoskip.results.rows import EvalResult
from dinoskip.settings.config import RawConfig
from dinoskip.settings.tasks import task
from eval.published import NETWORKS, NUMBERS, PublicNetwork, PublicNumber, network_of

Verdict = Literal["inside", "outside", "not comparable", "no data"]
INSIDE: Verdict = "inside"
OUTSIDE: Verdict = "outside"
NOT_COMPARABLE: Verdict = "not comparable"
NO_DATA: Verdict = "no data"
LAYOUTS: Mapping[str, Collection[str]] = {"coco20k": {"coco"}}
"""Kinds that lie in a folder that is recognised as another."""


@dataclass(frozen=True)
class Reproduced:
    """A published number, our row of it if it was measured, the verdict, and why."""

    number: PublicNumber
    row: EvalResult | None
    verdict: Verdict
    why: str

    def plain(self) -> dict[str, Any]:
        """JSON-able fields."""
        number, ours = self.number, None if self.row is None else self.row.value
        return {
            "network": number.network, "task": number.task, "metric": number.metric, "data": number.data_name,
            "published": number.value, "n": number.n, "ours": ours, "band": number.band, "verdict": self.verdict,
            "why": self.why, "source": number.source, "differences": number.differences,
            "settings": dict(number.settings),
        }  # fmt: skip


def public_network(spec: str, name: str | None, networks: Sequence[PublicNetwork] = NETWORKS) -> PublicNetwork:
    """The public network of a spec, or that ``name`` says it is.

    Raises :class:`ConfigError` if neither names one.
    """
    if (found := network_of(name or spec, networks)) is None:
        raise ConfigError(
            f"{name or spec}: no published numbers are known of it",
            f"say with --as which network it is: {', '.join(network.name for network in networks)}",
        )
    return found


def reproduce(
    spec: str,
    data: Sequence[Path],
    out: Path,
    *,
    name: str | None = None,
    networks: Sequence[PublicNetwork] = NETWORKS,
    numbers: Iterable[PublicNumber] = NUMBERS,
    device: str = "auto",
    workers: int = 0,
    accept: Collection[str] = (),
) -> list[Reproduced]:
    """Measure every comparable published number of a network whose data lie in one of the folders ``data``.

    ``name`` says which public network a spec is that does not tell. What is in ``out`` already is not computed again.
    Raises :class:`ConfigError` for a network without published numbers, :class:`DataError` for unusable data.
    """
    network = public_network(spec, name, networks)
    wanted = [number for number in numbers if number.network == network.name]
    read = _read(data) if any(number.band is not None for number in wanted) else []
    places = {id(number): _place(number, read) for number in wanted if number.band is not None}
    together: dict[str, list[PublicNumber]] = {}
    for number in wanted:
        if places.get(id(number)) is not None:  # one study for what differs in the data set alone
            together.setdefault(hash_of([number.task, dict(number.settings)]), []).append(number)
    rows: dict[int, Sequence[EvalResult]] = {}
    for group in together.values():
        roots = {number.data_name: places[id(number)] for number in group}
        tree = _study(spec, network, group, roots, out)
        tree["device"] = device
        found = _measured(tree, group[0].task, device, workers, accept)
        rows |= {id(number): found.get(number.data_name, []) for number in group}
    return [_judged(number, network, rows.get(id(number))) for number in wanted]


def _read(data: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Settings of the data set that lies in each of the folders, of those where one does."""
    found: list[Mapping[str, Any]] = []
    for root in data:
        with suppress(ConfigError, DataError):
            if (settings := recognise(root).settings) is not None:
                found.append(settings)
    return found


def _place(number: PublicNumber, read: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Settings of the number's data set, of the first of what was :func:`_read` that is it; None if none is."""
    kind = number.data["kind"]
    for settings in read:
        if settings["kind"] != kind and settings["kind"] not in LAYOUTS.get(kind, ()):
            continue
        with suppress(ConfigError, DataError):  # also of a task whose plug-in is not installed
            label = LABELS[task(number.task).label]
            base = settings if settings["kind"] == kind else {"root": settings["root"]}
            tree = {"kind": kind, **base, **number.data}
            splits = task(number.task).splits(_section(number)).values()
            if all(len(label.items(datasets.open_labels(label, dataset_of(tree), split))) for split in splits):
                return tree
    return None


def _section(number: PublicNumber) -> Any:
    return task(number.task).section.model_validate(dict(number.settings))


def _study(
    spec: str,
    network: PublicNetwork,
    group: Sequence[PublicNumber],
    roots: Mapping[str, Mapping[str, Any] | None],
    out: Path,
) -> dict[str, Any]:
    """The settings of the study of numbers of one task with the same settings."""
    name = group[0].task
    return {
        "name": f"{name}-{hash_of(dict(group[0].settings))[:8]}",
        "output": str(out),
        "stages": "stages",
        "data": {key: dict(root or {}) for key, root in roots.items()},
        "variants": {"model": [{"backbone": spec, "label": "network"}]},
        "evaluate": {"blocks": [network.depth], name: {**group[0].settings, "datasets": list(roots)}},
    }


def _measured(
    tree: dict[str, Any], name: str, device: str, workers: int, accept: Collection[str]
) -> Mapping[str, Sequence[EvalResult]]:
    """Rows of a study's task, by data set."""
    study, variants = study_of(RawConfig(tree, {"": "reproduce"}), open_backbones=True)
    found = run_tasks(study, variants, [name], device=device, workers=workers, accept=accept)
    return {node.rpartition("/")[2]: rows for node, rows in found.items()}


def _judged(number: PublicNumber, network: PublicNetwork, rows: Sequence[EvalResult] | None) -> Reproduced:
    if number.band is None:
        return Reproduced(number, None, NOT_COMPARABLE, number.differences)
    if rows is None:
        return Reproduced(number, None, NO_DATA, f"{number.data_name} is in none of the folders given")
    kept = [row for row in rows if _is_of(row, number, network)]
    if not kept:
        return Reproduced(number, None, NO_DATA, "no row of it was written")
    row = max(kept, key=lambda row: row.ranking_value)  # of several k the best, as published
    if row.n != number.n:
        why = f"{row.n:,} units were scored here, {number.n:,} in the published result"
        return Reproduced(number, row, NOT_COMPARABLE, why)
    off = row.value - number.value
    inside = abs(off) <= number.band
    return Reproduced(number, row, INSIDE if inside else OUTSIDE, f"{off:+.3g}, the tolerance is ± {number.band:g}")


def _is_of(row: EvalResult, number: PublicNumber, network: PublicNetwork) -> bool:
    """Whether a row is of the number: of its task, metric, block and method, and of all seeds."""
    metric = number.metric
    named = row.metric.startswith(metric[:-1]) if metric.endswith("*") else row.metric == metric
    same = named and row.task == number.task and row.block == str(network.depth)
    return same and row.protocol.startswith(number.protocol) and not (row.is_baseline or row.is_of_a_seed or row.note)
