"""What passes through each block."""

from __future__ import annotations

import pytest
import torch

from dinoskip.diagnostics import (
    block_activations,
)
from tests.helpers.small_network import IMAGES, network


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True}, {"init_values": 0.1}, {"class_token": False, "global_pool": "avg"}]
)
def test_a_trace_is_the_pass_itself(options: dict[str, object]) -> None:
    backbone = network(**options)
    with torch.no_grad():
        found = list(block_activations(backbone.model, IMAGES))
        assert torch.equal(backbone.model.norm(found[-1].output), backbone.model.forward_features(IMAGES))
        for block in found:
            assert block.attended is not None
            assert block.mixed is not None
            assert block.middle is not None
            torch.testing.assert_close(block.inputs + block.attended, block.middle)
            torch.testing.assert_close(block.middle + block.mixed, block.output)
            query = block.query_key()
            assert query is not None
            keys = backbone.layers(IMAGES, [block.number], facet="key")[block.number].tokens
            prefix = backbone.num_prefix_tokens
            torch.testing.assert_close(query[1].transpose(1, 2).flatten(2)[:, prefix:], keys)
    assert not any(module._forward_hooks for module in backbone.model.modules()), "no hook is left"
