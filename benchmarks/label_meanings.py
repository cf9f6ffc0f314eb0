"""How often label files in a wrong numbering are noticed, and right ones are not believed, and what judging costs.

    python -m benchmarks.label_meanings --data SAMPLES          # a minute or two on one core

``SAMPLES`` holds small samples of published sets: ``voc_mini/VOCdevkit``, ``ade_mini`` and ``coco_mini``. Each is
written again with its values changed as a script, a tool or a mistake would, and judged as the kind that it was
(:mod:`dinoskip.data.sets.signatures`). Sets of n files are drawn with replacement; a set is noticed if it is refused or
doubtful. The seconds are of VOC's masks, five times over.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.pages import markdown_table
from dinoskip.data.label_values import LabelValues, label_values
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.coco_stuff import NEVER_USED, STUFF_CLASSES
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.signatures import judge
from dinoskip.io.images import read_mask
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate

Values = NDArray[np.int64]
SIZES = (1, 5, 20)
SETS: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "voc": ({"kind": "voc", "root": "voc_mini/VOCdevkit"}, ("train", "val")),
    "ade20k": ({"kind": "ade20k", "root": "ade_mini"}, ("train", "val")),
    "coco_stuff": ({"kind": "coco_stuff", "root": "coco_mini", "classes": "182"}, ("train", "val")),
}


def _table(change: Callable[[Values], Values]) -> NDArray[np.uint8]:
    """A new value for each of 256; those beyond wrap, as 8 bits do."""
    return (change(np.arange(256)) % 256).astype(np.uint8)


def _shifted(by: int, low: int, high: int, values: Values) -> Values:
    """Classes low..high moved by one, others kept."""
    return np.where((values >= low) & (values <= high), values + by, values)


def _permuted(low: int, high: int, values: Values) -> Values:
    order = np.random.default_rng(0).permutation(np.arange(low, high + 1))
    return np.where((values >= low) & (values <= high), order[np.clip(values - low, 0, high - low)], values)


def _train_ids(values: Values) -> Values:
    used = [value for value, name in enumerate(STUFF_CLASSES) if name not in NEVER_USED]
    return np.array([used.index(value) if value in used else 255 for value in values.tolist()])


CHANGES: Mapping[str, Mapping[str, Callable[[Values], Values]]] = {
    "voc": {
        "as published": lambda values: values,
        "objects 255, background 0": lambda values: np.where((values > 0) & (values < 255), 255, 0),
        "classes one higher": partial(_shifted, 1, 1, 19),
        "classes one lower, background kept": partial(_shifted, -1, 2, 20),
        "background as 255": lambda values: np.where(values == 0, 255, values),
        "reduced by one": lambda values: np.where(values == 255, 255, values - 1),
        "classes permuted": partial(_permuted, 1, 20),
    },
    "ade20k": {
        "as published": lambda values: values,
        "reduced by one, other 255": lambda values: values - 1,
        "reduced by one, other 254": lambda values: np.where(values == 0, 254, values - 1),
        "one higher": lambda values: values + 1,
        "reduced by one, other 0": lambda values: np.maximum(values - 1, 0),
        "classes permuted": partial(_permuted, 1, 150),
    },
    "coco_stuff": {
        "as published": lambda values: values,
        "ids": lambda values: np.where(values == 255, 0, values + 1),
        "171 in order": _train_ids,
        "classes permuted": partial(_permuted, 0, 181),
    },
}


def _counts(opened: SegmentationDataset, table: NDArray[np.uint8], named: Any, out: Path) -> list[LabelValues]:
    """The counts of every mask with its values changed."""
    paths = []
    for number, path in enumerate(opened.label_paths):
        paths.append(out / f"{number}.png")
        Image.fromarray(table[read_mask(path)]).save(paths[-1])
    changed = replace(opened, label_paths=tuple(paths))
    return [label_values("segmentation", changed.part([index]), named) for index in range(len(changed))]


def _rates(each: list[LabelValues], config: Any, draws: int) -> list[str]:
    """Share of sets of each size that are refused, and that are doubtful, in percent."""
    rng, shown = np.random.default_rng(0), []
    for size in SIZES:
        states = []
        for _ in range(draws):
            values = reduce(add, (each[index] for index in rng.integers(0, len(each), size)))
            found = {verdict.state for verdict in judge(values, "set", type(config).signatures)}
            states.append("refused" if "refused" in found else "doubtful" if "doubtful" in found else "")
        shown.append(f"{100 * states.count('refused') / draws:.1f} / {100 * states.count('doubtful') / draws:.1f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, metavar="SAMPLES")
    parser.add_argument("--draws", type=int, default=200, help="sets of each size (default: 200)")
    args = parser.parse_args()
    rows = []
    for name, (settings, splits) in SETS.items():
        tree = {"dataset": {**settings, "root": str(args.data / settings["root"])}}
        config: Any = validate(OneDataset, RawConfig(tree)).dataset
        opened = [open_labels(LABELS["segmentation"], config, split) for split in splits]
        named = config.named_classes if name == "voc" else None
        for change, function in CHANGES[name].items():
            with tempfile.TemporaryDirectory() as folder:
                each = [one for part in opened for one in _counts(part, _table(function), named, Path(folder))]
            rows.append([name, change, str(len(each)), *_rates(each, config, args.draws)])
        if name == "voc":
            together = opened[0].part([*range(len(opened[0]))] * 10)
            begin = time.process_time()
            label_values("segmentation", together, named)
            print(f"{len(together)} masks of VOC: {time.process_time() - begin:.1f} s of one core")
    head = ("kind", "values", "files", *(f"n = {size}: refused / doubtful, %" for size in SIZES))
    print("\n".join(markdown_table(head, rows)))


if __name__ == "__main__":
    main()
