"""1.5-entmax: recorded rows and gradients of an independent implementation, its definition, and networks with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dinoskip.diagnostics import analyze_blocks, bundled_photos
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.init import ModelConfig, build_model
from dinoskip.io.files import read_json
from dinoskip.models import Backbone, load_backbone, save_weights
from dinoskip.models.attention import cls_attention
from dinoskip.models.entmax import entmax15
from dinoskip.models.export import refuse_skipless_weights
from dinoskip.models.timm_registry import save_timm_folder
from dinoskip.models.transformers_layout import save_transformers_folder
from dinoskip.training import compilation, pretrain
from dinoskip.training.objectives import PretrainJob
from tests.helpers.golden_next import GOLDEN, arrays, cases, golden
from tests.helpers.tiny import objective_job
from tests.training.test_resume import folder

SMALL: dict[str, Any] = {"name": "vit_mini_patch8", "depth": 2, "img_size": 16, "attention": "entmax15"}


def worst(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach() - wanted).abs().max() / wanted.abs().max())


def test_golden_folder_is_used() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("../shared/golden/next is absent")
    assert len(cases("entmax15")) == 5


@golden("entmax15", kind="rows")
def test_rows_and_gradients_are_the_recorded_ones(case: dict[str, Any]) -> None:
    recorded = arrays(case)
    logits = recorded["logits"].requires_grad_()
    rows = entmax15(logits)
    rows.backward(recorded["upstream"])
    assert rows.dtype == torch.float32
    error = float((rows.detach() - recorded["probabilities"]).abs().max())
    assert logits.grad is not None
    print(f"rows {error:.1e}, gradient {worst(logits.grad, recorded['grad_logits']):.1e} of the largest")
    assert error < 2e-6
    unlike = (rows > 0) != recorded["support"]
    assert not (unlike & ((rows > 1e-9) | (recorded["probabilities"] > 1e-9))).any()
    assert worst(logits.grad, recorded["grad_logits"]) < 2e-4
    assert torch.equal(entmax15(recorded["logits"].detach()), rows)


@golden("entmax15", kind="attention")
def test_attention_is_the_recorded_one(case: dict[str, Any]) -> None:
    recorded = arrays(case)
    query, key, value = (recorded[name].requires_grad_() for name in ("query", "key", "value"))
    rows = entmax15(query @ key.mT / case["head_dim"] ** 0.5)
    output = rows @ value
    output.backward(recorded["upstream"])
    assert float((rows.detach() - recorded["probabilities"]).abs().max()) < 5e-6
    assert float((output.detach() - recorded["output"]).abs().max()) < 1e-5
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        assert tensor.grad is not None
        assert worst(tensor.grad, recorded[f"grad_{name}"]) < 5e-4, name


def by_bisection(logits: Tensor) -> Tensor:
    """The definition: τ with Σ max(z - τ, 0)² = 1."""
    z = logits / 2
    low, high = z.amax(-1, keepdim=True) - 1, z.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        more = (z - middle).clamp(min=0).square().sum(-1, keepdim=True) > 1
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return (z - low).clamp(min=0).square()


@given(
    st.lists(st.floats(-60, 60), min_size=1, max_size=40), st.sampled_from([0.01, 0.3, 1.0, 30.0]),
    st.booleans(),
)  # fmt: skip
def test_rows_are_the_definition_in_float64(values: list[float], scale: float, tied: bool) -> None:
    logits = torch.tensor(values, dtype=torch.float64) * scale
    logits = logits.round() if tied else logits
    rows = entmax15(logits)
    torch.testing.assert_close(rows, by_bisection(logits), rtol=0, atol=1e-9)
    assert float(rows.sum()) == pytest.approx(1, abs=1e-12)
    assert not rows[logits <= logits.max() - 2].any() or len(rows) == 1


def test_gradients_are_those_of_finite_differences() -> None:
    logits = 2 * torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(entmax15, logits.requires_grad_(), eps=1e-7, atol=1e-5)


def test_half_precision_is_computed_in_float32() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(entmax15(logits), entmax15(logits.float()))


@pytest.mark.parametrize("init", ["trunc_normal", "skipless", "mimetic", "calibrated"])
def test_a_network_attends_by_its_rows(init: str) -> None:
    config = ModelConfig(**SMALL, skip=False, init={"name": init})  # type: ignore[arg-type]
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model = build_model(config, 0, images=images if init == "calibrated" else None).double().eval()
    attention, x = model.blocks[0].attn, torch.randn(2, 5, 128, dtype=torch.float64)
    q, k, v = (x @ attention.qkv.weight.T + attention.qkv.bias).view(2, 5, 3, 2, 64).permute(2, 0, 3, 1, 4)
    mixed = (by_bisection(q @ k.mT / 8) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(
        attention(x), mixed @ attention.proj.weight.T + attention.proj.bias, rtol=1e-8, atol=1e-8
    )
    with pytest.raises(ValueError, match="takes no mask"):
        attention(x, is_causal=True)


def test_measures_are_of_its_rows() -> None:
    plain, sparse = (
        Backbone.from_model(build_model(ModelConfig(**{**SMALL, "attention": kind, "img_size": 48}), 0).double())
        for kind in ("softmax", "entmax15")
    )
    with torch.no_grad():
        for backbone in (plain, sparse):
            for block in backbone.model.blocks:
                block.attn.qkv.weight *= 20
    photos = bundled_photos(2, 48)
    weights = cls_attention(sparse, photos, [2])
    assert weights is not None
    assert (weights[2] == 0).any()
    rows = [analyze_blocks(one, photos).rows[1] for one in (plain, sparse)]
    assert 0 <= rows[1].attention_entropy < rows[0].attention_entropy
    assert math.isfinite(rows[0].kappa_k)
    assert math.isnan(rows[1].kappa_k)
    assert "attention entmax15" in sparse.beside_weights
    assert "attention entmax15" not in plain.beside_weights


def test_weights_files_say_it_everywhere(tmp_path: Path) -> None:
    config = ModelConfig(**SMALL)
    model, file = build_model(config, 0).eval(), tmp_path / "w.safetensors"
    save_weights(file, model.state_dict(), config, {})
    save_timm_folder(tmp_path / "timm", model.state_dict(), config, {})
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        wanted = model.forward_features(images)
        assert torch.equal(load_backbone(f"weights:{file}").model.forward_features(images), wanted)
        loaded = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
        assert torch.equal(loaded.forward_features(images), wanted)
    with pytest.raises(ConfigError, match="transformers has no ViT with attention=entmax15"):
        save_transformers_folder(tmp_path / "hf", model.state_dict(), config)
    with pytest.raises(WeightsError, match="weights of a network with attention=entmax15"):
        refuse_skipless_weights(file, "this")


def test_a_run_is_compiled_without_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.utils.counters.clear()
    tree = objective_job("patch_contrast", epochs=1, warmup_epochs=0, compile=True).model_dump(mode="json")
    tree["model"]["attention"] = "entmax15"
    pretrain(PretrainJob.model_validate(tree), folder(), tmp_path, device="cpu")
    assert read_json(tmp_path / "env.json")["uncompiled"] is None
    assert torch._dynamo.utils.counters["graph_break"] == {}
