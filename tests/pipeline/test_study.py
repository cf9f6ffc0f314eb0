"""Variants, their names, their nodes, and what each change invalidates."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dinoskip.cli.start import CONFIGS
from dinoskip.errors import ConfigError
from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.pipeline import stages
from dinoskip.pipeline.stage import StudyNodes
from dinoskip.pipeline.study import STAGES, build_nodes, load_study, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.results.rows import UNKNOWN_EPOCH
from dinoskip.settings.config import RawConfig
from tests.helpers.study import TINY

BASE = """
name: s
data: {scenes: {kind: scenes, images: 8, size: 64}}
pretrain: {dataset: scenes, epochs: 2, keep_epochs: [1], warmup_epochs: 0, warmup_teacher_temp_epochs: 0}
evaluate: {probe: {datasets: [scenes]}}
"""


def study(tmp_path: Path, text: str = "", *overrides: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "s.yaml"
    path.write_text(BASE + text)
    return load_study(path, overrides)


def names(tmp_path: Path, text: str = "") -> list[str]:
    return [variant.name for variant in study(tmp_path, text)[1]]


def test_names_of_combinations(tmp_path: Path) -> None:
    both = "variants:\n  model: [{skip: true}, {skip: false, init: {name: skipless}}]\n"
    both += "  optimizer: [adamw, {name: adamw, lr: 1e-4, label: slow}]"
    assert names(tmp_path, both) == ["skip-adamw", "skip-slow", "skipless-adamw", "skipless-slow"]
    mixed = "variants: {model: [{skip: false}, {skip: false, init: {name: mimetic}}, {skip: attention}]}"
    assert names(tmp_path, mixed) == [
        "skipless_trunc_normal-adamw", "skipless_mimetic-adamw", "skip_attention-adamw",
    ]  # fmt: skip
    assert names(tmp_path) == ["skip-adamw"]


def test_every_network_is_trained_with_each_seed(tmp_path: Path) -> None:
    text = "variants: {model: [{skip: true}, {backbone: 'timm:x', label: x}], seeds: [0, 3]}"
    loaded, variants = study(tmp_path, text)
    assert [(one.name, one.family, one.seed) for one in variants] == [
        ("skip-adamw-s0", "skip-adamw", 0), ("skip-adamw-s3", "skip-adamw", 3), ("x", "", 0),
    ]  # fmt: skip
    nodes = {node.id: node for node in build_nodes(loaded, variants)}
    assert [nodes[f"pretrain/skip-adamw-s{seed}"].plain["seed"] for seed in (0, 3)] == [0, 3]
    assert nodes["weights/skip-adamw-s3/ep2"].variant == "skip-adamw-s3"
    plain = {node.id: node for node in build_nodes(*study(tmp_path))}
    trained = [nodes["pretrain/skip-adamw-s0"], plain["pretrain/skip-adamw"]]
    assert trained[0].settings == trained[1].settings, "the study's seed is the same run, whatever its name"
    shown = [model.variant for model in nodes["gallery"].settings.models]
    assert shown == ["skip-adamw-s0", "x"], "of several seeds the first"
    with pytest.raises(ConfigError, match="a value is given twice"):
        study(tmp_path, "variants: {seeds: [1, 1]}")


def test_variants_lie_over_the_base(tmp_path: Path) -> None:
    _, variants = study(
        tmp_path,
        "model: {depth: 3}\noptimizer: {lr: 2e-3}\nvariants: {model: [{skip: false}], optimizer: [{eps: 1e-6}]}",
    )
    assert (variants[0].model.depth, variants[0].model.skip) == (3, False)
    assert (variants[0].optimizer.lr, variants[0].optimizer.eps) == (2e-3, 1e-6)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("variants: {model: [{skip: true}, {skip: true}]}", "'skip-adamw' comes twice"),
        ("variants: {model: [{skp: true}]}", "variants.model.0.skp: unknown key (did you mean skip?)"),
        ("variants: {model: [{backbone: 'timm:x', skip: true}]}", "backbone stands alone"),
        ("variants: {optimizer: [adamv]}", "adamv"),
        ("variants: {model: [{label: 'a/../b'}]}", "not usable as a folder name"),
    ],
)
def test_bad_variants(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, text)
    assert len(caught.value.problems) == 1, caught.value.problems
    assert part in caught.value.problems[0]


def test_a_field_of_another_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"init\.alpha"):
        study(tmp_path, "variants: {model: [{init: {name: trunc_normal, alpha: 2}}]}")


def test_epochs_must_be_kept(tmp_path: Path) -> None:
    assert study(tmp_path, "", "evaluate.epochs=[1, 2]")[0].evaluate.epochs == (1, 2)
    with pytest.raises(ConfigError, match="epoch 3 is not kept"):
        study(tmp_path, "", "evaluate.epochs=[3]")


def test_the_gallery_shows_the_last_epoch_or_those_that_are_asked_for(tmp_path: Path) -> None:
    def shown(*overrides: str) -> list[str]:
        found = study(tmp_path, "", "evaluate.epochs=[0, 1, 2]", "gallery.dataset=scenes", *overrides)
        (gallery,) = (node for node in build_nodes(*found) if node.id == "gallery")
        return [model.label for model in gallery.settings.models]

    assert shown() == ["skip-adamw"]
    assert shown("gallery.epochs=[0, 2]") == ["skip-adamw ep0", "skip-adamw ep2"]
    with pytest.raises(ConfigError, match=r"gallery\.epochs: epoch 4 is not evaluated"):
        shown("gallery.epochs=[4]")


def test_existing_weights_need_no_pretraining(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: e\ndata: {scenes: {kind: scenes}}\nevaluate: {probe: {datasets: [scenes]}}\n"
        "variants: {model: [{backbone: 'timm:vit_tiny_patch16_224,pretrained=false', label: vit}]}\n"
    )
    loaded, variants = load_study(path)
    stages = {node.stage for node in build_nodes(loaded, variants)}
    assert {"pretrain", "weights"}.isdisjoint(stages)
    assert {"features", "probe", "gallery", "report"} <= stages
    path.write_text("name: e\n")
    with pytest.raises(ConfigError, match="pretrain: this key is required"):
        load_study(path)


def test_the_table_of_stages() -> None:
    for name, stage in STAGES.items():
        assert stage.name == name
        assert stage.section is None or stage.place, name
    resuming = {"sweep", "pretrain", "supervise", "features", "tokencut", "saliency", "objects"}
    assert {name for name, stage in STAGES.items() if stage.resumes} == resuming & STAGES.keys()
    assert {name for name, stage in STAGES.items() if stage.command} == set(stages.commands())


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["-m", "dinoskip", "eval", "knn", "--help"], 0, ""),  # a command runs no code of the user's: ours is taken
        (["-c", "import eval, dinoskip.pipeline"], 1, "ConfigError: eval: another package of this name"),
    ],
)
def test_a_foreign_eval_package(command: list[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "__init__.py").write_text("FOREIGN = True")
    (tmp_path / "visualize.py").write_text("raise SystemExit('it was imported')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def settings_of(kind: type[BaseModel], place: str) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting below a section: its dotted key and its field."""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(inner, f"{place}.{name}")
        else:
            yield f"{place}.{name}", field


