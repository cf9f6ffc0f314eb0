from .block_report import BlockReport, report
from .build import build_model, reparametrise_
from .calibrated import calibrated_
from .conditioned import conditioned_
from .config import InitConfig, ModelConfig
from .default import trunc_normal_
from .mimetic import mimetic_
from .orthogonal import scaled_uniform_orthogonal_
from .residual_free import residual_free_, temperatures
from .skipless import skipless_
from .weight_selection import weight_selection_

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
