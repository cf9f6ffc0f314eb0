"""The plug-in's constants are the published ones."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from tests.helpers.published import check_in_code

IN_CODE = {
    "dinoskip_objectives.masks:LOG_ASPECT": log(1 / 0.3),  # iBOT's loader.py: pred_aspect_ratio (0.3, 1 / 0.3)
    "dinoskip_objectives.masks:TRIES": 10,
}


@pytest.mark.parametrize(("place", "published"), IN_CODE.items())
def test_constants_in_code(place: str, published: Any) -> None:
    check_in_code(place, published)
