"""What every backbone must do, whoever trained it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.models import Backbone, create_model, load_backbone

FACETS = ("out", "key", "query", "value")
NORMS = ("none", "final", "layer")


def ours(**options: Any) -> Callable[[], Backbone]:
    return lambda: Backbone.from_model(create_model("vit_tiny_patch8", depth=3, img_size=32, **options))


def from_timm(name: str, options: str = "img_size=64") -> Callable[[], Backbone]:
    return lambda: load_backbone(f"timm:{name},pretrained=false,depth=3,embed_dim=96,num_heads=3,{options}")


BACKBONES: dict[str, Callable[[], Backbone]] = {
    "ours skip": ours(),
    "ours skipless": ours(skip=False),
    "ours attention skip": ours(skip="attention"),
    "vit": from_timm("vit_tiny_patch16_224"),
    "vit with q/k norm": from_timm("vit_tiny_patch16_224", "img_size=64,qk_norm=true"),
    "vit without qkv bias": from_timm("vit_tiny_patch16_224", "img_size=64,qkv_bias=false"),
    "deit": from_timm("deit_tiny_patch16_224"),
    "deit distilled (two prefix tokens)": from_timm("deit_tiny_distilled_patch16_224"),
    "deit3 (LayerScale, bare CLS)": from_timm("deit3_small_patch16_224"),
    "dinov2 with registers": from_timm("vit_small_patch14_reg4_dinov2", "img_size=56"),
    "clip (norm before blocks)": from_timm("vit_xsmall_patch16_clip_224"),
    "siglip (no CLS)": from_timm("vit_base_patch16_siglip_224"),
    "mean-pooled (fc_norm)": from_timm("vit_base_patch16_siglip_gap_224", "img_size=64,global_pool=avg,fc_norm=true"),
}


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    made = BACKBONES[request.param]()
    rng = torch.Generator().manual_seed(1)
    for parameter in made.model.parameters():  # default weights would leave biases, norms and tokens untested
        noise = torch.randn(parameter.shape, generator=rng)
        parameter.data.add_(noise, alpha=0.1 if parameter.ndim > 1 else 0.3)
    return made


def images(backbone: Backbone, rows: int = 2, columns: int = 3, batch: int = 2) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(batch, 3, rows * backbone.patch_size, columns * backbone.patch_size, generator=rng)


def own_projections(backbone: Backbone, x: Tensor) -> list[dict[str, Tensor]]:
    """Queries, keys and values (B, N, C) of every block as the attention modules themselves compute them."""
    seen: list[dict[str, Tensor]] = []

    def record(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        q, k, v = output.unflatten(-1, (3, backbone.num_heads, -1)).unbind(2)
        attention = next(m for m in backbone.model.modules() if getattr(m, "qkv", None) is module)
        facets = {"query": attention.q_norm(q), "key": attention.k_norm(k), "value": v}
        seen.append({name: facet.flatten(2) for name, facet in facets.items()})

    handles = [block.attn.qkv.register_forward_hook(record) for block in backbone.model.blocks]
    with torch.no_grad():
        backbone.model.forward_features(x)
    for handle in handles:
        handle.remove()
    return seen


def test_attributes(backbone: Backbone) -> None:
    attention = backbone.model.blocks[0].attn
    assert backbone.depth == 3 == len(backbone.model.blocks)
    assert backbone.num_heads == attention.num_heads == 3
    assert backbone.dim == attention.qkv.in_features
    assert backbone.num_prefix_tokens == backbone.model.num_prefix_tokens
    assert len(backbone.weights_hash) == 64
    assert not backbone.model.training


@pytest.mark.parametrize("facet", FACETS)
@pytest.mark.parametrize("norm", NORMS)
def test_shapes(backbone: Backbone, facet: Any, norm: Any) -> None:
    found = backbone.layers(images(backbone), [3, 1], facet=facet, norm=norm)
    assert sorted(found) == [1, 3]
    for features in found.values():
        assert features.tokens.shape == (2, 6, backbone.dim)
        assert features.grid == (2, 3)
        assert features.tokens.isfinite().all()
        assert not features.tokens.requires_grad
        if backbone.model.has_class_token:
            assert features.cls is not None
            assert features.cls.shape == (2, backbone.dim)
        else:
            assert features.cls is None


@pytest.mark.parametrize(("rows", "columns", "batch"), [(2, 3, 2), (3, 2, 1), (4, 4, 1)])
def test_outputs_are_timms_own(backbone: Backbone, rows: int, columns: int, batch: int) -> None:
    x = images(backbone, rows, columns, batch)
    with torch.no_grad():
        expected = backbone.model.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
    for block, features in backbone.layers(x, [1, 2, 3]).items():
        assert torch.equal(features.tokens, expected[block - 1])


@pytest.mark.parametrize("facet", FACETS[1:])
def test_facets_are_the_modules_own_projections(backbone: Backbone, facet: Any) -> None:
    x = images(backbone)
    expected = own_projections(backbone, x)
    for block, features in backbone.layers(x, [1, 2, 3], facet=facet).items():
        whole = expected[block - 1][facet]
        assert torch.allclose(features.tokens, whole[:, backbone.num_prefix_tokens :], rtol=1e-4, atol=1e-4)
        if features.cls is not None:
            assert torch.allclose(features.cls, whole[:, 0], rtol=1e-4, atol=1e-4)


def test_norms(backbone: Backbone) -> None:
    x = images(backbone)
    plain, final, layer = (backbone.layers(x, [2], norm=norm)[2] for norm in NORMS)  # type: ignore[arg-type]
    norm = backbone.model.norm if not isinstance(backbone.model.norm, nn.Identity) else backbone.model.fc_norm
    assert torch.allclose(final.tokens, norm(plain.tokens), atol=1e-5)
    assert torch.allclose(layer.tokens, F.layer_norm(plain.tokens, (backbone.dim,), eps=1e-6), atol=1e-5)
    assert not torch.allclose(final.tokens, layer.tokens, atol=1e-2)
    if plain.cls is not None and final.cls is not None:
        assert torch.allclose(final.cls, norm(plain.cls), atol=1e-5)


def test_tokens_are_in_raster_order(backbone: Backbone) -> None:
    """The first block's values see their own patch alone: a changed patch changes exactly its token."""
    x = images(backbone)
    before = backbone.layers(x, [1], facet="value")[1].tokens
    p = backbone.patch_size
    for row, column in [(0, 2), (1, 0)]:
        changed = x.clone()
        changed[:, :, row * p : (row + 1) * p, column * p : (column + 1) * p] *= -1
        difference = (backbone.layers(changed, [1], facet="value")[1].tokens - before).abs().amax((0, 2))
        assert (difference > 1e-3).nonzero().flatten().tolist() == [row * 3 + column]