def out_of_range(field: FieldInfo) -> list[object]:
    """Values that a field's own bounds refuse, and one of a type that no setting has."""
    values: list[object] = ["{no: setting}"]
    for bound in field.metadata:
        for name, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if (limit := getattr(bound, name, None)) is not None:
                values.append(limit + step)
    return values


EVERY_SETTING = [
    (key, field)
    for stage in STAGES.values()
    if stage.section is not None and stage.required
    for key, field in settings_of(stage.section, stage.place)
]


def test_plan_refuses_what_a_stage_would(tmp_path: Path) -> None:
    """Each setting's first refused value in one study, all second ones in another: a line for each, and no other."""
    tried = {key: out_of_range(field) for key, field in EVERY_SETTING}
    assert len(tried) > 100
    for turn in range(max(map(len, tried.values()))):
        given = {key: values[turn] for key, values in tried.items() if turn < len(values)}
        with pytest.raises(ConfigError) as caught:
            study(tmp_path, "", *(f"{key}={value}" for key, value in given.items()))
        places = [line.split(": ")[:2] for line in caught.value.problems]
        assert {source for source, _ in places} == {"command line"}
        refused = {key: [place for _, place in places if f"{place}.".startswith(f"{key}.")] for key in given}
        assert [key for key, lines in refused.items() if not lines] == []
        assert {place for _, place in places} == {place for lines in refused.values() for place in lines}


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("gallery.first=300000", "gallery.first: should be less than or equal to 100000"),
        ("evaluate.retrieve={memory: 10, k: 30}", "evaluate.retrieve"),
        ("evaluate.retrieve.index=tree", "evaluate.retrieve.index"),
        ("evaluate.knn.temperature=0", "evaluate.knn.temperature: should be greater than 0"),
        (
            "evaluate.probe.datasets=[other]",
            "evaluate.probe.datasets: 'other' is not one of the data sets under data: scenes",
        ),
        (
            "data.scenes={kind: images, root: x}",
            "evaluate.probe.datasets: 'scenes' is of kind images, which has no label maps",
        ),
    ],
)
def test_what_failed_after_the_features_were_exported(tmp_path: Path, override: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, "", override)
    (line,) = caught.value.problems
    assert part in line


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("evaluate.multiscale=[3, 99]", "99 is beyond the 12 blocks"),
        ("evaluate.multiscale=[3, 3]", "given twice"),
        ("evaluate.multiscale=[3]", "at least 2"),
        ("evaluate.blocks=[]", "evaluate.blocks"),
        ("evaluate.blocks=[13]", "13 is beyond the 12 blocks"),
        ("gallery.block=40", "40 is beyond"),
        ("evaluate.probe.size=225", "225 is not a multiple of the patch size 16"),
        ("pretrain.crops.local_size=50", "50 is not a multiple of the patch size 16"),
        ("evaluate.probe.learning_rates=[1e-3, 1e-3]", "given twice"),
        ("model.name=vit_smal_patch16", "did you mean vit_small_patch16?"),
    ],
)
def test_what_cannot_work_is_said_before_training(tmp_path: Path, override: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, "", override)
    assert any(part in line for line in caught.value.problems), caught.value.problems


