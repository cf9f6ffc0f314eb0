"""Settings of video object segmentation by label propagation."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from eval.protocols import ProtocolConfig


class VideoConfig(ProtocolConfig):
    """Label propagation through videos (docs/video.md): resolution, context, window, how patches vote.

    The defaults are those of DINO's script. It normalises red by a deviation of 0.228, where 0.229 was meant:
    ``dino-as-coded`` does as well, ``dino`` takes the mean and deviation that the weights were trained with.
    """

    unsaid: ClassVar[frozenset[str]] = frozenset({"short_side", "pictures"})

    protocol: Literal["dino", "dino-as-coded"] = Field("dino", description="how pixels are normalised")
    short_side: int = Field(480, ge=16, description="pixels; brought to whole patches, as is the long side")
    memory: int = Field(7, ge=0, le=1000, description="frames before a frame that are its context, with the first one")
    radius: int = Field(12, ge=0, description="patches up, down and aside that a patch may take its mask from; 0: all")
    top_k: int = Field(5, ge=1, description="most similar patches that a patch takes its mask from")
    temperature: float = Field(0.1, gt=0, description="patches are weighted by softmax(cosine / temperature)")
    pictures: int = Field(3, ge=0, le=1000, description="videos of which strips are kept for the gallery")

    @property
    def resolution(self) -> str:
        """The description of the resizing of frames and of the scoring in result rows."""
        return f"{self.short_side} short side, scored at original size"

    def input_size(self, height: int, width: int, patch: int) -> tuple[int, int]:
        """Return (height, width) of the network's input for frames of this size.

        The short side is ``short_side``, the long one in proportion, down to a multiple of 64, as in the script; with
        patches that do not divide these, both go down to whole patches. Never less than one patch. The long side is
        never below the short one: the script makes 480 x 448 of a square frame of 480, which distorts it. No frame of
        DAVIS is near enough to a square for that to matter.
        """
        # The script knows patches of 8 and 16, which divide 64; for others whole patches are ours.
        short, step = self.short_side // patch * patch, 64 if 64 % patch == 0 else patch
        long = int(self.short_side * max(height, width) / min(height, width))
        sides = max(short, patch), max(long // step * step, short, patch)
        return sides if height <= width else sides[::-1]
