"""Verdicts over seeds: the committed rows are the pages' digits, the page is what its command prints, the rule."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from dinoskip.errors import DataError
from dinoskip.results.estimates import difference, known
from dinoskip.results.rows import EvalResult, rows_csv
from studies.paper_claims import (
    AGREES,
    DISAGREES,
    MIXED,
    OPEN,
    claims_page,
    compared,
    corrected,
    main,
    read_networks,
    verdict,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
DISCOVERY = "Skipless is above skip in object discovery (figure 3)"


def test_the_page_is_what_its_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (RESULTS / "claims.md").read_text()
    command = text.partition("```sh\n")[2].partition("```")[0].replace("\\\n", " ")
    arguments = shlex.split(command, comments=True)
    assert arguments[:3] == ["python", "-m", "studies.paper_claims"]
    monkeypatch.chdir(ROOT)
    main(arguments[3:])
    assert text.endswith("\n" + capsys.readouterr().out)


def rows_of(
    label: str, values: list[float], metric: str = "CorLoc", block: str = "9", **more: object
) -> list[EvalResult]:
    """A row a seed."""
    task = {"CorLoc": "tokencut", "mIoU": "probe"}[metric]
    row = EvalResult(metric, 0.0, task, block, "scenes", "val", 100, optimizer="soap", depth=12, epoch=30)
    return [replace(row, value=value, model=f"{label}-soap-s{seed}", **more) for seed, value in enumerate(values)]


def judged(*rows: list[EvalResult], claim: str = DISCOVERY) -> str:
    found = corrected(list(compared("study", [one for part in rows for one in part])))
    return verdict([one for one in found if one.claim == claim])


def test_three_seeds_decide_and_one_does_not() -> None:
    low, high = [10.0, 11.0, 12.0], [30.0, 31.0, 32.5]
    assert judged(rows_of("skip", low), rows_of("paper", high)).startswith(f"{AGREES} (3 seeds); 1 tested: 1 for")
    assert judged(rows_of("skip", high), rows_of("paper", low)).startswith(f"{DISAGREES} (3 seeds)")
    said = judged(rows_of("skip", low), rows_of("paper", high[:1]))
    assert said == f"{OPEN} (1 seed); 1 of 1 differences point its way"
    assert judged(rows_of("skip", low), rows_of("paper", [11.0, 12.0, 13.5])).startswith(OPEN)
    assert judged(
        rows_of("skip", low), rows_of("paper", high, degenerate=0.9, complete=0.9, token_cosine=0.995)
    ).startswith(f"{OPEN} (3 seeds)")
    assert judged(rows_of("skip", low)) == "–"


def test_the_higher_one_must_be_above_its_own_start() -> None:
    low, high = rows_of("skip", [10.0, 11.0, 12.0]), rows_of("paper", [30.0, 31.0, 32.5])
    begun = [replace(row, epoch=0, value=30.0) for row in high]
    assert judged(low, high, begun).startswith(f"{OPEN} (3 seeds); 1 tested: 0 for")


def test_two_measures_may_say_two_things() -> None:
    claim = "Skipless is above skip in segmentation, one block, SOAP (table 2)"
    low, high = [10.0, 11.0, 12.0], [30.0, 31.0, 32.5]
    first = rows_of("skip", low, "mIoU"), rows_of("paper", high, "mIoU")
    second = rows_of("skip", high, "mIoU", dataset="voc2012"), rows_of("paper", low, "mIoU", dataset="voc2012")
    assert judged(*first, *second, claim=claim).startswith(MIXED)


def test_p_is_that_of_the_report_and_holm() -> None:
    first, second = [30.0, 31.0, 33.0, 30.5], [20.0, 28.0, 26.0]
    rows = [
        *rows_of("skip", second),
        *rows_of("mixing", first, heldout=2.0),
        *rows_of("mixing", [29.0, 29.5, 28.0, 29.1], block="12", heldout=1.0),
    ]
    found = {one.names: one for one in compared("study", rows)}
    one = found["mixing-soap", "skip-soap"]
    assert one.p == pytest.approx(difference([known(v / 100) for v in first], [known(v / 100) for v in second]).p)
    assert (one.start, len(found)) == ("mixing", 2)
    assert ("mixing-soap, earlier block", "mixing-soap, last block") in found
    assert min(each.p for each in corrected(list(found.values()))) == pytest.approx(
        2 * min(e.p for e in found.values())
    )
    shown = {pair.names: pair for pair in compared("study", [replace(row, heldout=None) for row in rows])}
    assert math.isnan(shown["mixing-soap", "skip-soap"].p), "the better of two blocks was chosen on the images shown"


def test_files_are_pooled_and_may_not_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of("skip", [1.0, 2.0]), rows_of("skip", [1.0, 2.0, 3.0]), rows_of("skip", [1.5])
    paths = [tmp_path / f"{i}.csv" for i in range(4)]
    for path, own in zip(paths, rows, strict=False):
        path.write_text(rows_csv(own))
    assert [row.value for row in read_networks(paths[:2])] == [1.0, 2.0, 3.0]
    with pytest.raises(
        DataError, match=r"2\.csv: CorLoc of skip-soap-s0, scenes, block 9, epoch 30 is 1\.5, in a file"
    ):
        read_networks(paths[:3])
    paths[3].write_text("model,value\nskip-soap-s0,a\n")
    for path, said in ((paths[3], "could not convert"), (tmp_path / "none.csv", "No such file")):
        with pytest.raises(SystemExit) as stopped:
            main(["--study", "one", str(path)])
        assert stopped.value.code == 3
        assert said in capsys.readouterr().err


def test_a_claim_without_rows_says_what_is_missing() -> None:
    lines = claims_page({"study": [*rows_of("skip", [1.0]), *rows_of("paper", [2.0])]})
    (line,) = [line for line in lines if line.startswith("- 9 skipless blocks")]
    assert line.endswith("no skipless variant of 9 blocks was trained")
    assert (
        len([line for line in lines if line.startswith("- ")]) + len([line for line in lines if "### " in line]) == 22
    )
