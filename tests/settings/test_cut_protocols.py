"""Protocols of normalised cuts: what is written is read again."""

from __future__ import annotations

import pytest

from dinoskip.settings.cut_protocols import CutProtocol


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (CutProtocol("tokencut", 0.2, 1e-5), "tokencut tau=0.2 eps=1e-05"),
        (CutProtocol("tokencut", 0.0, 1e-5, centred=True), "tokencut tau=0 eps=1e-05, centred"),
        (CutProtocol("tokencut", 0.20000001, 1e-5), "tokencut tau=0.20000001 eps=1e-05"),
        (CutProtocol("maskcut", 0.15, 1e-5, 3, centred=True), "maskcut tau=0.15 eps=1e-05 rounds=3, centred"),
        (CutProtocol("tokencut", 0.2, 1e-5, positions="mean_kept"), "tokencut tau=0.2 eps=1e-05, positions mean_kept"),
        (
            CutProtocol("maskcut", 0.15, 1e-5, 3, centred=True, positions="rasa"),
            "maskcut tau=0.15 eps=1e-05 rounds=3, centred, positions rasa",
        ),
    ],
)
def test_what_is_written_is_read_again(cut: CutProtocol, text: str) -> None:
    assert str(cut) == text
    assert CutProtocol.parse(text) == cut
    assert CutProtocol.parse(f"{text}, bilateral solver") == cut


def test_protocols_of_other_methods_are_no_cuts() -> None:
    assert CutProtocol.parse("tokencut tau=0.2") == CutProtocol("tokencut", 0.2)
    for other in ("lost k=100, centred", "paper, 30 epochs", "", "tokencut"):
        assert CutProtocol.parse(other) is None
