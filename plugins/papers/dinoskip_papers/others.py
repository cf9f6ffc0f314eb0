"""Published tables of the other papers, as far as their networks are ours: our numbers beside the printed ones.

A line is a variant of the study that has the table's label. Networks of timm (Swin, CaiT, PVT, XCiT, DaViT) are among
them; linear attention, tables of text and the large networks of tables 12 and 13 but ViTs are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OtherTable:
    """A title, what is measured (its heading, and its key: ``top1``, ``top1 DATASET``, ``ln κ in``), the printed
    numbers by label."""

    title: str
    measures: Sequence[tuple[str, str]]
    rows: Mapping[str, Sequence[float]]
    note: str = ""


_TOP = (("top-1", "top1"), ("top-5", "top5"))
_TOP1 = _TOP[:1]
_KAPPA = (*_TOP1, ("ln κ in", "ln κ in"), ("ln κ out", "ln κ out"))
_GRAYING, _CONDITIONED = "“Always Skip Attention”", "“Conditioned Initialization for Attention”"
_SETS = tuple((name, f"top1 {name}") for name in ("pets", "flowers", "cifar10", "cifar100"))
_SELECTED = tuple((name, f"top1 {name}") for name in ("food101", "cifar10", "cifar100"))

OTHERS = {
    "graying.table2": OtherTable(
        f"{_GRAYING}, table 2: ViT-Tiny on Tiny-ImageNet, softmax attention", _TOP,
        {"plain": (43.0, 67.3), "svd": (44.7, 69.7), "dct": (44.8, 69.7)},
    ),
    "graying.table3": OtherTable(
        f"{_GRAYING}, table 3: ViT-Base on ImageNet-1k by amplification coefficient", _KAPPA,
        {
            "plain": (81.0, 6.72, 6.74), "svd_0.9": (81.2, 6.64, 6.66), "svd_0.8": (81.2, 6.47, 6.66),
            "svd_0.7": (81.4, 6.15, 6.17), "svd_0.6": (81.4, 5.73, 5.71), "svd_0.5": (81.0, 5.29, 5.25),
            "dct_0.98": (81.1, 6.47, 6.49), "dct_0.95": (81.3, 6.42, 6.43), "dct_0.9": (81.2, 6.33, 6.35),
            "dct_0.85": (81.1, 6.25, 6.25), "dct_0.8": (81.0, 6.01, 6.02),
        },
        "The coefficients of the printed lines are not legible: ours are put beside them in their order.",
    ),
    "graying.table4": OtherTable(
        f"{_GRAYING}, table 4: ImageNet-1k, with and without DCT Token Graying", _TOP,
        {"small": (80.2, 95.1), "small_dct": (80.4, 95.2), "base": (81.0, 95.3), "base_dct": (81.3, 95.4)},
    ),
    "graying.table4.families": OtherTable(
        f"{_GRAYING}, table 4: Swin-S, CaiT-S and PVT v2-b3 on ImageNet-1k", _TOP,
        {
            "swin": (81.3, 95.6), "swin_dct": (81.6, 95.6), "cait": (82.6, 96.1), "cait_dct": (82.7, 96.3),
            "pvt": (82.9, 96.0), "pvt_dct": (83.0, 96.1),
        },
    ),
    "graying.table5": OtherTable(
        f"{_GRAYING}, table 5: MAE of ViT-Base, fine-tuned on ImageNet-1k", _TOP,
        {"plain": (83.0, 96.4), "grayed": (83.2, 96.6)},
    ),
    "conditioned.table1.vit": OtherTable(
        f"{_CONDITIONED}, table 1: ViT-B on ImageNet-1k", _TOP1,
        {"default": (80.3,), "mimetic": (80.5,), "conditioned": (81.5,)},
    ),
    "conditioned.table1.deit": OtherTable(
        f"{_CONDITIONED}, table 1: DeiT-B on ImageNet-1k", _TOP1,
        {"default": (81.6,), "mimetic": (81.6,), "conditioned": (82.7,)},
    ),
    "conditioned.table1.swin": OtherTable(
        f"{_CONDITIONED}, table 1: Swin-B on ImageNet-1k", _TOP1,
        {"default": (83.4,), "mimetic": (83.5,), "conditioned": (84.6,)},
    ),
    "conditioned.table1.xcit": OtherTable(
        f"{_CONDITIONED}, table 1: XCiT-M on ImageNet-1k", _TOP1, {"default": (82.6,), "conditioned": (83.5,)},
        "The printed line of mimetic initialisation, 82.6, has none of ours: it does not describe XCiT's attention.",
    ),
    "conditioned.table1.davit": OtherTable(
        f"{_CONDITIONED}, table 1: DaViT-B on ImageNet-1k", _TOP1, {"default": (84.3,), "conditioned": (85.3,)},
        "The printed line of mimetic initialisation, 84.4, has none of ours: half of its attention is over channels.",
    ),
    "conditioned.table2": OtherTable(
        f"{_CONDITIONED}, table 2: ViT-T on small data sets", _SETS,
        {
            "default": (26.7, 64.5, 92.4, 71.7), "mimetic": (47.7, 71.6, 93.6, 75.0),
            "conditioned": (47.7, 72.1, 94.1, 75.3),
        },
    ),
    "conditioned.table6": OtherTable(
        f"{_CONDITIONED}, table 6: ViT-T whose weights are selected from a ViT-S", _SELECTED,
        {
            "in1k_default": (85.5, 96.6, 79.7), "in1k_mimetic": (86.4, 96.3, 79.9),
            "in1k_conditioned": (87.3, 97.1, 81.0), "in21k_default": (87.1, 97.1, 81.1),
        },
    ),
    "conditioned.table12": OtherTable(
        f"{_CONDITIONED}, table 12: ViT-L on ImageNet-1k", _TOP1,
        {"default": (79.6,), "mimetic": (79.7,), "conditioned": (80.7,)},
    ),
    "conditioned.table13": OtherTable(
        f"{_CONDITIONED}, table 13: ViT-G on ImageNet-1k", _TOP1,
        {"default": (78.8,), "mimetic": (78.6,), "conditioned": (79.9,)},
    ),
}  # fmt: skip
"""By the name that ``report.compare`` knows."""


def reference_of(label: str, table: OtherTable) -> str:
    """The line that a line is compared with: of ``small_dct`` that of ``small``, else the first; "" of that itself."""
    shorter = [other for other in table.rows if label.startswith(f"{other}_")]
    first = next(iter(table.rows))
    if shorter:
        return max(shorter, key=len)
    own = any(other.startswith(f"{label}_") for other in table.rows)
    return "" if label == first or own else first
