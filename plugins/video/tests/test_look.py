"""``dinoskip look`` sees the plug-in's labels in a folder, and measures what they are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.looked import labels_and_stages


@pytest.mark.parametrize(
    ("kind", "sizes", "label", "splits"),
    [
        ("scenes_video", {"videos": 2, "frames": 3, "size": 64}, "video", ("val",)),
        ("scenes_pairs", {"classes": 1, "objects": 2, "views": 2, "size": 64}, "correspondence", ("test",)),
    ],
)
def test_every_kind_of_label_is_seen_and_measured(
    kind: str, sizes: dict[str, int], label: str, splits: tuple[str, ...], tmp_path: Path
) -> None:
    found, stages = labels_and_stages(kind, sizes, tmp_path)
    assert found == {label: splits}
    assert label in stages
