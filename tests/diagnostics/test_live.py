"""The look inside while training: it writes its rows and changes no bit of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from dinoskip.data.folders import ImageFolder
from dinoskip.diagnostics import BlockAnalysisConfig, analyze_blocks
from dinoskip.diagnostics.live import LiveDiagnostics, gradient_rows, is_known
from dinoskip.models import Backbone, create_model
from dinoskip.runtime.console import read_metrics
from dinoskip.training import PretrainJob, pretrain
from tests.helpers.launch import run_ranks
from tests.helpers.tiny import make_images, tensor_hashes, tiny_job

QUICK = BlockAnalysisConfig(kappa_images=1, lanczos_steps=0, weight_tokens=0)
KAPPAS = {"kappa_sa", "kappa_attention", "kappa_weights", "kappa_weights_bound", "kappa_weights_ceiling"}
KEYS = {"entropy", "diagonal", "token_cosine", "kurtosis", "negentropy"} | KAPPAS
LOOSE = {"kappa_attention", "kappa_sa", "negentropy"}
HISTOGRAMS = {"histogram_1", "histogram_2"}
GRADIENTS = {f"grad_{part}" for part in ("query", "key", "value", "output", "fc1", "fc2")}


def test_a_run_with_diagnostics_has_the_bits_of_one_without(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images"))
    plain = pretrain(tiny_job(), images, tmp_path / "plain", device="cpu")
    looked = pretrain(tiny_job(diagnose_every=3), images, tmp_path / "looked", device="cpu")
    assert tensor_hashes(looked) == tensor_hashes(plain)
    rows = read_metrics(tmp_path / "looked" / "diagnostics.jsonl")
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    for row in rows:
        assert set(row) == KEYS | GRADIENTS | HISTOGRAMS | {"step", "epoch"}
        assert all(len(row[key]) == tiny_job().model.depth for key in KEYS | GRADIENTS)
        assert all(0 < value <= 1 for value in row["entropy"] + row["diagonal"])
        assert all(1 <= value < 1e16 for key in KAPPAS for value in row[key])
        assert all(value > -0.2 for value in row["negentropy"]), "0 for a Gaussian; of some 2,000 values near it"
        for key in HISTOGRAMS:  # densities over 96 bins of 16 deviations
            assert sum(row[key]) * 16 / 96 == pytest.approx(1, abs=1e-3)
        assert all(math.isfinite(value) and value > 0 for key in GRADIENTS for value in row[key])
    assert not (tmp_path / "plain" / "diagnostics.jsonl").exists()


def two_epochs(parallel: str = "ddp", **more: int) -> PretrainJob:
    """Without skips: drop path draws its noise by rank."""
    job = tiny_job(skip=False, batch_size=16, parallel=parallel, **more)
    return job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"lr": 0.002})})


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The images, and what one process sees."""
    folder = tmp_path_factory.mktemp("one")
    images = make_images(folder / "images")
    pretrain(two_epochs(diagnose_every=2), ImageFolder.open(images), folder / "run", device="cpu")
    return images, read_metrics(folder / "run" / "diagnostics.jsonl")


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_two_ranks_see_what_one_sees(
    parallel: str, one_rank: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    images, alone = one_rank
    hashes = []
    for every in (2, 0):
        job, run_dir = two_epochs(parallel, diagnose_every=every), tmp_path / f"every{every}"
        outcomes = run_ranks(2, job, images, run_dir)
        assert [code for code, _ in outcomes] == [0, 0], outcomes
        hashes.append(tensor_hashes(run_dir / "checkpoints" / "step-00000006"))
    assert hashes[0] == hashes[1], "looking changes no bit"
    rows = read_metrics(tmp_path / "every2" / "diagnostics.jsonl")
    assert [row["step"] for row in rows] == [row["step"] for row in alone] == [2, 4, 6]
    for row, expected in zip(rows, alone, strict=True):
        assert set(row) == set(expected) == KEYS | GRADIENTS | HISTOGRAMS | {"step", "epoch"}
        for key in KEYS | GRADIENTS:
            # κ near 1e6 of float32 outputs: another order of summation moves the smallest singular value by κ times
            # 1.2e-7 of itself; of the loose ones, κ near 1e5 and a difference of two entropies, near 0
            near = 0.2 if key == "kappa_sa" else 1e-2 if key in LOOSE else 1e-3
            assert row[key] == pytest.approx(expected[key], rel=near), key


def test_what_is_seen_is_what_the_analysis_sees(tmp_path: Path) -> None:
    """κ of attention's output, kurtosis, negentropy and histograms have one definition, trained or not."""
    images = ImageFolder.open(make_images(tmp_path / "images"))
    model = create_model("vit_tiny_patch16", depth=3, img_size=32)
    live = LiveDiagnostics(images, 32)
    seen = live.signals(model)
    looked = analyze_blocks(Backbone.from_model(model), live._inputs(next(model.parameters())), QUICK)
    for number, row in enumerate(looked.rows):
        assert seen["kappa_sa"][number] == pytest.approx(row.kappa_sa, rel=1e-6)
        assert seen["kurtosis"][number] == pytest.approx(row.excess_kurtosis, rel=1e-6)
        assert seen["negentropy"][number] == pytest.approx(row.negentropy, abs=1e-6)
    for block, found in looked.histograms.items():
        assert seen[f"histogram_{block}"] == pytest.approx(found.density, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("xcit_nano_12_p16_224", 14, {"img_size": 64}),  # 12 over channels, 2 of the class token
        ("swin_tiny_patch4_window7_224", 12, {"img_size": 224, "embed_dim": 24, "num_heads": (1, 2, 2, 4)}),
        ("deit_tiny_patch16_224", 12, {"img_size": 64}),
    ],
)
def test_networks_of_timm_are_looked_at(name: str, count: int, options: dict[str, Any], tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images"))
    model = timm.create_model(name, num_classes=0, **options)
    assert is_known(model)
    side = options["img_size"]
    model(torch.zeros(1, 3, side, side)).sum().backward()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    seen, grads = LiveDiagnostics(images, side).signals(model), gradient_rows(model, lambda p: p.grad)
    for key in ("kappa_sa", "token_cosine", "kurtosis", "negentropy"):
        assert len(seen[key]) == count, key
        assert all(math.isfinite(value) for value in seen[key]), key
    assert {f"histogram_{number}" for number in (1, (count + 1) // 2, count)} <= set(seen)
    assert ("kappa_weights" in seen) == name.startswith("deit")
    assert all(len(grads[f"grad_{part}"]) == count for part in ("query", "key", "value", "output"))
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


def test_a_network_without_attention_is_refused(tmp_path: Path) -> None:
    assert not is_known(timm.create_model("resnet10t", num_classes=0))


def test_modes_gradients_and_random_numbers_stay(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images"))
    model = create_model("vit_tiny_patch16", depth=2, img_size=32, drop_path_rate=0.2)
    model.blocks[1].norm1.eval()
    modes = [module.training for module in model.modules()]
    model(torch.zeros(1, 3, 32, 32)).sum().backward()
    before = torch.get_rng_state()
    first = LiveDiagnostics(images, 32).signals(model)
    assert first == LiveDiagnostics(images, 32).signals(model), "the same images, no dropped paths"
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    rows = gradient_rows(model, lambda p: p.grad)
    grad = model.blocks[0].attn.qkv.weight.grad
    assert rows["grad_key"][0] == float(grad[192:384].double().norm())
    assert rows["grad_fc2"][1] == float(model.blocks[1].mlp.fc2.weight.grad.double().norm())


def test_it_is_cheap(tmp_path: Path) -> None:
    """Two images forward against a step's 2 × 8 global crops forward twice and backward: under 1 % every 100 steps."""
    images = ImageFolder.open(make_images(tmp_path / "images"))
    model = create_model("vit_tiny_patch16", depth=4, img_size=96)
    batch = torch.randn(16, 3, 96, 96)
    live = LiveDiagnostics(images, 96)
    live.signals(model)
    with FlopCounterMode(display=False) as step:
        model(batch).square().sum().backward()
    with FlopCounterMode(display=False) as looked:
        live.signals(model)
        gradient_rows(model, lambda p: p.grad)
    assert 0 < looked.get_total_flops() / 100 < 0.01 * step.get_total_flops()
