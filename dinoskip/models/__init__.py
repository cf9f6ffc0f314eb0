"""Models: skip and skipless ViTs, the DINO head, weights files, and one interface over every backbone.

Importing this package registers the skipless models with timm.
"""

from dinoskip.models.backbone import Backbone, LayerFeatures
from dinoskip.models.build import create_model, list_models
from dinoskip.models.export import build_from_weights, load_weights, save_weights
from dinoskip.models.graying import TokenGraying
from dinoskip.models.heads import DINOHead
from dinoskip.models.load import load_backbone
from dinoskip.models.timm_registry import save_timm_folder  # its import registers with timm
from dinoskip.models.vit import Block
from dinoskip.settings.specs import newest_checkpoint
from dinoskip.settings.vit_config import GrayingConfig, TemperatureConfig, VitConfig

__all__ = [
    "Backbone",
    "Block",
    "DINOHead",
    "GrayingConfig",
    "LayerFeatures",
    "TemperatureConfig",
    "TokenGraying",
    "VitConfig",
    "build_from_weights",
    "create_model",
    "list_models",
    "load_backbone",
    "load_weights",
    "newest_checkpoint",
    "save_timm_folder",
    "save_weights",
]
