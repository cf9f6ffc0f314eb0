"""Kinds that are made from bundled photographs: the same bytes from the same settings, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.data.sets.kind import Synthetic
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.synthetic import (
    interrupted_it_leaves_nothing_and_foreign_data_stay,
    kinds_of,
    same_settings_same_bytes_and_a_finished_folder_is_kept,
)

CONFIGS: tuple[Synthetic, ...] = (RoomsConfig(images=4, size=32),)


def test_none_of_the_plugin_is_left_out() -> None:
    assert {type(config).model_fields["kind"].default for config in CONFIGS} == kinds_of("dinoskip_dense")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_same_settings_same_bytes_and_a_finished_folder_is_kept(config: Synthetic, tmp_path: Path) -> None:
    same_settings_same_bytes_and_a_finished_folder_is_kept(config, tmp_path)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_interrupted_it_leaves_nothing_and_foreign_data_stay(
    config: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_it_leaves_nothing_and_foreign_data_stay(config, tmp_path, monkeypatch)
