"""The table of docs/concepts/read_points.md: last blocks after training, means over seeds, of each read point."""

from __future__ import annotations

from pathlib import Path

from dinoskip.results.rows import EvalResult
from studies.read_points import PICTURE, draw, table


def row(network: str, seed: int, facet: str, block: str, value: float, **more: object) -> EvalResult:
    task = str(more.pop("task", "probe"))
    return EvalResult(
        "mIoU", value, task, block, "scenes", "val", 9, model=f"{network}-soap-s{seed}", facet=facet,
        **{"epoch": 3, **more},
    )  # fmt: skip


def rows() -> list[EvalResult]:
    listed = [row("skip", seed, "out", "1", 10.0 + 2 * seed) for seed in (0, 1)]
    listed += [row("skip", seed, "out", "10", 30.0 + 2 * seed) for seed in (0, 1)]
    listed += [row("skip", 0, "out", "10", 99.0, epoch=0), row("skip", 0, "out", "10", 98.0, note="best on validation")]
    listed += [row("skip", 0, "out", "1+10", 97.0), row("skip", 0, "mlp", "2", 50.0, task="retrieve")]
    return listed


def test_the_table_is_of_the_last_block_after_training() -> None:
    assert table(rows())[2:] == [
        "| skip, `out` | 31.0 ± 1.4 |  |",
        "| skip, `mlp` |  | 50.0 |",
        "",
    ]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    assert draw(rows(), tmp_path).endswith(f"({PICTURE}.svg)")
    drawn = (tmp_path / f"{PICTURE}.svg").read_text(encoding="utf-8")
    assert "<svg" in drawn
