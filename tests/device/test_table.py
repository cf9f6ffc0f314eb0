"""Every hot path on the device: nothing mixes, and host reads, uploads and kernels are those stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.paths import PATHS, Reading, measure
from tests.device.table import STATED, Stated, chosen_device

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"


def _is_slow(name: str) -> bool:
    """Whether it is of DINO and neither of AdamW and SOAP with crops nor of AdamW with crops cut on the device."""
    quick = ("adamw, crops", "adamw, decode", "soap, crops", "soap, crops, refresh")
    return name.startswith("DINO step, ") and name.removeprefix("DINO step, ") not in quick


@pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if _is_slow(name) else name for name in PATHS]
)
def test_path_asks_of_the_device_what_is_stated(name: str) -> None:
    device = chosen_device()
    assert STATED[name].faults(measure(name, device), exact=not device.real) == []


def test_what_does_not_hold_is_told() -> None:
    reading = Reading(reads=2, uploads=0.5, kernels=120, megabytes=1, lines=("eval/a.py:3 x2",))
    assert Stated(2, 0.5, 110).faults(reading) == []
    assert Stated(1, 0, 100).faults(reading) == [
        "2 host reads for 1 stated (eval/a.py:3 x2)", "0.5 uploads for 0 stated (eval/a.py:3 x2)",
        "120 kernels for 100 stated",
    ]  # fmt: skip
    assert Stated(2, 0.5, 10).faults(reading, exact=False) == []


def test_what_the_page_says() -> None:
    page = " ".join(PAGE.read_text().split())
    assert list(STATED) == list(PATHS)
    adamw, soap, device = (STATED[f"DINO step, {name}"] for name in ("adamw, crops", "soap, crops", "soap, decode"))
    refresh = [STATED[f"DINO step, {name}, crops, refresh"].reads for name in ("soap", "ecs")]
    assert ({stated.uploads for stated in STATED.values()}, adamw.reads, soap.reads, refresh) == ({0}, 1, 1, [2, 28])
    names = ("TokenCut, a batch", "live probe, a step", "cached probe, a step", "feature export, a batch")
    cut, live, cached, export = (STATED[name].reads for name in names)
    for text in (
        f"counts for {len(STATED)} code paths",
        f"{adamw.kernels:,} operations with AdamW, {soap.kernels:,} with SOAP",
        f"{device.kernels - soap.kernels} more if the device cuts them",
        f"A batch of TokenCut has {cut} reads, a step of live probes {live}",
        f"a step of cached probes {cached}, feature export {export}.",
    ):
        assert text in page
