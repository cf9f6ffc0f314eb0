"""Tasks and gallery on networks whose levels have grids of their own."""

from __future__ import annotations

from pathlib import Path

from dinoskip.cli import main
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows

STUDY = """
name: levels
output: {out}
data:
  scenes: {{kind: scenes, images: 30, size: 64}}
variants:
  model:
    - {{label: resnet, backbone: "timm:resnet18,pretrained=false"}}
    - {{label: swin, backbone: "timm:swin_tiny_patch4_window7_224,pretrained=false,embed_dim=24"}}
evaluate:
  blocks: [2, 3, 4]
{tasks}
analyze: {{enabled: false}}
report: {{figure_formats: []}}
gallery: {{dataset: scenes, first: 2, size: 64, sheet_formats: []}}
"""
FAST = {
    "probe": "{datasets: [scenes], size: 64, protocol: fast, epochs: 2}",
    "tokencut": "{datasets: [scenes], split: val}",
    "knn": "{datasets: [scenes], size: 64}",
    "retrieve": "{datasets: [scenes], size: 64, memory: 512}",
}


def tasks_and_gallery_on_a_cnn_and_a_swin(folder: Path, tasks: dict[str, str], data: str = "") -> None:
    """Run these tasks, with more lines of ``data``; rows and pages say the level's stride."""
    sections = "\n".join(f"  {name}: {text}" for name, text in tasks.items())
    (folder / "study.yaml").write_text(
        STUDY.format(out=folder / "runs", tasks=sections).replace("data:\n", f"data:\n{data}")
    )
    assert main(["run", str(folder / "study.yaml"), "--device", "cpu"]) == 0
    study = folder / "runs" / "levels"
    for task in tasks:
        for place, finest in (("resnet", 4), ("swin", 8)):  # of level 2
            (output,) = [path.parent for path in (study / "stages" / task / place).glob("*/*/*/rows.json")]
            rows = read_rows(output / "rows.json")
            of_network = [row for row in rows if not row.is_baseline]
            singles = {row.block for row in of_network if row.block.isdigit()}
            assert singles == {"2", "3", "4"}, (task, place)
            strides = {row.block: row.resolution.rpartition(", ")[2] for row in of_network}
            assert {block: strides[block] for block in singles} == {
                str(block): f"{finest * 2 ** (block - 2)} px a cell" for block in (2, 3, 4)
            }
            rules = [(row.model, row.metric) for row in rows if row.is_baseline]
            assert len(set(rules)) == len(rules)
            records = read_records(output)
            assert records or task in {"cluster", "detection"}
            assert all(row in rows for row in records)
    assert (study / "index.html").is_file()
    (gallery,) = (study / "stages" / "gallery").rglob("index.html")
    page = gallery.read_text()
    for column in (", 4 px a cell", ", 16 px a cell", ", 32 px a cell"):
        assert column in page


def test_tasks_and_gallery(tmp_path: Path) -> None:
    tasks_and_gallery_on_a_cnn_and_a_swin(tmp_path, FAST)
