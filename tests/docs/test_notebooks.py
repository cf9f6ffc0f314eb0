"""The notebooks run from their first cell to their last, without a network; their committed outputs are small."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow  # each starts a kernel, which imports torch
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import run_notebooks

    cells = [cell for cell in run_notebooks.run(path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(output.get("name") == "stderr" for cell in cells for output in cell.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed(path: Path) -> None:
    assert path.stat().st_size < 60_000
    text = path.read_text()
    assert len(NOTEBOOKS) == 3
    assert str(ROOT) not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] == place for place, cell in enumerate(cells, 1)), "not run from first to last"
    assert not any(output.get("name") == "stderr" for cell in cells for output in cell["outputs"])
    assert any(cell["outputs"] for cell in cells)
