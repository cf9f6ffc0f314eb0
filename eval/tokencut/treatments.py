"""The setting ``positions`` of whatever cuts images: how position is taken out of the features before."""

from __future__ import annotations

from typing import Literal

Positions = Literal["keep", "mean", "mean_kept", "rasa", "insid3"]
POSITIONS = (
    "take position out of the features first: the mean of every position over the set's images of its grid, without or "
    "with the mean of all of them (mean, mean_kept), or as two papers do (rasa, insid3; docs/tokencut.md)"
)
