"""The report: one page that says what was run, what came out, how, and how to run it again; opens from disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import translate_write_errors
from dinoskip.files import write_text
from dinoskip.results import EvalResult
from visualize.figures import Figure
from visualize.pages import clean, relative_link, render_page
from visualize.palette import variant_colours
from visualize.published import PublishedTable, published
from visualize.tables import (
    NOT_RUN,
    Cell,
    Measure,
    baseline_table,
    best,
    best_table,
    intervals,
    markdown,
    measures,
    one_vote,
    rows_csv,
    single_blocks,
)

_SHADES = 10


@dataclass(frozen=True)
class ReportVariant:
    """One variant of the study: its rows, and its settings as they should be read (model, optimizer, weights, ...)."""

    name: str
    rows: Sequence[EvalResult] = ()
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Preview:
    """A picture to show in the report, copied beside it: a contact sheet."""

    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class DataTable:
    """A small table of anything: cells are text, numbers (shown with three digits) or None ("not run")."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    folded: bool = False  # closed until the reader opens it

    @classmethod
    def of(
        cls,
        title: str,
        rows: Sequence[Any],
        columns: Mapping[str, str] | None = None,
        note: str = "",
        folded: bool = False,
    ) -> DataTable:
        """From dataclasses or mappings; ``columns`` picks, orders and renames fields (None: all as they are)."""
        plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row) for row in rows]
        chosen = dict(columns) if columns else {name: name.replace("_", " ") for name in (plain[0] if plain else {})}
        return cls(title, list(chosen.values()), [[row.get(name) for name in chosen] for row in plain], note, folded)


@dataclass(frozen=True)
class Report:
    """All that the page shows. What is empty is left out, except measures, which say "not run".

    ``gallery`` is a relative link from the report's folder (``../gallery/index.html``); ``protocol`` is
    ``{section: {setting: value}}``; ``baselines`` are rows of rules that look at no image, shown below the variants';
    ``notices`` are one-line warnings and reasons why something was skipped;
    ``commands`` are shell lines that reproduce the study.
    """

    title: str
    variants: Sequence[ReportVariant]
    baselines: Sequence[EvalResult] = ()
    note: str = ""
    figures: Sequence[Figure] = ()
    gallery: str | None = None
    previews: Sequence[Preview] = ()
    diagnostics: Sequence[DataTable] = ()
    environment: Mapping[str, object] = field(default_factory=dict)
    protocol: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notices: Sequence[str] = ()
    commands: Sequence[str] = ()
    compare: str | None = None


def build_report(report: Report, out: Path) -> None:
    """Write ``out/index.html``, ``rows.csv``, ``table.md`` and copies of figures and previews under ``out/img``.

    Raises :class:`ConfigError` for a gallery link that is not relative or an unknown ``compare``.
    """
    folder = out / "img"
    folder.mkdir(parents=True, exist_ok=True)
    rows = {variant.name: variant.rows for variant in report.variants}
    names = list(rows)
    found = measures(rows)
    floor = baseline_table(report.baselines, found)
    figures = [
        {
            "caption": figure.caption,
            "alt": figure.alt,
            "light": _copy(figure.light, folder / f"figure-{number}.svg"),
            "dark": _copy(figure.dark, folder / f"figure-{number}-dark.svg"),
        }
        for number, figure in enumerate(report.figures)
    ]
    previews = [
        {
            "caption": preview.caption,
            "alt": preview.alt,
            "path": _copy(preview.path, folder / f"preview-{number}{_suffix(preview.path)}"),
        }
        for number, preview in enumerate(report.previews)
    ]
    settings = list(dict.fromkeys(key for variant in report.variants for key in variant.settings))
    render_page(
        out / "index.html",
        "report.html",
        {
            "report": report,
            "names": names,
            "scores": [_score(measure, values, names) for measure, values in one_vote(found).items()],
            "measures": list(found),
            "best": best_table(names, found, intervals(rows)) + floor,
            "blocks": [
                _block_table(measure, values, names, [(name, cells[number]) for name, cells in floor])
                for number, (measure, values) in enumerate(found.items())
            ],
            "figures": figures,
            "previews": previews,
            "gallery": relative_link(report.gallery) if report.gallery else None,
            "settings": settings,
            "diagnostics": [_shown_table(table) for table in report.diagnostics],
            "published": _published(published(report.compare)) if report.compare else None,
            "not_run": NOT_RUN,
            "floor": [name for name, _ in floor],
            "setting": setting,
        },
        styles=("base.css", "report.css"),
        extra_style=_styles(len(names)),
    )
    below = {row.model: [one for one in report.baselines if one.model == row.model] for row in report.baselines}
    write_text(out / "rows.csv", rows_csv({**rows, **below}))
    write_text(out / "table.md", markdown(rows, report.baselines))


