"""Settings of unsupervised segmentation by clusters, and the published protocols by name.

``PROTOCOLS`` is plain data: what each differs in from ``ours``, the defaults of :class:`ClusteringConfig`. The table
with the sources is in docs/parts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.settings.config import OneOrSeveral
from eval.protocols import ProtocolConfig

# Where they differ from the defaults, which are ours: by the public code of STEGO and Leopart.
PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ours": {},
        # STEGO also trains on five crops of an image and refines by a dense CRF; both are left out. It scores
        # COCO-Stuff on a subset of val2017, ours is on all of it.
        "stego": {"sizing": "crop", "size": 320, "method": "cosine", "scale": "none", "matched_on": "reported"},
        "leopart": {
            "fitted_on": "val",
            "sizing": "bilinear",
            "scale": "standard",
            "pca": 50,
            "iterations": 100,
            "restarts": 5,
            "points": 256,  # a cluster, as faiss draws them; which ones are drawn is ours, by seed
            "match": "iou",
            "matched_on": "reported",
            "scored_at": 100,
            "seeds": 5,
        },
    }
)
if TYPE_CHECKING:
    ClusterProtocol = str
else:
    ClusterProtocol = Literal[tuple(PROTOCOLS)]  # what the table has, for the check and for `dinoskip settings`
Number = Annotated[int, Field(ge=2, le=10_000)]
TRAIN_CROP = 224  # pixels of STEGO's training crops


class ClusteringConfig(ProtocolConfig):
    """Settings of the clustering of patches and of the matching of clusters to classes (docs/parts.md).

    ``protocol`` gives every setting that is not given itself.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = PROTOCOLS
    unsaid: ClassVar[frozenset[str]] = frozenset({"size", "seeds", "clusters"})

    protocol: ClusterProtocol = Field(
        "ours", description="gives all settings below that are not given themselves (docs/parts.md)"
    )
    clusters: OneOrSeveral[Number] = Field((), description="how many, one or several; default: as many as classes")
    fitted_on: Literal["train", "val"] = Field("train", description="whose patches are clustered")
    sizing: Literal["bicubic", "bilinear", "crop"] = Field(
        "bicubic", description="images square by such resizing, or the centre of the short side, nearest and mirrored"
    )
    size: int = Field(448, ge=16, description="side in pixels of the images")
    method: Literal["kmeans", "cosine"] = Field("kmeans", description="cosine: centres learnt by Adam, as STEGO's")
    scale: Literal["unit", "standard", "none"] = Field(
        "unit", description="patches before k-means: of length 1, or of mean 0 and std 1 in every channel"
    )
    pca: int | None = Field(None, ge=1, description="principal components that are kept before k-means; default: all")
    iterations: int = Field(50, ge=1, description="of k-means")
    restarts: int = Field(3, ge=1, description="of k-means, of which the best is kept")
    points: int = Field(1024, ge=1, description="patches a cluster that k-means is fitted on, drawn at random, at most")
    steps: int = Field(5000, ge=1, description="of Adam, for cosine")
    batch_size: int = Field(16, ge=1, description="images a step, for cosine")
    learning_rate: float = Field(5e-3, gt=0, description="of Adam, for cosine")
    match: Literal["pixels", "iou"] = Field(
        "pixels", description="what the one-to-one match to classes makes largest; more clusters go to their commonest"
    )
    matched_on: Literal["halves", "reported"] = Field(
        "halves",
        description="images that clusters are matched to classes on: other halves, 50 splits, or those reported",
    )
    scored_at: int | None = Field(
        None, ge=8, description="pixels, square, to which labels and clusters are brought by nearest; default: label"
    )
    seeds: int = Field(1, ge=1, le=100, description="fits, with rows for each and one for mean and standard deviation")

    @model_validator(mode="after")
    def _possible(self) -> ClusteringConfig:
        if self.method == "cosine" and (self.scale != "none" or self.pca is not None):
            raise ValueError("method=cosine compares patches as they are: scale=none, and no pca")
        if self.scale == "unit" and self.pca is not None:
            raise ValueError("pca needs scale=standard or none")
        if self.sizing == "crop" and self.scored_at is not None:
            raise ValueError("sizing=crop is scored at the crop's size: no scored_at")
        return self

    @property
    def passes_once(self) -> bool:
        """Whether drawn training patches are all that is read of the training images."""
        return (self.fitted_on, self.method, self.pca) == ("train", "kmeans", None) and self.scale != "standard"

    def transform(self, part: Literal["train", "val"]) -> dict[str, Any]:
        """Return the settings of :class:`dinoskip.features.Transform` by which the images of a part are resized."""
        if self.sizing == "crop":
            crop = {"mode": "short_crop", "resample": "nearest"}
            return {**crop, "size": TRAIN_CROP} if part == "train" else {**crop, "size": self.size, "flip": True}
        resample = {} if self.sizing == "bicubic" else {"resample": self.sizing}
        return {"mode": "square", "size": self.size, **resample}

    def numbers(self, classes: int) -> tuple[int, ...]:
        """Return the numbers of clusters to be made for a set with ``classes`` classes."""
        return self.clusters or (classes,)
