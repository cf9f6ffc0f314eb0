"""Dead networks and failed cuts, on either side of every threshold."""

from __future__ import annotations

import pytest

from tests.visualize.report.test_answer import answered, corloc
from visualize.rows import INITIALISED, SKIP

SKIPPED = ("s", SKIP, "soap", [corloc("s", 0.2)])


@pytest.mark.parametrize(
    ("cosine", "complete", "dead"),
    [(0.99, 0.51, True), (0.9899, 0.51, False), (0.99, 0.5, False), (0.995, 0.6, True), (0.98, 1.0, False)],
)
def test_tokens_are_alike_from_a_cosine_of_099_and_graphs_complete_in_more_than_half(
    cosine: float, complete: float, dead: bool
) -> None:
    row = corloc("o", 0.3, degenerate=complete, complete=complete, token_cosine=cosine)
    [line] = answered(SKIPPED, ("o", INITIALISED, "soap", [row]))[0].lines
    assert line.first.is_dead is dead


@pytest.mark.parametrize(("degenerate", "failed"), [(0.5, False), (0.51, True)])
def test_cuts_have_failed_where_more_than_half_are_degenerate(degenerate: float, failed: bool) -> None:
    row = corloc("o", 0.3, degenerate=degenerate, complete=0.0, token_cosine=0.1)
    [line] = answered(SKIPPED, ("o", INITIALISED, "soap", [row]))[0].lines
    assert bool(line.first.failed_there) is failed


@pytest.mark.parametrize(("before", "dead"), [(0.3, True), (0.28, True), (0.26, True), (0.1, False)])
def test_a_gain_of_a_few_images_brings_no_dead_network_to_life(before: float, dead: bool) -> None:
    """Four more of 100 images are hit: the gain's interval holds 0."""
    gone = {"degenerate": 1.0, "complete": 1.0, "token_cosine": 0.999}
    rows = [corloc("o", 0.3, **gone), corloc("o", before, epoch=0, **gone)]
    [line] = answered(SKIPPED, ("o", INITIALISED, "soap", rows))[0].lines
    assert line.first.is_dead is dead
