"""Frozen features of every block, exported once and read as memory maps."""

from dinoskip.features.extract import export
from dinoskip.features.store import FeatureStore, as_float
from dinoskip.features.transform import Transform

__all__ = ["FeatureStore", "Transform", "as_float", "export"]
