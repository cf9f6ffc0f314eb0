"""The meaning of a rank's signs of life; real ranks are in tests/faults/test_rank_loss.py."""

from __future__ import annotations

import json

from dinoskip.runtime.heartbeat import _Peer


def sign(beat: int, progress: int, action: str, patience: float = 0.0) -> str:
    state = {"host": "h", "pid": 1, "step": 7, "beat": beat, "interval": 1.0}
    return json.dumps(state | {"progress": progress, "action": action, "patience": patience})


def heard(*signs: str, interval: float = 1.0) -> _Peer:
    """A peer that gave these signs, an interval apart."""
    peer = _Peer(signs[0])
    for text in signs[1:]:
        peer.update(text, interval)
    return peer


def test_a_rank_that_beats_and_does_not_go_on_is_overdue_after_the_bound() -> None:
    signs = [sign(beat, 1, "update") for beat in range(12)]
    assert not heard(*signs[:11]).overdue(10)
    peer = heard(*signs)
    assert (peer.missed, peer.still) == (0, 11)
    assert peer.overdue(10)
    assert not heard(*signs, interval=0.5).overdue(10), "times are in seconds"
    peer.update(sign(12, 2, "forward"), 1.0)
    assert (peer.still, peer.overdue(10)) == (0, False)


def test_silence_is_not_taken_for_progress() -> None:
    peer = heard(*[sign(0, 1, "update")] * 4)
    assert (peer.missed, peer.still) == (3, 3)
    assert not peer.silent(3), "a rank is given some signs at its own pace"
    assert heard(*[sign(0, 1, "update")] * 9).silent(3)
    assert not heard(*[sign(0, 1, "update")] * 9).silent(10)


def test_an_action_may_take_the_patience_asked_for_it_and_twice_its_longest() -> None:
    assert not heard(*[sign(beat, 1, "images", 60) for beat in range(60)]).overdue(10)
    assert heard(*[sign(beat, 1, "images", 60) for beat in range(62)]).overdue(10)
    slow = [sign(beat, 1, "forward", 99.0) for beat in range(21)]  # the first one took 20 intervals
    after = [sign(21 + beat, 2, "forward") for beat in range(50)]
    assert not heard(*slow, *after[:41]).overdue(10)
    assert heard(*slow, *after[:42]).overdue(10)
    others = [sign(21 + beat, 2, "update") for beat in range(12)]
    assert heard(*slow, *others).overdue(10), "of another action that says nothing"
