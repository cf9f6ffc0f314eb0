"""Frozen features of every block, exported once and read as memory maps."""

from dinoskip.features.extract import export
from dinoskip.features.store import FeatureSet, FeatureStore, as_float
from dinoskip.features.transform import Transform
from dinoskip.features.windows import FeatureWindows

__all__ = ["FeatureSet", "FeatureStore", "FeatureWindows", "Transform", "as_float", "export"]
