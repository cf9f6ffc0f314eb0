"""What a finished study shows at the top of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.errors import DataError
from dinoskip.files import write_manifest, write_text
from dinoskip.pipeline.results_folder import publish_results


def test_a_damaged_page_is_not_shown(tmp_path: Path) -> None:
    page = tmp_path / "stages" / "report" / "key"
    write_text(page / "index.html", "mIoU 40.0")
    write_manifest(page)
    publish_results(tmp_path, [], {"report": page})
    (page / "index.html").write_text("mIoU 60.0")
    with pytest.raises(DataError, match=r"damaged output: .*index\.html: content differs"):
        publish_results(tmp_path, [], {"report": page})
    assert (tmp_path / "report" / "index.html").read_text() == "mIoU 40.0"
