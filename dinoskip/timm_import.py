"""Our models in timm's registry, whichever of the two packages is imported first.

timm takes seconds to import, so `import dinoskip` leaves it alone: our models are registered when somebody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def register_with_timm() -> None:
    """Register our models now if timm is loaded, else as soon as it is."""
    if "timm" in sys.modules:
        import_module("dinoskip.models.timm_registry")
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm(MetaPathFinder):
    """Finds timm alone, as the others would, and imports the registry once timm is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "timm":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("timm")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if "dinoskip.models" not in sys.modules:  # else it registers them itself at its end
                    import_module("dinoskip.models.timm_registry")

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
