"""Networks that are read level by level are analysed and rounded at their attentions and MLPs."""

from __future__ import annotations

import math

import pytest
import timm
import torch

from dinoskip.diagnostics import analyze_blocks, condition_number, distortions, quantised
from dinoskip.errors import ConfigError
from dinoskip.init import report
from dinoskip.models import Backbone
from dinoskip.models.attention_sites import attentions

SWIN = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "img_size": 32, "window_size": 4, "num_classes": 0}


@pytest.fixture(scope="module")
def swin() -> Backbone:
    torch.manual_seed(0)
    network = timm.create_model("swin_tiny_patch4_window7_224", **SWIN).double()
    return Backbone.from_model(network, image_size=32)


@torch.no_grad()
def test_a_row_is_of_an_attention_and_its_mlp(swin: Backbone) -> None:
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    rows = analyze_blocks(swin, images).rows
    block = swin.model.layers[0].blocks[0]
    attention = attentions(swin.model)[0]
    product = attention.products(dict(swin.model.named_parameters()))[1]
    assert [row.block for row in rows] == [1, 2]
    assert rows[0].kappa_vo == pytest.approx(float(condition_number(product).kappa))
    windows: list[torch.Tensor] = []
    handle = block.attn.register_forward_hook(lambda module, inputs, output: windows.append(output))
    swin.model(images)
    handle.remove()
    assert windows[0].shape == (8, 16, 16)  # four windows of 4 x 4 cells an image
    assert rows[0].kappa_sa == pytest.approx(float(condition_number(windows[0][:4]).kappa.quantile(0.5)), rel=1e-6)
    assert math.isnan(rows[0].kappa_sa_skip)
    assert not block.attn._forward_hooks, "nothing stays behind"


@torch.no_grad()
def test_what_is_rounded_enters_attention_and_mlp(swin: Backbone) -> None:
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    sites = {one.site: one.sqnr for one in distortions(swin, images, images, bits=(4, 8))}
    assert sorted(sites) == sorted(f"layers.{stage}.blocks.0.{part}" for stage in (0, 1) for part in ("attn", "mlp"))
    assert all(sqnr[8] > sqnr[4] + 15 for sqnr in sites.values())
    plain, coarse, fine = (
        network.layers(images, [2])[2].tokens
        for network in (swin, quantised(swin, 4, 4, images), quantised(swin, 16, 16, images))
    )
    assert (fine - plain).norm() < 1e-3 * (coarse - plain).norm()


def test_logits_are_those_over_tokens_alone() -> None:
    network = timm.create_model("xcit_nano_12_p16_224", depth=1, embed_dim=32, num_heads=2, img_size=32, num_classes=0)
    rows = report(network, torch.randn(1, 3, 32, 32))
    assert [row.logit_diagonal is None for row in rows] == [True, False, False]  # its class attention is over tokens
    assert all(row.fc1_gain and row.token_cosine is not None for row in rows)


def test_a_network_without_attention_is_refused_before_it_is_run() -> None:
    network = Backbone.from_model(timm.create_model("resnet18", num_classes=0), image_size=64)
    with pytest.raises(ConfigError, match="has none that is known"):
        analyze_blocks(network, torch.zeros(1, 3, 64, 64))
