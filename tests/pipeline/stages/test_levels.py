"""Tasks and gallery on networks whose levels have grids of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows

STUDY = """
name: levels
output: {out}
data:
  scenes: {{kind: scenes, images: 30, size: 64}}
  videos: {{kind: scenes_video, videos: 2, frames: 4, size: 64}}
  pairs: {{kind: scenes_pairs, classes: 2, objects: 1, views: 3, size: 64}}
  rooms: {{kind: rooms, images: 20, size: 64}}
variants:
  model:
    - {{label: resnet, backbone: "timm:resnet18,pretrained=false"}}
    - {{label: swin, backbone: "timm:swin_tiny_patch4_window7_224,pretrained=false,embed_dim=24"}}
evaluate:
  blocks: [2, 3, 4]
{tasks}
gallery: {{dataset: scenes, first: 2, size: 64}}
"""
FAST = {
    "probe": "{datasets: [scenes], size: 64, protocol: fast, epochs: 2}",
    "tokencut": "{datasets: [scenes], split: val}",
    "knn": "{datasets: [scenes], size: 64}",
    "correspondence": "{datasets: [pairs], size: 64}",
}
OTHERS = {
    "retrieve": "{datasets: [scenes], size: 64, memory: 512}",
    "cluster": "{datasets: [scenes], size: 64}",
    "saliency": "{datasets: [scenes], split: val}",
    "objects": "{datasets: [scenes], split: val, size: 64}",
    "linear": "{datasets: [scenes], size: 64, epochs: 2, batch_size: 20, learning_rates: [0.1]}",
    "depth": "{datasets: [rooms], iterations: 10, batch_size: 4, crop: [56, 56], bins: 16, upsample: 1,"
    " learning_rates: [1e-2]}",
    "normals": "{datasets: [rooms], epochs: 1, upsample: 1, learning_rates: [5e-3]}",
    "video": "{datasets: [videos], short_side: 64}",
    "detection": "{datasets: [scenes], short_side: 64, long_side: 64, epochs: 0.2, batch_size: 2, channels: 8,"
    " trained: each}",
}


@pytest.mark.parametrize("tasks", [FAST, pytest.param(FAST | OTHERS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_tasks_and_gallery_on_a_cnn_and_a_swin(tmp_path: Path, tasks: dict[str, str]) -> None:
    sections = "\n".join(f"  {name}: {text}" for name, text in tasks.items())
    (tmp_path / "study.yaml").write_text(STUDY.format(out=tmp_path / "runs", tasks=sections))
    assert main(["run", str(tmp_path / "study.yaml"), "--device", "cpu"]) == 0
    study = tmp_path / "runs" / "levels"
    for task in tasks:
        for place, finest in (("resnet", 4), ("swin", 8)):  # of level 2
            (folder,) = [path.parent for path in (study / "stages" / task / place).glob("*/*/*/rows.json")]
            rows = read_rows(folder / "rows.json")
            of_network = [row for row in rows if not row.is_baseline]
            singles = {row.block for row in of_network if row.block.isdigit()}
            assert singles == {"2", "3", "4"}, (task, place)
            strides = {row.block: row.resolution.rpartition(", ")[2] for row in of_network}
            assert {block: strides[block] for block in singles} == {
                str(block): f"{finest * 2 ** (block - 2)} px a cell" for block in (2, 3, 4)
            }
            rules = [(row.model, row.metric) for row in rows if row.is_baseline]
            assert len(set(rules)) == len(rules)
            records = read_records(folder)
            assert records or task in {"cluster", "detection"}
            assert all(row in rows for row in records)
    assert (study / "index.html").is_file()
    (gallery,) = (study / "stages" / "gallery").rglob("index.html")
    page = gallery.read_text()
    for column in (", 4 px a cell", ", 16 px a cell", ", 32 px a cell"):
        assert column in page
