"""Of which network and data rows are, from what the stages of a study record: a network's spec, a format, a hash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dinoskip.data.verdicts import accepted_checks
from dinoskip.errors import DataError
from dinoskip.io.files import read_manifest, sha256_file
from dinoskip.pipeline.artifacts import ACCEPTED
from dinoskip.pipeline.stages.external import backbone_hash
from dinoskip.results.rows import EvalResult
from dinoskip.settings.specs import weights_file

if TYPE_CHECKING:
    from dinoskip.pipeline.graph import Node

_SHOWN = 16  # digits of a sha256, as many as in the names of outputs
_IMAGES = ": images of "


@dataclass(frozen=True)
class Sources:
    """Sources of a study's rows.

    Specs of networks by variant, names and hashes of their files; formats of data sets by name, hashes of their images
    by name and split, the checks that were accepted of them, and the day on which each stage ended.
    """

    networks: Mapping[str, str]
    files: Mapping[str, str]
    formats: Mapping[str, str]
    images: Mapping[tuple[str, str], str]
    accepted: Mapping[str, str]
    dates: Mapping[str, str]

    def of_row(self, row: EvalResult, stage: str) -> EvalResult:
        """The row of a ``stage`` with ``network``, ``network_file``, ``images`` and ``date``, as far as they are known.

        Rows that were written before they had ``accepted`` get it from the manifests.
        """
        found = self.images.get((row.dataset, row.split)) or self.images.get((row.dataset, ""), "")
        images = f"{self.formats.get(row.dataset, '')} {found}".strip() if found else ""
        model = "" if row.is_baseline else row.model
        return replace(
            row, network=self.networks.get(model, ""), network_file=self.files.get(model, ""), images=images,
            accepted=row.accepted or self.accepted.get(row.dataset, ""), date=self.dates.get(stage, ""),
        )  # fmt: skip


def sources_of(nodes: Iterable[Node], published: Mapping[str, Path]) -> Sources:
    """Return the data sources in the manifests of a study's outputs, and its nodes' networks that lie outside it."""
    networks, files = dict[str, str](), dict[str, str]()
    accepted = list[str]()
    formats: dict[str, str] = {}
    images: dict[tuple[str, str], str] = {}
    dates: dict[str, str] = {}
    for node in nodes:
        if (spec := getattr(node.settings, "backbone", None)) is not None:
            networks[node.variant] = spec
        if node.id not in published:
            continue
        with suppress(DataError, KeyError, TypeError, AttributeError):  # a note, for which nothing is refused
            manifest = read_manifest(published[node.id])
            dates[node.id] = str(manifest.info.get("made", {}).get("date", ""))[:10]
            record = manifest.info["record"]
            accepted += [line for line in manifest.info.get(ACCEPTED, ()) if line.count(":") > 1]
            if node.stage == "data":
                images[node.id.partition("/")[2], ""] = manifest.hash[:_SHOWN]
            for what, found in record["external"].items():
                name, images_of, split = what.partition(_IMAGES)
                if images_of:
                    images[name, split] = found[:_SHOWN]
                    formats.setdefault(name, record["settings"].get("dataset", {}).get("kind", ""))
            if spec is not None and node.variant not in files:
                files[node.variant] = _file_of(spec, record["external"].get("backbone"))
    of_data = {name: accepted_checks(accepted, name) for name in {line.split(":", 2)[1] for line in accepted}}
    return Sources(networks, files, formats, images, of_data, dates)


def _file_of(spec: str, content: object) -> str:
    """Name and hash of a network's file; "" where it lies in none here, or its file is not that any more."""
    file = weights_file(spec)
    if file is None or content != backbone_hash(spec):
        return ""
    return f"{file.name} {sha256_file(file)[:_SHOWN]}"
