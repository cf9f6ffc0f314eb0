from __future__ import annotations

from dinoskip.results.rows import EvalResult
from visualize.report.tables import baseline_lines, best_grid, best_lines, block_grids, others_grid
from visualize.rows import benchmark_values, last_epochs, principal
from visualize.tables import markdown


def row(block, value, **more):
    fields = {"metric": "mIoU", "task": "probe", "dataset": "voc2012", "split": "val", "n": 10, **more}
    return EvalResult(value=value, block=str(block), **fields)


def cut(block, value, protocol, facet="key"):
    return row(block, value, task="tokencut", metric="CorLoc", protocol=protocol, facet=facet)


def test_the_best_table_says_what_was_not_run_and_what_earlier_epochs_scored():
    variants = {"a": [row(1, 5.0, epoch=2), row("1+2", 9.0, epoch=2), row(1, 3.0, epoch=1)], "b": []}
    assert best_lines(variants) == [
        ("a", "a", [("1", 5.0, "")]),
        ("b", "b", [None]),
        ("a, blocks 1+2", "a", [("1+2", 9.0, "")]),
        ("b, blocks 1+2", "b", [None]),
        ("a, epoch 1", "a", [("1", 3.0, "")]),
    ]
    text = markdown(best_grid(variants))
    assert "| b | not run |" in text
    assert "| a, blocks 1+2 | 9.0 (blocks 1+2) |" in text


def test_markdown_cells_cannot_break_out_of_the_table():
    lines = markdown(best_grid({"a|b <script>\n`x`": [row(1, 5.0)]})).splitlines()
    assert lines[4] == "| a\\|b &lt;script\\> \\`x\\` | 5.0 (block 1) |"


def test_baselines_stand_below_and_split_no_measure():
    first = row(1, 5.0, model="skip", facet="out", norm="final", protocol="p", low=4.0, high=6.04)
    floor = [first.baseline("majority class", 3.5, 3.0, 4.0), row(1, 1.0, task="knn").baseline("chance", 10.0)]
    variants = {"a": [first, *floor]}
    assert list(benchmark_values(variants).values()) == [{"a": {"1": 5.0}}]
    assert baseline_lines(floor, last_epochs(variants)) == [("baseline: majority class", "", [("", 3.5, "[3.0, 4.0]")])]
    lines = markdown(best_grid(variants, floor)).replace("\\", "").splitlines()
    assert "| a | 5.0 [4.0, 6.0] (block 1) |" in lines
    assert "| baseline: majority class | 3.5 [3.0, 4.0] |" in lines
    (blocks,) = block_grids(variants, floor)
    assert blocks.rows == [["a", "5.0"], ["baseline: majority class", "3.5"]]


def test_random_weights_stand_below_the_trained_ones():
    rows = [row(1, 20.0, epoch=4), row(2, 30.0, epoch=4), row(1, 5.0, epoch=0), row(1, 9.0, epoch=2)]
    (blocks,) = block_grids({"a": rows, "given": [row(1, 50.0)]}, [row(1, 1.0).baseline("chance", 1.0)])
    assert blocks.rows == [
        ["a", "20.0", "30.0"],
        ["given", "50.0", "not run"],
        ["a, epoch 0", "5.0", "not run"],
        ["baseline: chance", "1.0", "1.0"],
    ]
    assert blocks.rules == {2, 3}


def test_of_several_settings_the_papers_is_shown_and_the_rest_is_listed():
    probes = [
        row(1, 90.0, norm="none", protocol="dinov2, 40k"),
        row(1, 50.0, norm="final", protocol="paper, 30 epochs"),
    ]
    taus = [cut(1, 80.0, "tokencut tau=0.25 eps=1e-05"), cut(1, 40.0, "tokencut tau=0.2 eps=1e-05")]
    lost = [cut(1, 85.0, "lost k=100"), cut(1, 86.0, "tokencut tau=0.2 eps=1e-05", facet="value")]
    variants = {name: [*probes, *taus, *lost] for name in ("a", "b")}
    kept = principal(variants)
    assert [one.value for one in kept["a"]] == [50.0, 40.0]
    assert [measure.label for measure in benchmark_values(kept)] == ["mIoU, voc2012 val", "CorLoc, voc2012 val"]
    others = others_grid(variants)
    assert [line[0].partition(" (")[2].rstrip(")") for line in others.rows] == [
        "none, dinov2, 40k",
        "read at key, tokencut tau=0.25 eps=1e-05",
        "read at key, lost k=100",
    ]
    assert others.rows[0][1:] == ["90.0 (block 1)"] * 2
    assert others_grid(kept) is None
    at_both = ["mIoU, voc2012 val", "CorLoc, voc2012 val (read at key)", "CorLoc, voc2012 val (read at value)"]
    assert [measure.label for measure in benchmark_values(principal(variants, every_read_point=True))] == at_both


def test_blocks_where_cuts_fail_are_marked_and_have_no_interval():
    def one(block, value, share):
        return row(block, value, task="tokencut", metric="CorLoc", low=1.0, high=9.0, degenerate=share, complete=share)

    variants = {"a": [one(1, 60.0, 0.5), one(2, 70.0, 0.6)]}
    (blocks,) = block_grids(variants)
    assert blocks.rows == [["a", "60.0", "70.0†"]]
    assert blocks.notes[0].startswith("†")
    assert best_grid(variants).rows == [["a", "70.0 affinity graph degenerate (6 of 10 images) (block 2)"]]
    (plain,) = block_grids({"a": [one(1, 60.0, 0.5)]})
    assert not plain.notes
    several = {"a": [row(1, 9.0, task="tokencut", metric="CorLoc", degenerate=0.9, complete=0.2)]}
    assert "no cut (9 of 10 images)" in best_grid(several).rows[0][1]
