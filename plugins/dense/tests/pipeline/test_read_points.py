"""Several read points of a task: one export, a node and rows of each; in a skipless block the MLP is the output."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from dinoskip.cli import main
from dinoskip.models import Backbone, VitConfig, create_model, save_weights
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.results.rows import read_rows
from tests.helpers.study import PLAIN

TASKS = Path(__file__).parents[4] / "configs" / "tasks.yaml"
STORED = ("probe", "knn", "retrieve", "cluster", "tokencut", "saliency", "objects")
LIVE = ("linear", "depth", "normals", "video", "correspondence")


def nodes_of(stage: str, *overrides: str) -> tuple[list[Node], dict[str, Node]]:
    nodes = build_nodes(*load_study(TASKS, overrides))
    return [node for node in nodes if node.stage == stage], {node.id: node for node in nodes}


@pytest.mark.parametrize("stage", STORED)
def test_tasks_read_several_facets_of_one_export(stage: str) -> None:
    facets = ["mlp", "out", "hidden"]
    alone, _ = nodes_of(stage, f"evaluate.{stage}.facet=[mlp]")
    several, every = nodes_of(stage, f"evaluate.{stage}.facet=[{', '.join(facets)}]")
    assert len(several) == len(facets) * len(alone) > 0
    stores = defaultdict(list)
    for node in several:
        read = [name for name in node.inputs.values() if name.startswith("features/")]
        assert read
        stores[tuple(read)].append(node.plain["read"])
        for name in read:
            assert every[name].plain["facet"] == facets
            assert every[name].plain["norm"] == ["final", "final", "none"]
    assert all(read == facets for read in stores.values())
    assert all("read" not in node.plain for node in alone)


@pytest.mark.parametrize("stage", LIVE)
def test_tasks_that_keep_no_features_have_a_node_of_all_facets_of_one_width(stage: str) -> None:
    alone, _ = nodes_of(stage, f"evaluate.{stage}.facet=out")
    assert {node.plain.get("facet", "out") for node in alone} == {"out"}
    several, _ = nodes_of(stage, f"evaluate.{stage}.facet=[out, hidden, mlp]")
    assert len(several) == 2 * len(alone) > 0
    assert [node.plain["facet"] for node in several] == [["out", "mlp"], "hidden"] * len(alone)


STUDY = """
name: passes
output: {out}
data:
  scenes: {{kind: scenes, images: 24, size: 64}}
  videos: {{kind: scenes_video, videos: 2, frames: 3, size: 64}}
  pairs: {{kind: scenes_pairs, classes: 2, objects: 1, views: 2, size: 64}}
  rooms: {{kind: rooms, images: 10, size: 64}}
variants: {{model: [{{backbone: "weights:{weights}", label: net}}]}}
evaluate:
  probe: {{datasets: [scenes], size: 48, live: true, iterations: 4, facet: {facet}}}
  linear: {{datasets: [scenes], size: 48, epochs: 1, batch_size: 8, learning_rates: [0.1], facet: {facet}}}
  depth: {{datasets: [rooms], iterations: 3, batch_size: 2, crop: [40, 40], bins: 8, upsample: 1,
          learning_rates: [1e-2], maps: 1, facet: {facet}}}
  normals: {{datasets: [rooms], epochs: 1, upsample: 1, learning_rates: [5e-3], maps: 1, facet: {facet}}}
  video: {{datasets: [videos], short_side: 48, facet: {facet}}}
  correspondence: {{datasets: [pairs], size: 48, facet: {facet}}}
