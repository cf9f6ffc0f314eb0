"""ViTs of timm: ``VisionTransformer`` and its kin, and ``Eva`` (EVA, EVA-02, DINOv3, Perception Encoder, rope ViTs)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from timm.layers import Attention, AttentionRope, PatchEmbed
from timm.models import load_pretrained
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.eva import checkpoint_filter_fn as eva_filter
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as vit_filter
from torch import Tensor, nn

from dinoskip.errors import ConfigError, DinoskipError, ReadError, WeightsError, first_line
from dinoskip.io.files import refuse_text_in
from dinoskip.models.adapter import (
    LoadedModel,
    VitAdapter,
    apply_head_norm,
    project_fused,
    square_patch_side,
    timm_statistics,
)
from dinoskip.models.export import check_network, refuse_skipless_weights
from dinoskip.models.hf_client import hub_client
from dinoskip.models.timm_networks import build_timm, offline_hint
from dinoskip.models.vit import add_positions, can_resize_as_dino, embed
from dinoskip.models.wrappings import (
    find_network,
    find_tower,
    found_under,
    held,
    read_content,
    refuse_unread,
    without_heads,
)
from dinoskip.runtime.console import log

# What a published file holds besides the backbone; left out where the model has no such part.
NOT_BACKBONE = ("head.", "head_dist.", "attn_pool.", "mask_token")


class _TimmAdapter(VitAdapter):
    def __init__(self, model: nn.Module, spec: str) -> None:
        super().__init__(model, spec)
        if not isinstance(self.model.patch_embed, PatchEmbed):
            raise ConfigError(f"{spec}: only ViTs with one convolution as patch embedding are supported")
        self.patch_size = square_patch_side(self.model.patch_embed.patch_size, spec)
        self.blocks = list(self.model.blocks)
        self.dim = int(self.model.embed_dim)
        self.num_prefix_tokens = int(self.model.num_prefix_tokens)
        self.has_class_token = self.model.cls_token is not None
        kinds = (Attention, AttentionRope, EvaAttention)
        self.num_heads = next((int(m.num_heads) for m in self.model.blocks.modules() if isinstance(m, kinds)), 0)

    def final_norm(self, tokens: Tensor) -> Tensor | None:
        for norm in (self.model.norm, self.model.fc_norm):
            if not isinstance(norm, nn.Identity):
                normed: Tensor = norm(tokens)
                return normed
        return None

    def check_size(self, height: int, width: int) -> None:
        expected = tuple(self.model.patch_embed.img_size or (height, width))
        if not self.model.dynamic_img_size and (height, width) != expected:
            raise ReadError(
                f"image size {height}×{width}: {self.spec} was built for {expected[0]}×{expected[1]} alone; "
                "build it with dynamic_img_size=True"
            )

    def image_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        return timm_statistics(self.model)

    def run_block_seen(
        self, index: int, tokens: Tensor, context: Any, facets: Collection[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run as :meth:`VitAdapter.run_block_seen` does; a branch that ends in a norm has no scaled facet."""
        if isinstance(self.blocks[index], EvaBlockPostNorm | ResPostBlock):
            for facet in facets:
                if facet.endswith("_scaled"):
                    raise self.no_facet(index, facet)
        return super().run_block_seen(index, tokens, context, facets)

    def _no_facets(self, block: nn.Module, facet: str) -> ConfigError:
        kind = f"{type(block).__name__} with {type(getattr(block, 'attn', None)).__name__}"
        return ConfigError(
            f"{self.spec}: facet {facet} needs timm's pre-norm block with fused qkv, not {kind}", "use facet out"
        )


