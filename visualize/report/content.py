"""Contents of a report: the variants with their rows, figures, pictures, tables, settings, commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.figures.curves import Curves
from visualize.figures.drawing import Figure
from visualize.roughness import Roughness
from visualize.rows import StudyVariant
from visualize.tables import DataTable, TextTable


@dataclass(frozen=True)
class Preview:
    """A picture to show in the report, copied beside it: a contact sheet.

    Those with photographs are on the page alone, the others in ``report.md`` alone, which may be passed on.
    """

    path: Path
    caption: str
    alt: str
    photographs: bool = True


@dataclass(frozen=True)
class PrintedTable:
    """A published table with our numbers in it, or a paper's claims: as text, and as CSV.

    ``place``: tables of the least come first on the page, of equal ones in the order in which they were asked for.
    """

    grid: TextTable
    csv: str
    place: int = 0


@dataclass(frozen=True)
class Report:
    """Everything that the page shows; empty parts are left out, and without rows the answer says that nothing was run.

    ``gallery`` is a relative link from the report's folder (``../gallery/index.html``), as are ``sheets``;
    ``protocol`` is ``{section: {setting: value}}``; ``baselines`` are rows of rules that look at no image, shown
    below the variants'; ``records`` are what each image contributes to the rows that have it; ``confounds`` are
    one-line differences between networks other than the one asked about; ``notices`` are one-line warnings and
    reasons why something was skipped; ``unmeasured`` are kinds of measures that were not asked
    for; ``commands`` are shell lines that reproduce the study. ``compare`` names
    published tables; ``datasets`` is ``{our data set: the paper's}``, ``epochs`` the length of our runs and
    ``trained_on`` what they saw. ``papers`` are those tables with our numbers in them, and claims;
    ``roughness`` is of the gallery's pictures at ``block``; ``features`` are quantities that need no labels,
    ``{title: {network: {block: value}}}``; ``labelled``: whether any of the study's images have labels.
    """

    title: str
    variants: Sequence[StudyVariant]
    baselines: Sequence[EvalResult] = ()
    note: str = ""
    figures: Sequence[Figure] = ()
    gallery: str | None = None
    previews: Sequence[Preview] = ()
    sheets: Sequence[str] = ()
    diagnostics: Sequence[DataTable] = ()
    environment: Mapping[str, object] = field(default_factory=dict)
    protocol: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notices: Sequence[str] = ()
    unmeasured: Sequence[str] = ()
    commands: Sequence[str] = ()
    confounds: Sequence[str] = ()
    records: Mapping[EvalResult, ImageRecords] = field(default_factory=dict)
    compare: Sequence[str] = ()
    papers: Sequence[PrintedTable] = ()
    datasets: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 0
    trained_on: str = ""
    roughness: Roughness = field(default_factory=dict)
    block: int = 0
    features: Mapping[str, Curves] = field(default_factory=dict)
    labelled: bool = True

    @property
    def rows(self) -> dict[str, Sequence[EvalResult]]:
        """Result rows of every variant, by its name."""
        return {variant.name: variant.rows for variant in self.variants}
