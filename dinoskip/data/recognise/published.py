"""Layouts of published data sets, known by the names of their folders and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dinoskip.data.recognise.tree import join

OTHER_ADE20K = "its masks number {} names and their parts: get ADEChallengeData2016 (SceneParse150) for kind ade20k"


_KITTI = (
    "its depth is read by a list: write nyu_test.txt, a line IMAGE DEPTH for each pair, for kind nyu with "
    "per_metre=256 outdoor=true"
)


@dataclass(frozen=True)
class PublishedLayout:
    """A layout that people have. It is there if all of ``parts`` are, below a folder; the first of the table counts.

    ``photographs`` are the folders of images, relative to ``inner`` if the parts lie there: all images in them but
    those whose names end in one of ``not_images`` (before the extension). Without any, all images are photographs but
    label maps. ``settings`` are of the kind, beside its root.
    """

    parts: tuple[str, ...]
    name: str
    kind: str | None
    photographs: tuple[str, ...] = ()
    advice: str = ""
    inner: str = ""
    image_ending: str = ""
    not_images: Callable[[str], bool] = lambda stem: False
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def in_parts(self) -> tuple[str, ...]:
        """All parts, relative to the root."""
        return tuple(join(self.inner, part) for part in self.parts)


def _ade20k_label(stem: str) -> bool:
    return stem.endswith("_seg") or "_parts_" in stem or stem.startswith("instance_")


def _voc(inner: str) -> tuple[PublishedLayout, ...]:
    return tuple(
        PublishedLayout(("JPEGImages", mark), "PASCAL VOC", "voc", ("JPEGImages",), inner=inner)
        for mark in ("ImageSets", "SegmentationClass", "Annotations")
    )


PUBLISHED = (
    PublishedLayout(("JPEGImages", "SegmentationClassContext"), "PASCAL Context", "pascal_context", ("JPEGImages",)),
    PublishedLayout(("JPEGImages/480p", "Annotations/480p"), "DAVIS 2017", "davis", ("JPEGImages",)),
    PublishedLayout(("JPEGImages", "PairAnnotation"), "SPair-71k", "spair71k", ("JPEGImages",)),
    PublishedLayout(("JPEGImages", "test_pairs_pf_pascal.csv"), "PF-PASCAL", "pf_pascal", ("JPEGImages",)),
    *_voc(""),
    *_voc("VOC2012"),
    *_voc("VOC2007"),
    *_voc("VOCdevkit/VOC2012"),
    *_voc("VOCdevkit/VOC2007"),
    PublishedLayout(
        ("JPEGImages", "SegmentationClassContext"), "PASCAL Context", "pascal_context", ("JPEGImages",), inner="VOC2010"
    ),
    PublishedLayout(
        ("images/ADE",), "the full ADE20K of 2021", None, ("images",), OTHER_ADE20K.format("3,688"),
        not_images=_ade20k_label
    ),
    PublishedLayout(
        ("images/training", "index_ade20k.mat"), "the full ADE20K of 2016", None, ("images",),
        OTHER_ADE20K.format("thousands of"),
        not_images=_ade20k_label,
    ),
    PublishedLayout(("images/training", "annotations/training"), "ADEChallengeData2016", "ade20k", ("images",)),
    PublishedLayout(("images/validation", "annotations/validation"), "ADEChallengeData2016", "ade20k", ("images",)),
    PublishedLayout(
        ("images", "annotations"), "ADEChallengeData2016", "ade20k", ("images",), inner="ADEChallengeData2016"
    ),
    PublishedLayout(("leftImg8bit", "gtFine"), "Cityscapes", "cityscapes", ("leftImg8bit",)),
    PublishedLayout(("train2017", "stuffthingmaps"), "COCO-Stuff", "coco_stuff"),
    PublishedLayout(("val2017", "stuffthingmaps"), "COCO-Stuff", "coco_stuff"),
    PublishedLayout(
        ("images/train2017", "annotations/train2017"), "COCO-Stuff as mmsegmentation has it", "coco_stuff", ("images",)
    ),
    PublishedLayout(
        ("train2014", "annotations/instances_train2014.json", "coco_20k_filenames.txt"), "COCO20k", "coco20k"
    ),
    PublishedLayout(("annotations/panoptic_val2017.json",), "COCO panoptic", "coco_panoptic"),
    PublishedLayout(
        ("imageLists", "images"), "COCO-Stuff 10k", None, ("images",),
        "its masks are MATLAB files: get COCO 2017 with stuffthingmaps_trainval2017.zip for kind coco_stuff",
    ),
    PublishedLayout(("images", "ground_truth_mask"), "ECSSD", "ecssd", ("images",)),
    PublishedLayout(("DUTS-TE-Image", "DUTS-TE-Mask"), "DUTS-TE", "duts_te", ("DUTS-TE-Image",)),
    PublishedLayout(("DUT-OMRON-image", "pixelwiseGT-new-PNG"), "DUT-OMRON", "dut_omron", ("DUT-OMRON-image",)),
    PublishedLayout(("nyu_train.txt", "nyu_test.txt"), "NYU Depth V2", "nyu"),
    PublishedLayout(("nyudepthv2_train_files_with_gt.txt",), "NYU Depth V2", "nyu"),
    PublishedLayout(
        ("eigen_test_files_with_gt.txt",), "KITTI's depth by the lists of BTS", "nyu",
        settings=(("per_metre", 256), ("outdoor", True)),
    ),
    PublishedLayout(("depth_selection/val_selection_cropped",), "KITTI's depth selection", None, advice=_KITTI),
    PublishedLayout(("data_depth_annotated",), "KITTI's annotated depth", None, advice=_KITTI),
    PublishedLayout(
        ("nyu_depth_v2_labeled.mat",), "the labelled set of NYU Depth V2", None,
        advice="dinoskip data prepare nyu --out FOLDER, with splits.mat in it, makes what kind nyu reads",
    ),
    PublishedLayout(("geonet", "test"), "surface normals of NYU Depth V2", "nyu_normals"),
    PublishedLayout(
        ("JPEGImages/480p", "Annotations/480p"), "DAVIS 2017", "davis", ("JPEGImages",), inner="DAVIS"
    ),
    PublishedLayout(
        ("JPEGImages", "PairAnnotation"), "SPair-71k", "spair71k", ("JPEGImages",), inner="SPair-71k"
    ),
)  # fmt: skip
