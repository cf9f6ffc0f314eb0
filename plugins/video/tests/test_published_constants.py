"""The plug-in's constants are the published ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.published import check_in_code

IN_CODE = {
    "dinoskip_video.video.scores:_TOLERANCE": 0.008,  # DAVIS 2017's bound_th
    "dinoskip_video.video.frames:_AS_CODED": (
        (0.485, 0.456, 0.406),
        (0.228, 0.224, 0.225),
    ),  # eval_video_segmentation.py
}


@pytest.mark.parametrize(("place", "published"), IN_CODE.items())
def test_constants_in_code(place: str, published: Any) -> None:
    check_in_code(place, published)
