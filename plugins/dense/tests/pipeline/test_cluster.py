"""Tests of the inputs of ``cluster``, ``saliency`` and ``objects``, and of their commands on the embedded scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.errors import ConfigError
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.commands import dinoskip
from tests.helpers.study import PLAIN, TINY

ASKED = (
    "evaluate.features=keep",
    "evaluate.cluster.datasets=[scenes]",
    "evaluate.cluster.size=64",
    "evaluate.saliency.datasets=[scenes]",
    "evaluate.saliency.split=val",
    "evaluate.objects.datasets=[scenes]",
    "evaluate.objects.size=64",
)


def nodes_of(tmp_path: Path, *overrides: str) -> dict[str, Node]:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return {node.id: node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", overrides))}


def stores(nodes: dict[str, Node], stage: str) -> dict[str, dict[str, Any]]:
    """Settings of the features that the first node of a stage reads, by role."""
    node = next(node for node in nodes.values() if node.stage == stage)
    return {role: nodes[name].plain for role, name in node.inputs.items() if name.startswith("features/")}


def test_each_is_of_features_sized_as_its_reference_has_them(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, *ASKED)
    (saliency,), (objects,) = (stores(nodes, stage).values() for stage in ("saliency", "objects"))
    assert (saliency["facet"], saliency["norm"], saliency["transform"]) == (
        "key", "none", {"mode": "rounded", "resample": "lanczos"}
    )  # fmt: skip
    assert (objects["facet"], objects["transform"]) == ("key", {"mode": "square", "size": 64, "resample": "lanczos"})
    cluster = stores(nodes, "cluster")
    square = {"mode": "square", "size": 64}
    assert {role: one["transform"] for role, one in cluster.items()} == {"train": square, "val": square}
    stego = stores(nodes_of(tmp_path, *ASKED, "evaluate.cluster.protocol=stego"), "cluster")
    assert stego["train"]["transform"] == {"mode": "short_crop", "resample": "nearest", "size": 224}
    assert stego["val"]["transform"] == {"mode": "short_crop", "resample": "nearest", "size": 64, "flip": True}
    leopart = stores(nodes_of(tmp_path, *ASKED, "evaluate.cluster.protocol=leopart"), "cluster")
    assert {role: one["dataset"]["split"] for role, one in leopart.items()} == {"val": "val"}


def test_positions_are_in_a_key_only_if_they_are_taken_out(tmp_path: Path) -> None:
    """And ``insid3`` alone has the network among its inputs, for its features of a flat image."""
    plain, freed, flat = (
        {
            stage: next(node for node in nodes_of(tmp_path, *ASKED, *said).values() if node.stage == stage)
            for stage in ("saliency", "objects")
        }
        for said in (
            (),
            ("evaluate.saliency.positions=mean", "evaluate.objects.positions=rasa"),
            ("evaluate.saliency.positions=insid3", "evaluate.objects.positions=insid3"),
        )
    )
    for stage, way in (("saliency", "mean"), ("objects", "rasa")):
        assert "positions" not in json.dumps(plain[stage].plain)
        assert f'"positions": "{way}"' in json.dumps(freed[stage].plain)
        assert freed[stage].inputs == plain[stage].inputs
        assert set(flat[stage].inputs) == {*plain[stage].inputs, "weights"}


def test_sizes_must_be_whole_patches(tmp_path: Path) -> None:
    for key in ("evaluate.cluster.size", "evaluate.objects.size"):
        with pytest.raises(ConfigError, match=f"{key}: 100 is not a multiple of the patch size 16"):
            nodes_of(tmp_path, *ASKED, f"{key}=100")


def test_a_study_without_them_is_as_it_was(tmp_path: Path) -> None:
    assert not {"cluster", "saliency", "objects"} & {node.stage for node in nodes_of(tmp_path).values()}


@pytest.mark.parametrize(
    ("task", "metric", "settings"),
    [
        ("cluster", "mIoU", ["evaluate.cluster.size=32", "evaluate.cluster.clusters=[3]"]),
        ("saliency", "maxF", ["evaluate.saliency.split=val", "evaluate.saliency.solver=true"]),
        ("objects", "AP50", ["evaluate.objects.split=val", "evaluate.objects.size=64"]),
        (
            "objects",
            "AP50",
            ["evaluate.objects.split=val", "evaluate.objects.size=64", "evaluate.objects.positions=insid3"],
        ),
    ],
)
def test_each_is_a_command(tmp_path: Path, task: str, metric: str, settings: list[str]) -> None:
    ScenesConfig(images=8, size=64, val_fraction=0.5).generate(tmp_path / "scenes")
    done = dinoskip(
        "eval", task, "timm:vit_tiny_patch16_224,pretrained=false,depth=2", "--data",
        str(tmp_path / "scenes"), "--kind", "voc", "--out", str(tmp_path / "out"), "--json", "-q", *settings, *PLAIN,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["block"] for row in rows if row["metric"] == metric} == {"1", "2", ""}
    assert all(row["task"] == task for row in rows)
    of_metric = [row for row in rows if row["metric"] == metric]
    assert all((row["low"] is None) == bool(row.get("no_interval")) for row in of_metric), "an interval, or why none"


def test_the_gallery_draws_what_they_found(tmp_path: Path) -> None:
    def roles(*overrides: str) -> set[str]:
        return {role.partition(":")[0] for role in nodes_of(tmp_path, *overrides)["gallery"].inputs}

    assert {"cluster", "saliency", "objects"} <= roles(*ASKED, "evaluate.objects.split=val")
    assert not {"cluster", "saliency", "objects"} & roles()
