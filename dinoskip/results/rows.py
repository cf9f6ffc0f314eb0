"""Result rows: one measured number with everything that says what was measured; as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator

from dinoskip.errors import DataError
from dinoskip.io.files import MANIFEST, read_json, verify_beside_manifest, write_json
from dinoskip.runtime.arithmetic import Precision
from dinoskip.settings.tasks import is_error

_BASELINE = "baseline: "
UNKNOWN_EPOCH = -1
"""The epoch of weights from elsewhere that do not say it, and of baselines. Epoch 0 is an untrained network."""
OF_A_NETWORK = ("heldout", "token_cosine", "complete", "degenerate", "ambiguous")
"""Fields that say something of a network's features, or of what was fitted to them; baselines have few of them."""
_OF_ITS_INPUT = ("normalisation", "positions", "network", "network_file", "date")
# Not in rows.json where they do not.
_WHERE_THEY_APPLY = (
    *OF_A_NETWORK,
    *_OF_ITS_INPUT,
    "images",
    "left_out",
    "label_orientation",
    "accepted",
    "no_interval",
)
ON_VALIDATION = "best on validation"
"""The note of a row of the trial that is best on the images shown."""
Selection = Literal["fixed", "held out", "cross-fitted", "shown"]
FIXED: Selection = "fixed"
HELD_OUT: Selection = "held out"
CROSS_FITTED: Selection = "cross-fitted"
SHOWN: Selection = "shown"
SELECTIONS: tuple[Selection, ...] = (FIXED, HELD_OUT, CROSS_FITTED, SHOWN)
"""Ways of choosing what a number is of, later ones with more weight: nothing was chosen, or it was chosen on held-out
images, on other halves of the images shown, or on the images shown themselves."""

_USUAL = (("selected", FIXED), ("precision", "fp32"))  # not in rows.json either
_SHOWN_FAULTS = 10  # of a file; the rest is counted


def _nan_where_null(given: Any, checked: Callable[[Any], float]) -> float:
    return math.nan if given is None else checked(given)


