"""Requirements of a study on this machine, checked in seconds before anything is computed.

Settings are checked when a study is read, data and labels by the verdicts and when contents are hashed. This module
checks the rest: packages and files of networks, batches, the place of the output, and room on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from dinoskip.errors import ConfigError, DataError, DiskFull, WeightsError
from dinoskip.pipeline.estimate.costs import Cost, peak_disk
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import StorageRules, StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant, loading
from dinoskip.runtime.console import human_bytes
from dinoskip.settings.specs import split_spec

PACKAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "timm": ("timm", "timm"),
        "tv": ("torchvision", "torchvision"),
        "hf": ("transformers", "'dinoskip[hub]'"),
    }
)
"""The package that reads specs of a kind, and what pip installs for it."""
DISK = "disk"
"""Value of ``--accept`` for a study that is to begin although the disk has less room than estimated."""


def refuse_unready(study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node], images: StudyImages) -> None:
    """Refuse, all at once, what would fail later at ``nodes``.

    Raises :class:`ConfigError` for packages, batches and places that cannot be used, :class:`WeightsError` for files of
    networks that are not there.
    """
    named = {node.variant for node in nodes}
    of_all = any(node.stage == "gallery" for node in nodes)  # one page of all networks
    used = [variant for variant in variants if of_all or variant.name in named]
    problems = list(dict.fromkeys((*_packages(used), *_batch(study, nodes, images), *_outputs(study))))
    if problems:
        raise ConfigError("\n".join(problems), problems=tuple(problems))
    if missing := list(dict.fromkeys(_files(used))):
        raise WeightsError(missing[0], "give the path of weights that are there")


def _packages(variants: Sequence[Variant]) -> Iterator[str]:
    for variant in variants:
        if variant.backbone is None:
            continue
        module, install = PACKAGES.get(split_spec(variant.backbone)[0], ("", ""))
        if module and find_spec(module) is None:
            yield f"{variant.backbone}: needs the package {module}, which is not installed (pip install {install})"


def _files(variants: Sequence[Variant]) -> Iterator[str]:
    """Networks whose files are not there."""
    for variant in variants:
        if variant.backbone is None:
            continue
        places = _places(variant.backbone)
        yield from (f"{place}: no such file, of {variant.backbone}" for place in places if not place.exists())


def _places(spec: str) -> list[Path]:
    """The files and folders on this machine that a spec names."""
    kind, name, options = split_spec(spec)
    places = [str(options["file"])] if "file" in options else []
    places += [name] if kind in {"weights", "dino", "file", "run"} else []
    return [Path(place) for place in places]


def refuse_networks(variants: Sequence[Variant]) -> None:
    """Raise what the first stage that opens one of these networks would, where that takes no reading of values.

    That is :class:`ConfigError` for names that timm has not, and :class:`WeightsError` for files that hold no weights.
    It imports torch: for commands that are about to compute.
    """
    for spec in dict.fromkeys(variant.backbone for variant in variants if variant.backbone is not None):
        kind, name, _ = split_spec(spec)
        loading().refuse_unreadable(name if kind == "timm" else "", _places(spec))


def _batch(study: StudyBase, nodes: Sequence[Node], images: StudyImages) -> Iterator[str]:
    """A batch of more images than a training has, unless images are not there yet: stages say what is missing."""
    recipe = recipe_of(study)
    if recipe is None or not any(node.stage in {"pretrain", "supervise", "sweep"} for node in nodes):
        return
    use = "pretraining" if isinstance(recipe, PretrainSection) else "classes"
    with suppress(DataError, ConfigError):
        count = images.count(recipe.dataset, "train", use)
        if count < recipe.batch_size:
            section = "pretrain" if isinstance(recipe, PretrainSection) else "supervise"
            yield (
                f"{section}.batch_size: {recipe.batch_size} are more than the {count} images of {recipe.dataset}"
                f" (take {count} or fewer)"
            )


def _outputs(study: StudyBase) -> Iterator[str]:
    """Folders that cannot be made or written."""
    for place in dict.fromkeys((study.directory, study.results)):
        there = nearest(place)
        if not os.access(there, os.W_OK | os.X_OK):
            yield f"{place}: cannot be written: {there} is not writable for this user (name another output)"


def nearest(place: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    whole = Path(os.path.abspath(place))
    return next(one for one in (whole, *whole.parents) if one.is_dir())


def refuse_without_room(
    place: Path, every_cost: Sequence[Cost], missing: Collection[str], readers: Mapping[str, Collection[str]],
    rules: StorageRules, taken: int,
) -> None:  # fmt: skip
    """:class:`DiskFull` if the nodes ``missing`` leave more on the disk than it has free.

    ``taken`` are bytes that unfinished work of theirs has there already.
    """
    needed = peak_disk([cost for cost in every_cost if cost.node in missing], readers, rules) - taken
    refuse_without_disk(
        place, needed, f"set storage.limit, evaluate fewer blocks, or go on anyway with --accept {DISK}"
    )


def refuse_without_disk(place: Path, needed: float, hint: str = "free some, or name another --out") -> None:
    """:class:`DiskFull` if the disk of ``place`` has less than ``needed`` bytes free."""
    free = shutil.disk_usage(nearest(place)).free
    if needed > free:
        raise DiskFull(
            f"{place}: what is still to be computed takes about {human_bytes(needed)} at once, and {human_bytes(free)}"
            " are free",
            hint,
        )
