"""k-NN classes of one block's features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from eval.knn import knn_predictions


def knn_classify(
    train_x: ArrayLike | torch.Tensor,
    train_y: ArrayLike,
    test_x: ArrayLike | torch.Tensor,
    k: int,
    temperature: float = 0.07,
) -> NDArray[np.int64]:
    """Classes (n,) of ``test_x`` (n, D) by the ``k`` nearest of ``train_x`` (N, D)."""
    train, test = (torch.as_tensor(x)[None] for x in (train_x, test_x))
    return knn_predictions(train, train_y, test, [k], temperature)[k][0]