def test_a_variant_may_change_the_initialisation(tmp_path: Path) -> None:
    text = "model: {skip: false, init: {name: skipless, alpha: 2}}\n"
    text += "variants: {model: [{}, {skip: true, init: {name: trunc_normal}}]}"
    _, variants = study(tmp_path, text)
    assert [variant.model.init.name for variant in variants] == ["skipless", "trunc_normal"]


def test_a_study_has_no_drop_path_unless_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = "variants: {model: [{skip: true}, {skip: false, init: {name: skipless}}]}"
    _, variants = study(tmp_path, both)
    assert [variant.model.drop_path for variant in variants] == [0.0, 0.0]
    assert not caplog.records
    study(tmp_path, both, "model.drop_path=0.1")
    (line,) = [record.message for record in caplog.records]
    assert "model.drop_path: 0.1 regularises skip-adamw and cannot skipless-adamw" in line
    caplog.clear()
    study(tmp_path, "variants: {model: [{skip: true}]}", "model.drop_path=0.1")
    assert not caplog.records


def test_multiscale_by_quarters_is_each_depth_s_own(tmp_path: Path) -> None:
    depths = "variants: {model: [{depth: 12, label: a}, {depth: 9, label: b}, {depth: 10, label: c}]}"
    nodes = build_nodes(*study(tmp_path, depths, "evaluate.multiscale=quarters"))
    chosen = {node.variant: node.plain["multiscale"] for node in nodes if node.stage == "probe"}
    assert chosen == {"a-adamw": [3, 6, 9, 12], "b-adamw": [3, 5, 7, 9], "c-adamw": [3, 5, 8, 10]}
    written = build_nodes(*study(tmp_path, "", "evaluate.multiscale=[3, 6, 9, 12]"))
    named = build_nodes(*study(tmp_path, "", "evaluate.multiscale=quarters"))
    assert [node.plain for node in written if node.stage == "probe"] == [
        node.plain for node in named if node.stage == "probe"
    ]


