"""The claims of the paper by made-up rows: what is compared, what counts, and that each can fail."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.decisions.comparing import ONE_EACH
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from dinoskip_papers.claims import (
    CONTRADICTED,
    MIXED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    Comparison,
    claims,
    claims_grid,
    corrected,
)
from dinoskip_papers.compare import ComparedStudy
from dinoskip_papers.rules import RULES
from studies.paper_as_study import paper_as_study
from visualize.comparison import Scores
from visualize.rows import DEFAULT, INITIALISED, SKIP, StudyVariant


def row(model, value, task="probe", block="9", dataset="voc", half=1.0, epoch=6, **more):
    metric = {"probe": "mIoU", "tokencut": "CorLoc", "knn": "accuracy_k10", "classify": "top1"}[task]
    ends = {"low": value - half, "high": value + half} if half else {}
    return EvalResult(metric, value, task, block, dataset, "val", 100, epoch=epoch, model=model, **ends, **more)


def variant(role, optimizer, *rows, depth=12):
    name = f"{role}-{optimizer}-{depth}"
    return StudyVariant(name, role, optimizer, depth, [row(name, **one) for one in rows])


def judged(*variants, records=None, **more):
    """The claims of a study of six epochs, by the start of their text."""
    study = ComparedStudy(variants, {"voc": "VOC2012", "stuff": "COCO-Stuff", "ade": "ADE20K"}, 6)
    verdicts = claims(study, Scores({one.name: one.rows for one in variants}, records), **more)
    assert len({claim.text for claim in verdicts}) == len(RULES) + 1
    return verdicts


def about(verdicts, *words):
    """The one claim whose text has all ``words``."""
    (claim,) = [claim for claim in verdicts if all(word in claim.text for word in words)]
    return claim


ONCE = f"{SUPPORTED}, {ONE_EACH}"
ONCE_AGAINST = f"{CONTRADICTED}, {ONE_EACH}"
DENSE = ("segmentation", "one block, AdamW (")


@pytest.mark.parametrize(
    ("ours", "theirs", "half", "verdict"),
    [(60, 50, 4.0, ONCE), (60, 50, 9.0, UNDECIDED), (50, 60, 4.0, ONCE_AGAINST), (60, 50, 0, UNDECIDED)],
)
def test_without_records_a_comparison_counts_by_the_intervals(ours, theirs, half, verdict):
    claim = about(
        judged(
            variant(SKIP, "adamw", {"value": theirs, "half": half}),
            variant(INITIALISED, "adamw", {"value": ours, "half": half}),
        ),
        *DENSE,
    )
    assert claim.verdict == verdict
    assert len(claim.comparisons) == (1 if half else 0)
    if half:
        text = claim.comparisons[0].text
        assert text.startswith(f"mIoU, voc val: skipless, initialised-adamw-12 {ours}.0 b9 − skip-adamw-12")
        assert text.endswith("unpaired")


@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=6))
def test_a_verdict_needs_all_that_counts_to_agree(signs):
    verdict = Claim("", [Comparison("", 0.5, 1, sign) for sign in signs]).verdict
    assert verdict == {(True, False): SUPPORTED, (False, True): CONTRADICTED, (True, True): MIXED}.get(
        (1 in signs, -1 in signs), UNDECIDED
    )


def test_the_number_of_comparisons_is_corrected_for_over_all_claims():
    def of(count):
        (first, *_) = corrected([Claim("a", [Comparison("", 0.02, 1)]), Claim("b", [Comparison("", 0.9, 1)] * count)])
        return first.verdict

    assert [of(count) for count in (0, 1, 2)] == [SUPPORTED, SUPPORTED, UNDECIDED]


def test_only_variants_that_differ_in_one_thing_are_compared():
    high, low = {"value": 60.0}, {"value": 20.0}
    variants = [
        variant(role, optimizer, low if role == DEFAULT else high, depth=depth)
        for role, optimizer, depth in itertools.product((SKIP, DEFAULT, INITIALISED, ""), ("adamw", "soap"), (9, 12))
    ]
    verdicts = judged(*variants)
    rescue = about(verdicts, "rescues")
    assert len(rescue.comparisons) == 4  # two optimizers, two depths
    for one in rescue.comparisons:
        ours, theirs = one.text.partition(": ")[2].split(" − ")
        assert ours.split()[1].partition("-")[2] == theirs.split()[0].partition("-")[2]
    worse = about(verdicts, "SOAP is worse in segmentation")
    assert len(worse.comparisons) == 6  # three roles, two depths, all equal
    assert worse.verdict == UNDECIDED


def test_each_variant_stands_with_its_best_block_and_last_epoch():
    ours = [row("ours", value, block=block, heldout=value) for value, block in ((30, "3"), (70, "11"), (50, "12"))]
    ours += [row("ours", 99.0, block="1", epoch=3)]
    verdicts = judged(StudyVariant("ours", INITIALISED, "adamw", 12, ours), variant(SKIP, "adamw", {"value": 60.0}))
    assert "ours 70.0 b11 − " in about(verdicts, *DENSE).comparisons[0].text
    [last] = about(verdicts, "not the last block's").comparisons
    assert last.sign == 1
    assert "ours 70.0 b11 − ours 50.0 b12 = +20.0" in last.text


def test_that_the_best_block_is_not_the_last_can_fail():
    ours = [row("ours", value, block=block, heldout=value) for value, block in ((30, "3"), (50, "11"), (70, "12"))]
    verdicts = judged(StudyVariant("ours", INITIALISED, "adamw", 12, ours))
    assert about(verdicts, "not the last block's").verdict == ONCE_AGAINST
    shown = judged(StudyVariant("ours", INITIALISED, "adamw", 12, [replace(one, heldout=None) for one in ours]))
    claim = about(shown, "not the last block's")
    assert claim.verdict == UNDECIDED, "the best of the earlier blocks was chosen on these images"
    assert claim.comparisons[0].text.endswith("; chosen on the images shown: ours")


def test_accuracy_is_the_last_blocks():
    both = [
        [row(name, value, "knn", block, dataset="nette") for block, value in values.items()]
        for name, values in {"skip": {"1": 20.0, "12": 40.0}, "default": {"1": 50.0, "12": 10.0}}.items()
    ]
    verdicts = judged(
        StudyVariant("skip", SKIP, "soap", 12, both[0]), StudyVariant("default", DEFAULT, "soap", 12, both[1])
    )
    [failed] = verdicts[0].comparisons
    assert failed.sign == 1
    assert "skip 40.0 b12 − default 10.0 b12 = +30.0" in failed.text


def test_epochs_are_the_same_share_of_the_run():
    early = StudyVariant("ours", INITIALISED, "adamw", 12, [row("ours", 60.0, epoch=4), row("ours", 60.4, epoch=6)])
    verdicts = judged(early, variant(SKIP, "adamw", {"value": 50.0}))
    [ahead] = about(verdicts, "After 200 of 300").comparisons
    assert "ours 60.0 b9 epoch 4 − " in ahead.text
    [lost] = about(verdicts, "add nothing").comparisons
    assert lost.sign == 0  # 0.4 less, known to 1.4: within a point or not
    worse = StudyVariant("ours", INITIALISED, "adamw", 12, [row("ours", 40.0, epoch=4), row("ours", 60.0, epoch=6)])
    assert about(judged(worse), "add nothing").verdict == ONCE_AGAINST


def test_ten_blocks_may_be_a_margin_worse_and_no_more():
    def of(value):
        shallow = variant(INITIALISED, "adamw", {"value": value, "block": "3+6+9", "half": 0.3}, depth=10)
        deep = variant(SKIP, "adamw", {"value": 50.0, "block": "3+6+9", "half": 0.3})
        return about(judged(deep, shallow), "10 skipless blocks").verdict

    assert [of(value) for value in (52.0, 49.0, 48.0, 47.0)] == [ONCE, ONCE, UNDECIDED, ONCE_AGAINST]


def test_ade20k_has_claims_of_its_own():
    verdicts = judged(
        variant(SKIP, "adamw", {"value": 40.0, "dataset": "ade"}, {"value": 40.0}),
        variant(INITIALISED, "adamw", {"value": 30.0, "dataset": "ade"}, {"value": 50.0}),
    )
    assert about(verdicts, *DENSE).verdict == ONCE
    assert about(verdicts, "one block, AdamW, ADE20K").verdict == ONCE_AGAINST


def test_several_blocks_count_on_complex_scenes_alone():
    rows = {
        dataset: [row("ours", 40.0, dataset=dataset), row("ours", 50.0, block="3+9", dataset=dataset)]
        for dataset in ("voc", "stuff")
    }
    only_voc = about(judged(StudyVariant("ours", INITIALISED, "adamw", 12, rows["voc"])), "Several blocks")
    assert not only_voc.comparisons
    assert only_voc.verdict == UNDECIDED
    assert "COCO-Stuff" in only_voc.missing
    both = about(judged(StudyVariant("ours", INITIALISED, "adamw", 12, rows["voc"] + rows["stuff"])), "Several blocks")
    assert [one.sign for one in both.comparisons] == [1]
    assert "stuff" in both.comparisons[0].text


def test_nine_blocks_are_compared_with_twelve():
    corloc = {"task": "tokencut", "value": 40.0}
    verdicts = judged(
        variant(SKIP, "adamw", {**corloc, "value": 20.0}), variant(SKIP, "adamw", corloc, depth=9),
        variant(INITIALISED, "adamw", corloc), variant(INITIALISED, "adamw", corloc, depth=9),
    )  # fmt: skip
    [nine] = about(verdicts, "9 skipless").comparisons
    assert nine.sign == 1
    assert "initialised-adamw-9 " in nine.text
    assert "skip-adamw-12 " in nine.text


def test_with_records_overlapping_intervals_can_decide():
    hits = {"skip": np.arange(200) < 100, "ours": np.arange(200) < 150}
    ids = tuple(map(str, range(200)))
    rows = {name: row(name, 100.0 * float(own.mean()), "tokencut", half=12.0) for name, own in hits.items()}
    pair = (
        StudyVariant("skip", SKIP, "soap", 12, [rows["skip"]]),
        StudyVariant("ours", INITIALISED, "soap", 12, [rows["ours"]]),
    )
    records = {rows[name]: ImageRecords(ids, own.astype(np.uint8)) for name, own in hits.items()}
    words = ("object discovery (figure 3)", "above")
    assert about(judged(*pair), *words).verdict == UNDECIDED
    paired = about(judged(*pair, records=records), *words)
    assert paired.verdict == ONCE
    assert paired.comparisons[0].one_each
    assert "unpaired" not in paired.comparisons[0].text


def test_pictures_are_compared_image_by_image():
    pair = (variant(SKIP, "adamw"), variant(INITIALISED, "adamw"))
    smooth, rough = [0.2 + 0.01 * i for i in range(10)], [0.5 + 0.01 * i for i in range(9)] + [0.1]

    def of(first, second):
        return judged(*pair, roughness={pair[0].name: first, pair[1].name: second}, block=11)[-1]

    assert of(rough, smooth).verdict == ONCE
    assert "block 11" in of(rough, smooth).text
    assert "smoother on 9 of 10 images, p = 0.021" in of(rough, smooth).comparisons[0].text
    assert of(rough[:5], smooth[:5]).verdict == UNDECIDED
    assert of(smooth, rough).verdict == ONCE_AGAINST


def test_the_table_has_a_line_a_claim_and_a_line_a_comparison():
    verdicts = judged(variant(SKIP, "adamw", {"value": 20.0}), variant(INITIALISED, "adamw", {"value": 60.0}))
    grid = claims_grid(verdicts)
    assert len(grid.rows) == len(verdicts) + sum(len(claim.comparisons) for claim in verdicts)
    assert [grid.rows[number][1] for number in sorted(grid.rules)] == [claim.verdict for claim in verdicts]
    at = next(number for number, line in enumerate(grid.rows) if line[0] == about(verdicts, *DENSE).text)
    assert grid.rows[at + 1][:2] == ["", "+"]
    assert all(claim.missing for claim in verdicts if not claim.comparisons)


NO_NUMBERS = ("not the last block's", "PCA pictures")  # the paper prints none by block, and pictures only
AGAINST = {
    ("one block, AdamW, ADE20K",): ONCE_AGAINST,
    ("several blocks, SOAP, ADE20K",): ONCE_AGAINST,
    ("several blocks, SOAP (",): f"{MIXED}, {ONE_EACH}",  # below skip after 300 epochs, above after 200
}


def test_the_papers_own_numbers_support_what_its_tables_support_and_nothing_else():
    study = paper_as_study()
    verdicts = claims(study, Scores({one.name: one.rows for one in study.variants}))
    left = {claim.text: claim.verdict for claim in verdicts}
    for words, verdict in AGAINST.items():
        assert left.pop(about(verdicts, *words).text) == verdict
    for word in NO_NUMBERS:
        claim = about(verdicts, word)
        assert (left.pop(claim.text), claim.comparisons) == (UNDECIDED, [])
    assert set(left.values()) == {ONCE}
    assert len(left) == len(RULES) + 1 - len(AGAINST) - len(NO_NUMBERS)


def test_the_papers_verdicts_do_not_hang_on_the_assumed_uncertainty_alone():
    vague = paper_as_study({"classify": 2.0, "probe": 3.5, "tokencut": 5.0})
    verdicts = claims(vague, Scores({one.name: one.rows for one in vague.variants}))
    assert about(verdicts, "one block, AdamW, ADE20K").verdict == UNDECIDED
    assert about(verdicts, "Skipless is above skip in object discovery").verdict == ONCE
    assert about(verdicts, "Skipless with SOAP").verdict == UNDECIDED


@pytest.mark.parametrize("name", [SKIP, INITIALISED])
def test_a_network_whose_rate_is_unresolved_decides_no_claim(name):
    sides = [
        replace(one, unresolved="why" if one.role == name else "")
        for one in (variant(SKIP, "adamw", {"value": 50}), variant(INITIALISED, "adamw", {"value": 60}))
    ]
    claim = about(judged(*sides), *DENSE)
    assert claim.verdict == UNDECIDED
    assert claim.comparisons[0].text.endswith(f"rate of {name}-adamw-12 unresolved")
    pictures = about(
        judged(*sides, roughness={one.name: [0.1 if one.role == SKIP else 0.9] * 20 for one in sides}), "PCA"
    )
    assert pictures.verdict == UNDECIDED


def of_seeds(role, values, starts=(), **more):
    """A network with a seed each of ``values``, known exactly over images, and what it scored before training."""
    made = []
    for seed, value in enumerate(values):
        name = f"{role}-s{seed}"
        own = [row(name, value, half=0.01, **more)]
        own += [row(name, starts[seed], half=0.01, **{**more, "epoch": 0})] if starts else []
        made.append(StudyVariant(name, role, "adamw", 12, own, family=role, seed=seed))
    return made


def test_seeds_of_a_network_are_one_comparison():
    """Images alone called every pair of seeds different, and so equal networks that vary from seed to seed."""
    equal = of_seeds(SKIP, (50.0, 53.0, 56.0)), of_seeds(INITIALISED, (52.0, 55.0, 58.0))
    [one] = about(judged(*equal[0], *equal[1]), *DENSE).comparisons
    assert one.sign == 0
    assert one.text.startswith(f"mIoU, voc val: {INITIALISED} 55.0 ± 3.0 b9 − {SKIP} 53.0 ± 3.0 b9 = +2.0 [")
    better = of_seeds(SKIP, (20.0, 20.3, 20.6)), of_seeds(INITIALISED, (52.0, 52.5, 52.1))
    assert about(judged(*better[0], *better[1]), *DENSE).verdict == SUPPORTED, "of several trainings"
    [fewer] = about(judged(*better[0], better[1][0]), *DENSE).comparisons
    assert fewer.sign == 0
    assert fewer.text.endswith("; one seed on one side")


@pytest.mark.parametrize(("start", "verdict"), [(20.0, SUPPORTED), (51.9, UNDECIDED)])
def test_the_higher_one_must_be_above_its_own_start(start, verdict):
    skip, ours = of_seeds(SKIP, (20.0, 20.3, 20.6)), of_seeds(INITIALISED, (52.0, 52.5, 52.1), (start,) * 3)
    [one] = about(judged(*skip, *ours), *DENSE).comparisons
    assert (one.sign == 1) is (verdict == SUPPORTED)
    assert (" from its own " in one.text) is (verdict == UNDECIDED)


def test_too_few_images_decide_no_claim():
    made = [variant(role, "adamw", {"value": value}) for role, value in ((SKIP, 20.0), (INITIALISED, 60.0))]
    for few, verdict in ((5, UNDECIDED), (6, ONCE)):
        sides = [replace(one, rows=[replace(own, n=few) for own in one.rows]) for one in made]
        claim = about(judged(*sides), *DENSE)
        assert claim.verdict == verdict
        assert claim.comparisons[0].text.endswith("5 images are too few (below 6)") is (few == 5)


def test_pictures_of_seeds_are_one_comparison():
    networks = [of_seeds(SKIP, (50.0,) * 3), of_seeds(INITIALISED, (50.0,) * 3)]
    rng = np.random.default_rng(0)

    def of(*levels):
        rough = {
            one.name: [float(level + 0.01 * rng.standard_normal()) for _ in range(20)]
            for own, seeds in zip(networks, levels, strict=True)
            for one, level in zip(own, seeds, strict=True)
        }
        [one] = judged(*networks[0], *networks[1], roughness=rough)[-1].comparisons
        return one

    assert of((0.5, 0.51, 0.52), (0.2, 0.21, 0.22)).sign == 1
    apart = of((0.2, 0.5, 0.8), (0.1, 0.4, 0.7))
    assert (apart.direction, apart.sign) == (1, 0)
    assert apart.text.startswith(f"roughness: {INITIALISED} 0.40 ± 0.30 against {SKIP} 0.50 ± 0.30; p = ")
