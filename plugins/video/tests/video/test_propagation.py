"""Label propagation against its definition in float64, patch by patch; what a memory holds; labels of pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dinoskip_video.video import PropagationRule, VideoMemory, at_size, first_masks, hard_labels, propagate, unit_tokens


def brute(target: np.ndarray, context: np.ndarray, masks: np.ndarray, grid: tuple, rule: PropagationRule) -> np.ndarray:
    """(T, K): every patch on its own, all context patches sorted, ties with the last one kept."""
    height, width = grid
    result = np.zeros((height * width, masks.shape[-1]))
    for place in range(height * width):
        row, column = divmod(place, width)
        scored = [
            (float(context[frame, other] @ target[place]), frame, other)
            for frame in range(len(context))
            for other in range(height * width)
            if not rule.radius or max(abs(other // width - row), abs(other % width - column)) <= rule.radius
        ]
        scored.sort(reverse=True)
        last = scored[min(rule.top_k, len(scored)) - 1][0]
        kept = [one for one in scored if one[0] >= last]
        weights = np.array([np.exp(one[0] / rule.temperature) for one in kept])
        result[place] = weights @ np.array([masks[frame, other] for _, frame, other in kept]) / weights.sum()
    return result


def made_up(
    seed: int, frames: int, grid: tuple[int, int], channels: int = 6, masks: int = 3
) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    tokens = unit_tokens(torch.randn(frames + 1, grid[0] * grid[1], channels, generator=rng))
    return tokens[0], tokens[1:], torch.rand(frames, grid[0] * grid[1], masks, generator=rng)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 99), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.integers(0, 3), st.integers(1, 9)
)
def test_equals_definition(seed: int, frames: int, high: int, wide: int, radius: int, top_k: int) -> None:
    grid, rule = (high, wide), PropagationRule(radius, top_k, 0.2)
    target, context, masks = made_up(seed, frames, grid)
    wanted = brute(target.double().numpy(), context.double().numpy(), masks.double().numpy(), grid, rule)
    np.testing.assert_allclose(propagate(target, context, masks, grid, rule), wanted, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 300])
def test_small_parts_give_the_same(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = (9, 8)
    for rule in (PropagationRule(0, 4), PropagationRule(2, 4)):
        made = made_up(1, 2, grid)
        whole = propagate(*made, grid, rule)
        with monkeypatch.context() as patch:
            patch.setattr("dinoskip_video.video.propagation._SCORES", budget)
            torch.testing.assert_close(propagate(*made, grid, rule), whole)


def test_patches_as_similar_as_the_last_one_count() -> None:
    """A patch takes the mean of its window if all features are alike, as in a network that has collapsed."""
    grid = (4, 5)
    target, context, masks = made_up(0, 2, grid)
    same = torch.zeros_like(target)
    same[:, 0] = 1
    got = propagate(same, same.expand_as(context), masks, grid, PropagationRule(0, 5))
    torch.testing.assert_close(got, masks.flatten(0, 1).mean(0).expand_as(got))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_memory_holds_the_first_frame_and_the_last_ones(size: int) -> None:
    grid, rule = (3, 4), PropagationRule(0, 4)
    rng = torch.Generator().manual_seed(3)
    frames = unit_tokens(torch.randn(7, 12, 5, generator=rng))
    first = torch.eye(3)[torch.randint(3, (12,), generator=rng)]
    memory, masks = VideoMemory(frames[0], first, size), [first]
    for index in range(1, len(frames)):
        before = [0, *range(max(1, index - size), index)]
        wanted = propagate(frames[index], frames[before], torch.stack([masks[i] for i in before]), grid, rule)
        masks.append(memory.follow(frames[index], grid, rule))
        torch.testing.assert_close(masks[-1], wanted)


def test_first_masks_are_one_hot_up_to_the_largest_id_on_the_grid() -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[:20, :30], labels[30, 51], labels[:, 52:] = 2, 7, 255  # object 7 has one pixel, which the grid passes over
    masks = first_masks(labels, (4, 6))
    assert masks.shape == (24, 3)
    small = np.asarray(Image.fromarray(labels).resize((6, 4), Image.Resampling.NEAREST))
    assert (small[:, 5] == 255).all(), "void pixels on the grid are no object"
    assert (masks.argmax(1).reshape(4, 6) == np.where(small == 255, 0, small)).all()
    assert (masks.sum(1) == 1).all()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_labels_are_the_argmax_of_stretched_masks(seed: int, high: int, wide: int, masks: int) -> None:
    soft = torch.rand(high * wide, masks, generator=torch.Generator().manual_seed(seed))
    soft[:, seed % masks] *= seed % 2  # some are empty
    large = torch.nn.functional.interpolate(soft.T.reshape(1, masks, high, wide), scale_factor=3, mode="bilinear")[0]
    for one in large:
        if one.max() > 0 and one.max() > one.min():
            one -= one.min().clone()
            one /= one.max().clone()
    np.testing.assert_array_equal(hard_labels(soft, (high, wide), 3), large.argmax(0))


def test_labels_are_brought_to_size_by_pillow() -> None:
    labels = np.random.default_rng(0).integers(0, 4, (6, 9), dtype=np.uint8)
    assert (at_size(labels, (12, 18)) == labels.repeat(2, 0).repeat(2, 1)).all()
