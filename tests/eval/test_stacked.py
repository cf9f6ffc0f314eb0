"""Inputs of the heads of a stack, and the images they are fitted on."""

from __future__ import annotations

import torch

from eval.probe.stack import HeadStack
from eval.stacked import draw_uniform, groups_of, held_out, name_of


def test_groups_and_held_out_images() -> None:
    assert groups_of([2], [1, 2], cls=True) == [
        (("patches", 2), ("cls", 2)), (("patches", 1), ("cls", 1), ("patches", 2), ("cls", 2)),
    ]  # fmt: skip
    assert name_of(groups_of([], [3, 6], cls=True)[0]) == "3+6"
    fit, held = held_out(20, 0.1, 0)
    assert sorted([*fit, *held]) == list(range(20))
    assert len(held) == 2
    assert len(held_out(20, 0.0, 0)[1]) == 0


def test_first_weights_are_those_of_a_convolution_whatever_else_is_in_the_stack() -> None:
    groups = groups_of([1, 2], [1, 2], cls=True)
    device = torch.device("cpu")
    whole, alone = (HeadStack(some, [1e-3, 1e-2], 50, 30, 0.0, device) for some in (groups, groups[2:]))
    for stack in (whole, alone):
        draw_uniform(stack, 0)
    torch.testing.assert_close(whole.weight[4:], alone.weight)
    torch.testing.assert_close(whole.bias[2], alone.bias[0])
    torch.testing.assert_close(whole.weight[:, 0], whole.weight[:, 1])
    for slots, channels in ((slice(0, 2), 60), (slice(4, 8), 120)):
        bound = channels**-0.5
        assert 0.95 * bound < float(whole.weight[slots].abs().max()) <= bound
        assert abs(float(whole.weight[slots].std()) - bound / 3**0.5) < 0.05 * bound
