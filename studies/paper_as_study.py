# Frozen: rows docs/results/claims.md, commit 631b3693, 2026-11-26.
"""The paper's published numbers as if they were the rows of a study, to put its own claims to the test."""

from __future__ import annotations

from collections.abc import Mapping

from dinoskip.results.rows import EvalResult
from dinoskip_papers.compare import ComparedStudy
from dinoskip_papers.published import EPOCHS, PUBLISHED, PublishedNumber
from visualize.rows import StudyVariant

# Half the 95 % interval of a published number, in percent points. The paper prints none, so these are assumed: a
# difference of two numbers is then known to 0.3 points of top-1, 0.5 of mIoU and 0.7 of CorLoc.
HALF_WIDTHS = {"classify": 0.2, "probe": 0.35, "tokencut": 0.5}
_DEPTH = 12  # blocks of every model of a table that does not name any


def paper_as_study(half_widths: Mapping[str, float] = HALF_WIDTHS) -> ComparedStudy:
    """A study whose rows are the legible numbers of tables 1 to 4 and figure 3, known to ``half_widths`` (by task).

    A number that two tables print is one row. A single block is numbered 9, several 3+6+9+12: the paper does not say
    which they are.
    """
    rows: dict[tuple[str, str, int], dict[EvalResult, None]] = {}
    for table in PUBLISHED.values():
        for _, numbers in table.rows:
            for number in numbers:
                if number.paper is not None:
                    key = (number.role, number.optimizer.lower(), number.depth or _DEPTH)
                    rows.setdefault(key, {})[_row(number, number.paper, half_widths[number.task])] = None
    variants = [
        StudyVariant(f"{role}, {optimizer}, {depth} blocks", role, optimizer, depth, list(network_rows))
        for (role, optimizer, depth), network_rows in rows.items()
    ]
    names = {row.dataset: row.dataset for network_rows in rows.values() for row in network_rows}
    return ComparedStudy(variants, names, EPOCHS, "ImageNet-1k")


def _row(number: PublishedNumber, value: float, half: float) -> EvalResult:
    return EvalResult(
        metric=number.metric, value=value, task=number.task, block="3+6+9+12" if number.several else "9",
        dataset=number.dataset, split="", n=0, epoch=number.epoch, model=f"{number.role} {number.optimizer}",
        classes=1000 if number.task == "classify" else 0, low=value - half, high=value + half,
    )  # fmt: skip
