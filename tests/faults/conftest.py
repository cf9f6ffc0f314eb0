"""Data for the disturbed runs of pretraining."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny import make_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images")
