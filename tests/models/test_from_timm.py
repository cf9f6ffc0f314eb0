"""ViTs of timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import Backbone, VitConfig, create_model, load_backbone, save_weights
from dinoskip.models.build import from_config
from tests.helpers.dino_modules import DinoV2, DinoV3

IMAGES = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def saved(path: Path, content: object) -> str:
    torch.save(content, path)
    return f"dino:{path}"


class Evil:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return (Path.touch, (self.sentinel,))


def test_timm_options_and_seed() -> None:
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1,img_size=32"
    first = load_backbone(spec)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert load_backbone(spec).weights_hash == first.weights_hash
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone(f"{spec},seed=1").weights_hash != first.weights_hash
    assert load_backbone("timm:vit_tiny_patch16_224", pretrained=False, depth=1, img_size=32).depth == 1
    assert (
        load_backbone("timm:vit_tiny_patch16_224", pretrained=False, depth=1, dtype=torch.float64).dtype
        == torch.float64
    )


def test_facets_of_other_blocks_are_refused_but_outputs_are_not() -> None:
    backbone = load_backbone("timm:vit_small_patch16_18x2_224,pretrained=false,depth=1,img_size=32")
    images = torch.randn(1, 3, 32, 32)
    assert backbone.layers(images, [1])[1].tokens.shape == (1, 4, 384)
    with pytest.raises(ConfigError, match="facet key needs timm's pre-norm block"):
        backbone.layers(images, [1], facet="key")


def test_models_of_one_size_say_so() -> None:
    fixed = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=0)
    backbone = Backbone.from_model(fixed)
    assert backbone.layers(torch.randn(1, 3, 32, 32), [1])[1].grid == (2, 2)
    with pytest.raises(ValueError, match=r"built for 32×32 alone.*dynamic_img_size"):
        backbone.layers(torch.randn(1, 3, 32, 48), [1])


def test_image_statistics() -> None:
    assert load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=1").mean == (0.5, 0.5, 0.5)
    ours = Backbone.from_model(create_model("vit_tiny_patch8", depth=1))
    assert ours.mean == (0.485, 0.456, 0.406)
    assert ours.std == (0.229, 0.224, 0.225)


def test_who_interpolates_can_be_chosen(tmp_path: Path, model: Any) -> None:
    file = saved(tmp_path / "w.pth", model.state_dict())
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    same = f"timm:vit_tiny_patch16_224,patch_size=8,depth=2,img_size=16,file={tmp_path / 'w.safetensors'}"
    tokens = {
        spec: load_backbone(spec).layers(IMAGES, [2])[2].tokens
        for spec in (file, f"{file},pos_embed=timm", same, f"{same},pos_embed=dino")
    }
    dino, dino_as_timm, by_timm, timm_as_dino = tokens.values()
    assert torch.equal(dino, timm_as_dino)
    assert torch.equal(by_timm, dino_as_timm)
    assert not torch.allclose(dino, by_timm, atol=1e-4)


def test_timm_reads_the_authors_layouts(tmp_path: Path) -> None:
    """A file as DINOv2 publishes it (its names, its mask token) gives what the authors' network computes."""
    network = DinoV2(registers=4).eval()
    torch.nn.init.normal_(network.mask_token)
    torch.save(network.state_dict(), tmp_path / "dinov2.pth")
    shape = "depth=2,embed_dim=48,num_heads=3,img_size=56"
    backbone = load_backbone(f"timm:vit_small_patch14_reg4_dinov2,{shape},file={tmp_path / 'dinov2.pth'}")
    for size in ((56, 56), (28, 70)):  # with registers the authors resize as timm does
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            cls = network(x)
        torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-5, atol=1e-5)


