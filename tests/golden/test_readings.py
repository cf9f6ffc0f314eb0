"""The readings of the factor before Q Kᵀ, whole networks, against recorded outputs of an independent implementation.

``scale`` is folded into W_Q and W_K: attention, outputs and token cosines are those of the recorded factor, while
W_Q W_Kᵀ divided by the folded factor is the recorded product, which is without it.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics.activations import run_block
from dinoskip.diagnostics.attention import attention_of
from dinoskip.init import skipless as module
from dinoskip.init import skipless_
from dinoskip.init.assign import assign, attention_tensors
from dinoskip.init.config import SCALES, Scale
from dinoskip.models import create_model
from dinoskip.models.attention_sites import attentions, head_factors, mlps, write
from dinoskip.models.rank_collapse import token_cosine
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("meaning", "readings")
EACH = [pytest.param(case, scale, id=f"{case['name']}-{scale}") for case, scale in product(CASES, SCALES)]


def stored(case: dict) -> dict[str, Tensor]:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def network(case: dict, arrays: dict[str, Tensor], scale: Scale, monkeypatch: pytest.MonkeyPatch) -> VisionTransformer:
    """The case's network, started by skipless_ with the recorded Z; the other matrices are the recorded ones."""
    noise = iter(arrays["Z"].flatten(0, -3).double())
    monkeypatch.setattr(module, "noise_matrix", lambda *_: next(noise))
    model = create_model("vit_tiny_patch16", skip=False, img_size=32, depth=case["depth"], embed_dim=case["width"],
                         num_heads=case["heads"])  # fmt: skip
    heads = {"per_head": "top", "split": "split"}[case["heads_drawn"]]
    skipless_(model, case["alpha"], case["beta"], case["c"], heads=heads, scale=scale)  # type: ignore[arg-type]
    assert next(noise, None) is None, "every recorded Z is used once"
    parameters = dict(model.named_parameters())
    for index, (attention, mlp) in enumerate(zip(attentions(model), mlps(model), strict=True)):
        query, key, _, _ = attention.factors(parameters)
        value, output, fc1, fc2 = (arrays[name][index].double() for name in ("value", "output", "fc1", "fc2"))
        assign(model, attention_tensors(attention, query, key, value, output, parameters))
        assign(model, write({mlp.first: fc1.T, mlp.last: fc2.T}, parameters))
    return model.eval()


def close(found: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=atol)


@pytest.mark.parametrize(("case", "scale"), EACH)
@torch.no_grad()
def test_attention_outputs_and_cosines(case: dict, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, expected = stored(case), case["expected"]
    model, tokens = network(case, arrays, scale, monkeypatch), arrays["tokens"]
    for index, block in enumerate(model.blocks):
        passed = run_block(block, tokens, index + 1, block)
        found = attention_of(passed)
        assert found is not None
        close(found[1], arrays[f"attention_{scale}"][index], 2e-4)
        tokens, reference = passed.output, arrays[f"out_{scale}"][index]
        close(tokens, reference, 2e-4 * float(reference.abs().max()))
        normed = F.layer_norm(tokens.double(), (case["width"],), eps=case["layernorm_eps"])
        for name, measured in (("token_cosine", tokens), ("token_cosine_normed", normed)):
            assert token_cosine(measured) == pytest.approx(expected[f"{name}_{scale}"][index], abs=1e-4), (name, index)
        itself = found[1].diagonal(dim1=-2, dim2=-1).mean()
        assert float(itself) == pytest.approx(expected[f"mean_self_attention_{scale}"][index], abs=2e-4)


@pytest.mark.parametrize(("case", "scale"), EACH)
@torch.no_grad()
def test_products_and_singular_values(case: dict, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = stored(case)
    model, width, heads = network(case, arrays, scale, monkeypatch), case["width"], case["heads"]
    largest = float(arrays["singular_values"].max())
    fold = module.folded_scale(scale, width, heads)
    assert fold**2 / (width // heads) ** 0.5 == pytest.approx(case["expected"][f"scale_{scale}"], rel=1e-12)
    for index, block in enumerate(model.blocks):
        query, key, _, _ = head_factors(block.attn)
        close(query @ key.mT / fold**2, arrays["product"][index], 2e-6 * float(arrays["product"].abs().max()))
        values = query.square().sum(1) / fold**2  # (heads, dh): the triplets are balanced, so these are M's own
        reference = arrays["singular_values"][index]
        given = reference[:, : width // heads] if case["heads_drawn"] == "per_head" else reference.reshape(heads, -1)
        close(values, given, 2e-6 * largest)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_singular_value_of_the_noisy_identity(case: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values include those of triplets that no head has: rank dh of D are kept a head."""
    arrays, width = stored(case), case["width"]
    noise = iter(arrays["Z"].flatten(0, -3).double())
    monkeypatch.setattr(module, "noise_matrix", lambda *_: next(noise))
    drawn = module.noisy_identity(width, case["alpha"], case["beta"], "normal", 0, "any")
    found = torch.stack([torch.linalg.svdvals(drawn(0)) for _ in range(arrays["Z"].flatten(0, -3).shape[0])])
    reference = arrays["singular_values"]
    close(found.reshape(reference.shape), reference, 2e-6 * float(reference.max()))
