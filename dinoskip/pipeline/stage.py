"""Stages: their settings, nodes, execution and command, and the values that they are given to make their nodes.

Nothing here imports torch: the stages with a command of their own are read by ``dinoskip --help``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip import __version__
from dinoskip.data.listing import FilesAsRead
from dinoskip.data.sets.kind import SplitSynthetic, Synthetic
from dinoskip.errors import DataError
from dinoskip.io.parts import ALONE, Parts
from dinoskip.pipeline.graph import Node, NodeSettings
from dinoskip.plugins import LAST, content_of_part
from dinoskip.results.rows import UNKNOWN_EPOCH
from dinoskip.settings.config import Config
from dinoskip.settings.keys import every_setting, settings_for_key
from dinoskip.settings.tasks import TaskOption

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant

Problem = tuple[str, str]
"""A dotted key of a study, and what is wrong with its value."""
Use = str
"""As what a data set is read: ``pretraining``, or the kind of label."""
Content = tuple[str, ...]
"""A function of :mod:`dinoskip.pipeline.stages.external` that hashes files of a data set, and its arguments."""


@dataclass(frozen=True)
class Task:
    """Arguments of a stage that runs: its node's settings, the directories of its inputs, and its output directory."""

    settings: Any
    runtime: Mapping[str, Any]
    inputs: Mapping[str, Path]
    out: Path
    device: str
    workers: int
    reserve: Callable[[int], None] | None = None
    """Function that makes room on the disk for a number of bytes, where there is a limit; raises :class:`DiskFull`."""
    accepted: tuple[str, ...] = ()
    """Doubtful verdicts on the study's data that were accepted, as :func:`dinoskip.data.verdicts.settle` says them."""
    parts: Parts = ALONE
    """Parts of its work that other processes may make."""


@dataclass(frozen=True)
class Command:
    """The row of a stage in the command line: ``dinoskip eval NAME NETWORK --data DIR --out DIR``.

    ``kind`` is the layout that ``--data`` has by default, ``example`` a setting shown in the help, ``options`` are
    flags that stand for settings.
    """

    help: str
    example: str
    kind: str = "voc"
    options: tuple[TaskOption, ...] = ()


@dataclass(frozen=True)
class ShownOf:
    """Of what a stage shows something in the report.

    ``outputs`` are its outputs by node; ``variants`` the study's variants by the words that the page has for them, in
    its order; ``figures`` is a folder for files of figures.
    """

    outputs: Mapping[str, Path]
    variants: Mapping[str, str]
    figures: Path

    def last_epochs(self, networks: Collection[str]) -> dict[str, str]:
        """``{words: its name among networks}``, in the study's order: ``VARIANT epN`` of the last epoch.

        Networks that are not trained go by the variant's own name.
        """
        return last_epochs(self.variants, networks)

    def words_of(self, networks: Collection[str]) -> dict[str, str]:
        """``{its name among networks: words}``; the epoch is among the words of a variant with several."""
        words = {variant: text for text, variant in self.variants.items()}
        found: dict[str, str] = {}
        for name in networks:
            variant, _, epoch = name.rpartition(" ep")
            several = sum(other.rpartition(" ep")[0] == variant for other in networks) > 1
            text = words.get(variant, variant) if variant else words.get(name, name)
            found[name] = f"{text}, epoch {epoch}" if variant and several else text
        return found


@dataclass(frozen=True)
class Shown:
    """Contents of the report from a stage: figures, tables, and numbers of networks for papers' tables, by variant."""

    figures: Sequence[Any] = ()
    tables: Sequence[Any] = ()
    tokens: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def last_epochs(variants: Mapping[str, str], networks: Collection[str]) -> dict[str, str]:
    """:meth:`ShownOf.last_epochs` of the study's variants by their words."""
    names: dict[str, str] = {}
    for words, variant in variants.items():
        epochs = [name for name in networks if name.rpartition(" ep")[0] == variant]
        if epochs:
            names[words] = max(epochs, key=lambda name: int(name.rpartition(" ep")[2]))
        elif variant in networks:
            names[words] = variant
    return names


