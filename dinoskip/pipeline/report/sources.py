"""Of which network and data rows are, from what the stages of a study record: a network's spec, a format, a hash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dinoskip.errors import DataError
from dinoskip.io.files import read_manifest
from dinoskip.results.rows import EvalResult

if TYPE_CHECKING:
    from dinoskip.pipeline.graph import Node

_SHOWN = 16  # digits of a sha256, as many as in the names of outputs
_IMAGES = ": images of "


@dataclass(frozen=True)
class Sources:
    """Specs of networks by variant; formats of data sets by name; hashes of their images by name and split."""

    networks: Mapping[str, str]
    formats: Mapping[str, str]
    images: Mapping[tuple[str, str], str]

    def of_row(self, row: EvalResult) -> EvalResult:
        """The row with ``network`` and ``images``, as far as they are known."""
        found = self.images.get((row.dataset, row.split)) or self.images.get((row.dataset, ""), "")
        images = f"{self.formats.get(row.dataset, '')} {found}".strip() if found else ""
        return replace(row, network="" if row.is_baseline else self.networks.get(row.model, ""), images=images)


def sources_of(nodes: Iterable[Node], published: Mapping[str, Path]) -> Sources:
    """Return the data sources in the manifests of a study's outputs, and its nodes' networks that lie outside it."""
    networks: dict[str, str] = {}
    formats: dict[str, str] = {}
    images: dict[tuple[str, str], str] = {}
    for node in nodes:
        if (spec := getattr(node.settings, "backbone", None)) is not None:
            networks[node.variant] = spec
        if node.id not in published:
            continue
        with suppress(DataError, KeyError, TypeError, AttributeError):  # a note, for which nothing is refused
            manifest = read_manifest(published[node.id])
            record = manifest.info["record"]
            if node.stage == "data":
                images[node.id.partition("/")[2], ""] = manifest.hash[:_SHOWN]
            for what, found in record["external"].items():
                name, images_of, split = what.partition(_IMAGES)
                if images_of:
                    images[name, split] = found[:_SHOWN]
                    formats.setdefault(name, record["settings"].get("dataset", {}).get("kind", ""))
    return Sources(networks, formats, images)
