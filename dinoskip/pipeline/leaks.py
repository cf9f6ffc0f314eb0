"""Whether the images that a study fits on or chooses by are those that it scores.

The same split twice is refused where the settings are checked. Here the files of declared splits are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from dinoskip.data import near_images
from dinoskip.data.equal_images import VERSION, Common, ImageFiles, common_images
from dinoskip.data.near_images import NearCommon, Thumbnails
from dinoskip.data.sets import dataset_root, open_labels, open_training_images
from dinoskip.data.sets.kind import Synthetic
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.verdicts import DataVerdict
from dinoskip.errors import ConfigError, DataError, DinoskipError
from dinoskip.io.files import hash_of, read_json, write_json
from dinoskip.io.output import refuse_link
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.sweep import SweepSection
from dinoskip.settings.tasks import tasks

CHECK, NEAR = "equal-files", "near-equal-images"
KEPT = "verdicts"
"""Folder of a study in which comparisons are kept, by what was compared: so a plan reads no image twice."""

Purpose = Literal["fitted on", "chosen by", "trained on"]


@dataclass(frozen=True)
class SplitOfData:
    """A split of one of the study's data sets as it is read: by the name of a label, or ``pretraining``."""

    data: str
    use: str
    split: str

    def __str__(self) -> str:
        return f"{self.data} {self.split}"


@dataclass(frozen=True)
class SplitUse:
    """Images that are used before the scored ones are, for a purpose."""

    used: SplitOfData
    purpose: Purpose
    scored: SplitOfData


def scored_splits(study: StudyBase) -> list[SplitOfData]:
    """Return every split that an evaluation of the study scores."""
    return list(dict.fromkeys(scored for _, scored in _evaluations(study)))


def comparisons(study: StudyBase) -> list[SplitUse]:
    """Return what has to be compared in a study, each pair of splits once: the graver purpose first."""
    found = [SplitUse(used, "fitted on", scored) for fitted, scored in _evaluations(study) for used in fitted]
    for part in study.online.parts.values():
        if not part.held_out:
            fitted, scored = (SplitOfData(part.dataset, part.use, split) for split in part.splits)
            found.append(SplitUse(fitted, "fitted on", scored))
    supervised, pretrained = study.find(SuperviseSection), study.find(PretrainSection)
    reported, trained = scored_splits(study), list[SplitOfData]()
    if supervised is not None:
        trained = [SplitOfData(supervised.dataset, "classes", "train")]
        found.append(SplitUse(trained[0], "fitted on", SplitOfData(supervised.dataset, "classes", "val")))
    elif pretrained is not None:
        trained = [SplitOfData(pretrained.dataset, "pretraining", "train")]
    if study.find(SweepSection) is not None and study.online.parts:
        part = next(iter(study.online.parts.values()))
        chosen = SplitOfData(part.dataset, part.use, part.splits[-1])
        found += [SplitUse(chosen, "chosen by", scored) for scored in reported]
    found += [SplitUse(used, "trained on", scored) for used in trained for scored in reported]
    each: dict[tuple[SplitOfData, SplitOfData], SplitUse] = {}
    for one in found:
        if one.used.data in study.data and one.scored.data in study.data:
            each.setdefault((one.used, one.scored), one)
    return list(each.values())


def _evaluations(study: StudyBase) -> Iterator[tuple[list[SplitOfData], SplitOfData]]:
    """Yield the splits that each evaluation fits on, and the split that it scores."""
    for record in tasks():
        section: Any = study.section(record.section)
        for name in section.datasets:
            fitted = [SplitOfData(name, record.label, split) for split in record.fitted_splits(section).values()]
            yield fitted, SplitOfData(name, record.label, record.scored_split(section))


def verdicts(study: StudyBase) -> list[DataVerdict]:
    """Return what is to be said of equal images between the splits of a study; comparisons are kept in its folder.

    Sets that are composed are not compared: their images are drawn one by one. What cannot be opened is left to the
    stage that reads it.
    """
    files = cache(partial(_files, study))
    thumbnails = cache(Thumbnails.of)
    found = []
    for one in comparisons(study):
        scored = files(one.scored)
        used = None if scored is None else files(one.used)  # millions of training images are not listed for nothing
        if scored is None or used is None:
            continue
        with suppress(DataError):
            common = _compared(study.directory / KEPT, scored, used)
            found += [_verdict(one, common)] if common.count else []
            if not common.same:
                near = _looked_alike(study.directory / KEPT, scored, used, thumbnails)
                found += [_near_verdict(one, near)] if near.count else []
    return list(dict.fromkeys(found))


def common_verdicts(fitted: Any, scored: Any, root: Path) -> list[DataVerdict]:
    """Return what is to be said of two opened splits outside a study, of which names are shown below ``root``."""
    name = root.resolve().name
    one = SplitUse(SplitOfData(name, "classes", "train"), "fitted on", SplitOfData(name, "classes", "val"))
    return _of_two(one, ImageFiles.of(scored, root), ImageFiles.of(fitted, root))


_SCORED = ("val", "test")  # splits that are scored with what is fitted on "train"


def split_verdicts(config: Any) -> dict[tuple[str, str], list[DataVerdict]]:
    """Return what is to be said of the declared splits of a data set, by label and the split that would be scored.

    As :func:`verdicts`, of its split ``train`` against ``val`` and ``test``.
    """
    if isinstance(config, Synthetic):
        return {}
    root, name = dataset_root(config), config.dataset_name
    splits = {(label, split) for label, split, _ in config.checked_splits(root) if label in LABELS}
    found = {}
    for label, split in sorted(splits):
        if split not in _SCORED or (label, "train") not in splits:
            continue
        scored, fitted = (SplitOfData(name, label, one) for one in (split, "train"))
        files = [files_of_split(config, one) for one in (scored, fitted)]
        with suppress(DataError):
            if files[0] is not None and files[1] is not None:
                found[label, split] = _of_two(SplitUse(fitted, "fitted on", scored), files[0], files[1])
    return found


