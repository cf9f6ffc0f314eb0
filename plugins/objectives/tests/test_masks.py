"""Masks: what they promise of their shares, that they depend on seed, epoch, image and view alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip_objectives.masks import BlockMasks, VisiblePatches, block_mask

RATIOS = ((0.0, 0.0), (0.1, 0.5))


def drawn(grid: int, count: int, seed: int = 0, epoch: int = 0) -> list[torch.Tensor]:
    boxes, flips = np.zeros((count, 2, 4), dtype=np.int64), np.zeros((count, 2), dtype=bool)
    return BlockMasks(grid, RATIOS, seed)(epoch, np.arange(count), boxes, flips)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(2, 16), width=st.integers(2, 16), share=st.floats(0, 0.95), seed=st.integers(0, 10**6))
def test_a_block_mask_never_exceeds_its_share_and_is_made_of_blocks(
    height: int, width: int, share: float, seed: int
) -> None:
    mask = block_mask(height, width, share, np.random.default_rng(seed))
    assert mask.shape == (height, width)
    assert mask.sum() <= share * height * width


def test_block_masks_are_large_blocks_that_mostly_reach_their_share() -> None:
    rng = np.random.default_rng(0)
    masks = np.stack([block_mask(14, 14, 0.3, rng) for _ in range(300)])
    assert 0.24 < masks.mean() <= 0.3
    assert (masks.mean((1, 2)) > 0.2).mean() > 0.9
    alike = (masks[:, :, 1:] == masks[:, :, :-1]).mean()
    assert alike > 0.85, "neighbours are mostly both masked or both not; of single patches at random it were 0.58"
    everywhere = masks.mean(0)
    assert everywhere.min() > 0
    assert everywhere.max() < 0.7


def test_half_of_the_views_are_not_masked_and_the_others_evenly_from_a_tenth_to_a_half() -> None:
    masks, tokens, weights = drawn(14, 400)
    shares = masks.float().mean(1)
    assert masks.shape == (800, 196)
    assert 0.44 < (shares == 0).float().mean() < 0.56
    assert 0.25 < shares[shares > 0].mean() < 0.3
    assert torch.equal(tokens, masks.flatten().nonzero()[:, 0])
    counts = masks.sum(1).clamp(min=1)
    torch.testing.assert_close(weights, (1 / (counts * 800)).repeat_interleave(masks.sum(1)))


def test_a_mask_depends_on_seed_epoch_image_and_view_alone() -> None:
    masks = drawn(6, 9)[0].view(2, 9, 36)
    some = BlockMasks(6, RATIOS, 0)(0, np.array([7, 3]), np.zeros((2, 2, 4)), np.zeros((2, 2)))[0].view(2, 2, 36)
    assert torch.equal(some, masks[:, [7, 3]])
    for other in (drawn(6, 9, seed=1), drawn(6, 9, epoch=1)):
        assert not torch.equal(other[0].view(2, 9, 36), masks)
    assert not torch.equal(masks[0], masks[1])


def test_visible_patches_are_a_random_quarter_and_the_rest_is_removed() -> None:
    source = VisiblePatches(14, 0.25, seed=3)
    kept, removed = source(0, np.arange(500), np.zeros((500, 1, 4)), np.zeros((500, 1)))
    assert kept.shape == (500, 49)
    assert removed.shape == (500, 147)
    assert torch.equal(torch.cat([kept, removed], 1).sort(1).values, torch.arange(196).expand(500, -1))
    assert bool((kept.diff(dim=1) > 0).all())
    often = torch.bincount(kept.flatten(), minlength=196) / 500
    assert often.min() > 0.17
    assert often.max() < 0.34
    again = source(0, np.array([41]), np.zeros((1, 1, 4)), np.zeros((1, 1)))[0]
    assert torch.equal(again[0], kept[41])
    assert not torch.equal(source(1, np.array([41]), np.zeros((1, 1, 4)), np.zeros((1, 1)))[0], again)
