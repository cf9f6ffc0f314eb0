"""A slot's pieces and slot 1's choice; the whole of slots 1 and 2 at toy size."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.errors import ConfigError, DataError
from dinoskip.pipeline.study import study_of
from dinoskip.results.records import RecordedRow
from dinoskip.settings.config import apply_overrides, read_yaml
from studies import slots, slots_arms, slots_first
from studies.slots import Commands, Place, first, later, main
from studies.slots_arms import ARMS, PRINTED, RATES, SLOTS, Plan, epochs_in, order, read_plan
from studies.slots_rows import read_slots
from tests.helpers.slots import entries

PLAN = Plan(90, {"A": 5e-4, "B": 2e-3, "C": 5e-4}, unresolved=("B",))


def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data", tmp_path / "work", tmp_path / "out", "cpu")


# --- plan --------------------------------------------------------------------------------------------


def test_a_plan_is_written_and_read_and_its_lack_is_said(tmp_path: Path) -> None:
    PLAN.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == PLAN
    with pytest.raises(ConfigError, match="nosuch"):
        read_plan(tmp_path / "nosuch.json")
    assert main(["run", "2", "--data", str(tmp_path), "--plan", str(tmp_path / "nosuch.json")]) == 2


@pytest.mark.parametrize(("seconds", "epochs"), [(1.59, 94), (1.36, 110), (150.0, 1), (400.0, 1)])
def test_epochs_are_those_of_the_slowest_arm(seconds: float, epochs: int) -> None:
    assert epochs_in(seconds) == epochs


def test_orders_are_of_all_arms_and_differ() -> None:
    orders = [order(slot) for slot in SLOTS]
    assert all(sorted(one) == list(ARMS) for one in orders)
    assert len({tuple(one) for one in orders}) > 1
    assert orders == [order(slot) for slot in SLOTS]


def test_every_network_that_a_piece_names_is_one_of_the_study(tmp_path: Path) -> None:
    config = slots_arms.ROOT / slots_arms.CONFIG
    for slot, pieces in (
        (1, first(Commands(1, place(tmp_path)))[0]),
        (3, later(Commands(3, place(tmp_path)), PLAN)[0]),
    ):
        for piece in pieces:
            if piece.arguments[1] != "dinoskip":
                continue
            settings = [word for word in piece.arguments if "=" in word and not word.startswith("--")]
            study, variants = study_of(apply_overrides(read_yaml(config), settings))
            names = {piece.arguments[i + 1] for i, word in enumerate(piece.arguments) if word == "--variant"}
            assert names <= {variant.name for variant in variants}, piece.name
            assert names
            assert {variant.seed for variant in variants} == {101 if slot == 1 else 3}
            assert study.section(type(study.pretrain)).epochs == (20 if slot == 1 else 90)


def test_positions_alone_are_a_study(tmp_path: Path) -> None:
    settings = [*slots_arms.overrides(tmp_path, tmp_path, 2, 90, toy=False), *slots.NO_OTHERS]
    study, _ = study_of(apply_overrides(read_yaml(slots_arms.ROOT / slots_arms.CONFIG), settings))
    found = {name: getattr(study.evaluate, name).datasets for name in ("tokencut", "probe", "knn")}
    assert found == {"tokencut": ("boxed",), "probe": (), "knn": ()}


def test_a_slot_trains_every_arm_at_its_rate_before_it_evaluates(tmp_path: Path) -> None:
    pieces, networks = later(Commands(3, place(tmp_path)), PLAN)
    names = [piece.name for piece in pieces]
    assert names[:3] == [f"train {ARMS[arm]}" for arm in order(3)]
    assert names[3] == "evaluate"
    assert networks.names == ["skip-adamw0.0005-s3", "paper-adamw0.002-s3", "annealed-adamw0.0005-s3"]
    assert sum(piece.limit for piece in pieces[:3]) > 3 * slots_arms.TRAIN_SECONDS


# --- slot 1's choice ---------------------------------------------------------------------------------


def rated(best: dict[str, float], *, dead: float = 0.1) -> list[RecordedRow]:
    """Rows of slot 1 in which each arm is best at a rate; complete graphs of the arm B as given."""
    rng, found = np.random.default_rng(0), list[RecordedRow]()
    for arm in ARMS:
        for rate in RATES:
            level = {"P1": 0.5, "P2": 0.5 if rate == best[arm] else 0.3}
            for entry in entries(slots_first.network(arm, rate), 20, level, rng):
                row = replace(entry.row, complete=dead) if arm == "B" and entry.row.complete is not None else entry.row
                found.append(replace(entry, row=row))
    return found


def test_the_best_rate_is_chosen_and_one_at_the_edge_is_unresolved() -> None:
    recorded = rated({"A": 5e-4, "B": 1e-4, "C": 2e-3})
    merits = slots_first.tried(recorded, 20)
    plan = slots_first.chosen(recorded, merits, 20, 94)
    assert plan == Plan(94, {"A": 5e-4, "B": 1e-4, "C": 2e-3}, unresolved=["B", "C"])
    assert merits["A"]["0.0005"] == pytest.approx((50 + 50 - 4.5) / 2, abs=1)  # blocks 3 to 12: 4.5 less on average


def test_a_dead_arm_is_trained_with_the_other_optimizer_at_the_middle_rate() -> None:
    recorded = rated({"A": 5e-4, "B": 1e-4, "C": 5e-4}, dead=0.9)
    plan = slots_first.chosen(recorded, slots_first.tried(recorded, 20), 20, 94)
    assert (plan.optimizers["B"], plan.rates["B"]) == ("soap", 5e-4)
    assert plan.unresolved == []
    assert plan.variant("B", 2) == "paper-soap0.0005-s2"


def printed(shares: dict[float, float], levels: dict[float, float]) -> list[RecordedRow]:
    """Rows of B0 at its rates: complete graphs and score of each."""
    rng, found = np.random.default_rng(1), list[RecordedRow]()
    for rate, share in shares.items():
        for entry in entries(slots_first.network(PRINTED, rate), 20, {"P1": 0.5, "P2": levels[rate]}, rng):
            given = entry.row.complete is not None
            found.append(replace(entry, row=replace(entry.row, complete=share) if given else entry.row))
    return found


@pytest.mark.parametrize(
    ("b_is_dead", "shares", "levels", "expected"),
    [
        (0.9, (0.1, 0.1), (0.3, 0.4), ("printed", 5e-4, "adamw")),
        (0.9, (0.1, 0.1), (0.4, 0.3), ("printed", 1e-4, "adamw")),
        (0.9, (0.1, 0.9), (0.3, 0.4), ("paper", 5e-4, "soap")),  # at the better of its rates it is dead, too
        (0.9, (0.9, 0.1), (0.3, 0.4), ("printed", 5e-4, "adamw")),
        (0.1, (0.1, 0.1), (0.9, 0.9), ("paper", 1e-4, "adamw")),  # B is alive, however good B0 is
        (0.9, (), (), ("paper", 5e-4, "soap")),  # B0 was cut
    ],
)
def test_b0_takes_the_place_of_a_dead_b_where_it_is_alive(
    b_is_dead: float, shares: tuple[float, ...], levels: tuple[float, ...], expected: tuple[str, float, str]
) -> None:
    assert slots_arms.PRINTED_RATES == (1e-4, 5e-4)
    of_b0 = (dict(zip(slots_arms.PRINTED_RATES, values, strict=False)) for values in (shares, levels))
    recorded = [*rated({"A": 5e-4, "B": 1e-4, "C": 5e-4}, dead=b_is_dead), *printed(*of_b0)]
    merits = slots_first.tried(recorded, 20)
    assert len(merits.get(PRINTED, {})) == len(shares)
    plan = slots_first.chosen(recorded, merits, 20, 94)
    label, rate, optimizer = expected
    assert (plan.labels["B"], plan.rates["B"], plan.optimizers["B"]) == expected
    assert plan.unresolved == ([] if b_is_dead > 0.5 else ["B"])
    assert plan.variant("B", 2) == f"{label}-{optimizer}{rate:g}-s2"
    assert plan.variant("A", 2) == "skip-adamw0.0005-s2"


def test_slots_with_b0_train_it_as_arm_b(tmp_path: Path) -> None:
    plan = Plan(90, {"A": 5e-4, "B": 1e-4, "C": 5e-4}, labels={**ARMS, "B": "printed"})
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    _, networks = later(Commands(3, place(tmp_path)), plan)
    assert networks.names[list(ARMS).index("B")] == "printed-adamw0.0001-s3"


def test_no_rate_is_chosen_of_an_arm_that_was_not_measured_at_all_of_them() -> None:
    recorded = [e for e in rated(dict.fromkeys(ARMS, 5e-4)) if e.row.model != slots_first.network("C", 2e-3)]
    with pytest.raises(DataError, match=r"C .*0\.002"):
        slots_first.chosen(recorded, slots_first.tried(recorded, 20), 20, 94)


# --- whole -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_both_kinds_of_slots_run_at_toy_size_to_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.studies.test_slots_data import made_sources

    sources = made_sources(tmp_path / "sources", images=8)
    slots.slots_data.write_names(slots.slots_data.sizes_below(sources.imagenette / "train"), tmp_path / "names.gz")
    packed = ["--imagenette", sources.imagenette, "--voc", sources.voc, "--coco", sources.coco]
    listed = ["--names", tmp_path / "names.gz", "--out", tmp_path / "slot.zip"]
    assert main(["pack", *map(str, packed + listed)]) == 0
    common = [
        "--data",
        tmp_path / "slot.zip",
        "--work",
        tmp_path / "work",
        "--out",
        tmp_path / "out",
        "--seconds",
        1700,
    ]
    ways = [*map(str, common), "--device", "cpu", "--toy"]
    results = tmp_path / "results"
    monkeypatch.setattr(slots, "RESULTS", results)
    monkeypatch.setattr(slots, "PLAN", results / "plan.json")
    monkeypatch.setattr(slots, "write_page", lambda: None)
    for number in (1, 2):
        assert main(["run", str(number), *ways, "--plan", str(results / "plan.json")]) == 0
        results.mkdir(exist_ok=True)
        assert main(["add", str(tmp_path / "out" / f"slot{number}.tar.gz")]) == 0
    every = read_slots(results)
    assert [one.number for one in every] == [1, 2]
    for one in every:
        states = {name: piece["state"] for name, piece in one.card["pieces"].items()}
        assert set(states.values()) == {"done"}, states
        assert all(one.of(arm) and one.of(arm, trained=False) for arm in ARMS)
        assert one.look
    assert every[0].of(PRINTED), "slot 1 trains B0"
    with tarfile.open(tmp_path / "out" / "slot2.tar.gz") as stream:
        assert "slot2/pca.png" in stream.getnames()
    assert json.loads((results / "plan.json").read_text())["epochs"] == 2
    shards = sorted((tmp_path / "out").glob("slot2-skip*.safetensors"))
    assert main(["join", *map(str, shards), "--out", str(tmp_path / "teacher.safetensors")]) == 0
