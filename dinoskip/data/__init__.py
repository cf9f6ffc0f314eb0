"""Images in, batches and labelled sets out."""

from __future__ import annotations

from dinoskip.data.augment import AugmentConfig
from dinoskip.data.batches import Batch, BatchLoader, Maker
from dinoskip.data.check import CheckRow, check
from dinoskip.data.datasets import (
    Ade20kConfig,
    Coco20kConfig,
    CocoJsonConfig,
    CocoStuffConfig,
    DatasetConfig,
    FolderConfig,
    ImagesConfig,
    MasksConfig,
    VocConfig,
    dataset_name,
    open_detection,
    open_images,
    open_labelled,
    open_segmentation,
    open_training_images,
)
from dinoskip.data.detection import DetectionDataset, dominant_labels, voc_detection
from dinoskip.data.folders import ImageFolder, LabelledFolder, list_images
from dinoskip.data.loader import DataPath, TrainLoader
from dinoskip.data.multicrop import CropConfig
from dinoskip.data.scenes import ScenesConfig, compose
from dinoskip.data.segmentation import SegmentationDataset, voc_segmentation
from dinoskip.data.sources import Source, TarShards, open_source

__all__ = [
    "Ade20kConfig",
    "AugmentConfig",
    "Batch",
    "BatchLoader",
    "CheckRow",
    "Coco20kConfig",
    "CocoJsonConfig",
    "CocoStuffConfig",
    "CropConfig",
    "DataPath",
    "DatasetConfig",
    "DetectionDataset",
    "FolderConfig",
    "ImageFolder",
    "ImagesConfig",
    "LabelledFolder",
    "Maker",
    "MasksConfig",
    "ScenesConfig",
    "SegmentationDataset",
    "Source",
    "TarShards",
    "TrainLoader",
    "VocConfig",
    "check",
    "compose",
    "dataset_name",
    "dominant_labels",
    "list_images",
    "open_detection",
    "open_images",
    "open_labelled",
    "open_segmentation",
    "open_source",
    "open_training_images",
    "voc_detection",
    "voc_segmentation",
]