def test_a_block_does_not_depend_on_which_others_are_asked_for(backbone: Backbone) -> None:
    x = images(backbone)
    for facet in ("out", "key"):
        everything = backbone.layers(x, range(1, 4), facet=facet)  # type: ignore[arg-type]
        for block in (1, 2, 3):
            assert torch.equal(backbone.layers(x, [block], facet=facet)[block].tokens, everything[block].tokens)  # type: ignore[arg-type]


def test_an_image_does_not_depend_on_its_batch(backbone: Backbone) -> None:
    x = images(backbone, batch=3)
    together = backbone.layers(x, [3], facet="key")[3].tokens
    for i in range(3):
        alone = backbone.layers(x[i : i + 1], [3], facet="key")[3].tokens
        assert torch.allclose(alone[0], together[i], rtol=1e-3, atol=1e-3)


def test_nothing_is_left_behind(backbone: Backbone) -> None:
    state = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    x = images(backbone)
    kept = x.clone()
    first = backbone.layers(x, [1, 3], facet="query", norm="final")
    again = backbone.layers(x, [1, 3], facet="query", norm="final")
    assert all(torch.equal(first[b].tokens, again[b].tokens) for b in first)
    assert torch.equal(x, kept)
    assert all(torch.equal(tensor, state[name]) for name, tensor in backbone.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in backbone.model.modules())


@pytest.mark.parametrize("size", [(0, 1), (1, 0), (-1, 2)])
def test_sizes_that_are_not_whole_patches(backbone: Backbone, size: tuple[int, int]) -> None:
    height, width = (2 * backbone.patch_size + extra for extra in size)
    with pytest.raises(ValueError, match=f"image size {height}×{width} is not a multiple of the patch size"):
        backbone.layers(torch.zeros(1, 3, height, width), [1])


def test_requests_that_make_no_sense(backbone: Backbone) -> None:
    x = images(backbone)
    for blocks in ([], [0], [4], [1, -1]):
        with pytest.raises(ValueError, match=r"must be one or more of 1\.\.3"):
            backbone.layers(x, blocks)
    with pytest.raises(ValueError, match="facet 'keys'"):
        backbone.layers(x, [1], facet="keys")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="norm 'l2'"):
        backbone.layers(x, [1], norm="l2")  # type: ignore[arg-type]
    for bad in (x[0], (x * 9).to(torch.uint8)):
        with pytest.raises(ValueError, match="images must be float"):
            backbone.layers(bad, [1])


def test_double_precision_agrees(backbone: Backbone) -> None:
    x = images(backbone)
    single = backbone.layers(x, [2], norm="layer")[2].tokens
    before = backbone.weights_hash
    try:
        double = backbone.to("cpu", torch.float64).layers(x, [2], norm="layer")[2].tokens
    finally:
        backbone.to("cpu", torch.float32)
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, atol=1e-3)
    assert backbone.weights_hash == before
