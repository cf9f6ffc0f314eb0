"""Which data set lies in a folder, by what is in it: for the hint of an error when another one was expected there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dinoskip.errors import DataError


class Layout(NamedTuple):
    """A layout that people have. It is there if all of ``parts`` are, below a root; the first of the table counts."""

    parts: tuple[str, ...]
    name: str
    kind: str | None
    advice: str = ""


LAYOUTS = (
    Layout(("JPEGImages", "SegmentationClassContext"), "PASCAL Context", "pascal_context"),
    Layout(("JPEGImages/480p", "Annotations/480p"), "DAVIS 2017", "davis"),
    Layout(("JPEGImages", "ImageSets"), "PASCAL VOC", "voc"),
    Layout(("VOCdevkit",), "PASCAL VOC", "voc"),
    Layout(("VOC2012",), "PASCAL VOC", "voc"),
    Layout(("VOC2007",), "PASCAL VOC", "voc"),
    Layout(("VOC2010/SegmentationClassContext",), "PASCAL Context", "pascal_context"),
    Layout(
        ("images/ADE",), "the full ADE20K of 2021", None,
        "its masks number 3,688 names and their parts: get ADEChallengeData2016 (SceneParse150) for kind ade20k",
    ),
    Layout(
        ("images/training", "index_ade20k.mat"), "the full ADE20K of 2016", None,
        "its masks number thousands of names and their parts: get ADEChallengeData2016 (SceneParse150) for kind ade20k",
    ),
    Layout(("images/training", "annotations/training"), "ADEChallengeData2016", "ade20k"),
    Layout(("ADEChallengeData2016",), "ADEChallengeData2016", "ade20k"),
    Layout(("leftImg8bit", "gtFine"), "Cityscapes", "cityscapes"),
    Layout(("train2017", "stuffthingmaps"), "COCO-Stuff", "coco_stuff"),
    Layout(("images/train2017", "annotations/train2017"), "COCO-Stuff as mmsegmentation has it", "coco_stuff"),
    Layout(("train2014", "annotations/instances_train2014.json"), "COCO 2014", "coco20k"),
    Layout(("annotations/panoptic_val2017.json",), "COCO panoptic", "coco_panoptic"),
    Layout(("annotations/instances_val2017.json",), "COCO 2017", "coco"),
    Layout(
        ("imageLists", "images"), "COCO-Stuff 10k", None,
        "its masks are MATLAB files: get COCO 2017 with stuffthingmaps_trainval2017.zip for kind coco_stuff",
    ),
    Layout(("images", "ground_truth_mask"), "ECSSD", "ecssd"),
    Layout(("DUTS-TE-Image", "DUTS-TE-Mask"), "DUTS-TE", "duts_te"),
    Layout(("DUT-OMRON-image", "pixelwiseGT-new-PNG"), "DUT-OMRON", "dut_omron"),
    Layout(("nyu_train.txt", "nyu_test.txt"), "NYU Depth V2", "nyu"),
    Layout(("nyudepthv2_train_files_with_gt.txt",), "NYU Depth V2", "nyu"),
    Layout(("geonet", "test"), "surface normals of NYU Depth V2", "nyu_normals"),
    Layout(("DAVIS/JPEGImages/480p",), "DAVIS 2017", "davis"),
    Layout(("JPEGImages", "PairAnnotation"), "SPair-71k", "spair71k"),
    Layout(("JPEGImages", "test_pairs_pf_pascal.csv"), "PF-PASCAL", "pf_pascal"),
    Layout(("images", "masks"), "images and masks", "masks"),
    Layout(("train", "val"), "class folders", "folder"),
)  # fmt: skip


def _layout_of(folder: Path) -> Layout | None:
    return next((layout for layout in LAYOUTS if all((folder / part).exists() for part in layout.parts)), None)


def kind_of(root: Path) -> tuple[str, Path]:
    """Return what kind of data set lies in ``root`` and the folder that is its root; ``images`` if none is seen.

    Raises :class:`DataError` for a layout that is known and cannot be read.
    """
    layout = _layout_of(root)
    if layout is None and (root / "annotations.json").is_file():
        return "coco_json", root
    if layout is not None and layout.kind is None:
        raise DataError(f"{root} is laid out as {layout.name}", layout.advice)
    return ("images", root) if layout is None or layout.kind is None else (layout.kind, root)


def nearest_layout(root: Path, kind: str) -> str | None:
    """Say what ``root``, the folder above or one in it is laid out as; None if that is ``kind`` itself or unknown."""
    try:
        inside = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))[:50]
    except OSError:
        inside = []
    for folder in (root, *inside, root.parent):
        layout = _layout_of(folder)
        if layout is None or (folder != root and layout.kind not in {kind, None}):  # elsewhere only what was asked for
            continue
        if folder == root and layout.kind == kind:
            return None
        advice = layout.advice or (f"use kind {layout.kind}" if folder == root else f"use root {folder}")
        return f"{folder} is laid out as {layout.name}: {advice}"
    return None