def _styles(variants: int) -> str:
    """A colour for each variant, light and dark, and the shades of the per-block tables."""
    light, dark = variant_colours(variants), variant_colours(variants, dark=True)
    own = [f".m{index}{{--own:{colour}}}" for index, colour in enumerate(light)]
    own += [f"@media (prefers-color-scheme: dark){{.m{index}{{--own:{colour}}}}}" for index, colour in enumerate(dark)]
    shades = [f".h{level}{{background:rgba(var(--shade),{0.05 * level:.2f})}}" for level in range(_SHADES)]
    return "\n".join([*own, *shades])


def shown(value: object) -> str:
    """A cell's text: three significant digits, powers for the very large and small, "not run" for None."""
    if isinstance(value, float) and math.isfinite(value):
        size = abs(value)
        if value == 0 or 0.001 <= size < 1e4:
            return f"{value:#.3g}" if size < 100 else f"{value:,.0f}"
        power = math.floor(math.log10(size))
        return f"{value / 10.0**power:.1f}·10{str(power).translate(_POWERS)}"
    return setting(value)


def setting(value: object) -> str:
    """A setting's text: numbers as they would be typed, lists and mappings on one line."""
    if value is None:
        return NOT_RUN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(key, 60)} {setting(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(setting(one) for one in value)
    return clean(value, 300)


_POWERS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _score(measure: Measure, values: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, Any]:
    """One headline card: every variant's best block, and the bar's length in tenths of the widest."""
    tops = [best(values.get(name, {})) for name in names]
    highest = max((top[1] for top in tops if top), default=0.0)
    return {
        "label": measure.label,
        "lines": [
            {
                "name": name,
                "top": top,
                "share": 0.0 if top is None or highest <= 0 else round(100 * max(top[1], 0.0) / highest, 1),
                "first": top is not None and top[1] == highest,
            }
            for name, top in zip(names, tops, strict=True)
        ],
    }


def _block_table(
    measure: Measure,
    values: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    floor: Sequence[tuple[str, Cell | None]],
) -> dict[str, Any]:
    """Variants x blocks of one measure with a shade 0.._SHADES-1 per cell, scaled over the whole table; baselines."""
    curves = {name: single_blocks(values.get(name, {})) for name in names}
    numbers = [value for curve in curves.values() for value in curve.values()]
    low, span = (min(numbers), max(max(numbers) - min(numbers), 1e-12)) if numbers else (0.0, 1.0)
    blocks = sorted({block for curve in curves.values() for block in curve})
    lines = []
    for name in names:
        curve = curves[name]
        top = max(curve.values(), default=None)
        cells = [
            None
            if block not in curve
            else (curve[block], int((_SHADES - 1) * (curve[block] - low) / span), curve[block] == top)
            for block in blocks
        ]
        lines.append((name, cells))
    return {"label": measure.label, "blocks": blocks, "lines": lines, "floor": [one for one in floor if one[1]]}


def _shown_table(table: DataTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "note": table.note,
        "folded": table.folded,
        "columns": list(table.columns),
        "rows": [[shown(cell) for cell in row] for row in table.rows],
        "numeric": [
            bool(table.rows) and all(not isinstance(row[index], str) for row in table.rows)
            for index in range(len(table.columns))
        ],
    }


def _published(table: PublishedTable) -> dict[str, Any]:
    note = "From “Cutting the Skip: Training Residual-Free Transformers” (ICLR 2026), trained on ImageNet-1k. "
    note += "Compare only runs of the same size and protocol."
    shown_rows = [["–" if cell is None else cell for cell in row] for row in table.rows]
    result = _shown_table(DataTable(table.title, table.columns, shown_rows, note))
    return {**result, "numeric": [index >= len(table.columns) - 3 for index in range(len(table.columns))]}


def _suffix(path: Path) -> str:
    """The ending a preview keeps: only kinds that a page shows as a picture."""
    return path.suffix.lower() if path.suffix.lower() in {".png", ".jpg", ".svg"} else ".png"


def _copy(source: Path, target: Path) -> str:
    """Copy a figure beside the page; return its address from the page."""
    with translate_write_errors(target):
        shutil.copyfile(source, target)
    return f"img/{target.name}"
