"""The page of the slots, docs/results/slots.md, from committed rows alone: how many there are, and what they allow."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pages import folded, markdown_table
from dinoskip.io.files import write_text
from studies.slots_arms import ABOUT_PRINTED, ARMS, DEAD, LABELS, LATE, PRINTED, RATES, RESULTS, SLOTS
from studies.slots_rows import Slot, read_slots
from studies.slots_rule import (
    BASELINE,
    PRIMARY,
    SECONDARY,
    Comparison,
    baseline,
    compare,
    complete,
    mean,
    scores,
    shares,
)

PAGE = RESULTS.with_suffix(".md")
ABOUT = {
    "A": "with skips",
    "B": "skipless, the paper's initialisation (alpha 1.8, beta 1, c 3)",
    "C": "skipless, heads that mix; skips annealed from 1 to 0 over 60 % of training",
    PRINTED: "B without a factor before Q Kᵀ, as eqs. 3 and 11 are printed; in slot 1",
}
ALLOWED = {
    0: "Nothing is decided: no slot has been run.",
    1: "Nothing is decided: slot 1 measures and chooses, and no test counts its seed.",
    2: "Nothing is decided: one seed of every arm shows the size of an effect and whether blocks are alive.",
    3: "Nothing is decided: two seeds of every arm allow no test.",
    4: "Three seeds of every arm: B against A in CorLoc (P1) is tested alone; nothing else is decided.",
    5: "Four seeds of every arm: both contrasts on both measures are tested, with Holm's correction.",
    6: "Five seeds of every arm: both contrasts on both measures are tested, with Holm's correction.",
}
"""What a number of slots allows, slot 1 among them."""
NEEDED = (("3", "24.6 / 7.6", "13.4 / 4.2"), ("4", "13.9 / 4.3", "9.3 / 2.9"), ("5", "10.5 / 3.3", "7.6 / 2.3"))
"""Points that are found with 80 % power, CorLoc / mIoU, at standard deviations over seeds of 3.4 / 1.1."""


def allowed(slots: Sequence[Slot]) -> str:
    """Return the conclusions that the available slots allow, by the number of seeds that every arm has."""
    seeds = len(complete(slots))
    return ALLOWED[seeds + 1 if seeds else min(1, len(slots))]


def page(slots: Sequence[Slot]) -> str:
    """Return the page."""
    own = complete(slots)
    counted = f"{len(slots)} slot{'' if len(slots) == 1 else 's'}, {len(own)} with a seed of every arm"
    parts = [
        "# One GPU, slots of 15 minutes",
        "",
        "*At the paper's own width (384), objective (DINO) and optimizer (AdamW): are late blocks alive, and are "
        "TokenCut and linear segmentation better without skips?* ViT-S/16 on 9,469 photographs of Imagenette at 160 "
        "pixels, crops 2 × 160 + 6 × 64, batch 256, bfloat16 (`configs/results/slot.yaml`). This page is written by "
        "`python -m studies.slots page` from what came back, `docs/results/slots`.",
        "",
        f"**{counted}.** {allowed(slots)} Below four slots nothing is decided.",
        "",
        *arms(slots),
        *primary(slots),
        *rule(),
        *secondary(own),
        *alive(slots),
        *choice(slots),
        *listed(slots),
    ]
    return "\n".join(parts).rstrip() + "\n"


def arms(slots: Sequence[Slot]) -> list[str]:
    """Return the table of the arms, and whether B0 has taken B's place."""
    table = markdown_table(["arm", "network"], [[f"{arm}, *{label}*", ABOUT[arm]] for arm, label in LABELS.items()])
    if all(stands_for_b(slot.card) == "B" for slot in slots):
        return table
    late = f"{min(LATE)} to {max(LATE)}"
    return [
        *table,
        f"**B is {PRINTED} in slots {min(SLOTS)} to {max(SLOTS)}**: in slot 1 B was dead at every rate (more than "
        f"{100 * DEAD:.0f} % complete graphs in blocks {late}), {PRINTED} was not.",
        "",
    ]


def stands_for_b(card: Mapping[str, Any]) -> str:
    """Return which network a slot's card has in B's place: B, or B0."""
    return PRINTED if card.get("labels", ARMS)["B"] == LABELS[PRINTED] else "B"


def primary(slots: Sequence[Slot]) -> list[str]:
    """Return the comparisons that are tested; nothing where none is."""
    found = compare(slots)
    if not found:
        return []
    lines = [_line(one) for one in found]
    return ["## Answer", "", *markdown_table(["contrast", "difference, 95 % interval", "p (Holm)", ""], lines)]


def _line(one: Comparison) -> list[str]:
    result = one.difference
    interval = f"{result.value:+.1f} [{result.low:+.1f}, {result.high:+.1f}]".replace("-", "−")
    text = f"**{one.text}**" if one.decided else one.text
    return [f"{one.arm} − A, {PRIMARY[one.measure].title}", interval, f"{one.p:.3f}", text]


def rule() -> list[str]:
    """Return the rule, folded."""
    return folded(
        "The rule, fixed before the first run",
        [
            "**P1**: CorLoc by keys on 350 images with real boxes, degenerate graphs counted as misses, block "
            "cross-fitted over images. **P2**: mIoU of a linear probe on 100 + 100 images of VOC2012, block by "
            "held-out training images. B − A and C − A; seeds and images are random; Holm's correction over the four. "
            f"Decided: p < .05, the better network above its own start, and A above a {BASELINE}. Else the difference "
            "is smaller than the far end of its interval; the paper's effect (+21.2 CorLoc, +6.0 mIoU) is not here if "
            "the upper end is below half of it. An arm whose best rate is the lowest or highest tried has no verdict.",
            "",
            "Differences that are found with 80 % power, CorLoc / mIoU in points:",
            "",
            *markdown_table(["seeds", "first of four tests", "a single test"], [list(row) for row in NEEDED]),
            ABOUT_PRINTED,
            "",
        ],
    )