def test_rows_of_a_weights_file_say_how_it_was_trained(tmp_path: Path) -> None:
    config = VitConfig(name="vit_tiny_patch16", depth=1, img_size=32, skip=False)
    model = create_model("vit_tiny_patch16", depth=1, img_size=32, skip=False)
    info = {"epoch": 3, "init": "skipless", "optimizer": "soap"}
    save_weights(tmp_path / "w.safetensors", model.state_dict(), config, info)
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: e\ndata: {scenes: {kind: scenes}}\nevaluate: {knn: {datasets: [scenes]}}\nvariants:\n  model:\n"
        f"    - {{backbone: 'weights:{tmp_path}/w.safetensors', label: ours}}\n"
        "    - {backbone: 'timm:vit_tiny_patch16_224,pretrained=false', label: theirs}\n"
    )
    contexts = {node.variant: node.plain["context"] for node in build_nodes(*load_study(path)) if node.stage == "knn"}
    said = {key: contexts["ours"][key] for key in ("epoch", "initialisation", "optimizer")}
    assert said == {"epoch": 3, "initialisation": "skipless", "optimizer": "soap"}
    assert contexts["theirs"]["epoch"] == UNKNOWN_EPOCH
    assert "optimizer" not in contexts["theirs"]


def test_a_node_is_not_asked_for_with_two_settings(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    nodes = StudyNodes(*load_study(path), {})
    assert nodes.add(STAGES["features"], "a", {"size": 1}) == nodes.add(STAGES["features"], "a", {"size": 1})
    with pytest.raises(ValueError, match="features/a: asked for with different settings"):
        nodes.add(STAGES["features"], "a", {"size": 2})


def test_a_board_that_is_not_installed_is_said_while_planning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else name)
    study(tmp_path, "", "pretrain.boards=[tensorboard, wandb]")
    said = [record.getMessage() for record in caplog.records if "boards" in record.getMessage()]
    assert said == [
        "pretrain.boards: wandb is not installed, nothing will be shown there: pip install wandb",
    ]


def test_the_card_has_the_settings_of_what_is_measured_alone() -> None:
    nodes = build_nodes(*load_study(CONFIGS / "quick.yaml", []))
    (report,) = [node for node in nodes if node.stage == "report"]
    evaluate = report.plain["card"]["evaluate"]
    assert evaluate["probe"]["datasets"] == ["scenes"]
    assert {"epochs", "blocks", "norm"} <= set(evaluate)
    assert not {"features", "knn", "tokencut", "depth", "saliency"} & set(evaluate)


PACKAGE = Path(__file__).parents[2] / "dinoskip"


def test_has_the_studys_folder_and_rules(tmp_path: Path) -> None:
    tree = {"name": "s", "output": str(tmp_path), "storage": {"limit": "3GB"}, "evaluate": {"features": "window"}}
    study, variants = study_of(RawConfig({**tree, "variants": {"model": [{"backbone": "timm:vit_tiny_patch16_224"}]}}))
    runner = study_runner(study, variants, [], device="cpu", workers=2)
    assert (runner.study, runner.stages, runner.device, runner.workers) == (tmp_path / "s", STAGES, "cpu", 2)
    assert runner.stores.rules == study.storage_rules
    assert (runner.stores.rules.limit, runner.stores.rules.at_once) == (3e9, True)


def test_no_other_place_does() -> None:
    places = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"\bRunner\(", path.read_text())]
    assert places == ["study_runner.py"]
