"""Small networks with the interfaces and parameter names of facebookresearch's DINO, DINOv2 and DINOv3.

Written anew from what those repositories' modules do; also what ``hubconf.py`` of a test's hub repository imports.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

norm_layer = partial(nn.LayerNorm, eps=1e-6)


class PatchEmbed(nn.Module):
    def __init__(self, img_size: int, patch_size: int, dim: int, *, flat: bool = True, pair: bool = False) -> None:
        super().__init__()
        self.patch_size = (patch_size, patch_size) if pair else patch_size
        self.num_patches = (img_size // patch_size) ** 2
        self.flat = flat
        self.proj = nn.Conv2d(3, dim, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).permute(0, 2, 3, 1)
        return x.flatten(1, 2) if self.flat else x


class LinearKMaskedBias(nn.Linear):
    """DINOv3's: the third of the bias that belongs to the keys is masked when the layer is applied."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        third = self.out_features // 3
        mask = torch.ones(self.out_features)
        mask[third : 2 * third] = 0
        self.register_buffer("bias_mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias * self.bias_mask)


def rotate(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int, *, masked: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = (LinearKMaskedBias if masked else nn.Linear)(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if rope is not None:
            prefix = q.shape[-2] - rope[0].shape[-2]
            q, k = (torch.cat((t[..., :prefix, :], rotate(t[..., prefix:, :], *rope)), dim=-2) for t in (q, k))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, dim: int, num_heads: int, *, scaled: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm_layer(dim), norm_layer(dim)
        self.attn, self.mlp = Attention(dim, num_heads, masked=masked), Mlp(dim)
        self.ls1, self.ls2 = (LayerScale(dim), LayerScale(dim)) if scaled else (nn.Identity(), nn.Identity())

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), rope))
        return x + self.ls2(self.mlp(self.norm2(x)))


class BlockChunk(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


class Dino(nn.Module):
    """DINO's VisionTransformer."""

    def __init__(
        self, patch_size: int = 8, dim: int = 192, depth: int = 2, num_heads: int = 3, img_size: int = 32
    ) -> None:
        super().__init__()
        self.embed_dim = dim
        self.patch_embed = PatchEmbed(img_size, patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(depth))
        self.norm = norm_layer(dim)

    def interpolate_pos_encoding(self, x: Tensor, w: int, h: int) -> Tensor:
        npatch, count = x.shape[1] - 1, self.pos_embed.shape[1] - 1
        if npatch == count and w == h:
            return self.pos_embed
        cls, patches = self.pos_embed[:, 0], self.pos_embed[:, 1:]
        w0, h0 = w // self.patch_embed.patch_size + 0.1, h // self.patch_embed.patch_size + 0.1
        side = int(math.sqrt(count))
        patches = F.interpolate(
            patches.reshape(1, side, side, -1).permute(0, 3, 1, 2),
            scale_factor=(w0 / math.sqrt(count), h0 / math.sqrt(count)),
            mode="bicubic",
        )
        assert int(w0) == patches.shape[-2]
        assert int(h0) == patches.shape[-1]
        return torch.cat((cls.unsqueeze(0), patches.permute(0, 2, 3, 1).reshape(1, -1, x.shape[-1])), dim=1)

    def prepare_tokens(self, x: Tensor) -> Tensor:
        _, _, w, h = x.shape
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        return x + self.interpolate_pos_encoding(x, w, h)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prepare_tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


class DinoV2(nn.Module):
    """DINOv2's DinoVisionTransformer with registers; ``chunks`` pads chunks with Identity as it does under FSDP."""

    def __init__(
        self,
        patch_size: int = 14,
        dim: int = 48,
        depth: int = 2,
        num_heads: int = 3,
        registers: int = 4,
        chunks: int = 0,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.patch_size = dim, num_heads, patch_size
        self.num_register_tokens = registers
        self.patch_embed = PatchEmbed(4 * patch_size, patch_size, dim, pair=True)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.register_tokens = nn.Parameter(torch.randn(1, registers, dim)) if registers else None
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        blocks = [Block(dim, num_heads, scaled=True) for _ in range(depth)]
        self.chunked_blocks = chunks > 0
        if chunks:
            size = depth // chunks
            padded = [[nn.Identity()] * i + blocks[i : i + size] for i in range(0, depth, size)]
            self.blocks = nn.ModuleList(BlockChunk(chunk) for chunk in padded)
        else:
            self.blocks = nn.ModuleList(blocks)
        self.norm = norm_layer(dim)

    def prepare_tokens_with_masks(self, x: Tensor, masks: Tensor | None = None) -> Tensor:
        h, w = x.shape[-2] // self.patch_size, x.shape[-1] // self.patch_size
        x = self.patch_embed(x)
        patches = self.pos_embed[:, 1:].float().reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        if (h, w) != (4, 4):  # models with registers were released with antialias and without offset
            patches = F.interpolate(patches, size=(h, w), mode="bicubic", antialias=True)
        positions = torch.cat((self.pos_embed[:, :1], patches.permute(0, 2, 3, 1).flatten(1, 2).to(x.dtype)), dim=1)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + positions
        if self.register_tokens is None:
            return x
        return torch.cat((x[:, :1], self.register_tokens.expand(x.shape[0], -1, -1), x[:, 1:]), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prepare_tokens_with_masks(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


class Rope(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("periods", 100 ** (torch.arange(head_dim // 4) / (head_dim // 4)))

    def forward(self, *, H: int, W: int) -> tuple[Tensor, Tensor]:
        rows, columns = (torch.arange(0.5, n, device=self.periods.device) / n * 2 - 1 for n in (H, W))
        coordinates = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
        angles = (2 * math.pi * coordinates[..., None] / self.periods).flatten(1).tile(2).to(self.periods.dtype)
        return angles.sin(), angles.cos()


class DinoV3(nn.Module):
    """DINOv3's DinoVisionTransformer: rotary positions, storage tokens, masked key bias, a norm of its own for CLS."""

    def __init__(
        self,
        patch_size: int = 16,
        dim: int = 48,
        depth: int = 2,
        num_heads: int = 3,
        untie: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.patch_size, self.n_storage_tokens = dim, num_heads, patch_size, 4
        self.patch_embed = PatchEmbed(2 * patch_size, patch_size, dim, flat=False, pair=True)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.storage_tokens = nn.Parameter(torch.randn(1, 4, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        self.rope_embed = Rope(dim // num_heads)
        self.blocks = nn.ModuleList(Block(dim, num_heads, scaled=True, masked=True) for _ in range(depth))
        self.norm = norm_layer(dim)
        self.untie_cls_and_patch_norms = untie
        self.cls_norm = norm_layer(dim) if untie else None
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = eps  # 1e-5 in the released networks

    def prepare_tokens_with_masks(self, x: Tensor, masks: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        x = self.patch_embed(x)
        b, h, w, _ = x.shape
        prefix = (self.cls_token.expand(b, -1, -1), self.storage_tokens.expand(b, -1, -1))
        return torch.cat((*prefix, x.flatten(1, 2)), dim=1), (h, w)

    def forward(self, x: Tensor) -> Tensor:
        x, (h, w) = self.prepare_tokens_with_masks(x)
        for block in self.blocks:
            x = block(x, self.rope_embed(H=h, W=w))
        return (self.cls_norm or self.norm)(x[:, 0])
