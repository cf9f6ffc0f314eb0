"""ViTs, Swin and ConvNeXt of Hugging Face transformers, ``hf:``.

Weights are read from safetensors alone; no code is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError, DinoskipError, WeightsError, first_line
from dinoskip.io.files import refuse_text_in
from dinoskip.models.adapter import LoadedModel, VitAdapter, square_patch_side
from dinoskip.models.export import listed
from dinoskip.models.hf_client import hub_client
from dinoskip.models.image_statistics import CLIP, HALF, IMAGENET, Statistics
from dinoskip.runtime.randomness import derive

# What a published file holds besides the image backbone, by the start of a name; all else must fit.
NOT_BACKBONE = (
    "classifier.",
    "cls_classifier.",
    "distillation_classifier.",
    "decoder.",
    "pooler.",
    "text_model.",
    "text_projection.",
    "visual_projection.",
    "logit_scale",
    "logit_bias",
    "embeddings.mask_token",
)


# What a damaged or hostile config.json may ask for at most; published ViTs are far below.
LIMITS = {
    "num_hidden_layers": 1000,
    "hidden_size": 65_536,
    "intermediate_size": 2**20,
    "image_size": 16_384,
    "num_register_tokens": 1024,
}


@dataclass(frozen=True)
class Family:
    """Parts of a class of transformers, as dotted paths from the model or from one layer."""

    layers: str
    norm: str
    first_norm: str
    attention: str
    prefix: int = 1
    statistics: Statistics = IMAGENET
    resizes: bool = False  # whether embeddings take interpolate_pos_encoding; the others always interpolate
    options: tuple[tuple[str, Any], ...] = ()  # for the class


_NO_POOLER = (("add_pooling_layer", False),)
FAMILIES = {
    "ViTModel": Family(
        "layers", "layernorm", "layernorm_before", "attention", 1, HALF, resizes=True, options=_NO_POOLER
    ),
    "DeiTModel": Family("layers", "layernorm", "layernorm_before", "attention", 2, resizes=True, options=_NO_POOLER),
    "ViTMAEModel": Family("layers", "layernorm", "layernorm_before", "attention", resizes=True),
    "Dinov2Model": Family("encoder.layer", "layernorm", "norm1", "attention"),
    "Dinov2WithRegistersModel": Family("encoder.layer", "layernorm", "norm1", "attention"),
    "DINOv3ViTModel": Family("model.layer", "norm", "norm1", "attention"),
    "CLIPVisionModel": Family("encoder.layers", "post_layernorm", "layer_norm1", "self_attn", 1, CLIP, resizes=True),
    "SiglipVisionModel": Family("encoder.layers", "post_layernorm", "layer_norm1", "self_attn", 0, HALF, resizes=True),
}
CLASSES = {
    "vit": "ViTModel",
    "deit": "DeiTModel",
    "vit_mae": "ViTMAEModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
    "dinov3_vit": "DINOv3ViTModel",
    "clip": "CLIPVisionModel",
    "clip_vision_model": "CLIPVisionModel",
    "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
    "swin": "SwinModel",
    "swinv2": "Swinv2Model",
    "convnext": "ConvNextModel",
    "convnextv2": "ConvNextV2Model",
    "dinov3_convnext": "DINOv3ConvNextModel",
}
"""The class of a model type; those that are no family are read level by level. SigLIP 2 is of type siglip, but for its
variant of free size (siglip2)."""


def _stages(model: Any) -> list[str] | None:
    """Names of the last block of every stage of a Swin, of every stage of a ConvNeXt; None of a ViT."""
    kind = type(model).__name__
    if kind.startswith("Swin"):
        return [f"encoder.layers.{at}.blocks.{len(stage.blocks) - 1}" for at, stage in enumerate(model.encoder.layers)]
    if "ConvNext" in kind:
        inside = "model" if kind.startswith("DINOv3") else "encoder"
        return [f"{inside}.stages.{at}" for at in range(len(model.get_submodule(f"{inside}.stages")))]
    return None


class HfVitAdapter(VitAdapter):
    """A ViT of transformers; positions are interpolated by its own code."""

    def __init__(self, model: nn.Module, spec: str) -> None:
        super().__init__(model, spec)
        self.family = FAMILIES[type(model).__name__]
        config = self.model.config
        self.blocks = list(self.model.get_submodule(self.family.layers))
        self.patch_size = square_patch_side(config.patch_size, spec)
        self.dim = int(config.hidden_size)
        self.num_heads = int(config.num_attention_heads)
        self.num_prefix_tokens = self.family.prefix + int(getattr(config, "num_register_tokens", 0))
        self.has_class_token = self.family.prefix > 0

    @staticmethod
    def fits(model: nn.Module) -> bool:
        return type(model).__name__ in FAMILIES and type(model).__module__.startswith("transformers.")

    def embed(self, images: Tensor) -> tuple[Tensor, Any]:
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if self.family.resizes else {}
        kind = type(self.model).__name__
        if kind == "ViTMAEModel":
            # MAE masks at random and shuffles what is left. The loader sets the ratio to 0; growing noise keeps order.
            count = (images.shape[-2] // self.patch_size) * (images.shape[-1] // self.patch_size)
            noise = torch.arange(count, device=images.device, dtype=torch.float32).expand(len(images), -1)
            return self.model.embeddings(images, noise=noise, **options)[0], {}
        tokens = self.model.embeddings(images, **options)
        if kind == "CLIPVisionModel":
            tokens = self.model.pre_layrnorm(tokens)  # spelled so in transformers
        if kind == "DINOv3ViTModel":
            return tokens, {"position_embeddings": self.model.rope_embeddings(images)}
        return tokens, {}

    def run_block(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        stepped: Tensor = self.blocks[index](tokens, attention_mask=None, **context)
        return stepped

    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        block: Any = self.blocks[index]
        projection = getattr(self.attention(index), f"{facet[0]}_proj")
        projected: Tensor = projection(getattr(block, self.family.first_norm)(tokens))
        return projected

    def attention(self, index: int) -> nn.Module | None:
        return self.blocks[index].get_submodule(self.family.attention)

    def final_norm(self, tokens: Tensor) -> Tensor | None:
        normed: Tensor = getattr(self.model, self.family.norm)(tokens)
        return normed

    def image_statistics(self) -> Statistics | None:
        return self.family.statistics


def transformers_library(spec: str) -> Any:
    """The package transformers; :class:`ConfigError` that names what ``spec`` asks it for where it is missing."""
    try:
        import transformers  # an extra, and heavy
    except ImportError as error:
        raise ConfigError(f"{spec}: needs the package transformers", "pip install 'dinoskip[hub]'") from error
    return transformers


def _vision_class(transformers: Any, config: Any, spec: str) -> tuple[Any, Any]:
    kind = str(config.model_type)
    if kind not in CLASSES:
        raise ConfigError(f"{spec}: models of type {kind!r} are not supported", f"supported: {', '.join(CLASSES)}")
    return getattr(transformers, CLASSES[kind]), getattr(config, "vision_config", config)


def _check_bounds(vision: Any, spec: str) -> None:
    """:class:`WeightsError` for a ``config.json`` of sizes that no ViT has: the network is built before its weights."""
    for name, limit in LIMITS.items():
        value = getattr(vision, name, None)
        for number in value if isinstance(value, list | tuple) else [value]:
            if number is not None and not (type(number) is int and 0 <= number <= limit):
                given = str(number)[:40]
                raise WeightsError(f"{spec}: config.json: {name} {given} is not a whole number up to {limit}")


def _check_report(report: Mapping[str, Any], prefix: str, where: str) -> None:
    """:class:`WeightsError` that lists keys, unless every tensor of the model was in the file and the other way."""
    names = report["unexpected_keys"]
    extra = [name for name in names if not name.removeprefix(prefix).startswith(NOT_BACKBONE)]
    problems = [
        *listed(report["missing_keys"], "missing"),
        *listed(extra, "not in the model"),
        *listed([entry[0] for entry in report["mismatched_keys"]], "of another shape"),
    ]
    if problems:
        raise WeightsError(f"{where}: the weights do not fit: {'; '.join(problems)}")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence reports of keys and bars while weights load: what does not fit is raised, in one line."""
    logging = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _statistics(transformers: Any, name: str) -> Statistics | None:
    """Return the image mean and deviation of ``preprocessor_config.json``; None if it is missing or has none."""
    try:
        settings, _ = transformers.image_processing_base.ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:
        return None
    mean, std = settings.get("image_mean"), settings.get("image_std")
    return (tuple(mean), tuple(std)) if mean and std else None