def test_timm_reads_dinov3_with_its_biases_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = DinoV3(untie=False, eps=1e-5).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    rest = f"depth=2,embed_dim=48,num_heads=3,file={tmp_path / 'w.pth'}"
    x = torch.randn(1, 3, 48, 80)
    with torch.no_grad():
        cls = network(x)
    backbone = load_backbone(f"timm:vit_small_patch16_dinov3_qkvb,{rest}")
    torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-4, atol=1e-4)
    with pytest.raises(WeightsError, match=r"has no blocks.0.attn.qkv.bias, and it is not zero .use timm's NAME_qkvb"):
        load_backbone(f"timm:vit_small_patch16_dinov3,{rest}")
    for block in network.blocks:
        torch.nn.init.zeros_(block.attn.qkv.bias)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    with torch.no_grad():
        cls = network(x)
    backbone = load_backbone(f"timm:vit_small_patch16_dinov3,{rest}")
    torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-4, atol=1e-4)
    assert capsys.readouterr().out == ""


def test_timm_reads_deit3s_layout(tmp_path: Path) -> None:
    """LayerScale as DeiT III publishes it, gamma_1 for ls1.gamma."""
    network = timm.create_model("deit3_small_patch16_224", depth=1, img_size=32, num_classes=3)
    state = {
        n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in network.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "w.pth")
    loaded = load_backbone(f"timm:deit3_small_patch16_224,depth=1,img_size=32,file={tmp_path / 'w.pth'}")
    own = network.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.model.state_dict().items())


def test_timm_files_load_whole_or_not_at_all(tmp_path: Path) -> None:
    spec = "timm:vit_tiny_patch16_224,depth=1,img_size=32"
    state = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5).state_dict()
    for path in (tmp_path / "w.pth", tmp_path / "w.safetensors"):
        save_file(state, path) if path.suffix == ".safetensors" else torch.save({"model": state}, path)
        backbone = load_backbone(f"{spec},file={path}")
        assert torch.equal(backbone.model.norm.weight, state["norm.weight"])
    state["surplus"] = state.pop("norm.bias")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"17 of 18 do; 1 missing \(norm.bias\); 1 not in the model \(surplus\)"):
        load_backbone(f"{spec},file={tmp_path / 'w.pth'}")
    for content in ([1, 2], {"a": 1}, {"a": torch.zeros(2)}, Evil(tmp_path / "sentinel")):
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(WeightsError) as caught:
            load_backbone(f"{spec},file={tmp_path / 'w.pth'}")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "sentinel").exists()


def test_timm_downloads_load_whole_or_not_at_all(tmp_path: Path) -> None:
    """The way of downloaded weights, from a folder as timm lays it out for the Hugging Face hub: with a classifier."""
    network = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5)
    save_for_hf(network, tmp_path, model_args={"depth": 1, "img_size": 32}, safe_serialization=True)
    backbone = load_backbone(f"timm:local-dir:{tmp_path}")
    own = network.state_dict()
    assert own.keys() - backbone.model.state_dict().keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(tensor, own[name]) for name, tensor in backbone.model.state_dict().items())
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state["surplus"] = state.pop("norm.bias")
    save_file(state, file)
    with pytest.raises(WeightsError, match=r"1 missing \(norm.bias\); 1 not in the model \(surplus\)"):
        load_backbone(f"timm:local-dir:{tmp_path}")


@pytest.mark.parametrize("skip", [False, "attention", True])
def test_weights_of_a_skipless_network_are_no_weights_of_a_residual_one(tmp_path: Path, skip: Any) -> None:
    """Their tensors fit; what they would compute is something else."""
    config = VitConfig(name="vit_tiny_patch16", depth=1, img_size=32, skip=skip)
    save_weights(tmp_path / "w.safetensors", from_config(config).state_dict(), config, {})
    spec = f"timm:vit_tiny_patch16_224,depth=1,img_size=32,file={tmp_path / 'w.safetensors'}"
    if skip is True:
        assert load_backbone(spec).depth == 1
        return
    with pytest.raises(WeightsError, match=rf"skip={str(skip).lower()}, and timm:.* has all skip .*load it as"):
        load_backbone(spec)
