"""Videos and pairs in a study: its rows, its gallery, and what each change would run again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from dinoskip.results.rows import read_rows
from tests.helpers.study import ANALYZE, SVG

STUDY = """
name: tiny
output: OUT
data:
  scenes: {kind: scenes, images: 6, size: 64, val_fraction: 0.5}
  videos: {kind: scenes_video, videos: 2, frames: 4, size: 48}
  pairs: {kind: scenes_pairs, classes: 2, objects: 1, views: 2, size: 64}
variants:
  model:
    - {label: one, backbone: "timm:vit_tiny_patch16_224,pretrained=false,img_size=32,depth=2"}
    - {label: two, backbone: "timm:vit_tiny_patch16_224,pretrained=false,img_size=32,depth=2,seed=1"}
evaluate:
  multiscale: [1, 2]
  video: {datasets: [videos], short_side: 48, memory: 2}
  correspondence: {datasets: [pairs], size: 48, alphas: [0.1]}
gallery: {dataset: scenes, first: 3, size: 64, sheet_formats: []}
"""
STUDY += ANALYZE + SVG
MEASURED = {"video": 2, "correspondence": 4}
"""Tasks, and over how many videos or pairs each row is."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    config = folder / "tiny.yaml"
    config.write_text(STUDY.replace("OUT", str(folder / "runs")))
    assert main(["run", str(config), "-q"]) == 0
    return config


def test_rows_say_what_was_measured(done: Path) -> None:
    rows = [row for path in (done.parent / "runs/tiny/stages").rglob("rows.json") for row in read_rows(path)]
    floor, rows = ([row for row in rows if row.is_baseline is which] for which in (True, False))
    assert {row.task for row in rows} == {row.task for row in floor} == set(MEASURED)
    assert len(set(floor)) == 3 + 2  # first mask, same place: of both networks
    assert {row.model for row in rows} == {"one", "two"}
    assert all(row.n == MEASURED[row.task] for row in rows)


def test_the_gallery_shows_strips_and_pairs_in_their_own_layers(done: Path) -> None:
    (gallery,) = (done.parent / "runs" / "tiny" / "stages" / "gallery").glob("*")
    text = (gallery / "index.html").read_text()
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert [image["layer"] for image in data["images"]] == [""] * 3 + ["video"] * 2 + ["correspondence"] * 4
    assert {"video", "correspondence"} <= {one["key"] for one in data["layers"]}
    for row, image in enumerate(data["images"]):
        for column in range(2):
            layers = data["cells"][column][row]["layers"]
            assert not image["layer"] or list(layers) == [image["layer"]]
            if image["layer"]:
                assert layers[image["layer"]]["blocks"] == [1, 2]
                assert (gallery / "img" / f"{image['layer']}-m{column}-i{row:03d}.png").is_file()


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("evaluate.norm=none", {"video", "gallery", "report"}),
        ("evaluate.multiscale=[2, 1]", {"video", "correspondence", "gallery", "report"}),
        ("evaluate.video.radius=3", {"video", "gallery", "report"}),
        ("evaluate.correspondence.protocol=lift", {"correspondence", "gallery", "report"}),
        ("evaluate.correspondence.facet=[key, out]", {"correspondence", "gallery", "report"}),  # one pass over both
        ("data.videos.seed=1", {"data", "video", "gallery", "report"}),
    ],
)
def test_what_a_change_runs_again(done: Path, override: str, stages: set[str]) -> None:
    study, variants = load_study(done, [override])
    steps = Runner(study.directory, build_nodes(study, variants), STAGES).plan()
    assert {step.node.stage for step in steps if step.state != "cached"} == stages
