"""The report's settings, of a study's ``report`` section, its command and Python alike."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dinoskip.settings.config import Config, OneOrSeveral

PaperTable = Literal[
    "paper.table1", "paper.table2", "paper.table3", "paper.table4", "paper.figure3",
    "graying.table2", "graying.table3", "graying.table4", "graying.table4.families", "graying.table5",
    "conditioned.table1.vit", "conditioned.table1.deit", "conditioned.table1.swin", "conditioned.table1.xcit",
    "conditioned.table1.davit", "conditioned.table2", "conditioned.table6", "conditioned.table12",
    "conditioned.table13",
]  # fmt: skip


class ReportConfig(Config):
    """What the report page compares and shows."""

    title: str = Field("", description="default: the study's name")
    note: str = Field("", max_length=1200, description="shown below the title: what was run, what it says")
    compare: OneOrSeveral[PaperTable] = Field(
        (), description="published tables to put our numbers in: one name or several"
    )
    costs: bool = Field(
        False, description="say what the study cost: times and throughput, which differ between runs of the same study"
    )