# Strict: text is no number, a truth value is none, and a fraction is no count. Integers are those of a table's int64;
# no network has 10,000 blocks.
Text = Annotated[str, Field(strict=True)]
Blocks = Annotated[str, Field(strict=True, pattern=r"^([0-9]{1,4}(\+[0-9]{1,4})*)?$")]
Count = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
Epoch = Annotated[int, Field(strict=True, ge=UNKNOWN_EPOCH, le=2**63 - 1)]
Number = Annotated[float, Field(strict=True)]
Value = Annotated[float, Field(strict=True), WrapValidator(_nan_where_null)]
Deviation = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@dataclass(frozen=True)
class EvalResult:
    """One number. ``block`` is 1..depth, or several joined by + for multiscale (``"3+6+9+12"``).

    ``value`` is in percent for mIoU, accuracy and CorLoc (0..100). ``note`` marks what must not be mistaken,
    such as ``"best on validation"``. ``low`` and ``high`` are the ends of the 95 % interval, in the unit of ``value``:
    of images like these (:func:`dinoskip.results.statistics.explained_interval`), of a classifier's accuracy Wilson's;
    None where there is none: ``no_interval`` then says why, if that is not plain (too few images for so many classes).
    ``deviation`` is the standard deviation of a mean over several seeds (n - 1 in the
    denominator), in the same unit; None for a single fit.

    ``heldout`` is what a probe's head scores on the training images that were held out, in percent, so that a block can
    be chosen without the images that are reported (:func:`best_by_heldout`). ``token_cosine`` is the mean cosine
    between the tokens of an image, 1 where all are alike. ``complete`` is the share (0..1) of TokenCut's graphs that
    join every token to every other, ``degenerate`` of the images that have no cut, complete ones included: the graph
    has no single second eigenvector, the image has no box and is a miss. ``ambiguous`` is the share of the images whose
    cut has another seed, as good as the one taken, that may give another box. Baselines that cut pixels have these
    shares, too. ``left_out`` is the number of images (videos, pairs) of the split that are broken and not among the
    ``n``. None where they do not apply. ``label_orientation`` says how labels of photographs that EXIF turns were
    taken, and by what; "" where there are none, or sizes say it (:mod:`dinoskip.data.orientation`). ``accepted`` are
    the checks that found the data set doubtful and were accepted by name (:mod:`dinoskip.data.verdicts`), with commas.

    ``selected``, one of :data:`SELECTIONS`, says how the trial (a learning rate, an input, a threshold) was chosen that
    the row is of; which of several blocks is read is chosen later (:mod:`dinoskip.decisions`). :data:`FIXED` also of
    rows that were written without it, unless they are noted as :data:`ON_VALIDATION`.

    ``kernels`` are those that the processor chose for products and eigenvectors
    (:func:`dinoskip.runtime.arithmetic.kernels`), "" where it is not known. ``normalisation`` is the mean and the
    deviation of pixels in 0..1 with which images came to the network (:func:`normalisation_of`), ``positions`` the rule
    by which it resized its positions: timm, dino or bicubic (docs/backbones.md), own of networks with code of their
    own; both "" where rows do not say. ``network`` is the spec of a network that was not trained in the study,
    ``network_file`` name and hash of its file (``dino.pth 5aeb52ba8cbeae60``), where it lies in one here, ``images``
    format and hash of the split's images (``voc 20243e8c8b176437``), ``date`` the day (UTC) on which the stage that
    made the row ended; a study adds these four where it gathers its rows, "" elsewhere. Rows that differ in these
    seven and ``accepted`` alone are equal. ``precision`` is that of the frozen network's passes: fp32 (also of
    rows that do not say), tf32 or bf16.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)  # of rows that are read

    metric: Text
    value: Value
    task: Text  # probe | tokencut | knn | retrieve | classify
    block: Blocks
    dataset: Text
    split: Text
    n: Count
    model: Text = ""
    initialisation: Text = ""
    optimizer: Text = ""
    depth: Count = 0
    epoch: Epoch = UNKNOWN_EPOCH
    facet: Text = ""
    norm: Text = ""
    protocol: Text = ""
    resolution: Text = ""
    classes: Count = 0
    seed: Count = 0
    weights: Text = ""
    version: Text = ""
    note: Text = ""
    low: Number | None = None
    high: Number | None = None
    deviation: Deviation | None = None
    heldout: Number | None = None
    token_cosine: Number | None = None
    complete: Share | None = None
    degenerate: Share | None = None
    ambiguous: Share | None = None
    left_out: Count | None = None
    label_orientation: Text = ""
    no_interval: Text = ""
    selected: Selection = FIXED
    precision: Precision = "fp32"
    normalisation: Text = field(default="", compare=False)
    positions: Text = field(default="", compare=False)
    kernels: Text = field(default="", compare=False)
    network: Text = field(default="", compare=False)
    network_file: Text = field(default="", compare=False)
    images: Text = field(default="", compare=False)
    accepted: Text = field(default="", compare=False)
    date: Text = field(default="", compare=False)

    @property
    def is_baseline(self) -> bool:
        """Whether the row is of a rule without a network (:meth:`baseline`), not of a model."""
        return self.model.startswith(_BASELINE)

    @property
    def rule(self) -> str:
        """Name of a baseline's rule: ``majority class``."""
        return self.model.removeprefix(_BASELINE)

    @property
    def is_of_a_seed(self) -> bool:
        """Whether the row is of one of several seeds, whose mean has a row of its own; its note ends in ``seed N``."""
        return self.note.rpartition(", ")[2].startswith("seed ")

    @property
    def shown(self) -> str:
        """``"41.7"``, or ``"41.7 ± 0.3"`` for a mean over seeds; errors as ``"0.449"``."""
        return f"{self.value:{self.digits}}" + ("" if self.deviation is None else f" ± {self.deviation:{self.digits}}")

    @property
    def interval(self) -> str:
        """``"40.1-43.9"``, or why there is no interval, if that is said."""
        if self.low is None or self.high is None:
            return self.no_interval
        return f"{self.low:{self.digits}}-{self.high:{self.digits}}"

    @property
    def ranking_value(self) -> float:
        """The value, or its negative for errors: of two rows the better one has more."""
        return -self.value if is_error(self.metric) else self.value

    @property
    def digits(self) -> str:
        """The format of its value: one digit after the point, three for errors."""
        return ".3f" if is_error(self.metric) else ".1f"

    def plain(self) -> dict[str, Any]:
        """JSON-able fields; a number that is not finite (nothing to average) is None."""
        entry = dict(vars(self))  # fields in their order; all are numbers or text: asdict would copy each
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                entry[name] = None
        return entry

    def baseline(self, name: str, value: float, low: float | None = None, high: float | None = None) -> EvalResult:
        """Return the row of the rule ``name`` on the same images: no model, block, facet or weights.

        It is the same whichever model's row it is made from, so that equal rows can be told.
        """
        empty = {"initialisation": "", "optimizer": "", "depth": 0, "block": "", "facet": "", "norm": ""}
        about: dict[str, Any] = {**empty, "resolution": "", "weights": "", "protocol": "", "note": ""}
        about |= {"epoch": UNKNOWN_EPOCH, "no_interval": "", **dict(_USUAL), **dict.fromkeys(OF_A_NETWORK)}
        about |= dict.fromkeys(_OF_ITS_INPUT, "")
        model = f"{_BASELINE}{name}"
        return replace(self, model=model, value=value, low=low, high=high, deviation=None, **about)

    def with_context(self, context: Mapping[str, Any]) -> EvalResult:
        """Return a copy in which ``context`` (model, optimizer, epoch, ...) is filled in."""
        return replace(self, **context)


