"""Factors of every family's attention are where its own forward pass reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.init import conditioned_, mimetic_, residual_free_, skipless_
from dinoskip.models import create_model
from dinoskip.models.attention_sites import attentions, head_factors, mlps, write


def _timm(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=0, **options)


def _transformers(model: str, config: str, **settings: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_SWIN = {"embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "img_size": 64, "window_size": 4}
FAMILIES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "ViT": (_timm("vit_tiny_patch16_224", depth=2, img_size=32), 2, 2),
    "BEiT": (_timm("beit_base_patch16_224", depth=2, embed_dim=32, num_heads=2, img_size=32), 2, 2),
    "EVA-02": (_timm("eva02_tiny_patch14_224", depth=2, embed_dim=48, num_heads=2, img_size=28), 2, 2),
    "Swin": (_timm("swin_tiny_patch4_window7_224", **_SWIN), 4, 4),
    "Swin V2": (_timm("swinv2_tiny_window8_256", **_SWIN), 4, 4),
    "CaiT": (_timm("cait_xxs24_224", depth=2, embed_dim=32, num_heads=2, img_size=32), 4, 4),
    "XCiT": (_timm("xcit_nano_12_p16_224", depth=2, embed_dim=32, num_heads=2, img_size=32), 4, 4),
    "PVT v2": (_timm("pvt_v2_b0", depths=(1, 1, 1, 1)), 4, 4),
    "DaViT": (_timm("davit_tiny", depths=(1, 1), embed_dims=(16, 32), num_heads=(1, 2)), 4, 4),
    "ViT of transformers": (_transformers("ViTModel", "ViTConfig", **_SMALL), 2, 2),
    "DINOv3 of transformers": (_transformers("DINOv3ViTModel", "DINOv3ViTConfig", **_SMALL), 2, 2),
    "Swin of transformers": (
        _transformers("SwinModel", "SwinConfig", embed_dim=16, depths=[1, 1], num_heads=[1, 2]), 2, 2,
    ),
    "BERT": (_transformers("BertModel", "BertConfig", **_SMALL), 2, 2),
    "GPT-2": (_transformers("GPT2Model", "GPT2Config", n_embd=32, n_layer=2, n_head=2), 2, 2),
    "Nyströmformer": (_transformers("NystromformerModel", "NystromformerConfig", **_SMALL), 2, 2),
    "Llama": (_transformers("LlamaModel", "LlamaConfig", **_SMALL, num_key_value_heads=1), 2, 2),
}  # fmt: skip
FACTORS = ("query", "key", "value", "output")


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_and_mlp_is_found(family: str) -> None:
    build, attending, mixing = FAMILIES[family]
    model = build()
    present = attentions(model)
    assert (len(present), len(mlps(model))) == (attending, mixing)
    for attention in present:
        shared = attention.heads // attention.key_heads
        assert attention.query.shape == (attention.heads * attention.head_dim, attention.dim)
        assert attention.key.shape[0] * shared == attention.query.shape[0]
        assert attention.output.shape[1] == attention.value.shape[0] * shared


@pytest.mark.parametrize("family", FAMILIES)
def test_a_factor_is_what_its_layer_multiplies_with(family: str) -> None:
    """Input and output of the layers are seen in place; a factor gives the same rows of the output."""
    model = FAMILIES[family][0]().double()
    factors = [getattr(attention, part) for attention in attentions(model) for part in FACTORS]
    factors += [factor for mlp in mlps(model) for factor in (mlp.first, mlp.last, mlp.gate) if factor is not None]
    for factor in factors:
        layer = model.get_submodule(factor.name.removesuffix(".weight"))
        inputs = torch.randn(5, factor.columns, dtype=torch.float64)
        bias = 0.0 if layer.bias is None else layer.bias[factor.start : factor.stop]
        rows = layer(inputs)[:, factor.start : factor.stop]
        assert torch.allclose(inputs @ factor.read(_parameters(model)).T + bias, rows, atol=1e-12)


def test_products_are_those_of_the_papers() -> None:
    model = create_model("vit_tiny_patch16", depth=2, img_size=32)
    query, key, value, output = head_factors(model.blocks[1].attn)
    logits, mixing = attentions(model)[1].products(_parameters(model))
    assert torch.allclose(logits, query @ key.mT)
    assert torch.allclose(mixing, value @ output)


def test_grouped_heads_read_the_keys_that_they_share() -> None:
    model = FAMILIES["Llama"][0]()
    logits, mixing = attentions(model)[0].products(_parameters(model))
    assert logits.shape == (2, 32, 32)
    assert mixing.shape == (32, 32)
    layer = model.layers[0].self_attn
    query = layer.q_proj.weight.double().reshape(2, 16, 32)
    assert torch.allclose(logits[1], query[1].T @ layer.k_proj.weight.double())


def test_of_four_heads_and_two_of_keys_the_first_two_share_the_first() -> None:
    """Transformers' repeat_kv and the grouped attention of torch have the same order."""
    torch.manual_seed(0)
    module = nn.Module()
    module.num_heads = 4
    for name, rows in (("q_proj", 16), ("k_proj", 8), ("v_proj", 8), ("o_proj", 16)):
        module.add_module(name, nn.Linear(16, rows, bias=False))
    query, key, value, output = (part.detach() for part in head_factors(module))
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    weights = {name: one.double() for name, one in module.named_parameters()}
    heads = [(x @ weights[f"{part}_proj.weight"].T).unflatten(-1, (-1, 4)).transpose(1, 2) for part in "qkv"]
    expected = F.scaled_dot_product_attention(*heads, enable_gqa=True).transpose(1, 2).flatten(2)
    attention = ((x @ query) @ (x @ key).mT / 2).softmax(-1)  # (heads, 5, 5)
    mixed = (attention @ (x @ value).unflatten(-1, (4, 4)).transpose(1, 2)[0]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mixed, expected[0].detach())
    torch.testing.assert_close(mixed @ output, (expected[0] @ weights["o_proj.weight"].T).detach())


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_not_written_stay(family: str) -> None:
    model = FAMILIES[family][0]()
    before = {name: tensor.clone() for name, tensor in _parameters(model).items()}
    key = attentions(model)[-1].key
    new = torch.full(key.shape, 0.5, dtype=torch.float64)
    ((name, whole),) = write({key: new}, _parameters(model))
    assert whole.shape == before[name].shape
    rows = whole.T if key.transposed else whole
    assert torch.equal(rows[key.start : key.stop], new)
    rest = [i for i in range(len(rows)) if not key.start <= i < key.stop]
    old = before[name].double().T if key.transposed else before[name].double()
    assert torch.equal(rows[rest], old[rest])


