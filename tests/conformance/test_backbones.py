"""Requirements on every backbone, whoever trained it and whatever library computes it.

Each is built by its library at random, saved as that library publishes it, and loaded back by ``load_backbone``; the
library's own network is then the reference for everything that the backbone returns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.eva import EvaBlockPostNorm
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone, VitConfig, create_model, load_backbone, save_weights
from tests.helpers.dino_modules import Dino, DinoV2, DinoV3

FACETS = ("out", "key", "query", "value", "attn", "mlp")
NORMS = ("none", "final", "layer")


@dataclass(frozen=True)
class Case:
    """A backbone and the library's network it was saved from."""

    backbone: Backbone
    network: Any
    run: Callable[[Tensor], Any]
    blocks: Sequence[nn.Module]


Maker = Callable[[Path], Case]


def shaken(network: Any) -> Any:
    """Default weights would leave biases, norms, scales and tokens untested."""
    rng = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        parameter.data.add_(noise, alpha=0.1 if parameter.ndim > 1 else 0.3)
    return network.eval()


def ours(patch: int, **options: Any) -> Maker:
    def make(folder: Path) -> Case:
        config = VitConfig(name=f"vit_tiny_patch{patch}", depth=2, img_size=4 * patch, **options)  # type: ignore[arg-type]
        network = shaken(create_model(config.name, skip=config.skip, depth=2, img_size=config.img_size))
        save_weights(folder / "w.safetensors", network.state_dict(), config, {})
        return Case(
            load_backbone(f"weights:{folder / 'w.safetensors'}"), network, network.forward_features, network.blocks
        )

    return make


def of_timm(name: str, patch: int = 16, pos_embed: str | None = None, **options: Any) -> Maker:
    def make(folder: Path) -> Case:
        shape = {"img_size": 4 * patch, "depth": 2, "embed_dim": 48, "num_heads": 3, "dynamic_img_size": True}
        everything = shape | {"num_classes": 0} | options
        network = shaken(timm.create_model(name, **everything))
        save_file(network.state_dict(), folder / "w.safetensors")
        resized = {} if pos_embed is None else {"pos_embed": pos_embed}
        backbone = load_backbone(f"timm:{name},file={folder / 'w.safetensors'}", **everything, **resized)
        return Case(backbone, network, network.forward_features, network.blocks)

    return make


def of_dino(patch: int) -> Maker:
    def make(folder: Path) -> Case:
        network = shaken(Dino(patch_size=patch, img_size=4 * patch))
        state = {f"module.backbone.{name}": tensor for name, tensor in network.state_dict().items()}
        torch.save(state, folder / "w.pth")
        return Case(load_backbone(f"dino:{folder / 'w.pth'}"), network, network, network.blocks)

    return make


def of_hub(kind: type[nn.Module], **options: Any) -> Maker:
    def make(folder: Path) -> Case:
        network: Any = shaken(kind(**options))
        code = f"from tests.helpers.dino_modules import {kind.__name__}\n"
        code += f"def net(pretrained, **options):\n    assert not pretrained\n    return {kind.__name__}(**options)\n"
        (folder / "hubconf.py").write_text(code)
        torch.save(network.state_dict(), folder / "w.pth")
        backbone = load_backbone(f"hub:{folder}:net,file={folder / 'w.pth'}", **options)
        blocks = [b for b in network.modules() if hasattr(b, "norm1")]
        return Case(backbone, network, network, blocks)

    return make


def of_hf(kind: str, patch: int = 8, **options: Any) -> Maker:
    def make(folder: Path) -> Case:
        import transformers

        shape: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
        shape |= {"image_size": 4 * patch, "patch_size": patch} | options
        if "inov2" not in kind:
            shape["intermediate_size"] = 96
        config = getattr(transformers, f"{kind.removesuffix('Model')}Config")(**shape)
        network = shaken(getattr(transformers, kind)(config))
        network.save_pretrained(folder)
        config.mask_ratio = 0.0  # read by ViTMAEModel alone

        def run(x: Tensor) -> Any:
            count = x.shape[-2] * x.shape[-1] // patch**2
            extra = {} if "ino" in kind else {"interpolate_pos_encoding": True}
            if kind == "ViTMAEModel":
                extra["noise"] = torch.arange(float(count)).expand(len(x), -1)
            return network(x, **extra)

        layers = next(
            m for n, m in network.named_modules() if isinstance(m, nn.ModuleList) and n.split(".")[-1][:5] == "layer"
        )
        return Case(load_backbone(f"hf:{folder}"), network, run, layers)

    return make