def normalisation_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """Mean and deviation of images, red, green and blue, in one text: ``0.485 0.456 0.406 / 0.229 0.224 0.225``."""
    return " / ".join(" ".join(f"{number:.4g}" for number in numbers) for numbers in (mean, std))


def write_rows(path: Path, rows: Iterable[EvalResult]) -> None:
    """Write rows as JSON, atomically; a NaN value (nothing to average) becomes null.

    Fields that do not apply are left out, ``selected`` where nothing was, and ``precision`` where it is float32.
    """
    write_json(path, [{k: v for k, v in row.plain().items() if not _is_left_out(k, v)} for row in rows])


def _is_left_out(name: str, value: object) -> bool:
    """Whether ``rows.json`` does without a field: files without it are read as this value."""
    return (value in {None, ""} and name in _WHERE_THEY_APPLY) or (name, value) in _USUAL


@cache
def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(EvalResult))


@cache
def _reader() -> TypeAdapter[list[EvalResult]]:
    return TypeAdapter(list[EvalResult])


def read_rows(path: Path) -> list[EvalResult]:
    """Read rows; :class:`DataError` with a line for each value that no row can have, naming the row and the field.

    It is also raised for rows that are not as the manifest beside them says.
    """
    problem = verify_beside_manifest(path)
    if problem is not None:
        raise DataError(problem, f"remove {path.parent}: the command that made it makes it again")
    entries = read_json(path)
    if isinstance(entries, list):
        entries = [_with_selection(entry) if isinstance(entry, dict) else entry for entry in entries]
    try:
        rows = _reader().validate_python(entries)
    except ValidationError as failure:
        raise _faults(path, [_sentence(dict(error)) for error in failure.errors(include_url=False)]) from None
    if faults := [f"row {number}: {fault}" for number, row in enumerate(rows, 1) for fault in _disagreements(row)]:
        raise _faults(path, faults)
    return [_with_interval(row) for row in rows]


def _faults(path: Path, faults: Sequence[str]) -> DataError:
    more = len(faults) - _SHOWN_FAULTS
    lines = [f"{path}: {fault}" for fault in faults[:_SHOWN_FAULTS]]
    lines += [f"{path}: {more} more values are wrong"] if more > 0 else []
    first = lines[0] if len(faults) == 1 else f"{lines[0]} (and {len(faults) - 1} more)"
    return DataError(first, problems=tuple(lines))


