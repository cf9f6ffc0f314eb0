"""Readings of the papers: each is a setting, shipped studies train them, and the page is of the table and the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dinoskip.diagnostics import bundled_photos
from dinoskip.init import build_model
from dinoskip.init.config import ResidualFreeInit, SkiplessInit, TruncNormalInit
from dinoskip.io.files import read_json
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.models.vit import embed
from dinoskip.pipeline.study import Study, load_study, study_of
from dinoskip.pipeline.variants import Variant
from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.settings.config import apply_overrides, read_yaml
from dinoskip_papers.readings import SENTENCES, Reading, Sentence
from studies import readings
from studies.readings import (
    COLUMNS,
    MEASURED,
    MEASURES,
    PAGE,
    REFERENCE,
    ROOT,
    measure,
    network,
    of_network,
    page,
    trained_rows,
)

PAPER, RESULTS = ROOT / "configs" / "paper", ROOT / "configs" / "results"
BY_NAME = {sentence.name: sentence for sentence in SENTENCES}
EACH = [pytest.param(s, r, id=f"{s.name}-{r.name}") for s in SENTENCES for r in s.readings]
ROWS = read_json(MEASURED)["rows"]


def values(sentence: str, number: int, field: str) -> list[float]:
    """One measure of the number-th reading of a sentence, by seed."""
    name = BY_NAME[sentence].readings[number].name
    found = [row for row in ROWS if (row["sentence"], row["reading"]) == (sentence, name)]
    return [row[field] for row in sorted(found, key=lambda row: row["seed"])]


# --- the table ---------------------------------------------------------------------------------------


def test_names_are_single() -> None:
    assert len(BY_NAME) == len(SENTENCES)
    for sentence in SENTENCES:
        assert len({reading.name for reading in sentence.readings}) == len(sentence.readings) >= 2, sentence.name


@pytest.mark.parametrize(("sentence", "reading"), EACH)
def test_every_reading_is_settings_of_a_study(sentence: Sentence, reading: Reading) -> None:
    base = apply_overrides(read_yaml(PAPER / "base.yaml"), ["model.skip=false", *reading.settings])
    study, (variant,) = study_of(base)
    assert isinstance(study, Study)
    if not sentence.unmeasured:
        assert variant.model is not None
        assert variant.model.init == network(reading).init


def test_ours_are_the_defaults_or_what_the_papers_configurations_name() -> None:
    ours = {sentence.name: sentence.ours for sentence in SENTENCES}
    for name in ("scale", "heads", "mlp"):
        assert network(ours[name]).init == SkiplessInit(), name
    assert network(ours["plain"]).init == TruncNormalInit()
    assert network(ours["products"]).init == ResidualFreeInit()
    base = read_yaml(PAPER / "base.yaml").tree
    assert ours["recipe"].settings == (f"pretrain.preset={base['pretrain']['preset']}",)
    assert ours["voc"].settings == (f"data.voc2012.train_list={base['data']['voc2012']['train_list']}",)
    _, variants = load_study(PAPER / "table2_dino.yaml")
    soap = next(variant.optimizer for variant in variants if variant.name.endswith("-soap"))
    assert optimizer_of(ours["soap"]) == soap


def optimizer_of(reading: Reading) -> Any:
    """The optimizer of a study with a reading's settings."""
    _, (variant,) = study_of(apply_overrides(read_yaml(PAPER / "base.yaml"), reading.settings))
    return variant.optimizer


def trained() -> Mapping[str, Variant]:
    """The networks of the two studies of readings."""
    return {v.name: v for name in ("readings", "readings_recipe") for v in load_study(PAPER / f"{name}.yaml")[1]}


def test_the_studies_train_the_readings() -> None:
    variants, found = trained(), set()
    for sentence in SENTENCES:
        for reading in sentence.readings:
            if sentence.name == "voc" or not reading.variant:
                continue
            name = reading.variant if "-" in reading.variant else f"{reading.variant}-adamw"
            found.add(name)
            if sentence.unmeasured:
                assert variants[name].optimizer == optimizer_of(reading), name
            else:
                model = variants[name].model
                assert model is not None
                assert model.init == network(reading).init, name
    assert set(variants) - found == {f"skip-{label}" for label in ("adamw", "supervised", "soap", "soap_own")}


def small() -> Mapping[str, Variant]:
    """The networks of the two studies of minutes, those of the first seed."""
    names = ("readings_small", "readings_small_recipe")
    every = [one for name in names for one in load_study(RESULTS / f"{name}.yaml")[1]]
    return {v.name.removesuffix("-s0"): v for v in every if v.name.endswith("-s0")}


def test_the_studies_of_minutes_train_the_readings() -> None:
    variants, found = small(), {REFERENCE}
    for sentence in SENTENCES:
        for reading in sentence.readings:
            if not reading.small:
                continue
            name = reading.small_network
            found.add(name)
            if not sentence.unmeasured:
                model, expected = variants[name].model, network(reading).init.model_dump()
                assert model is not None
                given = model.init.model_dump()
                changed = {name for name in given if given[name] != expected[name]}
                of_sizes = {"beta_width"} if given["name"] == "skipless" else set()  # of the width
                of_sizes |= {"alpha_qk"} if reading.small == "free_width" else set()  # of the number of heads
                assert changed == of_sizes, reading.name
    assert set(variants) == found


