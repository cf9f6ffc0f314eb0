"""MAE (He et al. 2022, arXiv:2111.06377): a decoder paints the patches that the encoder has not seen.

The encoder runs on the visible quarter of the patches alone; a small decoder, which is thrown away, sees them and a
mask token in the place of every other patch. Semantics follow facebookresearch/mae (docs/objectives.md). K patches of N
are visible, R = N - K are removed. To read how a step goes: :meth:`MAE.step`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from dinoskip.models.build import from_config
from dinoskip.models.positions import sincos_positions
from dinoskip.runtime.precision import at_least_float32
from dinoskip.settings.vit_config import SHAPES
from dinoskip.training.gradients import clip_each_
from dinoskip.training.objective import Objective, Step
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job
from dinoskip_objectives.long_skips import LongSkipDecoder, draw_
from dinoskip_objectives.mae_config import EVERY, HEAD_DIM, MaeConfig
from dinoskip_objectives.masked import visible_blocks, visible_tokens

# --- one step ----------------------------------------------------------------------------------------


class MAE(Objective):
    """An encoder whose visible patches must tell what the others look like."""

    observed = "student"
    by_block = True
    config: MaeConfig

    def __init__(self, job: Job, config: MaeConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = Schedules(config, job.optimizer, steps_per_epoch)
        backbone = job.backbone(device)
        self.student = MaeNetwork(backbone, self._decoder().to(device)).train()
        if config.positions == "sincos":
            fix_positions_(backbone)
        if config.long_skips:
            backbone.norm.requires_grad_(False)  # nothing reads what it gives
        self.networks = {"student": self.student}
        self.buffers = {}

    def _decoder(self) -> MaeDecoder | LongSkipDecoder:
        model, config = self.job.model, self.config
        (width, patch), (dim, depth) = SHAPES[model.name], config.decoder_shape(model)
        grid, seed = config.crop_size // patch, self.job.seed
        if config.long_skips:
            return LongSkipDecoder(width, dim, depth, model.blocks // EVERY, patch, grid, seed=seed)
        return MaeDecoder(width, dim, depth, patch, grid, seed=seed)

    def build_network(self, role: str) -> nn.Module:
        """An encoder and decoder of the same architecture."""
        return MaeNetwork(from_config(self.job.model, weight_init="skip"), self._decoder())

    def step(self, step: Step) -> None:
        """One step, from crops and the numbers of their visible and removed patches to encoder and decoder."""
        config, patch = self.config, self.job.model.patch_size
        step.begin(self.schedules.at(step.number))
        for images, kept, removed in step.micro_batches():  # (B, 3, S, S), (B, K), (B, R)
            with step.autocast():
                painted = step.forward(images, kept, removed)  # (B, R, 3·patch²)
            targets = patch_targets(images, patch, config.norm_pix)
            wanted = targets.gather(1, removed[..., None].expand(-1, -1, targets.shape[2]))
            step.backward(reconstruction_loss(painted, wanted))
        gradients, norms = step.gradients()
        if step.finite:
            clip_each_(gradients, norms, config.clip_grad)
            step.optimizer.step()


# --- the loss ----------------------------------------------------------------------------------------


def patch_targets(images: Tensor, patch: int, norm_pix: bool) -> Tensor:
    """The pixels of every patch, (B, N, 3·patch²) of images (B, 3, H, W): by row, column, channel (fastest) in a patch.

    With ``norm_pix`` each patch has mean 0 and unbiased variance 1 over its values (1e-6 is added to the variance).
    """
    batch, channels, height, width = images.shape
    grid = images.reshape(batch, channels, height // patch, patch, width // patch, patch)
    pixels = grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch**2 * channels)
    if not norm_pix:
        return pixels
    variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
    return (pixels - mean) / (variance + 1e-6).sqrt()  # norm_pix_loss of models_mae.py


def reconstruction_loss(painted: Tensor, targets: Tensor) -> Tensor:
    """Squared error, mean over all values of removed patches, in at least float32; both (..., 3·patch²)."""
    return (at_least_float32(painted) - targets).square().mean()


# --- networks ----------------------------------------------------------------------------------------


@torch.no_grad()
def fix_positions_(backbone: VisionTransformer) -> None:
    """Give a backbone sine-cosine positions, in place, which are not trained."""
    positions = backbone.pos_embed
    assert isinstance(positions, nn.Parameter)
    drawn = sincos_positions(backbone.patch_embed.grid_size, positions.shape[2])
    positions.copy_(drawn[:, -positions.shape[1] :])  # with registers the CLS token has none
    positions.requires_grad_(False)


class MaeDecoder(nn.Module):
    """A ViT with skips on the encoder's tokens and mask tokens, and a linear layer to pixels.

    Weights depend on ``seed`` alone: Xavier uniform matrices, zero biases, norms 1 and 0, mask token normal 0.02.
    Positions are sines and cosines, not trained and no part of the state.
    """

    positions: Tensor

    def __init__(self, width: int, dim: int, depth: int, patch: int, grid: int, *, seed: int = 0) -> None:
        super().__init__()
        norm: Any = partial(nn.LayerNorm, eps=1e-6)  # models_mae.py, as the encoder's
        self.embed = nn.Linear(width, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        heads = dim // HEAD_DIM
        self.blocks = nn.Sequential(*(Block(dim, heads, qkv_bias=True, norm_layer=norm) for _ in range(depth)))
        self.norm = norm(dim)
        self.pixels = nn.Linear(dim, 3 * patch**2)
        self.register_buffer("positions", sincos_positions((grid, grid), dim).float(), persistent=False)
        draw_(self, seed)

    def forward(self, tokens: Tensor, kept: Tensor, removed: Tensor) -> Tensor:
        """Pixels (B, R, 3·patch²) of the patches ``removed`` (B, R), from tokens (B, 1 + K, width) of those ``kept``.

        The order of tokens says nothing to the blocks: removed patches stand at the end, with their own positions.
        """
        visible = self.embed(tokens)
        hidden = self.mask_token.to(visible.dtype).expand(len(visible), removed.shape[1], -1)
        places = self.positions[0, torch.cat([kept, removed], dim=1) + 1]
        places = torch.cat([self.positions[:, :1].expand(len(visible), -1, -1), places], dim=1)
        x = self.norm(self.blocks(torch.cat([visible, hidden], dim=1) + places))
        pixels: Tensor = self.pixels(x[:, -removed.shape[1] :])
        return pixels


class MaeNetwork(nn.Module):
    """An encoder (``backbone``) and a decoder (``head``)."""

    def __init__(self, backbone: VisionTransformer, head: MaeDecoder | LongSkipDecoder) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor, kept: Tensor, removed: Tensor) -> Tensor:
        """Pixels (B, R, 3·patch²) of the patches ``removed`` of images (B, 3, S, S), of which ``kept`` are seen."""
        read: Any = visible_tokens
        if isinstance(self.head, LongSkipDecoder):
            read = partial(visible_blocks, every=EVERY)
        pixels: Tensor = self.head(read(self.backbone, images, kept), kept, removed)
        return pixels
