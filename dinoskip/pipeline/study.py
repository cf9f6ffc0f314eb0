"""A study is one YAML: data, a model and an optimizer to vary, a pretraining recipe, and what to evaluate and show.

``variants`` lists changes to ``model`` and ``optimizer``; every combination becomes a :class:`Variant` with a
name such as ``skipless-adamw``. A variant may instead name existing weights with ``backbone``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from dinoskip.config import Config, Multiscale, RawConfig, apply_overrides, merge, no_duplicates, read_yaml, validate
from dinoskip.data.sets import DatasetConfig
from dinoskip.errors import ConfigError
from dinoskip.init.build import ModelConfig
from dinoskip.models.vit import DEPTH, ModelName
from dinoskip.optim.build import AdamWConfig, OptimizerConfig
from dinoskip.pipeline.sweep import SweepSection, short_recipe
from dinoskip.training.dino import PretrainConfig
from dinoskip.training.supervised import SupervisedConfig, with_defaults
from eval.online.config import OnlineConfig
from eval.probe.config import ProbeConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Blocks = Literal["all"] | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else () if value is None else value


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("must name one at least")
    return values


class StudyPretrain(PretrainConfig):
    """The pretraining recipe and the data set it is run on (a key of ``data``)."""

    dataset: Name


class StudySupervised(SupervisedConfig):
    """The supervised recipe and the data set it is run on (a key of ``data``, of kind ``folder``)."""

    dataset: Name
    online_every: int = Field(10, ge=1, description="epochs between evaluations; the last is always one")


class VariantsConfig(Config):
    """What is varied: changes to ``model`` and ``optimizer``, every combination once.

    A model entry may have a ``label`` (used in the variant's name) and, instead of model settings, a ``backbone``
    (``weights:FILE``, ``dino:FILE``, ``run:DIR``, ``timm:NAME``) that is evaluated as it is.
    """

    model: tuple[dict[str, Any], ...] = ({},)
    optimizer: tuple[str | dict[str, Any], ...] = ({},)


class ProbeSection(ProbeConfig):
    """Linear probes on frozen features (docs/protocols.md): a protocol, and settings of it that are changed."""

    train_split: str = "train"
    val_split: str = "val"


class RetrieveSection(RetrievalConfig):
    """Dense retrieval (docs/retrieval.md), and the splits that are remembered and labelled."""

    train_split: str = "train"
    val_split: str = "val"


def _single(value: object) -> object:
    return (value,) if isinstance(value, int | float | str) else value


class EvaluateConfig(Config):
    """Which checkpoints, blocks and data sets are evaluated. Data sets are keys of ``data``."""

    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="default: the last epoch; 0 is the network before training"
    )
    blocks: Blocks = "all"
    multiscale: Multiscale | None = None
    norm: Annotated[
        tuple[Literal["none", "final", "layer"], ...],
        BeforeValidator(_listed),
        AfterValidator(_some),
        AfterValidator(no_duplicates),
    ] = Field(("final",), description="one or several: probes are of each, all else is of the first")
    datasets: tuple[Name, ...] = ()
    discover: tuple[Name, ...] = ()
    knn: tuple[Name, ...] = ()
    retrieval: tuple[Name, ...] = ()
    probe: ProbeSection = ProbeSection()
    retrieve: RetrieveSection = RetrieveSection()
    tokencut: TokenCutConfig = TokenCutConfig()
    discover_split: str = "trainval"
    discover_facet: Annotated[
        tuple[Literal["key", "query", "value", "out"], ...], BeforeValidator(_single), AfterValidator(no_duplicates)
    ] = Field(("key",), min_length=1, description="one or several; what is shown is of the first")
    knn_k: tuple[Annotated[int, Field(ge=1)], ...] = Field((10, 20), min_length=1)
    knn_size: int = Field(224, ge=16)


class GallerySection(Config):
    """The gallery: the first images of a data set's validation split, every model, every block."""

    dataset: Name | None = Field(None, description="default: the first probed data set")
    first: int = Field(12, ge=1, le=2000)
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="of evaluate.epochs; default: the last")
    block: int | None = Field(None, ge=1, description="block shown first and on the contact sheet; default depth - 1")
    size: int | None = Field(None, ge=16, description="side in pixels; default: the probe's")
    sheet: Annotated[int, Field(ge=1)] | tuple[str, ...] | None = Field(
        None, description="images on the contact sheets: how many, or ids; default: all, on those of all blocks eight"
    )
    similarity: Annotated[int, Field(ge=0)] | tuple[str, ...] = Field(
        3, description="images whose features go into the page, for similarity to a clicked patch: how many, or ids"
    )
    single_file: bool = Field(False, description="everything in index.html instead of pictures beside it")


PaperTable = Literal["paper.table1", "paper.table2", "paper.table3", "paper.table4", "paper.figure3"]


class ReportSection(Config):
    """The report page."""

    title: str = ""
    note: str = Field("", description="a sentence shown below the title")
    compare: Annotated[tuple[PaperTable, ...], BeforeValidator(_listed), AfterValidator(no_duplicates)] = Field(
        (), description="published tables to put our numbers in: one name or several"
    )
    costs: bool = Field(
        False, description="say what the study cost: times and throughput, which differ between runs of the same study"
    )


