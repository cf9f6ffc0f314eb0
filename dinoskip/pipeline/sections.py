"""Sections of every study, whatever its stages: data, a model and an optimizer to vary, and the networks evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from dinoskip.data.sets import DatasetConfig
from dinoskip.init.config import ModelConfig
from dinoskip.optim.config import AdamWConfig, OptimizerConfig
from dinoskip.pipeline.variants import VariantsConfig
from dinoskip.runtime.arithmetic import Precision
from dinoskip.settings.config import Config, Multiscale, OneOrSeveral
from dinoskip.settings.fields import Name, not_empty
from eval.online.config import OnlineConfig

S = TypeVar("S", bound=Config)

Blocks = Literal["all"] | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
Norm = Literal["none", "final", "layer"]
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _bytes(value: object) -> object:
    """A validator: ``200GB`` and ``1.5 TB`` as a number of bytes."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?) ?(kB|MB|GB|TB)", value)):
        return round(float(match[1]) * _UNITS[match[2]])
    if isinstance(value, str):
        raise ValueError("must be a number with its unit, such as 500MB, 200GB or 1.5TB")
    return value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=10**6)]
"""A size: a number of bytes, or a number and kB, MB, GB or TB (powers of 1000)."""


class StorageConfig(Config):
    """Limits on the size of features, on disk and in memory; no number depends on them."""

    limit: Bytes | None = Field(
        None, description="most bytes of all feature stores, such as 200GB: those used up go first; default: no limit"
    )
    window: Bytes = Field(2 * 10**9, description="most bytes in memory of a window of features, at least 1MB")


class RunConfig(Config):
    """Settings for the workers that run a study's stages; no number depends on them."""

    retries: int = Field(2, ge=0, description="times that a stage is begun again whose worker was lost, then it fails")
    executor: str | None = Field(
        None, pattern=r"^[\w.]+:[\w.]+$", description="module:function that returns what runs the stages, with the "
        "interface of concurrent.futures (docs/cluster.md)",
    )  # fmt: skip
    workers: int | None = Field(None, ge=1, description="most stages that such an executor has at once; default: 8")


@dataclass(frozen=True)
class StorageRules:
    """Most bytes of all feature stores (None: no limit), and whether a store goes as soon as it is used up."""

    limit: int | None = None
    at_once: bool = False


class EvaluateBase(Config):
    """Checkpoints and blocks that are evaluated; the sections of the evaluating stages name the data."""

    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="default: the last epoch; 0 is the network before training"
    )
    blocks: Blocks = Field("all", description="all, or their numbers from 1")
    blocks_of: Literal["each", "deepest"] = Field(
        "each", description="of what blocks are numbers: of each network, or of the deepest, the others being read at "
        "the same share of their depth",
    )  # fmt: skip
    multiscale: Multiscale | Literal["quarters"] | None = Field(
        None, description="blocks that are evaluated together; quarters: at each quarter of the depth, 3 6 9 12 of 12"
    )
    norm: Annotated[OneOrSeveral[Norm], AfterValidator(not_empty)] = Field(
        ("final",), description="one or several: probes are of each, all else is of the first"
    )

    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="of the passes of frozen networks; auto: bf16 autocast where the study says device: cuda, "
        "else fp32",
    )  # fmt: skip
    features: Literal["auto", "keep", "window"] = Field(
        "auto", description="auto: computed as they are read where one task alone reads them once, else in stores on "
        "disk; keep: in stores; window: computed as they are read, or stored until used up",
    )  # fmt: skip

    @property
    def block_list(self) -> str | list[int]:
        """``blocks`` as settings of a node."""
        return self.blocks if isinstance(self.blocks, str) else list(self.blocks)


class StudyBase(Config):
    """Settings of a study beside the sections of its stages."""

    meant: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(("backbones", "backbone", "models", "networks"), "variants: {model: [{backbone: SPEC}, ...]}")
    )

    name: Name = Field(description="of the study, and of its folder")
    seed: int = Field(0, ge=0, description="of weights, crops, samples, draws")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where stages compute, if a command's --device does not say; no number depends on it but "
        "by evaluate.precision=auto",
    )  # fmt: skip
    output: Path = Field(Path("runs"), description="folder in which the study has its own, of its name")
    stages: Name | None = Field(
        None, description="folder below output that several studies share: what one computes the others find; "
        "pages and rows stay in each study's own; default: its own",
    )  # fmt: skip
    data: dict[Name, DatasetConfig] = Field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = AdamWConfig()
    variants: VariantsConfig = VariantsConfig()
    online: OnlineConfig = OnlineConfig()
    storage: StorageConfig = StorageConfig()
    run: RunConfig = RunConfig()
    plugins: tuple[Path, ...] = Field(
        (), description="Python files with parts of your own, which are run (docs/extending.md)"
    )
    accept: OneOrSeveral[str] = Field(
        (), description="verdicts on the data that may pass though they are doubtful, as equal-files:DATA; or --accept"
    )
    evaluate: EvaluateBase = EvaluateBase()

    @property
    def directory(self) -> Path:
        """Folder of the outputs of its stages: ``output/name``, or ``output/stages`` if it shares them."""
        return self.output / (self.stages or self.name)

    @property
    def results(self) -> Path:
        """Folder of its pages and rows: ``output/name``."""
        return self.output / self.name

    @property
    def precision(self) -> Precision:
        """Precision of the passes of frozen networks: as asked, or by the device in the study, never by this machine's.

        So plans, keys and reports are the same wherever they are made.
        """
        asked = self.evaluate.precision
        if asked == "auto":
            return "bf16" if self.device == "cuda" else "fp32"
        return asked

    @property
    def storage_rules(self) -> StorageRules:
        """The limits of feature stores on disk, and whether each goes as soon as it is used up."""
        return StorageRules(self.storage.limit, at_once=self.evaluate.features == "window")

    @field_validator("output")
    @classmethod
    def _expanded(cls, value: Path) -> Path:
        return value.expanduser()

    def find(self, kind: type[S]) -> S | None:
        """The section of this class or one derived from it; None if it was not given and has no default."""
        for owner in (self, self.evaluate):
            for name in type(owner).model_fields:
                if isinstance(section := getattr(owner, name), kind):
                    return section
        return None

    def section(self, kind: type[S]) -> S:
        """:meth:`find` of a section that is there; raises :class:`KeyError` if it is not."""
        section = self.find(kind)
        if section is None:
            raise KeyError(kind.__name__)
        return section
