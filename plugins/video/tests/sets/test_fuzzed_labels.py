"""Label files of videos and pairs with one thing wrong: a score as before, or one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.video.tests.label_sets import davis, pf_pascal, read_everything, spair
from tests.fuzz.test_labels import attack_labels

MAKERS = {"davis": davis, "spair": spair, "pf_pascal": pf_pascal}
read = read_everything


@pytest.mark.parametrize("kind", MAKERS)
def test_labels(tmp_path: Path, kind: str) -> None:
    attack_labels(MAKERS[kind], tmp_path, 60, read=read)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", MAKERS)
def test_labels_many(tmp_path: Path, kind: str) -> None:
    print(kind, attack_labels(MAKERS[kind], tmp_path, 10_500, read=read))