MAKERS: dict[str, Maker] = {
    "ours skip": ours(8),
    "ours skipless": ours(14, skip=False),
    "ours attention skip": ours(16, skip="attention"),
    "timm vit": of_timm("vit_tiny_patch16_224"),
    "timm vit with q/k norm": of_timm("vit_tiny_patch16_224", qk_norm=True),
    "timm vit without qkv bias": of_timm("vit_tiny_patch16_224", qkv_bias=False),
    "timm deit distilled (two prefix tokens)": of_timm("deit_tiny_distilled_patch16_224"),
    "timm deit3 (LayerScale, bare CLS)": of_timm("deit3_small_patch16_224"),
    "timm dino patch 8": of_timm("vit_small_patch8_224", 8),
    "timm dinov2": of_timm("vit_small_patch14_dinov2", 14, pos_embed="timm"),
    "timm dinov2 with registers": of_timm("vit_small_patch14_reg4_dinov2", 14),
    "timm clip (norm before blocks)": of_timm("vit_xsmall_patch16_clip_224"),
    "timm siglip (no CLS, attention pooling)": of_timm("vit_base_patch16_siglip_224"),
    "timm mean-pooled (fc_norm)": of_timm("vit_base_patch16_siglip_gap_224", global_pool="avg", fc_norm=True),
    "timm dinov3 (rope, registers)": of_timm("vit_small_patch16_dinov3"),
    "timm dinov3 with qkv bias": of_timm("vit_small_patch16_dinov3_qkvb"),
    "timm eva (fused qkv)": of_timm("eva_giant_patch14_224", 14),
    "timm eva02 (rope, split qkv, SwiGLU)": of_timm("eva02_tiny_patch14_224", 14),
    "timm eva02 clip (inner norm)": of_timm("eva02_base_patch16_clip_224"),
    "timm rope q/k norm": of_timm("eva02_tiny_patch14_224", 14, qk_norm=True),
    "timm post-norm eva": of_timm("eva02_enormous_patch14_clip_224", 14),
    "timm mixed rope": of_timm("vit_small_patch16_rope_mixed_224"),
    "timm perception encoder": of_timm("vit_pe_core_tiny_patch16_384"),
    "dino file": of_dino(8),
    "dino file patch 16": of_dino(16),
    "hub dino": of_hub(Dino, dim=48),
    "hub dinov2": of_hub(DinoV2, registers=0),
    "hub dinov2 with registers, chunked": of_hub(DinoV2, chunks=2),
    "hub dinov3": of_hub(DinoV3),
    "hf vit": of_hf("ViTModel"),
    "hf deit": of_hf("DeiTModel"),
    "hf mae": of_hf("ViTMAEModel"),
    "hf dinov2": of_hf("Dinov2Model", 14, mlp_ratio=2),
    "hf dinov2 with registers": of_hf("Dinov2WithRegistersModel", 14, mlp_ratio=2),
    "hf dinov3": of_hf("DINOv3ViTModel", 16, num_register_tokens=4),
    "hf clip": of_hf("CLIPVisionModel", 14),
    "hf siglip": of_hf("SiglipVisionModel", 16),
}


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param.startswith("hf ") and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    return MAKERS[request.param](tmp_path_factory.mktemp("published"))


@pytest.fixture
def backbone(case: Case) -> Backbone:
    return case.backbone


def images(backbone: Backbone, rows: int = 2, columns: int = 3, batch: int = 2) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(batch, 3, rows * backbone.patch_size, columns * backbone.patch_size, generator=rng)


