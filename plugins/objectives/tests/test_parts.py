"""The plug-in's parts: found by entry point, in their order, complete; without them settings are refused at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.plugins import found
from dinoskip.settings.config import RawConfig, validate
from dinoskip.testing import problems_of
from dinoskip.training.objectives import OBJECTIVES, PretrainJob

PARTS = [("objectives", "ibot"), ("objectives", "mae"), ("added_losses", "dino"), ("added_losses", "ibot"),
         ("added_losses", "patch_contrast")]  # fmt: skip


def test_objectives_are_listed_in_their_order() -> None:
    assert list(OBJECTIVES)[:5] == ["dino", "ibot", "mae", "patch_contrast", "distill"]


@pytest.mark.parametrize(("group", "name"), PARTS)
def test_a_part_is_complete(group: str, name: str) -> None:
    assert problems_of(group, name) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"koleo": {}}, "koleo"), ({"paka": {}}, "paka"), ({"centering": "sinkhorn"}, "centering")],
)
def test_losses_that_are_not_installed_are_refused_at_their_key(
    settings: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = RawConfig({"pretrain": settings})
    assert validate(PretrainJob, tree).pretrain.extended  # type: ignore[union-attr]
    without = {at: part for at, part in found().items() if at[0] != "added_losses"}
    monkeypatch.setattr("dinoskip.training.addends_config.found", lambda: without)
    with pytest.raises(ConfigError) as refused:
        validate(PretrainJob, tree)
    assert len(refused.value.problems) == 1
    assert f"{key}: " in refused.value.problems[0]
    assert refused.value.exit_code == 2


def test_settings_of_the_parts_import_no_torch() -> None:
    code = (
        "import sys; from dinoskip.training.objectives import OBJECTIVES as o; print([*o][-1], 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.endswith(
        " False\n"
    )