def secondary(own: Sequence[Slot]) -> list[str]:
    """Return every measure of every arm, mean and single seeds, none of them tested."""
    if not own:
        return []
    rows = []
    for name, of in SECONDARY.items():
        cells = []
        for arm in ARMS:
            values = [value for slot in own if (value := of(slot.of(arm))) is not None]
            each = " ".join(f"{value:.1f}" for value in values)
            cells.append(f"{statistics.mean(values):.1f} ({each})" if values else "")
        rows.append([name, *cells])
    title = "Mean over seeds, in brackets each seed, in percent. P1 and P2 are tested, all else is not."
    return ["## All measures", "", title, "", *markdown_table(["measure", *ARMS], rows)]


def alive(slots: Sequence[Slot]) -> list[str]:
    """Return complete and degenerate graphs, likeness of tokens and share of position, by block, fresh and trained."""
    lines: dict[str, list[Mapping[int, float]]] = {}
    for slot in slots:
        for arm in slot.card["networks"]:
            for trained in (False, True):
                entries, when = slot.of(arm, trained=trained), "trained" if trained else "fresh"
                for field in ("complete", "degenerate"):
                    if by_block := shares(entries, field):
                        lines.setdefault(f"{arm}, {when}: {field} graphs, %", []).append(by_block)
        for row in slot.look:
            network, _, epoch = row["network"].partition(" ")
            found = [arm for arm, name in slot.card["networks"].items() if name == network]
            values = {int(key): float(value) for key, value in row.items() if key.isdigit()}
            name = f"{found[0] if found else network}, {'fresh' if epoch == 'ep0' else 'trained'}: {row['measure']}"
            lines.setdefault(name, []).append(values)
    if not lines:
        return []
    blocks = sorted({block for each in lines.values() for values in each for block in values})
    rows = [
        [name, *(_cell([v[block] for v in each if block in v]) for block in blocks)]
        for name, each in sorted(lines.items())
    ]
    title = "By block, mean over slots. Keys of the images with boxes; a complete graph has no cut."
    return ["## Are blocks alive?", "", title, "", *markdown_table(["", *map(str, blocks)], rows)]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    value = statistics.mean(values)
    return f"{value:.2f}" if 0 < abs(value) < 1.5 else f"{value:.0f}"


def choice(slots: Sequence[Slot]) -> list[str]:
    """Return what slot 1 chose, and from what."""
    cards = [slot.card for slot in slots if slot.number == 1 and "epochs_chosen" in slot.card]
    if not cards:
        return []
    card, rows = cards[0], []
    rates = dict(card["rates"])
    if stands_for_b(card) == PRINTED:
        rates[PRINTED] = rates.pop("B")
    for arm, by_rate in card.get("tried", {}).items():
        chosen = rates.get(arm)
        cells = [_chosen(by_rate.get(f"{rate:g}"), bold=rate == chosen) for rate in RATES]
        rows.append([arm, *cells, "yes" if arm in card["unresolved"] else ""])
    late = f"{min(LATE)} to {max(LATE)}"
    replaced = [arm for arm, name in card.get("optimizers", {}).items() if name != "adamw"]
    more = [
        f"{arm} was dead at every rate (more than {100 * DEAD:.0f} % complete graphs in blocks {late}) and is trained "
        f"with {card['optimizers'][arm]} in slots {min(SLOTS)} to {max(SLOTS)}."
        for arm in replaced
    ]
    about = "Mean of k-NN and held-out probes over blocks 3 to 12, by learning rate."
    title = f"{about} {card['epochs_chosen']} epochs a training."
    columns = ["arm", *(f"{rate:g}" for rate in RATES), "at the edge"]
    return [
        "## Rates and length, chosen by slot 1",
        "",
        title,
        "",
        *markdown_table(columns, rows),
        *more,
        *[""] * bool(more),
    ]


def _chosen(value: Any, *, bold: bool) -> str:
    return "" if value is None else f"**{value:.1f}**" if bold else f"{value:.1f}"


def listed(slots: Sequence[Slot]) -> list[str]:
    """Return a line for each slot: card, day, seconds, what was cut."""
    if not slots:
        return []
    rows = []
    for slot in slots:
        card = slot.card
        cut = [name for name, piece in card["pieces"].items() if piece["state"] != "done"]
        seconds = sum(piece["seconds"] for piece in card["pieces"].values())
        floors = ", ".join(f"{name} {value:.1f}" for name in PRIMARY if (value := baseline([slot], name)) is not None)
        p1 = " ".join(f"{arm} {mean(scores([slot], arm, 'P1')):.1f}" for arm in ARMS)
        rows.append([
            str(slot.number), str(card["day"]), str(card["machine"].get("GPUs", "")), str(card["epochs"]),
            f"{seconds:.0f}", p1, floors, ", ".join(cut) or "nothing",
        ])  # fmt: skip
    columns = ["slot", "day", "card", "epochs", "seconds", "P1", f"{BASELINE}", "cut"]
    return ["## Slots", "", *markdown_table(columns, rows)]


def committed_page() -> str:
    """Return the page of the committed rows."""
    return page(read_slots(RESULTS))


def write_page() -> None:
    """Write the page from the committed rows."""
    write_text(PAGE, committed_page())
