"""dinoskip: train DINO ViTs with and without skip connections, and measure every layer."""

import lazy_loader

from dinoskip.runtime.arithmetic import ask_for_equal_bits as _ask_for_equal_bits

__version__ = "0.3.0"

__getattr__, __dir__, _names = lazy_loader.attach(  # torch only when one of them is used
    __name__, submod_attrs={"models.load": ["load_backbone"], "pipeline.look.evaluate": ["evaluate"]}
)
__all__ = ["__version__", "evaluate", "load_backbone"]

_ask_for_equal_bits()
