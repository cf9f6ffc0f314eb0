"""The two networks that come with the package: where their files are, and what they are called. No torch here.

``dinoskip:skip`` and ``dinoskip:skipless`` are specs like any other; their cards are beside the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dinoskip.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).resolve().parents[1] / "networks"
KIND = "dinoskip"
"""The kind of their specs."""


@dataclass(frozen=True)
class ShippedNetwork:
    """A network of the package: its name in specs, what pages call it, and the variant of the third study it is."""

    name: str
    words: str
    variant: str
    learning_rate: float

    @property
    def spec(self) -> str:
        """The spec that opens it."""
        return f"{KIND}:{self.name}"

    @property
    def weights(self) -> Path:
        """Its weights file, float16."""
        return FOLDER / f"{self.name}.safetensors"

    @property
    def card(self) -> Path:
        """Path of the card: the training data and recipe of the network, its licence and its scores."""
        return FOLDER / f"{self.name}.md"


SHIPPED = {
    network.name: network
    for network in (
        ShippedNetwork("skip", "pretrained, with skips", "skip", 2.4e-2),
        ShippedNetwork("skipless", "pretrained, skipless, calibrated", "mixing", 2.7e-3),
    )
}
"""By name. Learning rates are those that the third study chose for each (``docs/results/evidence/rates.csv``)."""
PAIR = tuple(network.spec for network in SHIPPED.values())
"""Both specs: what is looked through when no network is named."""


def shipped(name: str) -> ShippedNetwork:
    """The network of a name; :class:`ConfigError` for another."""
    if name not in SHIPPED:
        near = did_you_mean(name, list(SHIPPED))
        raise ConfigError(
            f"backbone '{KIND}:{name}': ships with no such network", near or f"there are {', '.join(PAIR)}"
        )
    return SHIPPED[name]
