"""Initialisations, and a report of what they did."""

from dinoskip.init.build import InitConfig, ModelConfig, build_model
from dinoskip.init.default import trunc_normal_
from dinoskip.init.mimetic import mimetic_
from dinoskip.init.orthogonal import scaled_uniform_orthogonal_
from dinoskip.init.report import BlockReport, report
from dinoskip.init.skipless import skipless_

__all__ = [
    "BlockReport",
    "InitConfig",
    "ModelConfig",
    "build_model",
    "mimetic_",
    "report",
    "scaled_uniform_orthogonal_",
    "skipless_",
    "trunc_normal_",
]