def _of_two(one: SplitUse, scored: ImageFiles, used: ImageFiles) -> list[DataVerdict]:
    """Compare the scored images with the used ones."""
    common = common_images(scored, used)
    found = [_verdict(one, common)] if common.count else []
    if not common.same:
        near = near_images.near_images(scored, used, Thumbnails.of(scored), Thumbnails.of(used))
        found += [_near_verdict(one, near)] if near.count else []
    return found


def _files(study: StudyBase, side: SplitOfData) -> ImageFiles | None:
    """Return the image files of a split; None for a composed set, and for one that cannot be opened."""
    config: Any = study.data[side.data]
    return None if isinstance(config, Synthetic) else files_of_split(config, side)


def files_of_split(config: Any, side: SplitOfData) -> ImageFiles | None:
    """Return the image files of a split of a data set; None for one that cannot be opened."""
    try:
        if side.use == "pretraining":
            return ImageFiles.of(open_training_images(config, split=side.split), dataset_root(config))
        listed = config.model_copy(update={"skip_broken": False})  # that would decode every image
        return ImageFiles.of(open_labels(LABELS[side.use], listed, side.split, faults=[]), dataset_root(config))
    except (ConfigError, DataError):
        return None


def _compared(kept: Path, scored: ImageFiles, used: ImageFiles) -> Common:
    """The images that two sets share by their bytes."""
    marks = [VERSION, scored.fingerprint, used.fingerprint]
    return _kept(kept, marks, Common, lambda: common_images(scored, used))


def _looked_alike(
    kept: Path, scored: ImageFiles, used: ImageFiles, thumbnails: Callable[[ImageFiles], Thumbnails]
) -> NearCommon:
    """The images that two sets share by their looks."""
    marks = [NEAR, near_images.VERSION, scored.fingerprint, used.fingerprint]
    return _kept(
        kept, marks, NearCommon,
        lambda: near_images.near_images(scored, used, thumbnails(scored), thumbnails(used)),
    )  # fmt: skip


C = TypeVar("C", Common, NearCommon)


def _kept(kept: Path, marks: list[Any], of: type[C], compare: Callable[[], C]) -> C:
    """Return the result of a comparison, from the folder ``kept`` where these sets have been compared already."""
    key = hash_of(marks)
    place = kept / f"{key[:16]}.json"
    with suppress(DataError, TypeError, KeyError):
        stored = read_json(place)
        if stored.pop("key") == key:
            return of(**{**stored, "example": tuple(stored["example"])})
    common = compare()
    with suppress(OSError, DinoskipError):  # a plan may look at a study that is another's
        refuse_link(kept)
        write_json(place, {"key": key, **asdict(common)})
    return common


_SAID: Mapping[Purpose, tuple[str, str]] = MappingProxyType(
    {
        "fitted on": ("on which something is fitted", "remove them from one of the two"),
        "chosen by": ("by which the learning rate is chosen", "choose by other images: online.knn.held_out=true"),
        "trained on": ("on which the networks are trained", ""),
    }
)
"""Words for each purpose, and the remedy."""


def _verdict(one: SplitUse, common: Common) -> DataVerdict:
    used, remedy = _SAID[one.purpose]
    sampled = "" if common.looked_at == common.total else f" looked at, of {common.total},"
    text = (
        f"{one.scored}: {common.count} of {common.looked_at} scored images{sampled} are equal to files of {one.used}, "
        f"{used}, such as {common.example[0]} = {common.example[1]}"
    )
    if one.purpose == "trained on":
        return DataVerdict(CHECK, one.scored.data, "said", text)
    return DataVerdict(CHECK, one.scored.data, "refused" if common.same else "doubtful", text, remedy)


_MUCH = 0.01  # of the scored images: published splits share some photographs by chance of their making
_FEWEST = 3  # of a sample of the other set: one pair of other photographs among millions may be as near
_PARTNERS, _PARTNER_SHARE = 3, 0.1  # near images of one image: all of a set are alike, which is no copying
_LONG = 4  # near copies to a run: frames of one recording, not copies


def _near_verdict(one: SplitUse, near: NearCommon) -> DataVerdict:
    used, remedy = _SAID[one.purpose]
    sampled = "" if near.share_of_other == 1 else f" looked at, beside {100 * near.share_of_other:.2g} % of the others,"
    all_alike = near.partners >= max(_PARTNERS, _PARTNER_SHARE * near.others)
    frames = near.count >= _LONG * near.runs
    how = (
        f"in {near.runs} runs, as frames of one recording are"
        if frames
        else "resized, mirrored, rotated or compressed again"
    )
    text = (
        f"{one.scored}: {near.count} of {near.looked_at} scored images{sampled} look as images of {one.used} do, "
        f"{used}: {how}, such as {near.example[0]} and {near.example[1]}"
    )
    if all_alike:
        text += f"; each is like {near.partners:.0f} of {near.others} of them, as pictures of a fixed camera are"
    enough = near.share > _MUCH and not all_alike and (near.share_of_other == 1 or near.count >= _FEWEST)
    if one.purpose == "trained on" or not enough:
        return DataVerdict(NEAR, one.scored.data, "said", text)
    return DataVerdict(NEAR, one.scored.data, "doubtful", text, "split by recording" if frames else remedy)
