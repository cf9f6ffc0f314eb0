"""What a study will take, reckoned without its data."""

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.models.build import VitConfig
from dinoskip.models.flops import dino_step_flops
from dinoskip.pipeline.estimate import CARDS, costs, count_images, peak_disk
from dinoskip.pipeline.study import build_nodes, load_study

ROOT = Path(__file__).parents[2]
TABLE2 = ROOT / "configs" / "paper" / "table2_dino.yaml"


def test_the_paper_s_second_table() -> None:
    study, variants = load_study(TABLE2)
    made = costs(study, variants, build_nodes(study, variants))
    image = dino_step_flops(VitConfig(), head=(65536, 2048, 256), global_size=224, local_size=96, num_local=8)
    trained = [cost for cost in made if cost.stage == "pretrain"]
    assert [cost.flop for cost in trained] == [image * (1_281_167 // 1024) * 1024 * 300] * len(variants)
    # float16 keys of 40 x 30 tokens of 384 channels at 12 blocks of 19,817 images, for one checkpoint
    (cut,) = {cost.disk for cost in made if cost.disk == 19_817 * 1200 * 384 * 12 * 2}
    assert cut < peak_disk(made) == sum(cost.disk for cost in made)
    assert trained[0].hours(CARDS["a100"]) == pytest.approx(97.0, abs=0.05)


def test_counts_are_the_published_ones_and_subsets() -> None:
    study, _ = load_study(TABLE2)
    asked = [
        ("voc2012", "train", "segmentation"),
        ("voc2012", "trainval", "detection"),
        ("ade20k", "train", "segmentation"),
    ]
    asked += [("ade20k", "val", "segmentation"), ("coco20k", "trainval", "detection"), ("imagenet", "train", "classes")]
    assert [count_images(study, *one) for one in asked] == [10582, 11540, 3000, 2000, 19817, 1281167]


def test_the_command_needs_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(TABLE2), "--assume-data"]) == 0
    table = capsys.readouterr().out
    assert "peak disk" in table.lower()
    assert main(["plan", str(TABLE2), "--assume-data", "--json", "--card", "h100"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["card"] == "h100"
    assert {"pretrain", "features", "probe", "tokencut"} <= {stage["stage"] for stage in told["stages"]}
