"""What the report's node is told of its study."""

from __future__ import annotations

from dinoskip.cli.start import CONFIGS
from dinoskip.pipeline.study import build_nodes, load_study


def test_the_card_has_the_settings_of_what_is_measured_alone() -> None:
    nodes = build_nodes(*load_study(CONFIGS / "quick.yaml", []))
    (report,) = [node for node in nodes if node.stage == "report"]
    evaluate = report.plain["card"]["evaluate"]
    assert evaluate["probe"]["datasets"] == ["scenes"]
    assert {"epochs", "blocks", "norm"} <= set(evaluate)
    assert not {"features", "knn", "tokencut", "depth", "saliency"} & set(evaluate)
