"""The report's settings, of a study's ``report`` section, its command and Python alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dinoskip.settings.config import Config, Distinct, OneOrSeveral
from dinoskip.settings.fields import OneOf
from visualize.report.papers import table_names


class ReportConfig(Config):
    """Settings of the report page: its title, comparisons and contents."""

    title: str = Field("", description="default: the study's name")
    note: str = Field("", max_length=1200, description="shown below the title: what was run, what it says")
    compare: OneOrSeveral[Annotated[str, OneOf(table_names)]] = Field(
        (), description="published tables to put our numbers in: one name or several"
    )
    figure_formats: Distinct[Literal["pdf", "png"]] = Field(
        ("pdf", "png"),
        description="files of each figure for papers, beside the SVG that the page shows; []: none, which takes a "
        "third of the time",
    )
    costs: bool = Field(
        False, description="say what the study cost: times and throughput, which differ between runs of the same study"
    )