def library_outputs(case: Case, x: Tensor) -> list[Tensor]:
    """Every block's output, prefix tokens and all, in a forward pass of the library's network."""
    seen: list[Tensor] = []
    handles = [block.register_forward_hook(lambda m, i, o: seen.append(o)) for block in case.blocks]  # type: ignore[misc]
    with torch.no_grad():
        case.run(x)
    for handle in handles:
        handle.remove()
    return seen


def test_attributes(case: Case) -> None:
    backbone = case.backbone
    with torch.no_grad():
        outputs = library_outputs(case, images(backbone))
    assert backbone.depth == 2 == len(outputs)
    assert backbone.num_heads == 3
    assert backbone.dim == outputs[0].shape[-1]
    assert backbone.num_prefix_tokens == outputs[0].shape[1] - 6
    assert len(backbone.weights_hash) == 64
    assert not backbone.model.training
    own, loaded = case.network.state_dict(), backbone.model.state_dict()
    assert all(torch.equal(loaded[name], own[name]) for name in loaded)


@pytest.mark.parametrize(("rows", "columns", "batch"), [(2, 3, 2), (3, 2, 1), (4, 4, 1), (5, 7, 1)])
def test_outputs_are_the_librarys_own(case: Case, rows: int, columns: int, batch: int) -> None:
    x = images(case.backbone, rows, columns, batch)
    expected = library_outputs(case, x)
    for block, features in case.backbone.layers(x, [1, 2]).items():
        assert features.grid == (rows, columns)
        torch.testing.assert_close(
            features.tokens, expected[block - 1][:, case.backbone.num_prefix_tokens :], rtol=1e-5, atol=1e-5
        )
        assert (features.cls is not None) == case.backbone.has_class_token
        if features.cls is not None:
            torch.testing.assert_close(features.cls, expected[block - 1][:, 0], rtol=1e-5, atol=1e-5)


