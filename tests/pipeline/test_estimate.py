"""What a study will take, reckoned without its data."""

import json
import os
from functools import cache
from pathlib import Path

import pytest
import torch

from dinoskip.cli import main
from dinoskip.errors import DiskFull
from dinoskip.files import write_json
from dinoskip.models.build import VitConfig
from dinoskip.models.flops import dino_step_flops
from dinoskip.pipeline import estimate
from dinoskip.pipeline.estimate import CARDS, HEADER, Cost, Speed, costs, count_images, lines, peak_disk, rates
from dinoskip.pipeline.graph import order
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.storage import readers_of
from dinoskip.pipeline.study import STAGES, build_nodes, load_study

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
    assert cut < peak_disk(made, {}, StorageRules()) == sum(cost.disk for cost in made)
    assert trained[0].hours(CARDS["a100"]) == pytest.approx(97.0, abs=0.05)


@cache
def estimated(*overrides: str) -> tuple[list[Cost], float]:
    """Costs of the second table, and its peak disk."""
    study, variants = load_study(TABLE2, overrides)
    nodes = build_nodes(study, variants)
    readers = readers_of(nodes, STAGES)
    made = costs(study, variants, order(nodes, readers))
    return made, peak_disk(made, readers, study.storage_rules)


def test_windows_are_passes_without_stores() -> None:
    kept, all_of_it = estimated()
    windows, peak = estimated("evaluate.features=window")
    passes, of_windows = (sum(cost.images for cost in made if cost.stage != "gallery") for made in (kept, windows))
    assert passes == of_windows == 8 * (10582 + 1449 + 2 * 3000 + 2000 + 5000 + 11540 + 19817)
    assert sum(cost.flop for cost in kept) == pytest.approx(sum(cost.flop for cost in windows))
    assert not any(cost.disk > 3e10 for cost in windows)
    # what stays is written by other stages; beside it are the stores of one probe at once, VOC's the largest
    stays = sum(cost.disk for cost in windows if cost.stage != "features")
    voc = (10582 + 1449) * 197 * 384 * 12 * 2
    assert peak <= stays + voc
    assert all_of_it > 40 * peak
    cuts = {cost.node: cost.work for cost in windows if cost.stage == "tokencut"}
    assert cuts["tokencut/skip-soap/ep200/coco20k"] == 19817 * 13 * 1200**2


def test_a_sweep_is_as_many_short_runs_and_seeds_share_it() -> None:
    study, variants = load_study(
        TABLE2,
        ["sweep={lr: [1e-4, 1e-3, 2e-3], pretrain: {epochs: 30, warmup_epochs: 1}}", "variants.seeds=[0, 1]",
         "online={probe: {dataset: voc2012}}"],
    )  # fmt: skip
    made = costs(study, variants, build_nodes(study, variants))
    of = {stage: [cost for cost in made if cost.stage == stage] for stage in ("sweep", "pretrain")}
    assert len(of["pretrain"]) == 2 * len(of["sweep"]) > 0
    for sweep, whole in zip(of["sweep"], of["pretrain"][::2], strict=True):
        assert (sweep.flop, sweep.disk) == (pytest.approx(3 * whole.flop * 30 / 300), 0)


def test_a_limit_is_kept_or_refused() -> None:
    stays = sum(cost.disk for cost in estimated()[0] if cost.stage != "features")
    assert 219e9 < estimated("storage.limit=230GB")[1] <= stays + 230e9
    with pytest.raises(DiskFull, match=r"storage.limit: 200.0 GB do not hold the 1 stores .*coco20k.*, 219.2 GB"):
        estimated("storage.limit=200GB")


def test_rates_are_those_of_finished_stages(tmp_path: Path) -> None:
    made = [Cost("probe", "a", node="probe/a"), Cost("probe", "b", node="probe/b"), Cost("tokencut", "a", host=3599.85)]
    assert rates(made, tmp_path) == {}
    for key, seconds in (("0", 90), ("1", 100)):
        write_json(tmp_path / "probe" / "a" / key / "timing.json", {"seconds": seconds})
        os.utime(tmp_path / "probe" / "a" / key / "timing.json", (int(key), int(key)))
    assert rates(made, tmp_path) == {"probe": 100.0}
    table = [dict(zip(HEADER, line, strict=True)) for line in lines(made, "a100", {"probe": 3600.0}, Speed(1e9, 1))]
    assert [line["hours here"] for line in table] == ["2.0", "1.0", "3.0"]
    assert [line["known"] for line in table] == ["measured", "estimated", "in part"]


def test_estimated_seconds_fall_as_the_machine_is_faster() -> None:
    cost = Cost("features", "a", flop=7e9, fits=5e8, host=3.0)
    assert cost.seconds(Speed(1e9, 1)) == pytest.approx(0.15 + 10 + 2 + 3)
    assert cost.seconds(Speed(2e9, 1)) == pytest.approx(0.15 + 5 + 1 + 3)
    assert Speed.measured("cpu", 64) is not None
    assert Speed.measured("cpu", 64) == Speed.measured("cpu", 64), "timed once a process"
    assert 1e8 < Speed.measured("cpu", 64).flops < 1e14


def test_threads_that_wait_for_each_other_do_not_make_a_machine_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_timed_block", lambda width, threads: {1: 5e9, 2: 1e9}[threads])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert Speed.measured("cpu", 72).flops == 5e9
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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
    assert all(stage["known"] == "estimated" and stage["hours_here"] > 0 for stage in told["stages"])