@pytest.mark.parametrize("family", FAMILIES)
def test_conditioned_factors_have_condition_number_one(family: str) -> None:
    model = conditioned_(FAMILIES[family][0](), parts=("query", "key"))
    parameters = _parameters(model)
    for attention in attentions(model):
        for factor, heads in ((attention.query, attention.heads), (attention.key, attention.key_heads)):
            for head in factor.read(parameters).chunk(heads):
                assert torch.allclose(head @ head.T, torch.eye(len(head), dtype=torch.float64), atol=1e-5)
        assert not any(parameters[bias].any() for bias in attention.input_biases)


@pytest.mark.parametrize("family", ["ViT", "BEiT", "Swin", "CaiT", "PVT v2", "BERT", "GPT-2", "Nyströmformer"])
@pytest.mark.parametrize("method", [skipless_, mimetic_, residual_free_])
def test_products_are_set_in_every_family(family: str, method: Callable[..., nn.Module]) -> None:
    model = method(FAMILIES[family][0]())
    parameters = _parameters(model)
    singular = {skipless_: 9.0, residual_free_: 3.0}.get(method)
    for attention in attentions(model):
        mixing = attention.products(parameters)[1]
        identity = torch.eye(len(mixing), dtype=torch.float64)
        if singular is None:  # mimetic: noise minus the identity
            assert float(torch.corrcoef(torch.stack([mixing.flatten(), identity.flatten()]))[0, 1]) < -0.1
        else:
            assert torch.allclose(mixing @ mixing.T, singular**2 * identity, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("XCiT", "over channels"),
        ("DaViT", "over channels"),
        ("Swin V2", "cosine logits"),
        ("Llama", "2 query heads share 1 key heads"),
    ],
)
def test_attention_that_the_products_do_not_describe_is_refused(family: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        skipless_(FAMILIES[family][0]())


def test_an_mlp_with_a_gate_is_refused() -> None:
    with pytest.raises(ConfigError, match="has a gate"):
        skipless_(FAMILIES["EVA-02"][0]())


def test_a_network_without_attention_has_none() -> None:
    assert attentions(timm.create_model("resnet18")) == []