def test_facets_are_what_enters_the_attention(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values at the attention itself, with rotation taken out of both passes."""
    patch_rotation(monkeypatch)
    seen: list[tuple[Tensor, ...]] = []
    attend = F.scaled_dot_product_attention

    def record(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append((q, k, v))
        return attend(q, k, v, *args, **kwargs)

    backbone, x = case.backbone, images(case.backbone)
    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    with torch.no_grad():
        case.run(x)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    for part, facet in enumerate(("query", "key", "value")):
        for block, features in backbone.layers(x, [1, 2], facet=facet).items():  # type: ignore[arg-type]
            whole = seen[block - 1][part].transpose(1, 2).flatten(2)
            torch.testing.assert_close(features.tokens, whole[:, backbone.num_prefix_tokens :], rtol=1e-4, atol=1e-4)
            if features.cls is not None:
                torch.testing.assert_close(features.cls, whole[:, 0], rtol=1e-4, atol=1e-4)


def test_branches_make_up_the_block(case: Case) -> None:
    """A block adds its branches to the stream, behind LayerScale or, in post-norm blocks, behind a norm."""
    backbone, x = case.backbone, images(case.backbone)
    facets = ["out", "key", "attn", "mlp", "hidden", "attn_scaled", "mlp_scaled"]
    block: Any = backbone.adapter.blocks[1]
    if isinstance(block, EvaBlockPostNorm):
        with pytest.raises(ConfigError, match=r"facet attn_scaled: a EvaBlockPostNorm has none \(use facet out\)"):
            backbone.layers(x, [1, 2], facets)
        facets = facets[:-2]
    read = backbone.layers(x, [1, 2], facets)
    assert list(read) == facets
    for facet in facets:
        for number, alone in backbone.layers(x, [1, 2], [facet])[facet].items():
            assert torch.equal(alone.tokens, read[facet][number].tokens), "one pass gives what each gives alone"
    before, after = (read["out"][number].tokens for number in (1, 2))
    mlp = read["mlp"][2].tokens
    with torch.no_grad():
        last = next(getattr(block.mlp, name) for name in ("fc2", "down_proj") if hasattr(block.mlp, name))
        torch.testing.assert_close(last(read["hidden"][2].tokens), mlp, rtol=1e-4, atol=1e-4)
        if isinstance(block, EvaBlockPostNorm):
            added = [block.norm1(read["attn"][2].tokens), block.norm2(mlp)]
        else:
            added = [read["attn_scaled"][2].tokens, read["mlp_scaled"][2].tokens]
    weights = getattr(block, "skip_weights", (1, 1))
    stream = before * weights[0] + added[0]
    torch.testing.assert_close(stream * weights[1] + added[1], after, rtol=1e-4, atol=1e-4)
    assert backbone.width("hidden") == read["hidden"][1].tokens.shape[-1]
    assert (read["out"][1].cls is None) == (read["hidden"][1].cls is None)


def patch_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    def unturned(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x

    for module in ("timm.models.eva", "timm.layers.attention"):
        monkeypatch.setattr(f"{module}.apply_rot_embed_cat", unturned)
    monkeypatch.setattr("tests.helpers.dino_modules.rotate", unturned)
    if importlib.util.find_spec("transformers") is not None:
        name = "transformers.models.dinov3_vit.modeling_dinov3_vit.apply_rotary_pos_emb"
        monkeypatch.setattr(name, lambda q, k, *args, **kwargs: (q, k))


@pytest.mark.parametrize("norm", NORMS)
def test_shapes(backbone: Backbone, norm: Any) -> None:
    for facet in FACETS:
        found = backbone.layers(images(backbone), [2, 1], facet=facet, norm=norm)  # type: ignore[arg-type]
        assert sorted(found) == [1, 2]
        for features in found.values():
            assert features.tokens.shape == (2, 6, backbone.dim)
            assert features.tokens.isfinite().all()
            assert not features.tokens.requires_grad
            if features.cls is not None:
                assert features.cls.shape == (2, backbone.dim)


def test_norms(case: Case) -> None:
    backbone, x = case.backbone, images(case.backbone)
    plain, final, layer = (backbone.layers(x, [2], norm=norm)[2] for norm in NORMS)  # type: ignore[arg-type]
    assert torch.allclose(layer.tokens, F.layer_norm(plain.tokens, plain.tokens.shape[-1:], eps=1e-6))
    assert not torch.equal(final.tokens, plain.tokens)
    norms = [m for n, m in backbone.model.named_modules() if n in NORM_NAMES and not isinstance(m, nn.Identity)]
    assert torch.equal(final.tokens, norms[0](plain.tokens))
    if isinstance(case.network, Dino | DinoV2 | DinoV3):  # which return their normalised CLS token
        with torch.no_grad():
            torch.testing.assert_close(final.cls, case.run(x), rtol=1e-5, atol=1e-5)


def test_each_facet_may_have_a_norm_of_its_own(backbone: Backbone) -> None:
    x = images(backbone)
    read = backbone.layers(x, [2], ["out", "hidden"], ["final", "layer"])
    assert torch.equal(read["out"][2].tokens, backbone.layers(x, [2], norm="final")[2].tokens)
    assert torch.equal(read["hidden"][2].tokens, backbone.layers(x, [2], "hidden", "layer")[2].tokens)


NORM_NAMES = ("norm", "fc_norm", "layernorm", "post_layernorm")


def test_tokens_are_in_raster_order(backbone: Backbone) -> None:
    """Values of the first block depend on one patch alone: changing a patch changes the value at its place."""
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
        everything = backbone.layers(x, [1, 2], facet=facet)  # type: ignore[arg-type]
        for block in (1, 2):
            assert torch.equal(backbone.layers(x, [block], facet=facet)[block].tokens, everything[block].tokens)  # type: ignore[arg-type]


def test_an_image_does_not_depend_on_its_batch(backbone: Backbone) -> None:
    x = images(backbone, batch=3)
    together = backbone.layers(x, [2], facet="key")[2].tokens
    for i in range(3):
        alone = backbone.layers(x[i : i + 1], [2], facet="key")[2].tokens
        assert torch.allclose(alone[0], together[i], rtol=1e-3, atol=1e-3)


def test_nothing_is_left_behind(backbone: Backbone) -> None:
    state = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    x = images(backbone)
    kept = x.clone()
    for facet in ("query", "mlp"):
        first, again = (backbone.layers(x, [1, 2], facet=facet, norm="final") for _ in range(2))  # type: ignore[call-overload]
        assert all(torch.equal(first[b].tokens, again[b].tokens) for b in first)
    assert torch.equal(x, kept)
    assert all(torch.equal(tensor, state[name]) for name, tensor in backbone.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in backbone.model.modules())


def test_requests_that_make_no_sense(backbone: Backbone) -> None:
    x = images(backbone)
    for extra in ((0, 1), (1, 0), (-1, 2)):
        height, width = (2 * backbone.patch_size + e for e in extra)
        with pytest.raises(ValueError, match=f"image size {height}×{width} is not a multiple of the patch size"):
            backbone.layers(torch.zeros(1, 3, height, width), [1])
    for blocks in ([], [0], [3], [1, -1]):
        with pytest.raises(ValueError, match=r"must be one or more of 1\.\.2"):
            backbone.layers(x, blocks)
    with pytest.raises(ValueError, match="facet 'keys'"):
        backbone.layers(x, [1], facet="keys")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="norm 'l2'"):
        backbone.layers(x, [1], norm="l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no facet"):
        backbone.layers(x, [1], facet=[])
    with pytest.raises(ValueError, match=r"hidden is wider than the final norm of .*: use norm none or layer"):
        backbone.layers(x, [1], facet=["out", "hidden"], norm="final")
    for bad in (x[0], (x * 9).to(torch.uint8)):
        with pytest.raises(ValueError, match="images must be float"):
            backbone.layers(bad, [1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-3), (torch.bfloat16, 0.12)])
def test_other_precisions_agree(backbone: Backbone, dtype: torch.dtype, tolerance: float) -> None:
    x = images(backbone)
    state = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    before = backbone.weights_hash
    for facet in ("out", "key"):
        single = backbone.layers(x, [2], facet, "layer")[2].tokens  # type: ignore[arg-type]
        try:
            other = backbone.to("cpu", dtype).layers(x, [2], facet, "layer")[2].tokens  # type: ignore[arg-type]
        finally:
            backbone.to("cpu", torch.float32)
            backbone.model.load_state_dict(state)
        assert other.dtype == dtype
        error = (single.double() - other.double()).square().mean().sqrt()
        assert error < tolerance
    assert backbone.weights_hash == before


# --- all of timm ---------------------------------------------------------------------------------------

# Blocks in which attention is not a plain pre-norm (or post-norm) step of its own: outputs only.
OUTPUTS_ONLY = ("18x2", "_xp_", "_rpn_", "vit_dlittle", "vit_dpwee", "vit_dwee", "vit_pwee")


@pytest.mark.slow
def test_every_vit_of_timm() -> None:
    """Each name of timm's ViT, DeiT and EVA files, narrow and one block deep, gives every facet it should."""
    names = (
        timm.list_models(module="vision_transformer") + timm.list_models(module="deit") + timm.list_models(module="eva")
    )
    assert len(names) > 200
    for name in names:
        shape = "pretrained=false,depth=1,embed_dim=48,num_heads=3" + ",num_kv_heads=1" * ("sapiens2" in name)
        backbone = load_backbone(f"timm:{name},{shape}")
        x = images(backbone, batch=1)
        assert backbone.layers(x, [1])[1].tokens.shape == (1, 6, 48), name
        if any(part in name for part in OUTPUTS_ONLY):
            with pytest.raises(ConfigError, match="use facet out"):
                backbone.layers(x, [1], "key")
            continue
        for facet in (*FACETS[1:], "hidden"):
            assert backbone.layers(x, [1], facet)[1].tokens.shape[:2] == (1, 6), name  # type: ignore[arg-type]
