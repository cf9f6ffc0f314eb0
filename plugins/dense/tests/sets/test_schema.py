"""The border of NYU's kinds: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plugins.dense.tests.label_sets import normals, nyu, nyu_list, read_everything, save_normals, spoilt
from tests.helpers.label_borders import Case, a_violation_is_one_line
from tests.helpers.label_sets import HEIGHT, WIDTH

CASES: dict[str, Case] = {
    "nyu image": (nyu, nyu_list("../outside.png in/d.png 518\n"), "points outside"),
    "nyu depth": (nyu, nyu_list("in/a.png /in/../../outside_depth.png 518\n"), "points outside"),
    "nyu twice": (nyu, nyu_list("in/a.png in/d.png 518\n" * 2), "'in/a.png' is listed twice"),
    "normals nan": (normals, save_normals(normals=spoilt((HEIGHT, WIDTH, 3), np.nan)), "normals are not finite"),
    "normals depth": (normals, save_normals(depth=spoilt((HEIGHT, WIDTH), np.nan)), "depths are not finite"),
    "normals float image": (normals, save_normals(image=spoilt((HEIGHT, WIDTH, 3), np.nan)), "uint8"),
    "normals wide image": (normals, save_normals(image=np.full((HEIGHT, WIDTH, 3), 1000)), "uint8"),
    "normals grey": (normals, save_normals(image=np.zeros((HEIGHT, WIDTH), np.uint8)), "uint8"),
    "normals text": (normals, save_normals(normals=np.full((HEIGHT, WIDTH, 3), "a")), "normals are not numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_one_line(tmp_path: Path, case: str) -> None:
    a_violation_is_one_line(tmp_path, CASES[case], read_everything)
