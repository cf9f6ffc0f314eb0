from __future__ import annotations

import pytest
from PIL import Image


def png_size(figure):
    """The PNG's width and height, after a look at both files for papers."""
    assert figure.pdf.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in figure.pdf.read_bytes()
    with Image.open(figure.png) as picture:
        picture.load()
        assert picture.mode == "P"
        assert picture.info["dpi"] == pytest.approx((150, 150), rel=1e-3)
        return picture.size