class AnalyzeSection(Config):
    """Fresh models at initialisation: conditioning per block, and signal propagation on bundled photographs."""

    model: ModelName = "vit_small_patch16"
    depth: int = Field(12, ge=1)
    img_size: int = Field(224, ge=16)
    photos: int = Field(2, ge=1, le=4)


class Study(Config):
    """A whole study: data, model, recipe, variants, what to measure and show."""

    name: Name
    seed: int = Field(0, ge=0)
    output: Path = Path("runs")
    data: dict[Name, DatasetConfig] = Field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = AdamWConfig()
    pretrain: StudyPretrain | None = None
    supervised: StudySupervised | None = None
    variants: VariantsConfig = VariantsConfig()
    online: OnlineConfig = OnlineConfig()
    sweep: SweepSection | None = None
    evaluate: EvaluateConfig = EvaluateConfig()
    gallery: GallerySection = GallerySection()
    analyze: AnalyzeSection = AnalyzeSection()
    report: ReportSection = ReportSection()

    @property
    def directory(self) -> Path:
        """Where everything of this study lies: ``output/name``."""
        return self.output / self.name

    @property
    def recipe(self) -> StudyPretrain | StudySupervised | None:
        """How variants without a ``backbone`` are trained."""
        return self.pretrain or self.supervised

    @field_validator("output")
    @classmethod
    def _expanded(cls, value: Path) -> Path:
        return value.expanduser()

    @model_validator(mode="after")
    def _known_names(self) -> Study:
        used = {
            "pretrain.dataset": (self.pretrain.dataset,) if self.pretrain else (),
            "supervised.dataset": (self.supervised.dataset,) if self.supervised else (),
            **{f"online.{name}.dataset": (part.dataset,) for name, part in self.online.parts.items()},
            "evaluate.datasets": self.evaluate.datasets,
            "evaluate.discover": self.evaluate.discover,
            "evaluate.knn": self.evaluate.knn,
            "evaluate.retrieval": self.evaluate.retrieval,
            "gallery.dataset": (self.gallery.dataset,) if self.gallery.dataset else (),
        }
        for key, names in used.items():
            for name in names:
                if name not in self.data:
                    raise ValueError(
                        f"{key}: {name!r} is not one of the data sets under data: {', '.join(self.data) or 'none'}"
                    )
        if self.online.parts and not (self.pretrain and (self.pretrain.online_every or self.sweep)):
            raise ValueError("online: never happens: set pretrain.online_every, the epochs between evaluations")
        if self.pretrain and self.pretrain.online_every and not self.online.parts:
            raise ValueError("pretrain.online_every: there is nothing to evaluate: add online.knn or online.probe")
        if self.recipe:
            section = "pretrain" if self.pretrain else "supervised"
            kept = {0, *self.recipe.keep_epochs, self.recipe.epochs}
            for epoch in self.evaluate.epochs:
                if epoch not in kept:
                    raise ValueError(f"evaluate.epochs: epoch {epoch} is not kept: add it to {section}.keep_epochs")
        evaluated = self.evaluate.epochs or ((self.recipe.epochs,) if self.recipe else ())
        if absent := [epoch for epoch in self.gallery.epochs if epoch not in evaluated]:
            raise ValueError(f"gallery.epochs: epoch {absent[0]} is not evaluated: add it to evaluate.epochs")
        return self

    @model_validator(mode="after")
    def _sweep_can_choose(self) -> Study:
        if self.sweep:
            if not self.pretrain or not self.online.parts:
                raise ValueError("sweep: needs pretrain, and online.knn or online.probe to choose by")
            try:
                StudyPretrain.model_validate(short_recipe(self.pretrain.model_dump(mode="json"), self.sweep))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, ("sweep.pretrain", *first["loc"])))
                raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
        return self

    @model_validator(mode="after")
    def _one_recipe(self) -> Study:
        if self.pretrain and self.supervised:
            raise ValueError("supervised: pretrain is given too: a study trains all its variants by one recipe")
        kind = self.data[self.supervised.dataset].kind if self.supervised else "folder"
        if kind != "folder":
            raise ValueError(f"supervised.dataset: is of kind {kind}: it must be a folder with train and val")
        return self


@dataclass(frozen=True)
class Variant:
    """One combination. Either ``model`` and ``optimizer`` (to be pretrained) or ``backbone`` (a spec) is set."""

    name: str
    model: ModelConfig | None = None
    optimizer: OptimizerConfig | None = None
    backbone: str | None = None


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> tuple[Study, tuple[Variant, ...]]:
    """Read a study and expand its variants; every problem is reported at once (:class:`ConfigError`)."""
    source = apply_overrides(read_yaml(path), tuple(overrides))
    if source.tree.get("supervised"):
        source.tree = with_defaults(source.tree)
    study = validate(Study, source)
    return study, expand(study, source)


