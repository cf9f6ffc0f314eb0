"""The table of networks: a line of each sort, and differences that can be seen."""

from __future__ import annotations

import timm
import torch
from torch import nn

from benchmarks.networks import TIMM, line, networks


def test_lines_say_what_is_read_and_how_far_it_is_off() -> None:
    options = {
        "num_classes": 0,
        "embed_dim": 16,
        "depths": (1, 1),
        "num_heads": (1, 2),
        "img_size": 32,
        "window_size": 4,
    }

    def swin() -> tuple[nn.Module, int]:
        return timm.create_model("swin_tiny_patch4_window7_224", **options), 32

    assert line("a", swin) == ("a", "refused", "2 levels; 4, 8 pixels a cell", "0")
    assert line("b", lambda: (timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0), 224))[1:] == (
        "read", "2 blocks; 16 pixels a cell", "0",
    )  # fmt: skip
    name, before, now, worst = line("c", lambda: (nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), 8))
    assert (name, before, worst) == ("c", "refused", "")
    assert now.startswith("refused: ")


def test_a_network_that_is_not_itself_twice_is_seen() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 4, 4, 4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.a.bias.data += 1
            return self.a(images)  # type: ignore[no-any-return]

    assert float(line("noisy", lambda: (Noisy(), 16))[3]) > 0.01


def test_it_has_the_networks_that_it_is_to_show() -> None:
    named = list(networks())
    assert len(named) == 15 + 7 + 10
    assert all(timm.is_model(name) for name in TIMM)