def test_rates_of_the_recipes_of_minutes_keep_their_ratios() -> None:
    variants, published = small(), trained()
    ours = variants["ours-adamw"].optimizer, published["ours-adamw"].optimizer
    for name in ("ours-supervised", "ours-soap", "ours-soap_own"):
        assert variants[name].optimizer.lr / ours[0].lr == pytest.approx(published[name].optimizer.lr / ours[1].lr), (
            name
        )


def test_the_study_probes_with_both_lists_of_voc() -> None:
    study, _ = load_study(PAPER / "readings.yaml")
    assert study.evaluate.probe.datasets == tuple(reading.variant for reading in BY_NAME["voc"].readings)
    for reading in BY_NAME["voc"].readings:
        source: Any = study.data[reading.variant]
        assert reading.settings == (f"data.voc2012.train_list={source.train_list}",)


# --- trained in minutes ------------------------------------------------------------------------------


def test_numbers_are_means_over_the_late_blocks(tmp_path: Path) -> None:
    def row(network: str, block: str, value: float, task: str = "probe", facet: str = "out") -> EvalResult:
        metric = "mIoU" if task == "probe" else "CorLoc"
        return EvalResult(
            metric, value, task=task, model=network, dataset="shapes", split="val", n=3, block=block, facet=facet
        )

    first = [row("a-adamw-s0", str(block), 10.0 * block) for block in range(1, 7)]
    first += [row("a-adamw-s1", str(block), 1.0) for block in range(1, 7)]
    first += [row("a-adamw-s0", "3+6", 99.0), row("a-adamw-s0", "5", 7.0, "tokencut", "key"),
              row("a-adamw-s0", "5", 99.0, "tokencut", "out")]  # fmt: skip
    write_rows(tmp_path / "rows.json", [*first, first[0].baseline("colours", 20.0)])
    (tmp_path / "again").mkdir()
    write_rows(tmp_path / "again" / "rows.json", [replace(one, value=0.0) for one in first])
    rows = trained_rows([tmp_path, tmp_path / "again"])
    assert of_network(rows, "a-adamw", "mIoU, trained") == [50.0, 1.0]
    assert of_network(rows, "a-adamw", "CorLoc, trained") == [7.0]
    assert of_network(rows, "baseline: colours", "mIoU, trained") == [20.0]


def test_every_reading_that_is_trained_has_a_number_a_seed() -> None:
    rows = read_json(MEASURED)["trained"]["rows"]
    for name in small():
        for column in COLUMNS:
            assert len(of_network(rows, name, column)) == 3, name


# --- measured ----------------------------------------------------------------------------------------


@pytest.mark.slow  # a frozen script
def test_a_row_is_of_the_network_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "FRESH", {"name": "vit_mini_patch16", "img_size": 64, "skip": False})
    images, found = bundled_photos(2, 64).float(), {}
    for reading in BY_NAME["scale"].readings:
        row = found[reading.name] = measure(reading, 1, images)
        assert set(row) == set(MEASURES)
        model = build_model(network(reading), 1).eval()
        tokens = embed(model, images)
        for block in model.blocks[:6]:
            tokens = block(tokens)
        assert row["cosine_6"] == pytest.approx(token_cosine(tokens[:, 1:].detach()), abs=1e-5)
    head, none, width = found.values()
    assert none["cosine_6"] < head["cosine_6"] < width["cosine_6"]


def test_the_page_is_that_of_the_committed_rows() -> None:
    assert PAGE.read_text() == page(read_json(MEASURED))


def test_every_measured_reading_has_a_row_a_seed() -> None:
    seeds = sorted({row["seed"] for row in ROWS})
    assert len(seeds) >= 3
    expected = {(s.name, r.name, seed) for s in SENTENCES if not s.unmeasured for r in s.readings for seed in seeds}
    assert {(row["sentence"], row["reading"], row["seed"]) for row in ROWS} == expected
    assert len(ROWS) == len(expected)


def test_what_the_table_says_of_fresh_networks_is_measured() -> None:
    """The table's statements hold in every seed."""
    head, none, width = ({field: values("scale", i, field) for field in MEASURES} for i in range(3))
    assert all(a < b for a, b in zip(none["cosine_12"], head["cosine_12"], strict=True)), "tokens stay further apart"
    assert all(a > 100 * b for a, b in zip(none["gradient"], head["gradient"], strict=True)), "gradients grow"
    assert min(none["ln_kappa"]) > 30 > max(head["ln_kappa"]), "attention is nearly singular"
    assert all(a > b for a, b in zip(width["cosine_12"], head["cosine_12"], strict=True))
    assert min(values("heads", 1, "cosine_12")) > 0.99, "dealt out: late tokens are alike"
    apart = zip(values("mlp", 1, "cosine_12"), values("mlp", 0, "cosine_12"), strict=True)
    assert all(a < b for a, b in apart), "further apart without the factor"
    assert min(values("plain", 0, "cosine_12") + values("plain", 1, "cosine_12")) > 0.99, "alike in both"
    softer = zip(values("temperature", 0, "cosine_6"), values("temperature", 4, "cosine_6"), strict=True)
    assert all(a > b for a, b in softer), "a temperature makes tokens alike sooner"
