"""What a rank's signs of life are taken to mean; real ranks are in tests/faults/test_rank_loss.py."""

from __future__ import annotations

import json
import math

from dinoskip.training.heartbeat import _Peer


def sign(beat: int, progress: int, action: str, patience: float = 0.0) -> str:
    state = {"host": "h", "pid": 1, "step": 7, "beat": beat, "left": None}
    return json.dumps(state | {"progress": progress, "action": action, "patience": patience})


def heard(*signs: str) -> _Peer:
    """A peer that gave these signs, an interval apart."""
    peer = _Peer(signs[0])
    for text in signs[1:]:
        peer.update(text)
    return peer


def test_a_rank_that_beats_and_does_not_go_on_is_overdue_after_the_bound() -> None:
    signs = [sign(beat, 1, "update") for beat in range(12)]
    assert not heard(*signs[:11]).overdue(10, 1)
    peer = heard(*signs)
    assert (peer.missed, peer.still) == (0, 11)
    assert peer.overdue(10, 1)
    assert not peer.overdue(10, 0.5), "times are in seconds"
    peer.update(sign(12, 2, "forward"))
    assert (peer.still, peer.overdue(10, 1)) == (0, False)


def test_silence_is_not_taken_for_progress() -> None:
    peer = heard(*[sign(0, 1, "update")] * 4)
    assert (peer.missed, peer.still) == (3, 3)


def test_an_action_may_take_the_patience_asked_for_it_and_twice_its_longest() -> None:
    assert not heard(*[sign(beat, 1, "saving", math.inf) for beat in range(1000)]).overdue(10, 1)
    assert not heard(*[sign(beat, 1, "images", 60) for beat in range(60)]).overdue(10, 1)
    assert heard(*[sign(beat, 1, "images", 60) for beat in range(62)]).overdue(10, 1)
    slow = [sign(beat, 1, "forward", math.inf) for beat in range(21)]  # the first one took 20 intervals
    after = [sign(21 + beat, 2, "forward") for beat in range(50)]
    assert not heard(*slow, *after[:41]).overdue(10, 1)
    assert heard(*slow, *after[:42]).overdue(10, 1)
    others = [sign(21 + beat, 2, "update") for beat in range(12)]
    assert heard(*slow, *others).overdue(10, 1), "of another action that says nothing"
