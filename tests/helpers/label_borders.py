"""The border of a labelled kind: what one violation in a valid set must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip.data.sets.check import check
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import DataError

Maker = Callable[[Path], AnyDataset]
Case = tuple[Maker, Callable[[Path], object], str]
"""Writes a valid set, spoils it, and a part of the message."""
Read = Callable[[Any], list[Any]]


def what_is_broken_is_left_out(
    folder: Path, make: Maker, spoil: Callable[[Path], object], left_out: int, *, split: str, read: Read
) -> None:
    """Refused as it is; with ``skip_broken`` what is whole is read and the rest counted."""
    config: Any = make(folder)
    whole = opened(config, split)
    spoil(folder)
    with pytest.raises(DataError):
        read(config)
    label = next(one for one in LABELS.values() if one.given_by(config))
    part = opened(config.model_copy(update={"skip_broken": True}), split)
    assert (part.left_out, len(label.items(part))) == (left_out, len(label.items(whole)) - left_out)
    assert whole.left_out == 0


def opened(config: Any, split: str) -> Any:
    """The labels of a split, of the first label that the kind gives."""
    return open_labels(next(one for one in LABELS.values() if one.given_by(config)), config, split)


def a_violation_is_one_line(folder: Path, case: Case, read: Read) -> None:
    """When it is read and by ``data check``: one line that names the file and the remedy."""
    make, spoil, text = case
    root = folder / "set"
    root.mkdir()
    config: Any = make(root)
    read(config)  # valid so far
    spoil(root)
    with pytest.raises(DataError, match=text) as caught:
        read(config)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert any(text in fault for row in check(config) for fault in row.faults), "data check"
