"""Class tokens of a feature store, which k-NN compares."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dinoskip.errors import DataError
from dinoskip.features import FeatureStore


def class_tokens(store: FeatureStore, blocks: Sequence[int], images: slice = slice(None)) -> torch.Tensor:
    """Class tokens float32 (blocks, n, C) of some images or all. Raises :class:`DataError` for a store without."""
    tokens = [store.cls(block, images) for block in blocks]
    if any(cls is None for cls in tokens):
        raise DataError(f"{store.path}: holds no class tokens, which k-NN needs", "export with cls=true")
    return torch.stack([torch.from_numpy(cls) for cls in tokens if cls is not None])
