"""The gallery's settings, of a study's ``gallery`` section, its command and Python alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dinoskip.settings.config import Config, Distinct


class GalleryConfig(Config):
    """Images of the gallery and their display; a change re-runs nothing but the gallery and the report."""

    first: int = Field(
        12,
        ge=1,
        le=100_000,
        description="images shown, from the start of the data set's list (of class folders: an image of each in turn)",
    )
    page: int = Field(
        50, ge=1, le=500, description="images on a page; contact sheets and PCA bases are of the first page's"
    )
    block: int | None = Field(None, ge=1, description="block shown first and on the contact sheet; default depth - 1")
    size: int | None = Field(
        None, ge=16, description="side in pixels; default: 32 patches, no more pixels than the images have"
    )
    sheet: Annotated[int, Field(ge=1)] | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="images on the contact sheets: how many, or ids; default: all, on those of all blocks eight"
    )
    sheet_formats: Distinct[Literal["pdf", "png"]] = Field(
        ("pdf", "png"), description="files of each contact sheet; []: none but the two that reports show"
    )
    similarity: Annotated[int, Field(ge=0)] | tuple[str, ...] = Field(
        3, description="images whose features go into the page, for similarity to a clicked patch: how many, or ids"
    )
    single_file: bool = Field(False, description="everything in index.html instead of pictures beside it")
