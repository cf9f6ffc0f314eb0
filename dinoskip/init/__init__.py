"""Initialisations, and a report of what they did."""

from dinoskip.init.build import InitConfig, ModelConfig, build_model
from dinoskip.init.calibrated import calibrated_
from dinoskip.init.conditioned import conditioned_
from dinoskip.init.default import trunc_normal_
from dinoskip.init.mimetic import mimetic_
from dinoskip.init.orthogonal import scaled_uniform_orthogonal_
from dinoskip.init.reparametrise import reparametrise_
from dinoskip.init.report import BlockReport, report
from dinoskip.init.residual_free import residual_free_
from dinoskip.init.skipless import skipless_
from dinoskip.init.weight_selection import weight_selection_
from dinoskip.models.temperature import temperatures

__all__ = [
    "BlockReport",
    "InitConfig",
    "ModelConfig",
    "build_model",
    "calibrated_",
    "conditioned_",
    "mimetic_",
    "reparametrise_",
    "report",
    "residual_free_",
    "scaled_uniform_orthogonal_",
    "skipless_",
    "temperatures",
    "trunc_normal_",
    "weight_selection_",
]
