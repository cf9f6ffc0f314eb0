"""docs/items.csv: what there is of each item of the source documents, none missing."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dinoskip.io.texts import decoded_text
from tests.helpers.absent_parts import is_there

ROOT = Path(__file__).parents[2]
LIST = ROOT.parent / "shared" / "items.tsv"
STATES = ("seen", "works", "partial", "not made")
ITEMS = list(csv.DictReader((ROOT / "docs" / "items.csv").read_text(encoding="utf-8").splitlines()))


def test_every_item_has_a_state_and_a_place_that_is_there() -> None:
    assert [int(item["item"]) for item in ITEMS] == list(range(1, len(ITEMS) + 1))
    for item in ITEMS:
        assert item["state"] in STATES, item
        assert item["what"], item
        assert is_there(item["where"]), item


def test_what_is_partial_or_not_made_says_why() -> None:
    for item in ITEMS:
        assert bool(item["reason"]) == (item["state"] in STATES[2:]), item


def test_none_of_the_list_is_missing() -> None:
    if not LIST.is_file():
        pytest.skip("../shared/items.tsv is not here")
    listed = csv.DictReader(decoded_text(LIST.read_bytes()).splitlines(), delimiter="\t")
    assert [item["item"] for item in ITEMS] == [line["id"] for line in listed]
