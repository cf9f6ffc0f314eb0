"""Position taken out of features: golden cases, and what a probe reads before and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.diagnostics.position_removal import insid3_debiased, rasa_round
from tests.helpers.golden_next import arrays, golden


@golden("rasa")
def test_golden_rasa(case: dict[str, Any]) -> None:
    given = arrays(case)
    features = given["features"]
    for number in range(case["rounds"]):
        found = rasa_round(features, given[f"weight_{number}"])
        for name, share in (("prediction", 1e-5), ("removed", 2e-5), ("kept", 2e-5)):
            torch.testing.assert_close(getattr(found, name), given[f"{name}_{number}"], rtol=0, atol=share)
        if number == 0:
            error = (found.prediction.double() - given["targets"]).square().mean()
            assert float(error) == pytest.approx(case["expected"]["mse_0"], rel=1e-4)
        features = found.kept


@golden("insid3")
def test_golden_insid3(case: dict[str, Any]) -> None:
    given = arrays(case)
    found = insid3_debiased(given["features"], given["flat_features"], case["components"])
    torch.testing.assert_close(found, given["debiased"], rtol=0, atol=1e-4)


def test_a_probe_reads_less_of_the_position_afterwards() -> None:
    rng = torch.Generator().manual_seed(0)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 5)] * 2, indexing="ij"), -1).flatten(0, 1)
    places = grid @ torch.randn(2, 12, generator=rng)
    features = places + 0.5 * torch.randn(8, 25, 12, generator=rng)
    before = position_bias(features, (5, 5)).r2
    plane = torch.linalg.lstsq(features.flatten(0, 1), grid.repeat(8, 1)).solution.T
    assert position_bias(rasa_round(features, plane).kept, (5, 5)).r2 < before - 0.3
    assert position_bias(insid3_debiased(features, places, 2), (5, 5)).r2 < before - 0.3
