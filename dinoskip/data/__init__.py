"""Images in, batches and labelled sets out.

Importing this package does not import torch; what needs it is in ``augment``, ``classification``, ``crops``,
``loader``, ``multicrop``, ``resident``, ``train_loader`` and ``workers``.
"""

from __future__ import annotations

from dinoskip.data.detection import DetectionDataset, dominant_labels
from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.listing import list_images
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets import (
    DatasetConfig,
    open_images,
    open_labels,
    open_training_images,
)
from dinoskip.data.sets.ade20k import Ade20kConfig
from dinoskip.data.sets.check import CheckRow, check
from dinoskip.data.sets.cityscapes import CityscapesConfig
from dinoskip.data.sets.coco import CocoConfig
from dinoskip.data.sets.coco20k import Coco20kConfig
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.coco_panoptic import CocoPanopticConfig
from dinoskip.data.sets.coco_stuff import CocoStuffConfig
from dinoskip.data.sets.folder import FolderConfig
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.data.sets.masks import MasksConfig
from dinoskip.data.sets.pascal_context import PascalContextConfig
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.data.sets.voc import VocConfig, voc_detection, voc_segmentation
from dinoskip.data.shards import Source, TarShards, open_source

__all__ = [
    "Ade20kConfig",
    "CheckRow",
    "CityscapesConfig",
    "Coco20kConfig",
    "CocoConfig",
    "CocoJsonConfig",
    "CocoPanopticConfig",
    "CocoStuffConfig",
    "DatasetConfig",
    "DetectionDataset",
    "FolderConfig",
    "ImageFolder",
    "ImagesConfig",
    "LabelledFolder",
    "MasksConfig",
    "PascalContextConfig",
    "ScenesConfig",
    "SegmentationDataset",
    "Source",
    "TarShards",
    "VocConfig",
    "check",
    "dominant_labels",
    "list_images",
    "open_images",
    "open_labels",
    "open_source",
    "open_training_images",
    "voc_detection",
    "voc_segmentation",
]