gallery: {{first: 1}}
"""


@pytest.mark.slow  # 18 tasks
def test_tasks_that_keep_no_features_read_all_facets_in_one_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "net.safetensors"
    model = create_model("vit_mini_patch8", depth=2, img_size=48)
    save_weights(weights, model.state_dict(), VitConfig(name="vit_mini_patch8", depth=2, img_size=48), {})
    plain, passes = Backbone.layers, [0]

    def counted(*args: Any, **more: Any) -> Any:
        passes[0] += 1
        return plain(*args, **more)

    monkeypatch.setattr(Backbone, "layers", counted)

    def run(facets: str) -> tuple[int, dict[tuple[str, ...], float]]:
        config = tmp_path / "study.yaml"
        config.write_text(STUDY.format(out=tmp_path / facets, weights=weights, facet=facets), encoding="utf-8")
        passes[0] = 0
        for stage in ("probe", *LIVE):
            assert main(["run", str(config), "--until", stage, "--workers", "1", "-q"]) == 0
        rows: dict[tuple[str, ...], float] = {}
        for path in (tmp_path / facets).rglob("rows.json"):
            for row in read_rows(path):
                if not row.is_baseline:
                    rows[row.task, row.facet, row.block, row.metric, row.note] = row.value
        return passes[0], rows

    (once, out), (mlps, mlp), (together, both) = run("out"), run("mlp"), run("[out, mlp, attn]")
    assert together == once == mlps > 6
    assert {key[0] for key in out} == {"probe", "linear", "depth", "normals", "video", "correspondence"}
    assert len(both) == 3 * len(out)
    for key, value in {**out, **mlp}.items():
        assert both[key] == pytest.approx(value, abs=1e-3), key


def test_windows_are_of_one_facet_and_several_are_one_pass_into_a_store() -> None:
    one, _ = nodes_of("tokencut", "evaluate.tokencut.facet=[mlp]", "evaluate.features=window")
    assert {node.plain["features store"]["facet"] for node in one} == {"mlp"}
    several, _ = nodes_of("tokencut", "evaluate.tokencut.facet=[key, query, mlp]", "evaluate.features=window")
    assert {node.plain["read"] for node in several} == {"key", "query", "mlp"}
    stores = [node.inputs["store"] for node in several]
    assert all(store.endswith("key+query+mlp-none+final-native") for store in stores)
    assert len(set(stores)) == len(stores) / 3


@pytest.mark.parametrize(
    ("task", "settings", "stores"),
    [
        pytest.param(
            "probe",
            ("evaluate.probe.size=64", "evaluate.probe.protocol=fast", "evaluate.probe.epochs=10"),
            2,
            marks=pytest.mark.slow,
        ),
        ("retrieve", ("evaluate.retrieve.size=64",), 2),
        pytest.param(
            "probe",
            ("evaluate.probe.size=64", "evaluate.probe.live=true", "evaluate.probe.iterations=20"),
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_mlp_of_a_skipless_block_scores_what_its_output_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, settings: tuple[str, ...], stores: int
) -> None:
    voc, out, weights = tmp_path / "voc", tmp_path / "out", tmp_path / "skipless.safetensors"
    assert main(["data", "scenes", str(voc), "images=12", "size=64", "val_fraction=0.5", "-q"]) == 0
    config = VitConfig(name="vit_mini_patch8", skip=False, depth=2, img_size=64)
    model = create_model(config.name, skip=False, depth=2, img_size=64)
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # large enough for tokens to differ behind two skipless blocks
        parameter.data.normal_(0, 0.1, generator=rng)
    save_weights(weights, model.state_dict(), config, {})
    command = ["eval", task, f"weights:{weights}", "--data", str(voc), "--out", str(out), *settings, *PLAIN]
    capsys.readouterr()
    assert main([*command, f"evaluate.{task}.facet=[out, mlp, attn]", "--json", "-q"]) == 0
    values: dict[str, list[Any]] = defaultdict(list)
    for row in json.loads(capsys.readouterr().out):
        if not row["model"].startswith("baseline"):
            values[row["facet"]].append((row["block"], row["metric"], row["note"], row["value"], row["heldout"]))
    assert values["out"] == values["mlp"]
    assert task == "retrieve" or values["out"] != values["attn"]
    assert len(values["out"]) == len(values["attn"]) > 0
    assert len(list((out / "stages").rglob("store"))) == stores


def test_look_and_its_gallery_name_the_read_point_and_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voc, out, weights = tmp_path / "voc", tmp_path / "out", tmp_path / "skip.safetensors"
    assert main(["data", "scenes", str(voc), "images=12", "size=64", "val_fraction=0.5", "-q"]) == 0
    model = create_model("vit_mini_patch8", depth=1, img_size=64)
    save_weights(weights, model.state_dict(), VitConfig(name="vit_mini_patch8", depth=1, img_size=64), {})
    command = [
        "look",
        f"weights:{weights}",
        "--data",
        str(voc),
        "--out",
        str(out),
        "-q",
        "evaluate.probe.size=64",
        *PLAIN,
    ]
    pages, pictures = [], []
    for facet in ("out", "mlp"):
        capsys.readouterr()
        assert main([*command, "evaluate.probe.epochs=2", f"evaluate.probe.facet={facet}"]) == 0
        assert f"by block, read at {facet}" in capsys.readouterr().out
        pages.append((out / "report" / "gallery" / "index.html").read_text(encoding="utf-8"))
        pictures.append(json.loads((out / "report" / "gallery" / "roughness.json").read_text()))
        assert f"probe of {facet}, norm final" in pages[-1]
        assert f"facet {facet}, norm final" in (out / "report" / "index.html").read_text(encoding="utf-8")
    assert pictures[0] != pictures[1], "the PCA is of what the probe reads"
