"""The claims of "Cutting the Skip", as rules: which networks' numbers should be above which others', on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dinoskip_papers.published import EPOCHS
from visualize.rows import DEFAULT, INITIALISED, SKIP

SINGLE, SEVERAL, EARLIER, LAST = "single", "several", "earlier", "last"  # features of which blocks
ACCURACY = ("knn", "classify")  # of the network as a whole: its last block's
_NO_PAIR = "no two variants of this study differ in this alone"
_ALL_BLOCKS = 12  # of the ViT-S with skips that shallower networks are compared with


@dataclass(frozen=True)
class Side:
    """One side of a rule: variants, epochs and kind of features. ``None`` is any that both sides share.

    ``epochs`` are the paper's, of 300; our epoch is the same share of our run. Every epoch that has rows is compared.
    """

    roles: tuple[str, ...]
    optimizer: str | None = None
    depth: int | None = None
    epochs: tuple[int, ...] = (EPOCHS,)
    features: str | None = None


@dataclass(frozen=True)
class Rule:
    """A claim that ``high`` is above ``low``, or at most ``margin`` percent points below it.

    Variants are paired that are equal in ``alike``; ``features`` are those of both sides where a side names none;
    ``datasets`` says by the paper's name which data sets it is about.
    """

    text: str
    high: Side
    low: Side
    tasks: tuple[str, ...]
    alike: tuple[str, ...] = ("optimizer", "depth")
    features: tuple[str, ...] = (SINGLE,)
    datasets: Callable[[str], bool] = lambda name: True
    margin: float = 0.0
    missing: str = _NO_PAIR


_ANY = (SKIP, DEFAULT, INITIALISED)
_LEARNT = (*ACCURACY, "probe")  # what a network that does not train loses
_DENSE = ("probe", "tokencut")
_SKIPLESS, _WITH_SKIPS = Side((INITIALISED,)), Side((SKIP,))
_EARLY = replace(_SKIPLESS, epochs=(200,))
_BOTH_EPOCHS = (EPOCHS, 200)  # at which the paper prints skipless networks
_MULTISCALE = (SEVERAL,)
COMPARABLE = 2.0  # percent points: what "comparably" may mean
NO_LOSS = 1.0  # percent points: what shorter training may cost


def _with(side: Side, optimizer: str) -> Side:
    return replace(side, optimizer=optimizer)


def _is_ade20k(name: str) -> bool:
    return name == "ADE20K"


def _is_not_ade20k(name: str) -> bool:
    return name != "ADE20K"


RULES = (
    Rule("Without skips, the default initialisation is worse (table 1)", _WITH_SKIPS, Side((DEFAULT,)), _LEARNT),
    Rule("The initialisation rescues it (table 1)", _SKIPLESS, Side((DEFAULT,)), _LEARNT),
    Rule(
        "Skipless with SOAP is above skip, with either optimizer (table 1)",
        _with(_SKIPLESS, "soap"), _WITH_SKIPS, ACCURACY, ("depth",),
    ),
    Rule(
        "Without skips, SOAP is better than AdamW (table 1)",
        Side((DEFAULT, INITIALISED), "soap"), Side((DEFAULT, INITIALISED), "adamw"), ACCURACY, ("role", "depth"),
    ),
    Rule(
        "SOAP is better in object discovery (figure 3)",
        Side(_ANY, "soap"), Side(_ANY, "adamw"), ("tokencut",), ("role", "depth"),
    ),
    Rule(
        "SOAP is worse in segmentation (table 2)",
        Side(_ANY, "adamw"), Side(_ANY, "soap"), ("probe",), ("role", "depth"), (SINGLE, SEVERAL),
    ),
    *(
        Rule(
            f"Skipless is above skip in segmentation, {blocks}, {optimizer}{sets} (table 2)",
            Side((INITIALISED,), optimizer.lower(), epochs=_BOTH_EPOCHS), _with(_WITH_SKIPS, optimizer.lower()),
            ("probe",), features=features, datasets=datasets,
            missing=f"no two networks, with and without skips, have rows of {blocks}, {optimizer}{sets}",
        )
        for optimizer in ("AdamW", "SOAP")
        for blocks, features, datasets, sets in (
            ("one block", (SINGLE,), _is_not_ade20k, ""),
            ("one block", (SINGLE,), _is_ade20k, ", ADE20K"),
            ("several blocks", _MULTISCALE, _is_not_ade20k, ""),
            ("several blocks", _MULTISCALE, _is_ade20k, ", ADE20K"),
        )
    ),
    Rule("Skipless is above skip in object discovery (figure 3)", _SKIPLESS, _WITH_SKIPS, ("tokencut",)),
    Rule(
        "After 200 of 300 epochs skipless is already above skip after 300, ADE20K apart (table 2, figure 3)",
        _EARLY, _WITH_SKIPS, _DENSE, features=(SINGLE, SEVERAL), datasets=_is_not_ade20k,
        missing="no skipless variant was evaluated after two thirds of its epochs",
    ),
    Rule(
        f"The last 100 of 300 epochs add nothing: at most {NO_LOSS:g} point is lost without (table 2, figure 3)",
        _EARLY, _SKIPLESS, _DENSE, ("name",), (SINGLE, SEVERAL), margin=NO_LOSS,
        missing="no skipless variant was evaluated after two thirds of its epochs",
    ),
    Rule(
        "The best dense features of a skipless network are not the last block's",
        replace(_SKIPLESS, features=EARLIER), replace(_SKIPLESS, features=LAST), _DENSE, ("name",),
        missing="no dense features of an initialised skipless network, block by block",
    ),
    Rule(
        "Several blocks lift skipless networks in complex scenes (table 2)",
        replace(_SKIPLESS, features=SEVERAL), replace(_SKIPLESS, features=SINGLE), ("probe",), ("name",),
        datasets=lambda name: name in {"ADE20K", "COCO-Stuff"},
        missing="no segmentation of ADE20K or COCO-Stuff from one and from several blocks",
    ),
    Rule(
        f"10 skipless blocks do as 12 with skips: at most {COMPARABLE:g} points less, several blocks (table 3)",
        Side((INITIALISED,), depth=10, epochs=_BOTH_EPOCHS), Side((SKIP,), depth=_ALL_BLOCKS), ("probe",),
        ("optimizer",), _MULTISCALE, margin=COMPARABLE, missing="no skipless variant of 10 blocks was trained",
    ),
    Rule(
        "9 skipless blocks are above 12 with skips in object discovery (table 4)",
        Side((INITIALISED,), depth=9), Side((SKIP,), depth=_ALL_BLOCKS), ("tokencut",), ("optimizer",),
        missing="no skipless variant of 9 blocks was trained",
    ),
)  # fmt: skip
