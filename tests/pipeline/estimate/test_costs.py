"""Costs of a study: operations and disk by published counts, and by those of the available images."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from dinoskip.cli import main, studies
from dinoskip.errors import DataError, DiskFull
from dinoskip.io.files import write_json
from dinoskip.pipeline.estimate.costs import HEADER, Cost, costs, lines, measured_rates, peak_disk
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import order
from dinoskip.pipeline.progress import NO_TIME
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.storage import readers_of
from dinoskip.pipeline.study import STAGES, build_nodes, load_study, study_of
from dinoskip.settings.config import RawConfig
from dinoskip.settings.flops import dino_step_flops
from dinoskip.settings.tasks import task
from dinoskip.settings.vit_config import VitConfig
from eval.tokencut.memory import drawn_bytes, peak_bytes

ROOT = Path(__file__).parents[3]
TABLE2 = ROOT / "configs" / "paper" / "table2_dino.yaml"
COMPARE = ROOT / "configs" / "start" / "compare.yaml"


def test_the_paper_s_second_table() -> None:
    study, variants = load_study(TABLE2, ["evaluate.features=keep"])
    made = costs(StudyImages(study, assume=True), study, variants, build_nodes(study, variants))
    image = dino_step_flops(VitConfig(), head=(65536, 2048, 256), global_size=224, local_size=96, num_local=8)
    trained = [cost for cost in made if cost.stage == "pretrain"]
    assert [cost.flop for cost in trained] == [image * (1_281_167 // 1024) * 1024 * 300] * len(variants)
    # float16 keys of 40 x 30 tokens of 384 channels at 12 blocks of 19,817 images, for one checkpoint
    (cut,) = {cost.disk for cost in made if cost.disk == 19_817 * 1200 * 384 * 12 * 2}
    assert cut < peak_disk(made, {}, StorageRules()) == sum(cost.disk for cost in made)
    assert trained[0].hours("a100") == pytest.approx(203.9, abs=0.2)


@cache
def estimated(*overrides: str) -> tuple[list[Cost], float]:
    """Costs of the second table, and its peak disk."""
    study, variants = load_study(TABLE2, overrides)
    nodes = build_nodes(study, variants)
    readers = readers_of(nodes, STAGES)
    made = costs(StudyImages(study, assume=True), study, variants, order(nodes, readers))
    return made, peak_disk(made, readers, study.storage_rules)


def test_windows_are_passes_without_stores() -> None:
    kept, all_of_it = estimated("evaluate.features=keep")
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
    for made in (kept, windows):
        cuts = {cost.node: cost.work for cost in made if cost.stage == "tokencut"}
        assert cuts["tokencut/skip-soap/ep200/coco20k"] == 19817 * 12 * 384 * 1200**2


def test_by_default_what_one_task_reads_once_takes_no_disk() -> None:
    """Discovery is streamed and the probes' stores stay: 412 GB of 2,819 for the second table, 11 of 175 for VOC."""
    kept, all_of_it = estimated("evaluate.features=keep")
    made, peak = estimated()
    assert [round(size / 1e9) for size in (all_of_it, peak)] == [2819, 412]
    assert sum(cost.images for cost in made) == sum(cost.images for cost in kept)
    overrides = ("name=two", "data={voc2012: {kind: voc, root: nowhere, year: 2012}}")
    sizes = []
    for how in ("keep", "auto"):
        study, variants = load_study(COMPARE, (*overrides, f"evaluate.features={how}"))
        nodes = build_nodes(study, variants)
        readers = readers_of(nodes, STAGES)
        ordered = order(nodes, readers)
        sizes.append(
            peak_disk(costs(StudyImages(study, assume=True), study, variants, ordered), readers, study.storage_rules)
        )
    assert [round(size / 1e9) for size in sizes] == [175, 11]


def test_a_sweep_is_as_many_short_runs_and_seeds_share_it() -> None:
    study, variants = load_study(
        TABLE2,
        ["sweep={lr: [1e-4, 1e-3, 2e-3], pretrain: {epochs: 30, warmup_epochs: 1}}", "variants.seeds=[0, 1]",
         "online={probe: {dataset: voc2012, held_out: true}}"],
    )  # fmt: skip
    made = costs(StudyImages(study, assume=True), study, variants, build_nodes(study, variants))
    of = {stage: [cost for cost in made if cost.stage == stage] for stage in ("sweep", "pretrain")}
    assert len(of["pretrain"]) == 2 * len(of["sweep"]) > 0
    for sweep, whole in zip(of["sweep"], of["pretrain"][::2], strict=True):
        assert (sweep.flop, sweep.disk) == (pytest.approx(3 * whole.flop * 30 / 300), 0)


def test_a_limit_is_kept_or_refused() -> None:
    keep = "evaluate.features=keep"
    stays = sum(cost.disk for cost in estimated(keep)[0] if cost.stage != "features")
    assert 219e9 < estimated(keep, "storage.limit=230GB")[1] <= stays + 230e9
    with pytest.raises(DiskFull, match=r"storage.limit: 200.0 GB do not hold the 1 stores .*coco20k.*, 219.2 GB"):
        estimated(keep, "storage.limit=200GB")


MACHINE = "a processor, 2 threads"


