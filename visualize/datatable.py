"""A small table of anything for the report, and how its cells and settings read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from visualize.grids import NOT_RUN
from visualize.pages import clean


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


def shown(value: object) -> str:
    """A cell's text: three significant digits, powers for the very large and small, "not run" for None."""
    if isinstance(value, float) and math.isfinite(value):
        size = abs(value)
        if value == 0 or 0.001 <= size < 1e4:
            return f"{value:#.3g}" if size < 100 else f"{value:,.0f}"
        power = math.floor(math.log10(size))
        return f"{value / 10.0**power:.1f}·10{str(power).translate(_POWERS)}"
    return NOT_RUN if value is None else setting(value)


def setting(value: object) -> str:
    """A setting's text: numbers as they would be typed, lists and mappings on one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(key, 60)} {setting(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(setting(one) for one in value) or "none"
    return clean(value, 300)


_POWERS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
