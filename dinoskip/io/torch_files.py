"""Files of ``torch.save``, which public networks come in; ours are safetensors (:mod:`dinoskip.io.files`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from dinoskip.io.files import atomic_path


def save_torch_file(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write a state_dict, whole or not at all."""
    with atomic_path(path) as temporary:
        torch.save(dict(state), temporary)
