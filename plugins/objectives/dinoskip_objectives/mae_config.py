"""Settings of pretraining by masked autoencoding (He et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dinoskip.data.config import AugmentConfig, CropConfig, Probability, Scale
from dinoskip.init.config import ModelConfig, needs_images
from dinoskip.settings.flops import block_flops, patch_flops
from dinoskip.settings.vit_config import SHAPES, VitConfig, layout_of
from dinoskip.training.pretrain_config import PretrainConfig, StepCost

if TYPE_CHECKING:
    from dinoskip_objectives.masks import VisiblePatches

HEAD_DIM = 32  # channels of a decoder's head: 16 heads of 512 channels
EVERY = 2  # encoder blocks from one whose tokens are kept to the next
# Of the encoder's width and depth: 512 of 768 channels, 8 of 12 blocks. MAE has 512 and 8 for every encoder; ours
# scales, because a small encoder would have a decoder larger than itself.
SHARE = 2 / 3


class MaeConfig(PretrainConfig):
    """MAE's settings; the defaults are those of the published command, 800 epochs."""

    place: ClassVar[str] = "dinoskip_objectives.mae:MAE"
    order: ClassVar[int] = 30

    objective: Literal["mae"] = "mae"
    epochs: int = Field(800, ge=1, description="passes over the images")
    batch_size: int = Field(4096, ge=1, description="images a step over all ranks and micro-batches")
    # The rate peaks at the last step of the warm-up, as in all objectives here; MAE's code has it one step later.
    warmup_epochs: float = Field(40, ge=0, description="linear warm-up of the learning rate from 0; may be a fraction")
    crop_size: int = Field(224, ge=8, description="side of the crop in pixels")
    crop_scale: Scale = Field((0.2, 1.0), description="least and greatest share of the image's area")
    flip: Probability = Field(0.5, description="probability of a horizontal flip")
    mask_ratio: float = Field(0.75, gt=0, lt=1, description="share of the patches that the encoder does not see")
    norm_pix: bool = Field(True, description="targets are normalised within each patch")
    positions: Literal["sincos", "learned"] = Field(
        "sincos", description="of the encoder: fixed sines and cosines, or learned from the initialisation's"
    )
    decoder_dim: int | None = Field(
        None, ge=32, multiple_of=32, description="width of the decoder; null: two thirds of the encoder's (32 a head)"
    )
    decoder_depth: int | None = Field(None, ge=1, description="blocks of the decoder; null: two thirds as many")
    long_skips: bool = Field(
        False,
        description="the decoder gets the tokens of every second encoder block, without a norm, and starts at zero",
    )
    clip_grad: float = Field(0.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")

    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """One crop, flipped or not, and nothing else."""
        crops = CropConfig(num_global=1, num_local=0, global_size=self.crop_size, global_scale=self.crop_scale)
        none = (0.0, 0.0, 0.0)
        return crops, AugmentConfig(flip=self.flip, jitter=0.0, grey=0.0, blur=none, solarise=none)

    def targets(self, seed: int, patch_size: int) -> VisiblePatches:
        """Return the transform that draws, for each image, the patches that the encoder sees."""
        from dinoskip_objectives.masks import VisiblePatches  # torch

        return VisiblePatches(self.crop_size // patch_size, 1 - self.mask_ratio, seed)

    def sizes(self) -> dict[str, int]:
        """Side of the crop in pixels, by its key."""
        return {"crop_size": self.crop_size}

    def incompatibilities(self, model: ModelConfig) -> dict[str, str]:
        """Weights that are measured on images are measured with their own positions."""
        if self.long_skips and model.blocks % EVERY:
            return {"long_skips": f"{model.blocks} blocks: they take the tokens of every second one, so an even depth"}
        if self.positions == "learned" or not needs_images(model.init):
            return {}
        text = f"sincos replaces those with which init {model.init.name} is measured: take positions=learned"
        return {"positions": text}

    def decoder_shape(self, model: VitConfig) -> tuple[int, int]:
        """Width and blocks of the decoder for an encoder."""
        width, depth = SHAPES[model.name][0], model.blocks
        dim = self.decoder_dim or max(1, round(SHARE * width / HEAD_DIM)) * HEAD_DIM
        return dim, self.decoder_depth or max(1, round(SHARE * depth))

    def cost(self, model: VitConfig) -> StepCost:
        """The encoder on visible patches, the decoder on all."""
        (width, patch), (dim, depth) = SHAPES[model.name], self.decoder_shape(model)
        patches, pixels = (self.crop_size // patch) ** 2, 3 * patch**2
        kept = int(patches * (1 - self.mask_ratio))
        embedding = patch_flops(model, self.crop_size)
        encoder = embedding + model.blocks * block_flops(kept + 1, width, layout_of(model.name)[2])
        ends = 2 * (kept + 1) * width * dim + 2 * (patches - kept) * dim * pixels
        decoder = depth * block_flops(patches + 1, dim) + ends
        head = width * dim + depth * 12 * dim**2 + dim * pixels
        if self.long_skips:
            joined = min(depth, model.blocks // EVERY) * (width + 2 * dim) * dim
            decoder += 2 * (patches + 1) * (joined + dim**2) - 2 * (kept + 1) * width * dim
            head += joined + (dim - width) * dim
        return StepCost(3 * (encoder + decoder) - embedding, head, 1)
