"""Of which network and images rows are, from what the outputs of a study record."""

from __future__ import annotations

from pathlib import Path

from dinoskip.io.files import read_json, read_manifest, sha256_file, write_manifest
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.report.sources import sources_of
from dinoskip.pipeline.stages.external import backbone_hash
from dinoskip.pipeline.stages.settings import FeatureSettings
from dinoskip.results.rows import EvalResult, read_rows, write_rows

ROW = EvalResult("mIoU", 1.0, "probe", "1", "voc", "val", 3, model="dino")
EXTERNAL = {"voc: images of val": "ab" * 32, "voc: targets of val": "cd" * 32}


def published(folder: Path, external: dict[str, str], **more: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "x").write_text("x")
    write_manifest(folder, {"record": {"settings": {"dataset": {"kind": "voc"}}, "external": external}, **more})
    return folder


def test_rows_say_network_and_images(tmp_path: Path) -> None:
    settings = FeatureSettings("segmentation", "val", ["out"], ["none"], {}, "all", backbone="timm:vit")
    nodes = [Node("features/dino/voc", "features", settings, variant="dino"), Node("data/scenes", "data", {})]
    outputs = {
        "features/dino/voc": published(tmp_path / "a", EXTERNAL, made={"date": "2026-11-27T09:30:00Z"}),
        "data/scenes": published(tmp_path / "b", {}),
    }
    sources = sources_of(nodes, outputs)
    row = sources.of_row(ROW, "features/dino/voc")
    assert (row.network, row.images, row.date) == ("timm:vit", f"voc {'ab' * 8}", "2026-11-27")
    assert sources.of_row(ROW, "data/scenes").date == "", "its manifest has none"
    assert row == ROW, "what is added is no part of what makes rows equal"
    baseline = sources.of_row(ROW.baseline("majority class", 1.0), "features/dino/voc")
    assert (baseline.network, baseline.images) == ("", row.images)
    other = sources.of_row(EvalResult("mIoU", 1.0, "probe", "1", "scenes", "val", 3, model="mine"), "features/dino/voc")
    assert (other.network, other.images) == ("", read_manifest(tmp_path / "b").hash[:16])
    write_rows(tmp_path / "rows.json", [row, ROW])
    back = [(one.network, one.images) for one in read_rows(tmp_path / "rows.json")]
    assert back == [(row.network, row.images), ("", "")]
    assert "network" not in read_json(tmp_path / "rows.json")[1]


def test_rows_say_the_file_of_a_network_while_it_is_the_one_that_was_read(tmp_path: Path) -> None:
    file = tmp_path / "dino.pth"
    file.write_bytes(b"weights")
    settings = FeatureSettings("segmentation", "val", ["out"], ["none"], {}, "all", backbone=f"dino:{file}")
    node = Node("features/dino/voc", "features", settings, variant="dino")
    out = published(tmp_path / "a", {**EXTERNAL, "backbone": backbone_hash(f"dino:{file}")})
    row = sources_of([node], {node.id: out}).of_row(ROW, "features/dino/voc")
    assert row.network_file == f"dino.pth {sha256_file(file)[:16]}"
    baseline = ROW.baseline("majority class", 1.0)
    assert sources_of([node], {node.id: out}).of_row(baseline, node.id).network_file == ""
    file.write_bytes(b"other weights")
    assert sources_of([node], {node.id: out}).of_row(ROW, "features/dino/voc").network_file == ""


def test_rows_of_before_get_what_was_accepted_from_manifests(tmp_path: Path) -> None:
    lines = ["void-share:voc: 40 % of the pixels are 255", "one-class:other: every pixel is of one class"]
    out = published(tmp_path / "a", EXTERNAL, accepted=lines)
    sources = sources_of([Node("probe/dino/voc", "probe", {}, variant="dino")], {"probe/dino/voc": out})
    assert sources.of_row(ROW, "features/dino/voc").accepted == "void-share"
    assert sources.of_row(EvalResult("mIoU", 1.0, "probe", "1", "third", "val", 3), "features/dino/voc").accepted == ""
