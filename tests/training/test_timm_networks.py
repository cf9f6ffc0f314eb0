"""Networks of timm under their own names: sizes, cost, training, exact resume, the dial, evaluation, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from timm.layers import DropPath
from torch import nn

from dinoskip.cli import main
from dinoskip.data import ImageFolder, LabelledFolder
from dinoskip.errors import ConfigError, Interrupted, WeightsError
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.io.files import read_json
from dinoskip.models import VitConfig, load_backbone, load_weights, save_timm_folder
from dinoskip.models.attention_sites import attentions
from dinoskip.models.transformers_layout import save_transformers_folder
from dinoskip.runtime.arithmetic import kernels
from dinoskip.runtime.provenance import today
from dinoskip.settings.config import dump
from dinoskip.settings.flops import vit_flops, vit_parameters
from dinoskip.settings.specs import exported_weights
from dinoskip.training import PretrainJob, compilation, pretrain
from dinoskip.training.compilation import Compiler
from dinoskip.training.supervised import supervise
from tests.helpers.labelled import make_classes, supervised_job
from tests.helpers.launch import run_ranks
from tests.helpers.tiny import make_images, rows_of, tensor_hashes, tiny_job
from tests.training.test_resume import folder, killed_before

PVT = {"name": "timm:pvt_v2_b0", "depth": None, "img_size": 32}
XCIT = {"name": "timm:xcit_nano_12_p16_224", "img_size": 32, "drop_path": 0.1}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> LabelledFolder:
    return LabelledFolder.open(make_classes(tmp_path_factory.mktemp("classes") / "train", 16))


def xcit_job(**pretrain_settings: Any) -> PretrainJob:
    """DINO of XCiT with BatchNorm, and skips that fall from 1 to 0."""
    tree = dump(tiny_job(batch_size=4, checkpoint_every_steps=1, **pretrain_settings))
    tree["model"] = {**XCIT, "skip_weight": {"end": 0.0, "fraction": 0.5}, "init": {"name": "default"}}
    return PretrainJob.model_validate(tree)


def test_what_is_read_off_a_network_is_what_the_closed_form_says() -> None:
    ours, timms = VitConfig(name="vit_tiny_patch16"), VitConfig(name="timm:vit_tiny_patch16_224")
    assert vit_flops(timms) == vit_flops(ours)
    assert vit_parameters(timms) == vit_parameters(ours)
    assert (timms.patch_size, timms.blocks, timms.width) == (16, 12, 192)
    swin = VitConfig(name="timm:swin_tiny_patch4_window7_224")
    assert (swin.facts.strides, swin.facts.widths) == ((4, 8, 16, 32), (96, 192, 384, 768))
    assert (swin.patch_size, swin.blocks, swin.width) == (32, 4, 768)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "timm:swin_tinny"}, "timm has no model 'swin_tinny'"),
        ({"name": "timm:vit_tiny_patch16_224.dino"}, "without a tag"),
        ({"name": "timm:pvt_v2_b0", "img_size": 48}, "48 is not a multiple of the patch size 32"),
        ({"name": "timm:pvt_v2_b0", "depth": 2}, "depth: is of networks of ours"),
        ({"name": "timm:pvt_v2_b0", "registers": 2}, "registers: is of networks of ours"),
    ],
)
def test_what_does_not_go_is_said_before_anything_is_computed(model: dict[str, Any], message: str) -> None:
    with pytest.raises((ValidationError, ConfigError), match=message):
        VitConfig.model_validate(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pretrain": {"objective": "patch_contrast"}}, "is trained by dino alone"),
        ({"model": {"name": "timm:cait_xxs24_224", "img_size": 224}}, "crops.local_size: 96 is refused by the network"),
        ({"optimizer": {"layer_decay": 0.5}}, "layer_decay: is of ViTs of ours"),
    ],
)
def test_recipes_that_do_not_go_are_refused(change: dict[str, Any], message: str) -> None:
    tree = {"model": {"name": "timm:pvt_v2_b0"}, **change}
    with pytest.raises(ValidationError, match=message):
        PretrainJob.model_validate(tree)


def straight_and_resumed(
    model: dict[str, Any], data: LabelledFolder, place: Path, monkeypatch: pytest.MonkeyPatch, every: int, **more: Any
) -> tuple[Path, Path]:
    """The last checkpoints of an undisturbed run, and of one that was killed in its third step and resumed."""
    job = supervised_job(model=model, epochs=1, warmup_epochs=0, checkpoint_every_steps=every, **more)
    straight = supervise(job, data, None, place / "straight", device="cpu")
    from dinoskip.data.classification import ClassLoader  # the views of a micro-batch

    real, calls = ClassLoader.views, []

    def dies(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(ClassLoader, "views", dies)
        with pytest.raises(Interrupted):
            supervise(job, data, None, place / "run", device="cpu")
    return straight, supervise(job, data, None, place / "run", device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_large_patch16", "timm:vit_large_patch16_224"])
def test_a_large_network_ends_with_the_bits_of_a_straight_run(
    name: str, classes: LabelledFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """303 million weights: 15 GB of memory, 15 GB of disk."""
    model = {"name": name, "depth": None, "img_size": 32, "skip": False, "init": {"name": "skipless"}}
    straight, final = straight_and_resumed(model, classes, tmp_path, monkeypatch, every=2, augment={"size": 32})
    assert tensor_hashes(final) == tensor_hashes(straight)
    _, config, _ = load_weights(exported_weights(final))
    assert (config.width, config.blocks) == (1024, 24)


@pytest.mark.slow  # DINO of such a network resumes below
def test_a_killed_classifier_ends_with_the_bits_of_a_straight_one(
    classes: LabelledFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {**PVT, "graying": {}, "skip": "attention"}
    straight, final = straight_and_resumed(model, classes, tmp_path, monkeypatch, every=1)
    job = supervised_job(model=model, epochs=1, warmup_epochs=0)
    assert tensor_hashes(final) == tensor_hashes(straight)

    backbone = load_backbone(f"run:{tmp_path / 'run'}")
    assert [backbone.stride(number) for number in backbone.numbers] == [4, 8, 16, 32]
    assert any("skips" in fact for fact in backbone.beside_weights)
    assert any("graying" in fact for fact in backbone.beside_weights)
    assert backbone.mean == pytest.approx((0.485, 0.456, 0.406))
    images = torch.randn(1, 3, 64, 64)
    plain = build_model(job.model, job.seed).eval()
    plain.load_state_dict(load_weights(exported_weights(final))[0])
    with torch.no_grad():
        expected = plain.forward_intermediates(images, intermediates_only=True)[-1].flatten(2).mT
    torch.testing.assert_close(backbone.layers(images, [4])[4].tokens, expected, rtol=0, atol=0)


def test_dino_of_a_network_with_batch_norm_resumes_in_the_ramp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, run_dir = xcit_job(epochs=1, warmup_epochs=0), tmp_path / "run"
    straight = pretrain(job, folder(), tmp_path / "straight", device="cpu")
    killed_before(4, job, run_dir, monkeypatch)
    final = pretrain(job, folder(), run_dir, device="cpu")
    assert tensor_hashes(final) == tensor_hashes(straight)
    assert rows_of(run_dir) == rows_of(tmp_path / "straight")
    teacher, config, info = load_weights(final / "teacher.safetensors")
    assert config.skip is False
    assert (info["images_format"], info["images"]) == ("images", folder().fingerprint())
    assert (info["date"], info["kernels"]) == (today(), kernels())
    means = {name: tensor for name, tensor in teacher.items() if name.endswith("running_mean")}
    assert any(tensor.any() for tensor in means.values()), "the teacher's own batches were seen"


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    config = ModelConfig(**{**PVT, "depth": None})
    from dinoskip.models import save_weights  # of a network that is not trained

    state = build_model(config, 0).state_dict()
    state.pop("patch_embed.proj.bias")
    save_weights(tmp_path / "a.safetensors", state, config, {})
    with pytest.raises(WeightsError, match="1 missing"):
        load_weights(tmp_path / "a.safetensors")


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_drop_path_is_what_the_setting_says(rate: float) -> None:
    config = ModelConfig(name="timm:swin_tiny_patch4_window7_224", img_size=32)
    model = build_model(config, 0, drop_path=rate)
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    assert rates
    assert max(rates) == pytest.approx(rate)


def test_initialisations_are_laid_over_timms_own(tmp_path: Path) -> None:
    plain, other = (build_model(ModelConfig(**PVT, init={"name": name}), 3) for name in ("default", "conditioned"))
    again = build_model(ModelConfig(**PVT), 3)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), again.parameters(), strict=True))
    changed = {
        name for (name, a), b in zip(plain.named_parameters(), other.parameters(), strict=True) if not torch.equal(a, b)
    }
    expected = {factor.name for one in attentions(plain) for factor in (one.query, one.key, one.value)}
    assert changed == expected


def test_a_program_gives_the_levels_of_a_run(tmp_path: Path) -> None:
    from dinoskip.models.traced import save_program  # the exporter is heavy

    backbone = load_backbone("timm:pvt_v2_b0,pretrained=false,image_size=64")
    assert save_program(tmp_path / "a.pt2", backbone, size=64) < 1e-4


def test_timm_loads_a_folder_of_what_it_builds_itself(tmp_path: Path) -> None:
    config = ModelConfig(name="timm:pvt_v2_b0")
    model = build_model(config, 0).eval()
    save_timm_folder(tmp_path / "a", model.state_dict(), config, {})
    loaded = timm.create_model(f"local-dir:{tmp_path / 'a'}", pretrained=True, num_classes=0).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    for change in ({"skip": False}, {"graying": {}}, {"img_size": 64}):
        with pytest.raises(ConfigError, match="it builds no timm:pvt_v2_b0 of these skips"):
            save_timm_folder(tmp_path / "b", {}, ModelConfig(name="timm:pvt_v2_b0", **change), {})
    with pytest.raises(ConfigError, match="name=timm:pvt_v2_b0"):
        save_transformers_folder(tmp_path / "c", {}, config)


def test_its_blocks_are_compiled_one_by_one() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = build_model(ModelConfig(**PVT), 0)

    from dinoskip.training.parallel import transformer_blocks  # as fsdp finds them

    assert len(transformer_blocks(Holder())) == 8
    assert Compiler().problem() is None


def test_a_plan_counts_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dinoskip.pipeline.estimate.work import network_of
    from dinoskip.pipeline.variants import Variant

    network = network_of(Variant("a", model=ModelConfig(name="timm:swin_tiny_patch4_window7_224")))
    assert network.tokens(224, 224) == 49
    values = 56 * 56 * 96 + 28 * 28 * 192 + 14 * 14 * 384 + 7 * 7 * 768
    assert network.tokens(224, 224) * network.depth * network.width == pytest.approx(values)
    assert network.flops(49) == vit_flops(VitConfig(name="timm:swin_tiny_patch4_window7_224"))
    assert main(["models", "list"]) == 0
    capsys.readouterr()


LEARN = {
    "timm:swin_tiny_patch4_window7_224": 32, "timm:cait_xxs24_224": 32, "timm:xcit_nano_12_p16_224": 32,
    "timm:pvt_v2_b0": 32, "timm:convmixer_768_32": 28,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARN)
def test_every_family_is_compiled_without_a_break_and_exported(
    name: str, classes: LabelledFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dinoskip.models.traced import save_onnx  # the exporter is heavy

    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")  # no C++ is compiled, which takes minutes
    torch._dynamo.utils.counters.clear()
    size = LEARN[name]
    model = {"name": name, "depth": None, "img_size": size}
    job = supervised_job(model=model, epochs=1, warmup_epochs=0, compile=True, augment={"size": size})
    supervise(job, classes, None, tmp_path / "run", device="cpu")
    written = read_json(tmp_path / "run" / "env.json")
    assert (written["compiled_graphs"], written["uncompiled"]) == (1, None)
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert save_onnx(tmp_path / "a.onnx", load_backbone(f"run:{tmp_path / 'run'}")) < 1e-5


def dino_job(name: str, **pretrain_settings: Any) -> PretrainJob:
    """Three steps of DINO, on crops of two sizes."""
    crops = {"global_size": 64, "local_size": 32, "num_local": 1}
    tree = dump(tiny_job(epochs=1, warmup_epochs=0, crops=crops, **pretrain_settings))
    tree["model"] = {"name": name, "depth": None, "img_size": 64, "drop_path": 0}
    tree["optimizer"]["lr"] = 2e-3
    return PretrainJob.model_validate(tree)


OF_TWO_SIZES = ["timm:pvt_v2_b0", "timm:swin_tiny_patch4_window7_224", "timm:vit_tiny_patch16_224"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TWO_SIZES)
def test_dino_of_a_family_on_two_sharded_ranks_is_that_of_one(name: str, tmp_path: Path) -> None:
    images, job = make_images(tmp_path / "images", 24), dino_job(name, parallel="fsdp")
    for size in (1, 2):
        outcomes = run_ranks(size, job, images, tmp_path / f"of-{size}")
        assert [code for code, _ in outcomes] == [0] * size, outcomes
    losses = [[row["loss"] for row in rows_of(tmp_path / f"of-{size}")] for size in (1, 2)]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TWO_SIZES)
def test_dino_of_a_family_is_compiled_and_takes_the_same_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch._dynamo.utils.counters.clear()
    images = ImageFolder.open(make_images(tmp_path / "images", 24))
    for compiled in (False, True):
        pretrain(dino_job(name, compile=compiled), images, tmp_path / str(compiled), device="cpu")
    assert read_json(tmp_path / "True" / "env.json")["uncompiled"] is None
    assert torch._dynamo.utils.counters["graph_break"] == {}
    losses = [[row["loss"] for row in rows_of(tmp_path / str(compiled))] for compiled in (False, True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARN)
@pytest.mark.parametrize("skip", [True, False])
def test_every_family_is_trained_with_and_without_skips(
    name: str, skip: bool, classes: LabelledFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    light = {"mixup": 0, "cutmix": 0, "erase": 0, "rand_magnitude": 0, "label_smoothing": 0, "size": LEARN[name]}
    model = {"name": name, "depth": None, "img_size": LEARN[name], "skip": skip}
    tree = dump(supervised_job(model=model, epochs=4, augment=light, online_every=4))
    tree["optimizer"]["lr"] = 1e-2
    supervise(type(supervised_job()).model_validate(tree), classes, classes, tmp_path / "run", device="cpu")
    rows = rows_of(tmp_path / "run")
    assert all(row["loss"] < 20 for row in rows)
    if "convmixer" not in name:  # 32 BatchNorms of 12 images each are too noisy for 16 steps
        assert sum(row["loss"] for row in rows[-4:]) < sum(row["loss"] for row in rows[:4])
    with capsys.disabled():
        print(
            f"\n{name} skip={skip}: loss {rows[0]['loss']:.2f} to {rows[-1]['loss']:.2f}, top-1 {rows[-1]['top1']:.0f}"
        )
