from __future__ import annotations

import math
import os
import signal
import threading
import time

import pytest

from dinoskip.errors import ConfigError
from dinoskip.training import guard
from dinoskip.training.guard import INTERRUPT, PREEMPT, CollapseAlarm, StopNow, StopSignals
from dinoskip.training.run_directory import compare_configs


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(signal.SIGTERM, PREEMPT), (signal.SIGUSR2, PREEMPT), (signal.SIGINT, INTERRUPT)],
)
def test_a_signal_sets_a_flag_and_handlers_come_back(number: int, meaning: int) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.requested == 0
        os.kill(os.getpid(), number)
        assert signals.requested == meaning
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_raises_at_once(first: int, second: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        os.kill(os.getpid(), first)
        assert signals.requested
        with pytest.raises(StopNow) as caught:
            os.kill(os.getpid(), second)
        assert caught.value.request == (INTERRUPT if second == signal.SIGINT else PREEMPT)
    assert signal.getsignal(signal.SIGINT) is before


def test_of_several_ranks_one_request_may_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(guard, "REPEATED", 0.3)
    with StopSignals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested == PREEMPT
        time.sleep(0.35)
        with pytest.raises(StopNow):
            os.kill(os.getpid(), signal.SIGTERM)


def test_outside_the_main_thread_nothing_is_installed() -> None:
    found = []

    def look() -> None:
        with StopSignals():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize(
    ("loss", "entropy", "word"),
    [(math.log(100), 2.0, "loss stays"), (3.0, 0.01, "one prototype"), (3.0, math.log(100), "all prototypes equal")],
)
def test_collapse_needs_patience_and_ends_with_one_good_row(loss: float, entropy: float, word: str) -> None:
    alarm = CollapseAlarm(100, patience=3)
    assert [alarm.update({"loss": loss, "teacher_entropy": entropy}) for _ in range(2)] == [None, None]
    assert word in (alarm.update({"loss": loss, "teacher_entropy": entropy}) or "")
    assert alarm.update({"loss": 3.0, "teacher_entropy": 2.0}) is None
    assert alarm.update({"loss": loss, "teacher_entropy": entropy}) is None


def test_configurations_are_compared_key_by_key() -> None:
    old = {"seed": 1, "pretrain": {"log_every": 1, "crops": {"num_local": 2}, "keep_epochs": [1]}, "gone": 3}
    new = {"seed": 1, "pretrain": {"log_every": 5, "crops": {"num_local": 3}, "keep_epochs": [1]}, "new": None}
    assert tuple([str(change) for change in changes] for changes in compare_configs(old, new)) == (
        ["gone: 3 → absent", "new: absent → None", "pretrain.crops.num_local: 2 → 3"],
        ["pretrain.log_every: 1 → 5"],
    )
    assert compare_configs(old, old) == ([], [])


def test_allowed_keys_are_settings_or_sections_of_them() -> None:
    old, new = {"seed": 1, "optimizer": {"lr": 1, "eps": 2}}, {"seed": 2, "optimizer": {"lr": 3, "eps": 4}}
    refused, allowed = compare_configs(old, new, ["optimizer"])
    assert [change.key for change in refused] == ["seed"]
    assert [change.key for change in allowed] == ["optimizer.eps", "optimizer.lr"]
    assert [change.key for change in compare_configs(old, new, ["optimizer.lr", "seed"])[0]] == ["optimizer.eps"]
    with pytest.raises(ConfigError, match=r"allow-change optimizer.lrr: there is no such setting .did you mean"):
        compare_configs(old, new, ["optimizer.lrr"])
    with pytest.raises(ConfigError, match="allow-change opt: "):
        compare_configs(old, new, ["opt"])
