"""Initialisations, and a report of what they did."""

from dinoskip.init.build import InitConfig, ModelConfig, build_model
from dinoskip.init.conditioned import conditioned_
from dinoskip.init.default import trunc_normal_
from dinoskip.init.mimetic import mimetic_
from dinoskip.init.orthogonal import scaled_uniform_orthogonal_
from dinoskip.init.report import BlockReport, report
from dinoskip.init.residual_free import residual_free_, temperatures
from dinoskip.init.skipless import skipless_
from dinoskip.init.weight_selection import weight_selection_

__all__ = [
    "BlockReport",
    "InitConfig",
    "ModelConfig",
    "build_model",
    "conditioned_",
    "mimetic_",
    "report",
    "residual_free_",
    "scaled_uniform_orthogonal_",
    "skipless_",
    "temperatures",
    "trunc_normal_",
    "weight_selection_",
]
