"""torch.hub entry points: ``torch.hub.load(DIR, "backbone", spec, source="local")``; skipless models by name."""

from typing import Any

import timm

from dinoskip.models import Backbone, load_backbone, timm_registry

dependencies = ["torch", "timm", "safetensors", "pydantic"]


def backbone(spec: str, **options: Any) -> Backbone:
    """Return a frozen backbone of a spec such as ``run:DIR`` or ``weights:FILE.safetensors`` (docs/backbones.md).

    ``options`` are those of :func:`dinoskip.models.load_backbone`, such as ``device``.
    """
    return load_backbone(spec, **options)


globals().update({name: timm.models.model_entrypoint(name) for name in timm_registry.default_cfgs})
