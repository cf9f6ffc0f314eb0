"""Settings of all slots, fixed before the first: arms, seeds, order, rates, and the teacher that comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dinoskip.errors import ConfigError
from dinoskip.io.files import read_json, write_json
from dinoskip.runtime.randomness import numpy_rng

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/results/slot.yaml"
RESULTS = ROOT / "docs" / "results" / "slots"
PLAN = RESULTS / "plan.json"
"""What slot 1 has chosen: epochs, rates, optimizers. Never changed afterwards."""

ARMS = MappingProxyType({"A": "skip", "B": "paper", "C": "annealed"})
"""The arms, by the labels that they have in the configuration."""
PRINTED = "B0"
"""B as eqs. 3 and 11 print it, without a factor before Q Kᵀ: slot 1 trains it, and it may stand in for B."""
LABELS = MappingProxyType({**ARMS, PRINTED: "printed"})
"""All networks, the arms and B0."""
SLOTS = range(2, 7)
"""Slots that train a seed of every arm; slot 1 measures and chooses, its seed counts in no test."""
FIRST_SEED = 101
RATES = (1e-4, 5e-4, 2e-3)
"""Learning rates per 256 images that slot 1 tries of every arm."""
PRINTED_RATES = RATES[:2]
"""Those of B0: the two lower ones, because gradients of its start grow from block to block towards the first."""
RATE_EPOCHS = 20
CHOICE_BLOCKS = range(3, 13)
TEACHER = MappingProxyType({1: "A", 2: "A", 3: "B", 4: "C", 5: "B", 6: "A"})
"""Whose teacher comes back from a slot: two ViT-S in float16 are more than a machine's answer may hold."""
TRAIN_SECONDS = 150.0
"""Seconds of steps of one training: as many epochs as fit in them of the slowest arm."""
WARMUP = 5
"""Epochs of warm-up in the configuration; a quarter of the training where that is no longer."""
LATE = range(8, 13)
DEAD = 0.5
"""Share of complete graphs in :data:`LATE` blocks above which an arm's features are dead."""
SECOND_OPTIMIZER = "soap"
"""With which the paper's initialisation is trained where it is dead with AdamW at every rate, at the middle rate."""
ABOUT_PRINTED = (
    "B0 is B as eqs. 3 and 11 print it, without a factor before Q Kᵀ (init.scale: none). Slot 1 trains it for "
    f"{RATE_EPOCHS} epochs at {' and '.join(f'{rate:g}' for rate in PRINTED_RATES)}. Where B is dead at every rate "
    "(more than half of the graphs of blocks 8 to 12 are complete) and B0 is not at the better of its two, B0 takes "
    "B's place in slots 2 to 6, at that rate; of two rates none is called an edge. Where B0 is dead, too, B is trained "
    "with SOAP."
)


@dataclass(frozen=True)
class Plan:
    """Choices of slot 1: epochs, and by arm the rate, the optimizer and the network's label.

    ``unresolved`` are arms whose best rate is the lowest or highest that was tried: no verdict is given on them.
    """

    epochs: int
    rates: Mapping[str, float]
    optimizers: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(ARMS, "adamw"))
    unresolved: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: dict(ARMS))

    def optimizer(self, arm: str) -> dict[str, object]:
        """Settings of an arm's optimizer, for a study's list of them."""
        return optimizer(self.optimizers[arm], self.rates[arm])

    def variant(self, arm: str, slot: int) -> str:
        """Name of an arm's network in a slot's study."""
        return f"{self.labels[arm]}-{self.optimizer(arm)['label']}-s{seed_of(slot)}"

    def plain(self) -> dict[str, object]:
        """Return the choices for the arms, as JSON has them."""
        chosen = {"rates": dict(self.rates), "optimizers": dict(self.optimizers), "labels": dict(self.labels)}
        return {**chosen, "unresolved": list(self.unresolved)}

    def write(self, path: Path) -> None:
        """Write the plan."""
        write_json(path, {"epochs": self.epochs, **self.plain()})


def optimizer(name: str, rate: float) -> dict[str, object]:
    """Settings of an optimizer, labelled by its rate: arms of one study may have different ones."""
    return {"label": f"{name}{rate:g}", "name": name, "lr": rate, "weight_decay": 0.04, "weight_decay_end": 0.4}


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan; :class:`ConfigError` where slot 1 has not written one yet."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no plan yet", "slot 1 writes it: python -m studies.slots run 1")
    found = read_json(path)
    return Plan(int(found["epochs"]), found["rates"], found["optimizers"], tuple(found["unresolved"]), found["labels"])


def order(slot: int) -> list[str]:
    """Return the arms in the slot's own random order."""
    return [list(ARMS)[place] for place in numpy_rng(slot, "order of the arms", len(ARMS)).permutation(len(ARMS))]


def seed_of(slot: int) -> int:
    """Return the seed of a slot's networks: its number, of slot 1 one that no test counts."""
    return FIRST_SEED if slot == 1 else slot


def epochs_in(seconds_an_epoch: float, seconds: float = TRAIN_SECONDS) -> int:
    """Return how many epochs fit into the seconds of a training, one at least."""
    return max(1, int(seconds / seconds_an_epoch))


TOY: Mapping[str, str] = MappingProxyType(
    {
        "model.name": "vit_mini_patch16",
        "model.img_size": "32",
        "model.depth": "12",
        "pretrain.batch_size": "8",
        "pretrain.warmup_epochs": "0",
        "pretrain.freeze_last_layer": "0",
        "pretrain.out_dim": "32",
        "pretrain.hidden_dim": "32",
        "pretrain.bottleneck_dim": "16",
        "pretrain.crops": "{global_size: 32, local_size: 16, num_local: 2}",
        "data.scenes.images": "12",
        "data.scenes.size": "64",
        "evaluate.probe.size": "64",
        "evaluate.probe.epochs": "1",
        "evaluate.knn.size": "32",
        "evaluate.knn.k": "[3]",
    }
)
"""Settings with which a CPU takes seconds for a network: whether a slot runs to its end."""


def overrides(data: Path, work: Path, slot: int, epochs: int, *, toy: bool) -> list[str]:
    """Settings of a slot's study beside its optimizers."""
    settings = {
        "output": str(work),
        "name": f"slot{slot}",
        "variants.seeds": f"[{seed_of(slot)}]",
        "pretrain.epochs": str(epochs),
        **({"pretrain.warmup_epochs": f"{epochs / 4:g}"} if epochs <= WARMUP else {}),
        "data.imagenette.root": str(data / "imagenette"),
        "data.boxed.root": str(data / "boxed"),
        "data.voc_mini.root": str(data / "masks"),
        **(TOY if toy else {}),
    }
    return [f"{key}={value}" for key, value in settings.items()]
