"""dinoskip: train DINO ViTs with and without skip connections, and measure every layer."""

import sys

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, _names = lazy_loader.attach(  # torch only when one of them is used
    __name__, submod_attrs={"models.load": ["load_backbone"], "pipeline.evaluate": ["evaluate"]}
)
__all__ = ["__version__", "evaluate", "load_backbone"]

if "timm" in sys.modules:  # it costs seconds and is not loaded for this; else the import of dinoskip.models does it
    from dinoskip.models import timm_registry as _registered  # registers our models with timm  # noqa: F401