def _sentence(error: Mapping[str, Any]) -> str:
    """An error of pydantic's as ``row 3: n: should be a valid integer, was given 'x'``."""
    where, given = error["loc"], error["input"]
    if error["type"] == "unexpected_keyword_argument":
        return f"row {where[0] + 1}: {where[1]!r:.60}: no field of this version's rows"
    place = "".join(f"row {part + 1}: " if isinstance(part, int) else f"{part}: " for part in where[:2])
    message = str(error["msg"]).removeprefix("Input ").replace(f" or an instance of {EvalResult.__name__}", "")
    shown = repr(given)
    text = "" if error["type"] == "missing" else f", was given {shown if len(shown) <= 60 else shown[:57] + '...'}"
    return f"{place}{message}{text}"


def _disagreements(row: EvalResult) -> list[str]:
    """Return the contradictions between fields of a row, one line each."""
    faults = []
    if row.low is not None and row.high is not None and row.low > row.high:
        faults.append(f"low: {row.low} is above high, {row.high}")
    if row.task == "classify" and not (math.isnan(row.value) or 0 <= row.value <= 100):
        faults.append(f"value: {row.value} is no accuracy in percent, of task classify")
    return faults


def _with_selection(entry: dict[str, Any]) -> dict[str, Any]:
    """A row with how its trial was chosen; rows that do not say it have said only that it was on validation."""
    if "selected" in entry:
        return entry
    return {**entry, "selected": SHOWN if str(entry.get("note", "")).startswith(ON_VALIDATION) else FIXED}


def rows_in(output: Path) -> list[EvalResult]:
    """Read the rows of an output, none if it has no ``rows.json``; of a file that was not written to since, once."""
    path = output / "rows.json"
    marks = tuple(_mark(output / name) for name in ("rows.json", MANIFEST))
    return list(_rows_as_written(path, marks)) if path.is_file() else []


def _mark(path: Path) -> tuple[int, ...]:
    """Size, inode and times of a file, which change with any write to it; () without one."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=1024)  # outputs: a report reads those of its own study several times
def _rows_as_written(path: Path, marks: tuple[tuple[int, ...], ...]) -> tuple[EvalResult, ...]:
    """The rows of a file with these ``marks``."""
    return tuple(read_rows(path))


def _with_interval(row: EvalResult) -> EvalResult:
    """Add Wilson's interval to a classifier's accuracy, which training writes without; other rows stay as they are."""
    if row.task != "classify" or row.low is not None or row.n < 1 or not math.isfinite(row.value):
        return row
    from dinoskip.results.statistics import wilson  # numpy, scipy

    low, high = wilson(round(row.value / 100 * row.n), row.n)
    return replace(row, low=100 * low, high=100 * high)


def best_by_heldout(rows: Iterable[EvalResult]) -> EvalResult | None:
    """Return the row with the best ``heldout``, the first of equals; None if no row has one.

    Chosen so, a probe's block (and norm) is chosen without the images that its value is of.
    """
    candidates = [row for row in rows if row.heldout is not None]
    return max(candidates, key=lambda row: row.heldout or 0.0, default=None)


def combined(selections: Iterable[Selection]) -> Selection:
    """Return the selection of a number made from several: the last of theirs in :data:`SELECTIONS`; FIXED for none."""
    return max(selections, key=SELECTIONS.index, default=FIXED)


def rows_csv(rows: Iterable[EvalResult], variants: Sequence[str] | None = None) -> str:
    """Every row with every field as CSV, ``variants`` (one a row) first if given.

    A number that is not finite is empty; text that a spreadsheet would run as a formula begins with a quote.
    """
    every, names = list(rows), _names()
    columns: list[Iterable[object]] = [_cells(list(map(attrgetter(name), every))) for name in names]
    heads: tuple[str, ...] = names
    if variants is not None:
        columns, heads = [_cells(variants), *columns], ("variant", *names)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return stream.getvalue()


def _cells(column: Sequence[object]) -> Iterable[object]:
    """The cells of a column; of most nothing is to be changed, which its distinct values tell."""
    return column if all(_cell(value) is value for value in set(column)) else map(_cell, column)


def _cell(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else formula_safe(value)


def formula_safe(value: object) -> object:
    """A CSV cell: text that a spreadsheet would run as a formula begins with a quote."""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return "'" + value
    return value
