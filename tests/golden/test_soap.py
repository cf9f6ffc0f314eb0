"""SOAP, eigenvalue-corrected Shampoo, KL-Shampoo and Muon against recorded trajectories of their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dinoskip.optim import SOAP, KLShampoo
from tests.helpers.trajectory import GOLDEN, Replay, records


def _ids(kind: str) -> list[Any]:
    found = [pytest.param(record, id=record["file"][:-4]) for record in records(kind)]
    skip = pytest.mark.skip(reason=f"../shared/golden/{kind} is absent")
    return found or [pytest.param({}, id=kind, marks=skip)]


def _soap(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
    return SOAP(groups, **settings)


def _check(replay: Replay, record: dict[str, Any], which: str) -> None:
    """Elementwise where the record says that is meaningful, else the norm of the whole movement."""
    for name, known in record["params"].items():
        tolerance = known[f"atol_{which}"]
        if tolerance is not None:
            assert replay.error[name] <= tolerance, name
        else:
            # KL records hold no tolerance of the norm; the noise floor without the basis is below 4e-4 there.
            assert replay.movement[name] <= known.get("movement_norm_rtol_without_Q", 0.05), name


@pytest.mark.parametrize("record", _ids("soap"))
def test_soap_from_the_recorded_first_basis(record: dict[str, Any]) -> None:
    _check(Replay("soap", record, _soap, inject=True), record, "with_Q")


@pytest.mark.parametrize("record", _ids("soap"))
def test_soap_from_its_own_first_basis(record: dict[str, Any]) -> None:
    _check(Replay("soap", record, _soap), record, "without_Q")


@pytest.mark.parametrize("record", _ids("kl"))
def test_kl_from_the_recorded_first_basis(record: dict[str, Any]) -> None:
    replay = Replay("kl", record, lambda groups, settings: KLShampoo(groups, **settings), inject=True)
    _check(replay, record, "with_Q")


@pytest.mark.parametrize("record", _ids("kl"))
def test_kl_from_its_own_first_basis(record: dict[str, Any]) -> None:
    replay = Replay("kl", record, lambda groups, settings: KLShampoo(groups, **settings))
    _check(replay, record, "without_Q")


@pytest.mark.parametrize("record", _ids("ecs"))
def test_eigenvalue_corrected_shampoo(record: dict[str, Any]) -> None:
    def build(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
        names = {"epsilon": "eps", "max_preconditioner_dim": "max_precond_dim"}
        return SOAP(groups, variant="ecs", **{names.get(key, key): value for key, value in settings.items()})

    replay = Replay("ecs", record, build)
    for name, known in record["params"].items():
        if known["elementwise_ok"]:
            assert replay.error[name] <= known["atol"], name


@pytest.mark.parametrize("record", _ids("muon"))
def test_torch_muon_is_the_references(record: dict[str, Any]) -> None:
    def build(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
        own = {key: settings[key] for key in ("lr", "weight_decay", "momentum", "nesterov", "ns_steps")}
        return torch.optim.Muon(
            groups, ns_coefficients=tuple(settings["ns_coefficients"]), adjust_lr_fn="original", **own
        )

    matrices = {name: known for name, known in record["params"].items() if known["optimizer"] == "muon"}
    replay = Replay("muon", {**record, "params": matrices}, build)
    for name, known in matrices.items():
        found, start = replay.own[name].detach().numpy(), replay.data[f"init/{name}"]
        reference = replay.data[f"param/{name}"][-1]
        difference = np.linalg.norm(found - reference) / np.linalg.norm(reference - start)
        assert difference <= known["rtol_norm_vs_param"], name


def test_the_folder_is_where_the_tests_look() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("../shared/golden is absent")
    assert len(records("soap")) >= 3