@dataclass(frozen=True)
class Stage:
    """A kind of node: what it reads of a study, the nodes that it adds, and how one runs.

    ``section`` is the class of its settings, which stand at the dotted key ``place`` of a study; ``required`` is False
    where they are None unless given, ``choices`` the union of its subclasses where one of them is chosen. ``use`` says
    as what the data sets named in ``datasets`` or ``dataset`` are read, ``measures`` what it measures, as the report
    says of a study without it. ``add_nodes`` adds the stage's nodes to a study's; ``check`` yields problems that the
    settings have with the rest of the study. ``run`` makes the output, in an output that a killed run has left if it
    ``resumes``. ``version`` is part of the key: raise it when the code changes its results. A ``disposable`` output may
    be removed when all stages are done that read it: those among whose inputs it is, unless ``reads_stores`` is False.
    Where there are several ranks, all of them run a stage that is ``together``, and rank 0 alone all others. ``tells``
    reads from an output all that stages of which it is an input take from it, where that is less than its files: an
    output that tells the same as the one before it has that one's hash for them, and does not make them run again.
    ``shows`` gives what the report shows of its outputs. ``order`` is the place of a plug-in's among those of plug-ins.
    ``of_unfinished`` says by a node's settings and the folder that a training writes whether all that the node takes of
    that is there, for good.
    """

    name: str
    run: Callable[[Task], None]
    add_nodes: Callable[[StudyNodes], None] | None = None
    section: type[Config] | None = None
    choices: Any = None
    place: str = ""
    required: bool = True
    use: Use | None = None
    measures: str = ""
    check: Callable[[StudyBase, tuple[Variant, ...]], Iterator[Problem]] | None = None
    version: int = 1
    resumes: bool = False
    disposable: bool = False
    reads_stores: bool = True
    together: bool = False
    tells: Callable[[Path], object] | None = None
    of_unfinished: Callable[[Any, Path], bool] | None = None
    command: Command | None = None
    shows: Callable[[ShownOf], Shown] | None = None
    order: int = LAST

    @property
    def trains(self) -> bool:
        """Whether it trains networks: hours of work, which nothing replaces unless that is asked for (--retrain)."""
        return self.together and self.resumes and not self.disposable

    @property
    def asked_by(self) -> str:
        """The key that names the data sets it reads."""
        return f"{self.place}.{'datasets' if self.place.startswith('evaluate.') else 'dataset'}"


@dataclass(frozen=True)
class DataInputs:
    """Inputs of a node from a data set's split; ``outside`` are the hashes of files outside the study, by name.

    ``every`` are the ``settings`` with all defaults.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    every: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluatedModel:
    """A network to evaluate: the ``weights`` that a node makes of a trained variant, or the variant's backbone."""

    variant: Variant
    epoch: int
    weights: str | None = None

    @property
    def place(self) -> str:
        """The part of node names that says which network: ``skipless-adamw/ep300``."""
        return f"{self.variant.name}/ep{self.epoch}"

    @property
    def inputs(self) -> dict[str, str]:
        """The node that makes its weights."""
        return {} if self.weights is None else {"weights": self.weights}

    @property
    def outside(self) -> dict[str, tuple[Any, ...]]:
        """The hash of a backbone that lies outside the study."""
        backbone = self.variant.backbone
        return {} if backbone is None else {"backbone": ("backbone", backbone)}


