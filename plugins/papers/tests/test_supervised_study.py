"""A supervised study beside published tables, with what other papers measure of its networks (plug-in diagnostics)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.study import load_study
from tests.helpers.labelled import make_classes
from tests.helpers.study import ANALYZE, SUPERVISED, SVG

MORE = """analyze:
  {model: vit_tiny_patch16, depth: 1, img_size: 32, photos: 1, spectrum: 1, spectrum_tokens: 4,
   quantise: {dataset: shapes, size: 32, k: [1], precisions: [W8A12, A4]}}
report: {compare: [paper.table1, conditioned.table2], figure_formats: []}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_classes(folder / "data" / "train", 4)
    make_classes(folder / "data" / "val", 2, seed=1)
    config = folder / "labelled.yaml"
    config.write_text(
        SUPERVISED.replace("DATA", str(folder / "data")).replace(ANALYZE + SVG, MORE) + f"output: {folder / 'runs'}\n"
    )
    assert main(["run", str(config), "-q"]) == 0
    return config


def test_the_page_has_the_published_tables(done: Path) -> None:
    root = done.parent / "runs" / "labelled" / "report"
    html = (root / "index.html").read_text()
    assert "Table 1: validation accuracy of ViT-Base on ImageNet-1k" in html
    assert "It evaluates none of ImageNet." in html, "three classes are not"
    page = (root / "report.md").read_text().replace("\\", "")
    assert "| variant |  | pets | flowers | cifar10 | cifar100 |" in page
    assert "| default | ours | not run | not run | not run | not run |\n|  | paper | 26.7 |" in page


def test_what_other_papers_measure(done: Path) -> None:
    """Rounded networks, a whole spectrum, ln κ around attention, epochs to an accuracy."""
    root = done.parent / "runs" / "labelled"
    (path,) = (root / "stages" / "analyze").glob("*/analysis.json")
    found = json.loads(path.read_text())
    for name in ("skip-adamw ep1", "skipless-adamw ep1"):
        values = found["spectrum"][name]
        assert len(values) == 4 * 192
        assert values == sorted(values, reverse=True)
        scores = [row["quantised"] for row in found["quantised"] if row["name"] == name]
        assert scores == ["as it is", "W8A12", "W32A4"]
    page = (root / "report" / "report.md").read_text().replace("\\", "")
    for text in ("## Epochs to an accuracy", "## Condition of the tokens, ln κ", "## Rounded weights and activations"):
        assert text in page
    assert (root / "report" / "img" / "spectrum.svg").is_file()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("analyze.spectrum=2", "analyze.spectrum: 2 is beyond the 1 blocks"),
        ("analyze.quantise={dataset: other, size: 32}", "analyze.quantise.dataset: 'other' is not one"),
        ("analyze.quantise={dataset: shapes, size: 32, precisions: [W1]}", "'W1' is not a precision"),
        ("analyze.model=vit_smal_patch16", "did you mean vit_small_patch16?"),
    ],
)
def test_what_cannot_be_measured_is_refused(done: Path, override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_study(done, [override])
