"""Places of a study's variants in published tables: by their role in one, by their label in others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dinoskip.init.config import ModelConfig
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.variants import Variant
from visualize.report.config import ReportConfig
from visualize.report.papers import paper_of
from visualize.rows import DEFAULT, INITIALISED, SKIP


def role_of(model: ModelConfig) -> str:
    """The variant's role in published tables; "" if it has none (partial or weighted skips, another start)."""
    parts: dict[tuple[object, str], str] = {
        (True, "trunc_normal"): SKIP,
        (False, "trunc_normal"): DEFAULT,
        (False, "skipless"): INITIALISED,
    }
    return "" if model.skip_weight else str(parts.get((model.skip, model.init.name), ""))


def label_of(variant: Variant) -> str:
    """A variant's name without those of its optimizer and seed."""
    if variant.optimizer is None:
        return variant.name
    return (variant.family or variant.name).removesuffix(f"-{variant.optimizer.name}")


def published_names(configs: Mapping[str, Any]) -> dict[str, str]:
    """Our data sets that are (parts of) the paper's, by the paper's names."""
    return {name: config.paper_name for name, config in configs.items() if config.paper_name}


def contested(study: StudyBase, variants: Sequence[Variant]) -> Iterator[str]:
    """A line for each set of networks that would fill one cell of a table in ``report.compare``, by its variants."""
    for name in study.section(ReportConfig).compare:
        yield from paper_of(name).contested(name, study, variants)
