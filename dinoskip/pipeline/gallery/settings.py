"""Settings of the stage ``gallery``, as validated objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.plugins import content_of_part
from dinoskip.runtime.arithmetic import Precision
from dinoskip.settings.config import dump
from eval.tokencut.config import TokenCutConfig
from visualize.gallery.config import GalleryConfig
from visualize.gallery.layers import LAYERS


def _contents_of_layers() -> dict[str, str]:
    """The sha256 of the files of layers that are a user's own, by name."""
    contents = {name: content_of_part("layers", name) for name in LAYERS}
    return {name: content for name, content in contents.items() if content is not None}


@dataclass(frozen=True)
class ShownModel:
    """A network with a column: its key there, its variant and epoch, the blocks shown, its spec if it has one.

    ``words`` are what the pages call it.
    """

    label: str
    variant: str
    epoch: int
    blocks: str | Sequence[int] = "all"
    backbone: str | None = None
    words: str = ""


@dataclass(frozen=True)
class GallerySettings(NodeSettings):
    """Settings of the one gallery of a study.

    ``section`` has the data set filled in, ``least`` is the fewest pixels of a side where it has none; ``split`` is
    shown of it. ``read`` and ``facet`` are what colours and cuts are of, ``blocks`` those of the study. ``surfaces``
    are the splits of other data sets that are shown beside, by layer. ``precision`` is that of the networks' passes.
    """

    section: GalleryConfig
    split: str
    title: str = ""
    models: Sequence[ShownModel] = ()
    norm: str = "final"
    read: str = "out"
    facet: str = "key"
    cut: TokenCutConfig = field(default_factory=TokenCutConfig)
    seed: int = 0
    blocks: str | Sequence[int] = "all"
    surfaces: Mapping[str, str] = field(default_factory=dict)
    least: int = 224
    precision: Precision = "fp32"

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Settings as they are hashed: a single page leaves out its limit of images, cuts leave out defaults."""
        section, cutting, usual = self.section, dump(self.cut), dump(TokenCutConfig())
        cut = {key: cutting[key] for key in ("tau", "eps", "centre", "positions") if cutting[key] != usual[key]}
        return {
            "gallery": {
                **{name: value for name, value in settings_of(section).items() if name not in {"epochs", "page"}},
                **({"page": section.page} if section.first > section.page else {}),
            },
            "least": self.least,
            "title": self.title,
            "models": [self._of_model(model) for model in self.models],
            "norm": self.norm,
            "read": self.read,
            "facet": self.facet,
            **({"cut": cut} if cut else {}),
            "seed": self.seed,
            "blocks": self.blocks,
            **({} if self.precision == "fp32" else {"precision": self.precision}),
            **({"plugins": contents} if (contents := _contents_of_layers()) else {}),
        }

    def _of_model(self, model: ShownModel) -> dict[str, Any]:
        key = {"label": model.label, "variant": model.variant, "epoch": model.epoch}
        key |= {"backbone": model.backbone} if model.backbone is not None else {}
        key |= {"words": model.words} if model.words not in {"", model.label} else {}
        return key | ({"blocks": model.blocks} if model.blocks != self.blocks else {})
