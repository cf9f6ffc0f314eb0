from .export_plan import ExportSettings
from .extract import export
from .opening import open
from .store import FeatureSet, FeatureStore, as_float
from .transform import Transform
from .windows import FeatureWindows

__all__ = ["ExportSettings", "FeatureSet", "FeatureStore", "FeatureWindows", "Transform", "as_float", "export", "open"]