class TimmVitAdapter(_TimmAdapter):
    """timm's VisionTransformer: ViT, DeiT, DINO, DINOv2, CLIP, MAE, SigLIP, and ours.

    ``pos_embed`` says how the position embedding is resized, "timm", "dino" or "bicubic", see
    :func:`dinoskip.models.vit.add_positions`; None as the model itself does.
    """

    def __init__(self, model: nn.Module, spec: str, pos_embed: str | None = None) -> None:
        super().__init__(model, spec)
        self.pos_embed = str(pos_embed or getattr(model, "position_resize", "timm"))
        if self.pos_embed != "timm" and not can_resize_as_dino(self.model):
            raise ConfigError(
                f"{spec}: pos_embed={self.pos_embed} is for ViTs whose position embedding covers a CLS token and the "
                "patches alone",
                "leave pos_embed out",
            )

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether it is timm's ViT with one convolution as patch embedding; hybrids are read level by level."""
        return isinstance(model, VisionTransformer) and isinstance(model.patch_embed, PatchEmbed)

    def embed(self, images: Tensor) -> tuple[Tensor, Any]:
        if self.pos_embed == getattr(self.model, "position_resize", "timm"):  # as the model does it itself
            return embed(self.model, images), None
        tokens = add_positions(self.model, self.model.patch_embed(images), self.pos_embed)
        return self.model.norm_pre(self.model.patch_drop(tokens)), None

    def run_block(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        stepped: Tensor = self.blocks[index](tokens)
        return stepped

    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        block: Any = self.blocks[index]
        attention = getattr(block, "attn", None)
        if not isinstance(block, TimmBlock) or not isinstance(attention, Attention):
            raise self._no_facets(block, facet)
        projected = project_fused(attention.qkv, block.norm1(tokens), facet)
        if facet == "value":
            return projected
        return _head_normed(attention, projected, facet)


class TimmEvaAdapter(_TimmAdapter):
    """timm's Eva: rotary and absolute positions, fused or split projections, pre-norm or post-norm blocks."""

    @staticmethod
    def fits(model: nn.Module) -> bool:
        return isinstance(model, Eva)

    def embed(self, images: Tensor) -> tuple[Tensor, Any]:
        tokens, rope = self.model._pos_embed(self.model.patch_embed(images))
        return self.model.norm_pre(tokens), rope

    def run_block(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        rope = context[index] if self.model.rope_mixed and context is not None else context
        stepped: Tensor = self.blocks[index](tokens, rope=rope)
        return stepped

    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        block: Any = self.blocks[index]
        if not isinstance(block, EvaBlock | EvaBlockPostNorm):
            raise self._no_facets(block, facet)
        attention: Any = block.attn
        inputs = block.norm1(tokens) if isinstance(block, EvaBlock) else tokens
        if attention.qkv is None:
            projected: Tensor = getattr(attention, f"{facet[0]}_proj")(inputs)
        else:
            apart = getattr(attention, "q_bias", None)
            bias = None if apart is None else torch.cat((apart, attention.k_bias, attention.v_bias))
            projected = project_fused(attention.qkv, inputs, facet, bias)
        if facet == "value":
            return projected
        return _head_normed(attention, projected, facet)


def _head_normed(attention: Any, projected: Tensor, facet: str) -> Tensor:
    """Queries or keys after the attention's own norm of each head; keys may have fewer heads than queries."""
    heads = getattr(attention, "num_kv_heads", attention.num_heads) if facet == "key" else attention.num_heads
    return apply_head_norm(getattr(attention, f"{facet[0]}_norm"), projected, int(heads))


def _check_biases(where: str, expected: Mapping[str, Tensor], published: Mapping[str, Any]) -> None:
    """timm drops query and value biases of DINOv3 files for its models without; refuse, unless they are zero."""
    for name, bias in published.items():
        if name.endswith("attn.qkv.bias") and not {name, name.replace("qkv.bias", "q_bias")} & expected.keys():
            query, _, value = bias.tensor_split(3)
            if query.any() or value.any():
                raise WeightsError(f"{where}: the model has no {name}, and it is not zero", "use timm's NAME_qkvb")


def _whole(where: str, model: Any, published: Mapping[str, Any], _model: nn.Module | None = None) -> dict[str, Tensor]:
    """A published state under the model's own names, by timm's rules; :class:`WeightsError` unless all of it fits."""
    rules = network_rules(model)
    architecture = str((getattr(model, "pretrained_cfg", None) or {}).get("architecture", ""))
    if "radio" in architecture:
        raise ConfigError(f"{where}: RADIO resamples positions in a way of its own and is not supported")
    if "flexi" in architecture:
        rules = partial(vit_filter, interpolation="bilinear", antialias=False)  # as timm itself loads FlexiViT
    try:
        with redirect_stdout(StringIO()):  # its remarks would mix with results
            state = rules(dict(published), model)
    except Exception as error:
        raise WeightsError(f"{where}: not in a layout that timm knows for this model: {first_line(error)}") from error
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{where}: not a state_dict; it holds: {', '.join(map(str, list(state)[:6]))}")
    expected = model.state_dict()
    _check_biases(where, expected, published)
    classifier = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    kept = without_heads(state, expected, (*NOT_BACKBONE, *(f"{head}." for head in heads)))
    check_network(expected, kept, where)
    return kept


def network_rules(model: Any) -> Callable[..., Any]:
    """timm's rules from published names to the model's own."""
    if isinstance(model, VisionTransformer):
        return partial(vit_filter, adapt_layer_scale=True)  # DeiT III's names
    if isinstance(model, Eva):
        return eva_filter
    published = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return published or (lambda state, model: dict(state.get("state_dict", state)))


def _from_file(path: Path, model: Any, role: str | None, prefix: str | None) -> tuple[dict[str, Tensor], str]:
    """A file's state for the model, and where in the file it was found ("": not in a wrapping).

    Read are the network that has its names in any wrapping, else the file as timm's rules take it, last the ViT in its
    wrapping, under its authors' names. What is said of a file that does not fit is of the reading that comes nearest.
    """
    content = read_content(path)
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: it holds a {type(content).__name__}, not named tensors")
    refuse_unread(content, path)
    said: WeightsError | None = None
    network = find_network(content, model.state_dict().keys(), path, role, prefix)
    if network is not None:
        try:
            return _whole(str(path), model, network.tensors), network.taken
        except WeightsError as error:
            said = error
    for read in (lambda: (content, ""), lambda: _of_a_vit(content, path, role, prefix)):
        try:
            published, taken = read()
            return _whole(str(path), model, published), taken
        except WeightsError as error:
            said = said or error
    if network is None:
        name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture") or type(model).__name__
        raise WeightsError(
            f"{path}: not the weights of {name}, in whatever wrapping; it holds: {held(content)}",
            f"`dinoskip models show {path}` says what it is, where its tensors tell",
        ) from said
    raise said  # type: ignore[misc]


def _of_a_vit(content: Any, path: Path, role: str | None, prefix: str | None) -> tuple[dict[str, Tensor], str]:
    tower = find_tower(content, path, role, prefix)
    clip = "visual." if "class_embedding" in tower.tensors else ""  # timm knows CLIP by this prefix
    return {f"{clip}{name}": tensor for name, tensor in tower.tensors.items()}, tower.taken


def open_branches_(model: nn.Module) -> int:
    """Set the LayerScale of a network with random weights to 1 where it is small and constant; in how many places.

    From 1e-5, with which large networks begin their training, blocks are identities, and no baseline.
    """
    count = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = parameter.reshape(-1)[:1]
            small = re.fullmatch(r"gamma(_?\d|_\w+)?", name.rpartition(".")[2]) and 0 < float(scale) < 0.5
            if small and bool((parameter == scale).all()):
                parameter.fill_(1.0)
                count += 1
    return count


def load_timm(name: str, **options: Any) -> LoadedModel:
    """Build ``timm:NAME``; options are those of timm's factory, ``pretrained``, ``file`` and ``seed``.

    ``file`` is a local file, in any wrapping, in a layout that timm knows for this model (its own or the authors'
    published one); ``role`` and ``prefix`` choose where several networks in it fit, as of bare paths. ``tensors`` are
    what a ``file`` that was read before holds.
    Raises :class:`ConfigError` for what timm cannot build, :class:`WeightsError` for weights that cannot be had or do
    not fit whole.
    """
    options = {"num_classes": 0} | options
    file, seed = options.pop("file", None), int(options.pop("seed", 0))
    role, prefix, tensors = (options.pop(key, None) for key in ("role", "prefix", "tensors"))
    pretrained = bool(options.pop("pretrained", True)) and file is None
    model = build_timm(name, seed, options)
    if file is None and not pretrained and (count := open_branches_(model)):
        log.info("timm:%s: LayerScale of its random weights is 1 in %d places, so that branches count", name, count)
    if file is not None:
        path = Path(file).expanduser()
        refuse_skipless_weights(path, f"timm:{name}")
        if tensors is None:
            state, taken = _from_file(path, model, role, prefix)
        else:
            state, taken = _whole(str(path), model, tensors), ""
        model.load_state_dict(state)
        return LoadedModel(model, read_as=f"{path.name}: {len(state)} tensors of timm:{name}{found_under(taken)}")
    if pretrained:
        try:
            if name.startswith("local-dir:"):
                refuse_text_in(Path(name.removeprefix("local-dir:")))
            with nullcontext() if name.startswith("local-dir:") else hub_client():
                load_pretrained(model, num_classes=model.num_classes, filter_fn=partial(_whole, f"timm:{name}", model))
        except DinoskipError:
            raise
        except Exception as error:
            reason = f"timm:{name}: pretrained weights cannot be loaded: {first_line(error)}"
            raise WeightsError(reason, offline_hint(f"timm:{name}")) from error
    return LoadedModel(model)
