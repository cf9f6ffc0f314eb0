"""Rows and records of a slot: gathered from a study's stages, one folder a task and data set, and read again."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dinoskip.errors import DataError, guard
from dinoskip.io.files import MANIFEST, load_tensors, read_json, save_tensors
from dinoskip.results.records import ROWS, RecordedRow, read_records, write_recorded_rows
from dinoskip.results.rows import rows_in
from studies.slots_look import read_look

CARD = "slot.json"
_LEFT_OUT = ("mAcc", "aAcc")
SHARD_MIB = 14.5
"""Most MiB of a shard of a teacher: a file that comes back from the machine may have 16."""
ROWS_MIB = 4.0
"""Most MiB of a slot's rows and records."""


@dataclass(frozen=True, eq=False)
class Slot:
    """Rows with what each image contributes, the card (epochs, rates, pieces, machine), and what was looked at."""

    number: int
    recorded: Sequence[RecordedRow]
    card: Mapping[str, Any]
    look: Sequence[Mapping[str, str]] = ()

    @property
    def epochs(self) -> int:
        """Epochs of its trainings."""
        return int(self.card["epochs"])

    def of(self, arm: str, *, trained: bool = True) -> list[RecordedRow]:
        """Rows of an arm's network, trained or before training; of slot 1 the one of the middle rate."""
        name, epoch = self.card["networks"][arm], self.epochs if trained else 0
        return [entry for entry in self.recorded if entry.row.model == name and entry.row.epoch == epoch]


# --- gathering ---------------------------------------------------------------------------------------


def published(study: Path) -> Iterator[Path]:
    """Folders of finished stages that have rows."""
    for path in sorted((study / "stages").rglob(ROWS)):
        if (path.parent / MANIFEST).is_file():
            yield path.parent


def gather(study: Path, out: Path) -> int:
    """Write the rows of all finished stages with their records below ``out``; return how many there are.

    Rows that several stages have alike (baselines) are written once. Left out are accuracies of probes, and scores that
    were chosen on what they report.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], dict[str, RecordedRow]] = {}
    for folder in published(study):
        records = read_records(folder)
        ids = next((found.ids for found in records.values()), ())
        for row in rows_in(folder):
            if row.metric in _LEFT_OUT or row.note:
                continue
            values = records[row].values if row in records else None
            name = json.dumps(row.plain(), sort_keys=True)
            groups.setdefault((row.task, row.dataset, ids), {})[name] = RecordedRow(row, values)
    taken: dict[str, int] = {}
    for (task, dataset, ids), rows in groups.items():
        name = f"{task}-{dataset}"
        number = taken[name] = taken.get(name, 0) + 1
        folder = out / (name if number == 1 else f"{name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        write_recorded_rows(folder, ids, list(rows.values()))
    return sum(map(len, groups.values()))


def read_slot(folder: Path) -> Slot:
    """Read a slot; the card says its number."""
    recorded: list[RecordedRow] = []
    for path in sorted(folder.glob(f"*/{ROWS}")):
        records = read_records(path.parent)
        of_images = {row: found.values for row, found in records.items()}
        recorded += [RecordedRow(row, of_images.get(row)) for row in rows_in(path.parent)]
    card = read_json(folder / CARD)
    return Slot(int(card["slot"]), recorded, card, read_look(folder))


@contextmanager
def opened(archive: Path) -> Iterator[Path]:
    """The folder of a slot, unpacked for as long as it is read; :class:`DataError` for what is no slot's archive."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        with guard(archive, "archive of a slot"), tarfile.open(archive) as stream:
            stream.extractall(scratch, filter="data")
        found = next(Path(scratch).glob(f"*/{CARD}"), None)
        if found is None:
            raise DataError(
                f"{archive}: holds no {CARD}: not a slot's archive", "studies.slots run writes slotN.tar.gz"
            )
        yield found.parent


def read_slots(folder: Path) -> list[Slot]:
    """All slots whose archives lie in a folder, by number."""
    slots = []
    for archive in folder.glob("slot*.tar.gz"):
        with opened(archive) as unpacked:
            slots.append(read_slot(unpacked))
    return sorted(slots, key=lambda slot: slot.number)


# --- teachers ----------------------------------------------------------------------------------------


def write_shards(weights: Path, out: Path, name: str, mib: float = SHARD_MIB) -> list[Path]:
    """Write weights in float16 as files of at most ``mib`` MiB each; return them.

    Raises ValueError for a tensor that alone is larger.
    """
    limit, shards = mib * 2**20, list[dict[str, torch.Tensor]]()
    room = 0.0
    for key, tensor in load_tensors(weights).items():
        half = tensor.half() if tensor.is_floating_point() else tensor
        size = half.numel() * half.element_size()
        if size > limit:
            raise ValueError(f"{weights}: {key} has {size} bytes, more than a shard")
        if size > room:
            shards.append({})
            room = limit
        shards[-1][key] = half.contiguous()
        room -= size
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}-{i + 1}of{len(shards)}.safetensors" for i in range(len(shards))]
    for path, shard in zip(paths, shards, strict=True):
        save_tensors(path, shard)
    return paths


def join_shards(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Read the tensors of all shards."""
    return {key: tensor for path in paths for key, tensor in load_tensors(path).items()}


def mib_of(folder: Path) -> float:
    """MiB of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
