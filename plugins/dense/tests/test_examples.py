"""The Python examples of docs/heads.md are run."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from dinoskip.data.sets import open_labels
from dinoskip_dense.labels import NORMALS
from dinoskip_dense.sets.nyu import NyuNormalsConfig

PAGE = Path(__file__).parents[3] / "docs" / "heads.md"


def test_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()
    rng = np.random.default_rng(0)
    arrays = {"images": rng.integers(0, 256, (2, 3, 12, 16), np.uint8), "snorms": rng.normal(size=(2, 3, 12, 16))}
    content = {**arrays, "depths": np.ones((2, 12, 16)), "test_indices": [1]}
    (tmp_path / "nyuv2_snorm_all.pkl").write_bytes(pickle.dumps(content))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {})
    opened = open_labels(NORMALS, NyuNormalsConfig(root=str(tmp_path)), "test")
    assert opened.ids == ("0001",)
    np.testing.assert_array_equal(opened.read(0).image, arrays["images"][1].transpose(1, 2, 0))
