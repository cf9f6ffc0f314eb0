"""Skips whose weight changes in training: the same in all networks at every step, resumed, compiled, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dinoskip.io.files import load_tensors, read_json, write_manifest
from dinoskip.models import VitConfig, load_backbone
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.distributed import World
from dinoskip.settings.config import dump
from dinoskip.settings.specs import declared_weights, exported_weights
from dinoskip.settings.vit_config import SkipWeight
from dinoskip.training import PretrainJob, compilation, pretrain
from dinoskip.training.skip_dial import SkipDial
from tests.helpers.photographs import photographs
from tests.helpers.plain_training import Driver
from tests.helpers.ranks import assert_two_ranks_equal_one
from tests.helpers.tiny import SMALL_OBJECTIVES, objective_job, rows_of, tensor_hashes, tiny_job
from tests.training.test_resume import folder, killed_before

STEPS = 8
ANNEALED = {"end": 0, "fraction": 0.6, "shape": "cosine"}
"""5 of 8 steps."""
OBJECTIVES = ["dino", *SMALL_OBJECTIVES]


def job_of(name: str, weight: Any = ANNEALED, **more: Any) -> PretrainJob:
    if name == "dino":
        settings = {"epochs": 2, "batch_size": 4, "warmup_epochs": 1, "checkpoint_every_steps": 1, **more}
        tree = dump(tiny_job(**settings))
        tree["model"]["name"] = "vit_mini_patch8"
    else:
        tree = dump(objective_job(name, **more))
    tree["model"] |= {"skip_weight": weight, "drop_path": 0.1}
    return PretrainJob.model_validate(tree)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The weights of all networks at every step."""
    seen: list[dict[str, Any]] = []
    real = SkipDial.set

    def setting(self: Any, networks: Any, step: int) -> None:
        networks = list(networks)
        real(self, networks, step)
        noted_now = [[block.changing.tolist() for block in net.get_submodule("backbone").blocks] for net in networks]  # type: ignore[union-attr]
        seen.append({"networks": noted_now})

    monkeypatch.setattr(SkipDial, "set", setting)
    return seen


CHEAPEST = "mae" if "mae" in OBJECTIVES else "dino"


# The ramp is the loop's; what each objective resumes is tested without one, in test_objectives.py and the plug-in's.
@pytest.mark.parametrize(
    "name", [name if name == CHEAPEST else pytest.param(name, marks=pytest.mark.slow) for name in OBJECTIVES]
)
def test_killed_in_the_ramp_it_ends_with_the_bits_of_a_straight_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, run_dir = job_of(name), tmp_path / "run"
    straight = pretrain(job, folder(), tmp_path / "straight", device="cpu")
    for step in (3, 6):
        killed_before(step, job, run_dir, monkeypatch)
    final = pretrain(job, folder(), run_dir, device="cpu")
    assert tensor_hashes(final) == tensor_hashes(straight)
    assert rows_of(run_dir) == rows_of(tmp_path / "straight")
    setting = SkipWeight(**ANNEALED)
    assert [row["skip_weight"] for row in rows_of(run_dir)] == [setting.at(step, STEPS) for step in range(STEPS)]
    others = rows_of(tmp_path / "straight")[-1]["loss"], _last_loss(job_of(name, None), tmp_path / "skip")
    assert others[0] != others[1]


def _last_loss(job: PretrainJob, run_dir: Path) -> float:
    pretrain(job, folder(), run_dir, device="cpu")
    return float(rows_of(run_dir)[-1]["loss"])


@pytest.mark.parametrize("sublayers", ["constant", "linear"])
def test_student_and_teacher_have_the_weight_of_the_step(
    sublayers: Any, tmp_path: Path, noted: list[dict[str, Any]]
) -> None:
    setting = {**ANNEALED, "sublayers": sublayers}
    pretrain(job_of("dino", setting), folder(), tmp_path, device="cpu")
    assert len(noted) == STEPS
    for step, seen in enumerate(noted):
        weight = SkipWeight(**setting)
        wanted = [torch.tensor(pair).tolist() for pair in weight.weights(weight.at(step, STEPS), 2)]
        assert seen["networks"] == [wanted, wanted], step


def test_after_the_ramp_it_computes_what_a_skipless_network_does(tmp_path: Path) -> None:
    """The last steps of an annealed run are, bit for bit, those of a skipless run that goes on from the same state."""
    job = job_of("patch_contrast", {"end": 0, "fraction": 0.5}, keep_epochs=[1])
    final = pretrain(job, folder(), tmp_path / "annealed", device="cpu")
    tree = dump(job)
    tree["model"] = {**tree["model"], "skip": False, "skip_weight": None, "drop_path": 0}
    skipless = PretrainJob.model_validate(tree)
    start = tmp_path / "annealed" / "checkpoints" / "step-00000004"
    other = tmp_path / "skipless"
    killed_early(skipless, other)
    for name in ("student", "teacher", "head", "optimizer"):
        (other / "checkpoints" / "step-00000004" / f"{name}.safetensors").write_bytes(
            (start / f"{name}.safetensors").read_bytes()
        )
    rewrite_manifest(other / "checkpoints" / "step-00000004")
    assert tensor_hashes(pretrain(skipless, folder(), other, device="cpu")) == tensor_hashes(final)