def expand(study: Study, source: RawConfig) -> tuple[Variant, ...]:
    """All combinations of ``variants``, named, validated, in order."""
    problems: list[str] = []
    found: list[Variant] = []
    optimizers = [
        (label, config)
        for index, entry in enumerate(study.variants.optimizer)
        for label, config in _optimizer(source, index, entry, problems)
    ]
    for index, entry in enumerate(study.variants.model):
        settings = dict(entry)
        label = str(settings.pop("label", ""))
        place = f"variants.model.{index}"
        if "backbone" in settings:
            spec = settings.pop("backbone")
            if settings or not isinstance(spec, str):
                problems.append(f"{source.place(place)}: {place}: backbone stands alone (with label, if wanted)")
            else:
                found.append(Variant(label or re.sub(r"[^A-Za-z0-9]+", "_", spec).strip("_")[:60], backbone=spec))
            continue
        model = _validated(ModelConfig, merge(source.tree.get("model", {}), settings), source, place, problems)
        if model is not None:
            found += [
                Variant(f"{label or _label(model)}-{short}", model=model, optimizer=config)
                for short, config in optimizers
            ]
    _check_variants(study, found, source, problems)
    if problems:
        raise ConfigError("\n".join(problems), problems=tuple(problems))
    return tuple(found)


def _check_variants(study: Study, found: list[Variant], source: RawConfig, problems: list[str]) -> None:
    names = [variant.name for variant in found]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            problems.append(f"{source.place('variants')}: variants: {name!r} comes twice (give each model a label)")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            problems.append(
                f"{source.place('variants')}: variants: {name!r} is not usable as a folder name (give a label)"
            )
    if study.recipe is None and any(variant.backbone is None for variant in found):
        alone = "or supervised, or every variant names a backbone"
        problems.append(f"{source.place('')}: pretrain: this key is required ({alone})")
    misfits = [line for variant in found if variant.model for line in _misfits(study, variant.model, source)]
    problems.extend(dict.fromkeys(misfits))


def _misfits(study: Study, model: ModelConfig, source: RawConfig) -> list[str]:
    """What would fail only after training: blocks that the model lacks, sizes that its patches do not divide."""
    depth, patch, evaluate = model.depth or DEPTH, model.patch_size, study.evaluate
    blocks = {
        "evaluate.blocks": () if isinstance(evaluate.blocks, str) else evaluate.blocks,
        "evaluate.multiscale": evaluate.multiscale or (),
        "gallery.block": (study.gallery.block or 1,),
    }
    sizes = {"evaluate.probe.size": evaluate.probe.size if evaluate.datasets and not evaluate.probe.live else patch}
    sizes["evaluate.knn_size"] = evaluate.knn_size if evaluate.knn else patch
    sizes["evaluate.retrieve.size"] = evaluate.retrieve.size if evaluate.retrieval else patch
    sizes["gallery.size"] = study.gallery.size or (evaluate.probe.size if evaluate.probe.live else patch)
    sizes |= {f"online.{name}.size": part.size for name, part in study.online.parts.items()}
    if study.pretrain:
        sizes["pretrain.crops.global_size"] = study.pretrain.crops.global_size
        sizes["pretrain.crops.local_size"] = study.pretrain.crops.local_size
    if study.supervised:
        sizes["supervised.augment.size"] = study.supervised.augment.size
    if study.online.probe:
        blocks["online.probe.blocks"] = tuple(b if b > 0 else 1 - b for b in study.online.probe.blocks)
    lines = [
        f"{key}: {max(given)} is beyond the {depth} blocks"
        for key, given in blocks.items()
        if max(given, default=0) > depth
    ]
    lines += [
        f"{key}: {size} is not a multiple of the patch size {patch}" for key, size in sizes.items() if size % patch
    ]
    return [f"{source.place(line.partition(':')[0])}: {line}" for line in lines]


def _optimizer(
    source: RawConfig, index: int, entry: str | Mapping[str, Any], problems: list[str]
) -> list[tuple[str, OptimizerConfig]]:
    settings = {"name": entry} if isinstance(entry, str) else dict(entry)
    label = str(settings.pop("label", ""))
    base = source.tree.get("optimizer", {})
    if "name" in settings and isinstance(base, dict) and settings["name"] != base.get("name", "adamw"):
        base = {}  # another optimizer's settings do not carry over, but the recipe's do
        if source.tree.get("supervised"):
            base = with_defaults({})["optimizer"]
    box = _validated(_OptimizerBox, {"optimizer": {"name": "adamw", **merge(base, settings)}}, source, "", problems)
    return [] if box is None else [(label or box.optimizer.name, box.optimizer)]


class _OptimizerBox(Config):
    optimizer: OptimizerConfig


def _validated(model: Any, tree: dict[str, Any], source: RawConfig, prefix: str, problems: list[str]) -> Any:
    try:
        return validate(model, RawConfig(tree, source.places), prefix)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _label(model: ModelConfig) -> str:
    base = f"skip_{model.skip}" if isinstance(model.skip, str) else "skip" if model.skip else "skipless"
    default = "skipless" if model.skip is False else "trunc_normal"
    return base if model.init.name == default else f"{base}_{model.init.name}"
