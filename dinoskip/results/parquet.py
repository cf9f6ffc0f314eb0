"""Result rows as Parquet, where pyarrow is installed: columns of their own types, for tables of many thousands."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints

from dinoskip.results.rows import EvalResult


def rows_parquet(rows: Iterable[EvalResult]) -> bytes | None:
    """Every row with every field; None where pyarrow is not installed. A number that is not finite is null."""
    if find_spec("pyarrow") is None:
        return None
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    plain = [row.plain() for row in rows]
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in column_types().items()])
    stream = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(plain, schema=schema), stream)
    return stream.getvalue()


def column_types() -> dict[str, type]:
    """The type of every field of a row, in their order: int, float or str."""
    hints = get_type_hints(EvalResult)
    given = {field.name: get_args(hints[field.name]) or (hints[field.name],) for field in fields(EvalResult)}
    return {name: next((kind for kind in (int, float) if kind in of), str) for name, of in given.items()}
