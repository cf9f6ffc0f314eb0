"""The stage ``correspondence``: keypoints found in another image by the features of every block; PCK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import add_live_nodes, facet_settings, score_split
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from eval import correspondence
from eval.correspondence.config import PROTOCOLS, CorrespondenceConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class CorrespondenceSection(CorrespondenceConfig):
    """Keypoints found in another image by the most similar feature (docs/correspondence.md): protocol, resolution."""

    datasets: Names = Field((), description="keys of data, with pairs")
    split: str = Field("test", description="whose pairs are reported")
    facet: Facets = Field(("key",), description=READ_AT)


STUDY_KEYS = {"datasets", "split", "facet"}


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(CorrespondenceSection)
    yield from not_multiples({"evaluate.correspondence.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network, data set and facet."""
    section = nodes.section(CorrespondenceSection)
    settings = settings_for_key(section, without=STUDY_KEYS)
    further = facet_settings(nodes, section.facet, norm=True, always=True)
    add_live_nodes(nodes, STAGE, "correspondence", section.datasets, (section.split,), settings, further)


def run(task: Task) -> None:
    """Find the keypoints of every pair."""
    config = validate(CorrespondenceConfig, RawConfig(dict(task.settings["correspondence"])))
    score_split(task, "correspondence", config, correspondence.evaluate)


STAGE = Stage(
    "correspondence",
    run,
    add_nodes,
    CorrespondenceSection,
    place="evaluate.correspondence",
    use="correspondence",
    measures="semantic correspondence",
    check=check,
    version=2,
    command=Command(
        "find the keypoints of an object in other images, with every block",
        "evaluate.correspondence.facet=[key,out]",
        kind="spair71k",
        options=(
            (
                "--protocol", "NAME", "evaluate.correspondence.protocol={}",
                f"{', '.join(PROTOCOLS)} (docs/correspondence.md; default: dift)",
            ),
        ),
    ),
)  # fmt: skip
