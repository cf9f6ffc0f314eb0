"""The stage ``correspondence``: keypoints found in another image by the features of every block; PCK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from dinoskip.config import RawConfig, as_tuple, no_duplicates, settings_for_key, validate
from dinoskip.pipeline.fields import Names, not_empty
from dinoskip.pipeline.live_nodes import add_live_nodes, score_split
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from eval import correspondence
from eval.correspondence.config import PROTOCOLS, CorrespondenceConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant

ReadFacet = Literal["key", "out"]


class CorrespondenceSection(CorrespondenceConfig):
    """Keypoints found in another image by the most similar feature (docs/correspondence.md): protocol, resolution."""

    datasets: Names = Field((), description="keys of data, with pairs")
    split: str = Field("test", description="whose pairs are reported")
    facet: Annotated[
        tuple[ReadFacet, ...], BeforeValidator(as_tuple), AfterValidator(not_empty), AfterValidator(no_duplicates)
    ] = Field(("key",), description="keys of a block, its tokens (out), or both; what is shown is of the first")


STUDY_KEYS = {"datasets", "split", "facet"}


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(CorrespondenceSection)
    yield from not_multiples({"evaluate.correspondence.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network, data set and facet."""
    section, first = nodes.section(CorrespondenceSection), nodes.study.evaluate.norm[0]
    settings = settings_for_key(section, without=STUDY_KEYS)
    facets = {
        "" if facet == section.facet[0] else f"-{facet}": {"facet": facet, "norm": first if facet == "out" else "none"}
        for facet in section.facet
    }
    add_live_nodes(nodes, STAGE, "correspondence", section.datasets, (section.split,), settings, facets)


def run(task: Task) -> None:
    """Find the keypoints of every pair."""
    config = validate(CorrespondenceConfig, RawConfig(dict(task.settings["correspondence"])))
    score_split(task, "correspondence", config, correspondence.evaluate, facet=task.settings["facet"])


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