def killed_early(job: PretrainJob, run_dir: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        killed_before(5, job, run_dir, patch)


def rewrite_manifest(path: Path) -> None:
    (path / "MANIFEST.json").unlink()
    write_manifest(path, {"step": 4})


def test_checkpoints_say_the_weight_and_the_last_is_a_skipless_network(tmp_path: Path) -> None:
    final = pretrain(job_of("patch_contrast", keep_epochs=[1]), folder(), tmp_path, device="cpu")
    middle = exported_weights(tmp_path / "checkpoints" / "step-00000004")
    setting = SkipWeight(**ANNEALED)
    assert declared_weights(middle)[0].skip_weight == SkipWeight(end=setting.at(4, STEPS))
    assert declared_weights(exported_weights(final))[0] == VitConfig(
        name="vit_mini_patch8", depth=2, img_size=32, skip=False, position_resize="dino"
    )
    assert declared_weights(middle)[1]["skip_weight"] == dump(setting)
    tensors = load_tensors(exported_weights(final))
    assert not any("changing" in name for name in tensors)
    backbone = load_backbone(f"weights:{exported_weights(final)}")
    x = backbone.model.blocks[0].norm1(tokens := torch.randn(1, 4, 128))
    middle_tokens = backbone.model.blocks[0].attn(x)
    assert torch.equal(
        backbone.model.blocks[0](tokens), backbone.model.blocks[0].mlp(backbone.model.blocks[0].norm2(middle_tokens))
    )
    between = load_backbone(f"weights:{middle}").layers(photographs(32), [2])[2].tokens
    assert between.isfinite().all()


def test_what_is_measured_meanwhile_is_the_exported_network(tmp_path: Path) -> None:
    """The evaluated copy at the end of an epoch computes what that epoch's weights file does."""
    images, outputs = photographs(32).float(), []

    class Look:
        score = "looked"

        def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
            outputs.append(network.get_submodule("backbone").forward_features(images))  # type: ignore[operator]
            return {"looked": float(len(outputs))}

    job = job_of("patch_contrast", online_every=1, keep_epochs=[1])
    pretrain(job, folder(), tmp_path, device="cpu", observer=Look())  # type: ignore[arg-type]
    for step, output in zip((4, 8), outputs, strict=True):
        file = exported_weights(tmp_path / "checkpoints" / f"step-{step:08d}")
        with torch.no_grad():
            assert torch.equal(load_backbone(f"weights:{file}").model.forward_features(images), output)


def test_nothing_is_compiled_while_the_weight_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.utils.counters.clear()
    graphs: list[int] = []
    look = compilation.CompilerWatch.look

    def counting(self: Any) -> None:
        graphs.append(self._compiler.graphs)
        look(self)

    pretrain(job_of("dino"), folder(), tmp_path / "plain", device="cpu")
    monkeypatch.setattr(compilation.CompilerWatch, "look", counting)
    pretrain(job_of("dino", compile=True), folder(), tmp_path / "compiled", device="cpu")
    assert graphs == [3] * STEPS  # the student at two crop sizes, the teacher at one
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert read_json(tmp_path / "compiled" / "env.json")["uncompiled"] is None
    compiled, plain = ([row["loss"] for row in rows_of(tmp_path / name)] for name in ("compiled", "plain"))
    assert compiled == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow  # that other measures are of the exported network is tested below
def test_diagnostics_are_of_the_weight_of_the_step(tmp_path: Path) -> None:
    """Tokens of the paths that a skip keeps apart come together as its weight goes."""
    cosines = {}
    for name, weight in (("annealed", {"end": 0, "fraction": 0.5}), ("skip", 1.0)):
        pretrain(job_of("patch_contrast", weight, diagnose_every=8), folder(), tmp_path / name, device="cpu")
        [row] = read_metrics(tmp_path / name / "diagnostics.jsonl")
        cosines[name] = row["token_cosine"]
    assert cosines["annealed"] != cosines["skip"]


def steps_on_ranks(here: World, out: str, strategy: str) -> None:
    """Six steps of an annealed run, decayed to its start."""
    tree = dump(job_of("mae", {"end": 0, "fraction": 0.5}, parallel=strategy))
    job = PretrainJob.model_validate(tree | {"optimizer": tree["optimizer"] | {"decay_to": "init"}})
    driver, dial = Driver(job, 4, here), SkipDial(job.model, STEPS)

    def dialled(step: int, images: slice) -> list[Tensor]:
        dial.set([driver.student], step)
        return views(step, images)

    driver.write_steps(out, 4, dialled, steps=6)


def views(step: int, images: slice) -> list[Tensor]:
    rng = torch.Generator().manual_seed(step)
    pixels = torch.randn(4, 3, 32, 32, generator=rng, dtype=torch.float64)[images]
    order = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(7 * step + i)) for i in range(4)])
    return [pixels, order[images, :4].sort().values, order[images, 4:].sort().values]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_together_take_the_steps_of_one(strategy: str, tmp_path: Path) -> None:
    assert_two_ranks_equal_one(tmp_path, steps_on_ranks, strategy, rtol=1e-9)
