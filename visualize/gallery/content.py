"""Contents of a gallery: images, and for each model its features, predictions, TokenCut's results and attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dinoskip.results.rows import EvalResult

if TYPE_CHECKING:
    from visualize.colours import TokenSource


@dataclass(frozen=True)
class Discovery:
    """The result of TokenCut for one image at one block.

    ``box`` is x1 y1 x2 y2 in pixels of the image, end exclusive; ``eigenvector`` (h, w) float and ``mask``
    (h, w) bool lie on cells of ``patch_size`` pixels from the image's top left corner, and may overhang it. Without a
    cut (``is_cut`` False) there is no eigenvector, the mask is empty, and the box is -1 four times.
    """

    box: tuple[float, float, float, float]
    eigenvector: np.ndarray
    mask: np.ndarray
    patch_size: int
    is_cut: bool = True


@dataclass(frozen=True)
class GalleryImage:
    """One photograph: its id in the stores, its file, and its ground truth where there is some.

    ``label`` is uint8 (H, W) with 255 ignored; ``boxes`` is (K, 4) x1 y1 x2 y2 in pixels, end exclusive. ``tags`` are
    names to filter by besides the classes in ``label``. An image with a ``layer`` (frames of a video side by side, a
    pair of images, a photograph of another data set) has pictures in that layer alone, and that layer no others.
    """

    id: str
    path: Path
    label: np.ndarray | None = None
    boxes: np.ndarray | None = None
    tags: tuple[str, ...] = ()
    layer: str = ""


@dataclass(frozen=True)
class GalleryModel:
    """One column, called ``words`` on the pages and ``name`` in files.

    Maps are ``{block: {image id: ...}}``; what is missing is shown as missing.

    ``predictions`` are label maps uint8 of any resolution that cover the whole image (token grid x 4 is
    enough); ``attention`` is (heads, h, w) float, the CLS token's, covering the image too; ``rows`` feed the curves
    above the pictures and the table of captions. ``maps`` are uint8 (h, w) by layer: ``cluster``, classes by their
    values; ``saliency``, 1 where the object is; ``objects``, their numbers from 1, 0 where none is.
    ``surfaces`` are predicted and true maps as a task has them, which the layer of its name colours:
    ``{layer: {block: {image id: (predicted, true)}}}``. ``strips`` are the same of images with a ``layer`` of theirs,
    as numbers of VOC's colours, uint8 (h, w), 0 where nothing is drawn. ``other_cuts`` are those of treated tokens, by
    treatment, where most graphs of the tokens as they are have no cut.
    """

    name: str
    store: TokenSource | None = None
    predictions: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    discoveries: Mapping[int, Mapping[str, Discovery]] = field(default_factory=dict)
    rows: Sequence[EvalResult] = ()
    description: str = ""
    attention: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    maps: Mapping[str, Mapping[int, Mapping[str, np.ndarray]]] = field(default_factory=dict)
    surfaces: Mapping[str, Mapping[int, Mapping[str, Sequence[np.ndarray]]]] = field(default_factory=dict)
    strips: Mapping[str, Mapping[int, Mapping[str, Sequence[np.ndarray]]]] = field(default_factory=dict)
    words: str = ""
    other_cuts: Mapping[str, Mapping[int, Mapping[str, Discovery]]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name on the pages: ``words``, or ``name`` where there are none."""
        return self.words or self.name


@dataclass(frozen=True)
class Classes:
    """Class names by label value, and the data set's palette uint8 (256, 3)."""

    names: Sequence[str]
    palette: np.ndarray