def test_hours_are_those_of_finished_stages_on_this_machine_or_none(tmp_path: Path) -> None:
    made = [
        Cost("probe", name, node=f"probe/{name}", kind="probe", work=work) for name, work in (("a", 2.0), ("b", 4.0))
    ]
    made.append(Cost("tokencut", "a", node="tokencut/a", kind="tokencut"))
    assert measured_rates(made, tmp_path, MACHINE) == {}
    assert [line[4] for line in lines(made, "a100", {})] == ["", "", ""]
    for key, seconds in (("0", 90), ("1", 7200)):
        timing = tmp_path / "probe" / "a" / key / "timing.json"
        write_json(timing, {"seconds": seconds, "machine": MACHINE})
        os.utime(timing, (int(key), int(key)))
    write_json(tmp_path / "tokencut" / "a" / "0" / "timing.json", {"seconds": 5, "machine": "another"})
    measured = measured_rates(made, tmp_path, MACHINE)
    assert measured == {"probe": 3600.0}
    table = [dict(zip(HEADER, line, strict=True)) for line in lines(made, "a100", measured)]
    assert [line["hours here"] for line in table] == ["6.0", "", "> 6.0"]


def test_a_training_on_sixty_photographs_is_of_sixty(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.jpg").touch()
    tree = {
        "name": "s",
        "data": {"photos": {"kind": "images", "root": str(tmp_path)}, "voc": {"kind": "voc", "root": "/none"}},
        "model": {"name": "vit_tiny_patch16"},
        "pretrain": {"dataset": "photos", "epochs": 20, "warmup_epochs": 0, "batch_size": 32},
    }
    study, variants = study_of(RawConfig(tree))
    nodes = build_nodes(study, variants)
    image = dino_step_flops(VitConfig(name="vit_tiny_patch16"), head=(65536, 2048, 256), global_size=224, local_size=96,
                            num_local=8)  # fmt: skip
    for assume in (False, True):  # published counts are of what is not there
        images = StudyImages(study, assume=assume)
        (trained,) = [cost for cost in costs(images, study, variants, nodes) if cost.stage == "pretrain"]
        assert trained.flop == trained.work == image * 32 * 20
        assert images.assumed == set()
    with pytest.raises(DataError, match="/none"):
        StudyImages(study).count("voc", "val", "segmentation")


def test_counts_are_the_published_ones_and_subsets() -> None:
    study, _ = load_study(TABLE2)
    asked = [
        ("voc2012", "train", "segmentation"),
        ("voc2012", "trainval", "detection"),
        ("ade20k", "train", "segmentation"),
    ]
    asked += [("ade20k", "val", "segmentation"), ("coco20k", "trainval", "detection"), ("imagenet", "train", "classes")]
    images = StudyImages(study, assume=True)
    assert [images.count(*one) for one in asked] == [10582, 11540, 3000, 2000, 19817, 1281167]
    assert images.assumed == {"voc2012", "ade20k", "coco20k", "imagenet"}


def test_the_command_needs_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(TABLE2), "--assume-data"]) == 0
    table = capsys.readouterr().out
    assert "peak disk" in table.lower()
    assert NO_TIME in table
    assert "ade20k, coco20k, coco_stuff, imagenet, voc2012 not found" in table
    assert main(["plan", str(TABLE2), "--assume-data", "--json", "--card", "h100"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["card"] == "h100"
    assert {"pretrain", "features", "probe", "tokencut"} <= {stage["stage"] for stage in told["stages"]}
    assert all(stage["known"] == "not measured" and stage["hours_here"] is None for stage in told["stages"])


def test_memory_is_that_of_the_rule_which_bounds_it() -> None:
    made, _ = estimated("evaluate.features=keep")
    cut = {cost.memory for cost in made if cost.stage == "tokencut"}
    assert cut == {peak_bytes(40 * 30, 384), peak_bytes(32 * 24, 384)}, "COCO's images and VOC's, patches of 16"
    windows, _ = estimated("evaluate.features=window", "storage.window=3GB")
    assert {cost.memory for cost in windows if cost.stage == "tokencut"} == {peak + 3e9 for peak in cut}
    assert {cost.memory for cost in made if cost.stage == "gallery"} == {drawn_bytes(384)}
    assert not any(cost.memory for cost in made if cost.stage in {"pretrain", "report"})


def test_memory_of_features_of_all_images_follows_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """k-NN of ImageNet: 1.33 million class tokens of 384 channels, three copies in float32, as many blocks as fit."""
    read = [(1_281_167, 196, 384, 12), (50_000, 196, 384, 12)]
    one_block = 3 * 4 * 384 * 1_331_167
    for limit, blocks in (("4", 1), ("30", 2), ("1000", 12)):  # GiB; of 4 half is less than one block
        monkeypatch.setenv("DINOSKIP_MEMORY", limit)
        assert task("knn").held(None, read) == blocks * one_block
    probe = [(1464, 784, 384, 12), (1449, 784, 384, 12)]
    stored, targets = 2 * 1464 * 784 * 384 * 12, 4 * 1464 * 784 * 256
    for limit, most in (("4", 2**30), ("64", 2 * stored + targets)):  # of 4: neither fits but a quarter for targets
        monkeypatch.setenv("DINOSKIP_MEMORY", limit)
        assert task("probe").held(None, probe) == most


@pytest.mark.parametrize("usable", [10**6, 10**12])
def test_a_plan_states_memory_and_warns_where_it_does_not_fit(
    usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: memory\noutput: runs\ndata: {scenes: {kind: scenes, images: 30, size: 64}}\n"
        "variants: {model: [{label: net, backbone: timm:vit_tiny_patch16_224}]}\n"
        "evaluate: {tokencut: {datasets: [scenes], split: val}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "usable_memory", lambda: usable)
    assert main(["plan", "study.yaml", "--json"]) == 0
    said = capsys.readouterr()
    steps = {step["stage"]: step["memory"] for step in json.loads(said.out)}
    window = 8 * 16 * 192 * 12 * 2  # features of 8 images of 16 tokens, all of them
    assert steps["tokencut"] == peak_bytes(16, 192) + window
    assert steps["report"] is None
    assert ("can be had here" in said.err) == (usable < steps["tokencut"])