def load_hf(name: str, **options: Any) -> LoadedModel:
    """Build ``hf:NAME_OR_DIR``; options are ``pretrained`` (true), ``seed`` of random weights and ``revision``.

    Raises :class:`ConfigError` for a model type that is not supported, :class:`WeightsError` for weights that cannot
    be had, are no safetensors or do not fit whole.
    """
    spec = f"hf:{name}"
    transformers = transformers_library(spec)
    pretrained, seed = bool(options.pop("pretrained", True)), int(options.pop("seed", 0))
    source = {"revision": options.pop("revision")} if "revision" in options else {}
    if options:
        raise ConfigError(f"{spec}: unknown options: {', '.join(options)}", "options: pretrained, seed, revision")
    where = str(Path(name).expanduser()) if name.startswith(("/", ".", "~")) else name
    try:
        with hub_client() if where == name else nullcontext():
            config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False, **source)
            cls, vision = _vision_class(transformers, config, spec)
            _check_bounds(vision, spec)
            extra = dict(FAMILIES[cls.__name__].options) if cls.__name__ in FAMILIES else {}
            if cls.__name__ == "ViTMAEModel":
                vision.mask_ratio = 0.0
            if not pretrained:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(derive(seed, "hf", cls.__name__))
                    model = cls(vision, **extra)
            else:
                refuse_text_in(Path(where))
                with _quiet(transformers):
                    model, report = cls.from_pretrained(
                        where,
                        config=vision,
                        use_safetensors=True,
                        output_loading_info=True,
                        ignore_mismatched_sizes=True,  # so that they are reported, all at once, and refused below
                        dtype=torch.float32,
                        trust_remote_code=False,
                        **source,
                        **extra,
                    )
                _check_report(report, f"{cls.base_model_prefix}.", spec)
            mean, std = _statistics(transformers, where) or (None, None)
    except DinoskipError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise WeightsError(
            f"{spec}: it cannot be loaded: {reason}",
            "weights are downloaded once, which needs network; for files that you have write hf:./FOLDER with "
            "config.json and model.safetensors in it",
        ) from error
    built_for = getattr(vision, "image_size", None)
    size = built_for if isinstance(built_for, int) else None
    return LoadedModel(model, mean=mean, std=std, size=size, layers=_stages(model))
