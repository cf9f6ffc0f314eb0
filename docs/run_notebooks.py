"""Run the notebooks of docs/notebooks and write their outputs into them: ``python docs/run_notebooks.py``.

Outputs are committed, as text and small pictures, so that the pages show them; a test runs the notebooks and compares
nothing, since a network's last digits differ between machines.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs and no times; raises :class:`nbclient.exceptions.CellExecutionError`."""
    notebook = nbformat.read(path, as_version=4)
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    client = NotebookClient(notebook, timeout=300, record_timing=False)
    client.execute(env=quiet)
    for cell in notebook.cells:
        cell.metadata.clear()
    return notebook


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(run(path), path)
