"""A read point of a block has one text, which is parsed to the same read point."""

from __future__ import annotations

import pytest

from dinoskip.settings.read_points import FACETS, ReadAt, blocks_at


@pytest.mark.parametrize("facet", FACETS)
@pytest.mark.parametrize("of", ["none", "final", "layer", "patches", "cls", "mean", ""])
def test_text_is_read_back(facet: str, of: str) -> None:
    assert ReadAt.parse(str(ReadAt(of, facet))) == ReadAt(of, facet)


def test_text_is_that_of_keys_and_weights_files() -> None:
    assert [str(ReadAt("final")), str(ReadAt("patches", "mlp"))] == ["final", "mlp patches"]
    assert [blocks_at("out", "out", "3+6"), blocks_at("mlp", "out", "3")] == ["3+6", "mlp 3"]