class StudyNodes:
    """The nodes of a study, as its stages add them in their order."""

    def __init__(
        self, study: StudyBase, variants: tuple[Variant, ...], hashes: Mapping[str, Callable[..., str]]
    ) -> None:
        """``hashes`` are the functions that hash contents outside the study, by what they hash."""
        self.study, self.variants = study, variants
        self._hash_functions = hashes
        self.nodes: dict[str, Node] = {}
        self.models: list[EvaluatedModel] = []
        self._hashed: dict[tuple[Any, ...], tuple[str, FilesAsRead]] = {}

    def add(
        self,
        stage: Stage,
        name: str,
        settings: Mapping[str, Any] | NodeSettings,
        *,
        inputs: Mapping[str, str] | None = None,
        data: DataInputs | None = None,
        runtime: Mapping[str, Any] | None = None,
        outside: Mapping[str, tuple[Any, ...]] | None = None,
        variant: str = "",
        order_only: Mapping[str, str] | None = None,
    ) -> str:
        """Add the node ``STAGE/name`` unless it is there; return its id.

        ``data`` is what :func:`dinoskip.pipeline.stages.data.of_dataset` returned, ``outside`` further hashes of files
        outside the study. See :class:`Node` for the others. Raises :class:`ValueError` if the node is there with other
        settings.
        """
        data = data or DataInputs()
        node_id = f"{stage.name}/{name}" if name else stage.name
        hashes = {**data.outside, **(outside or {})}
        content = content_of_part("stages", stage.name)
        plugin = {} if content is None else {"plugin": content}
        every = partial(_every_setting, settings, {**data.every, **plugin})
        node = Node(
            node_id,
            stage.name,
            settings,
            inputs={**(inputs or {}), **data.inputs},
            runtime={**data.runtime, **(runtime or {})},
            external=partial(self._hashes, hashes) if hashes else None,
            changed=_OutsideFiles(self, hashes) if hashes else None,
            variant=variant,
            version=stage.version,
            order_only=order_only or {},
            dataset={**data.settings, **plugin},
            every=every if isinstance(settings, NodeSettings) else None,
        )
        if self.nodes.setdefault(node_id, node).plain != node.plain:
            raise ValueError(f"{node_id}: asked for with different settings, which need different names")
        return node_id

    def context(self, variant: Variant, epoch: int) -> dict[str, Any]:
        """The fields of a result row that say which network it is of."""
        context = {"model": variant.name, "epoch": epoch, "seed": variant.seed, "version": __version__}
        if variant.model is None or variant.optimizer is None:
            return {**context, "epoch": UNKNOWN_EPOCH, **variant.trained}
        return {**context, "initialisation": variant.model.init.name, "optimizer": variant.optimizer.name}

    def multiscale(self, variant: Variant) -> list[int] | str | None:
        """The blocks of a variant that are evaluated together; ``quarters`` of a backbone whose depth is not known."""
        blocks = self.study.evaluate.multiscale
        if blocks == "quarters":
            return quarters(variant.depth) if variant.depth else blocks
        return list(blocks) if blocks else None

    def blocks(self, variant: Variant) -> str | list[int]:
        """The blocks of a variant that are evaluated, as settings of a node."""
        evaluate, network = self.study.evaluate, variant.network
        if isinstance(evaluate.blocks, str) or evaluate.blocks_of == "each" or network is None:
            return evaluate.block_list
        deepest = max(variant.network.depth for variant in self.variants if variant.network is not None)
        return at_share(evaluate.blocks, network.depth, deepest)

    def same_images(self, dataset: str, split: str, first: Use, second: Use) -> bool:
        """Whether a split has the same images with two labels; of images that are not there: no."""
        config = self.study.data[dataset]
        if isinstance(config, Synthetic):
            return isinstance(config, SplitSynthetic) and {first, second} <= set(config.labels)
        try:
            one, other = (self._hashed_files(("images", config, use, split))[0] for use in (first, second))
        except DataError:
            return False
        return one == other

    def _hashed_files(self, content: tuple[Any, ...]) -> tuple[str, FilesAsRead]:
        """The hash of a set of files outside the study; each is read once a study, however many nodes ask."""
        what, *arguments = content
        key = (what, *map(str, arguments))
        if key not in self._hashed:
            seen: list[Path] = []
            self._hashed[key] = self._hash_functions[what](*arguments, seen=seen), FilesAsRead.of(seen)
        return self._hashed[key]

    def _hashes(self, wanted: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
        """Hashes of files outside the study, by the name that the key has them under."""
        return {name: self._hashed_files(content)[0] for name, content in wanted.items()}

    def files_read(self, wanted: Mapping[str, tuple[Any, ...]]) -> dict[str, FilesAsRead]:
        """The files that were hashed, by the name that the key has their hash under."""
        return {name: self._hashed_files(content)[1] for name, content in wanted.items()}


@dataclass(frozen=True)
class _OutsideFiles:
    """Names the contents outside the study of which files were written to since they were hashed.

    It is sent to another process as the files alone.
    """

    nodes: StudyNodes
    wanted: Mapping[str, tuple[Any, ...]]

    def __call__(self) -> list[str]:
        return changed_files(self.nodes.files_read(self.wanted))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (changed_files, self.nodes.files_read(self.wanted))


def changed_files(files: Mapping[str, FilesAsRead]) -> list[str]:
    """Names of the sets of files that were written to since they were read, each with one of the files."""
    changed = {name: read.changed() for name, read in files.items()}
    return [
        f"{name} ({Path(paths[0]).name}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''})"
        for name, paths in changed.items()
        if paths
    ]


def _every_setting(settings: Mapping[str, Any] | NodeSettings, dataset: Mapping[str, Any]) -> dict[str, Any]:
    whole = settings.recorded(every_setting) if isinstance(settings, NodeSettings) else settings
    return {**whole, **dataset}


def quarters(depth: int) -> list[int]:
    """The first block at or after each quarter of the depth: 3, 6, 9, 12 of 12 and 3, 5, 7, 9 of 9."""
    return sorted({math.ceil(depth * quarter / 4) for quarter in (1, 2, 3, 4)})


def at_share(blocks: Iterable[int], depth: int, deepest: int) -> list[int]:
    """Blocks of a network of ``depth`` blocks at the same share of it as ``blocks`` of ``deepest``: 4, 8 for 6, 12."""
    return sorted({math.ceil(block * depth / deepest) for block in blocks})


def without_place(config: Config) -> dict[str, Any]:
    """A data set's settings but for where it lies, which changes no number."""
    return settings_for_key(config, without={"root"})


def unknown_data(study: StudyBase, key: str, name: str) -> Iterator[Problem]:
    """A data set that ``key`` names and the study lacks."""
    if name not in study.data:
        yield key, f"{name!r} is not one of the data sets under data: {', '.join(study.data) or 'none'}"


def not_multiples(sizes: Mapping[str, int | None], variants: Iterable[Variant]) -> Iterator[Problem]:
    """Sizes in pixels, by key, that not every network takes (whole patches); None passes."""
    for key, size in sizes.items():
        if size is None:
            continue
        for patch in sorted({variant.network.patch for variant in variants if variant.network is not None}):
            if size % patch:
                near = whole_patches(size, patch)
                yield key, f"{size} is not a multiple of the patch size {patch} (try {near})"
        whole = [v.model for v in variants if v.model is not None and size % v.model.patch_size == 0]
        yield from ((key, text) for text in {model.refused_size(size) for model in whole} if text is not None)


def whole_patches(size: int, patch: int) -> int:
    """The multiple of the patch size that is nearest to a size in pixels, one patch at least."""
    return max(1, round(size / patch)) * patch


def beyond_depth(blocks: Mapping[str, Iterable[int]], variants: Iterable[Variant]) -> Iterator[Problem]:
    """Blocks, by key, that a model lacks."""
    told = [variant.network for variant in variants if variant.network is not None and not variant.network.guessed]
    for depth in sorted({network.depth for network in told}):
        for key, numbers in blocks.items():
            if (most := max(numbers, default=0)) > depth:
                yield key, f"{most} is beyond the {depth} blocks"
