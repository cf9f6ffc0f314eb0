"""Networks of a study that would stand in the same cell of a published table, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dinoskip.pipeline.report.places import label_of, published_names, role_of
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.weights import evaluated_epochs, recipe_of
from dinoskip.pipeline.variants import Variant
from dinoskip_papers.others import OTHERS
from dinoskip_papers.published import EPOCHS, PUBLISHED, PublishedNumber, networks_for
from visualize.rows import StudyVariant

REMEDY = (
    "they are not seeds of one network (variants.seeds), and one silently chosen would pass for the other: leave all "
    "but one out, or take the table out of report.compare"
)


def contested(name: str, study: StudyBase, variants: Sequence[Variant]) -> Iterator[str]:
    """A line for each set of networks that would fill one cell of a table, by its variants.

    Whether a classifier's data set is ImageNet is not known before its classes are counted: it is taken for that.
    """
    clashes = _in_papers(name, study, variants) if name in PUBLISHED else _in_others(name, variants)
    for networks, place in clashes.items():
        both = f"{', '.join(networks[:-1])} and {networks[-1]}"
        yield f"{name}: {both} would stand in one cell ({place}): {REMEDY}"


Clashes = dict[tuple[str, ...], str]
"""The first cell that several networks would fill, by their names."""


def _in_papers(name: str, study: StudyBase, variants: Sequence[Variant]) -> Clashes:
    trained = [
        StudyVariant(one.name, role_of(one.model), one.optimizer.name, one.model.blocks, family=one.family)
        for one in variants
        if one.model is not None and one.optimizer is not None
    ]
    clashes: Clashes = {}
    for labels, cells in PUBLISHED[name].rows:
        for cell in cells:
            networks = tuple(networks_for(cell, trained))
            if len(networks) > 1 and _is_measured(cell, study):
                clashes.setdefault(networks, ", ".join(filter(None, (*labels, cell.dataset))))
    return clashes


def _in_others(name: str, variants: Sequence[Variant]) -> Clashes:
    labelled: dict[str, dict[str, None]] = {}
    for variant in variants:
        labelled.setdefault(label_of(variant), {})[variant.family or variant.name] = None
    found = {label: tuple(labelled.get(label, ())) for label in OTHERS[name].rows}
    return {networks: label for label, networks in found.items() if len(networks) > 1}


def _is_measured(cell: PublishedNumber, study: StudyBase) -> bool:
    """Whether the study measures what a cell asks for, on a data set of its kind at an epoch of its share."""
    recipe = recipe_of(study)
    if cell.task == "classify":
        return study.find(SuperviseSection) is not None and cell.epoch == EPOCHS
    names, section = published_names(study.data), getattr(study.evaluate, cell.task)
    epoch = round(cell.epoch / EPOCHS * recipe.epochs) if recipe else 0
    several = not cell.several or bool(study.evaluate.multiscale)
    here = cell.dataset in {names.get(dataset) for dataset in section.datasets}
    return here and several and epoch in evaluated_epochs(study)
