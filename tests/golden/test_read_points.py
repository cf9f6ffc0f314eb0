"""Read points inside a block against recorded outputs of an independent implementation in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dinoskip.models import Backbone
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.models.vit import Block, Vit
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("next", "readpoint")


def network(case: dict[str, Any], arrays: dict[str, Tensor]) -> Backbone:
    """The case's blocks in a ViT of ours, which takes their input as it is."""
    skips = {"skip": True, "dial": True, "skipless": False}.get(case["skips"], case["skips"])

    rows, columns = case["grid"]
    model = Vit(
        img_size=(8 * rows, 8 * columns), patch_size=8, embed_dim=case["dim"], depth=case["depth"],
        num_heads=case["heads"], mlp_ratio=case["mlp_ratio"], init_values=case["layerscale"],
        block_fn=partial(Block, skip=skips),
        norm_layer=partial(nn.LayerNorm, eps=case["layernorm_eps"]), num_classes=0,
        reg_tokens=case["prefix_tokens"] - 1,
    )  # fmt: skip
    missing, unknown = model.load_state_dict({n: t for n, t in arrays.items() if n.startswith("blocks.")}, strict=False)
    assert not unknown
    assert not [name for name in missing if name.startswith("blocks.")]
    if case["skips"] == "dial":
        weigh_skips_(model, [tuple(pair) for pair in arrays["skip_weights"].tolist()])
    backbone = Backbone.from_model(model)
    backbone.adapter.embed = lambda images: (arrays["tokens"], None)  # type: ignore[method-assign]
    return backbone


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_read_point_is_the_recorded_one(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    backbone = network(case, arrays)
    images = torch.zeros(len(arrays["tokens"]), 3, *(8 * side for side in case["grid"]))
    blocks = range(1, case["depth"] + 1)
    together = backbone.layers(images, blocks, case["facets"])
    assert list(together) == case["facets"]
    for facet, found in together.items():
        alone = backbone.layers(images, blocks, facet)  # type: ignore[call-overload]
        for block in blocks:
            wanted = arrays[f"{facet}_{block - 1}"]
            allowed = 5e-6 * float(wanted.abs().max())
            features = found[block]
            torch.testing.assert_close(features.tokens, wanted[:, case["prefix_tokens"] :], rtol=0, atol=allowed)
            torch.testing.assert_close(features.cls, wanted[:, 0], rtol=0, atol=allowed)
            assert torch.equal(features.tokens, alone[block].tokens)
