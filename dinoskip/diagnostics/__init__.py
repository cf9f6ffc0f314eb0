"""Diagnostics: what signals, gradients and weights look like."""

from dinoskip.diagnostics.conditioning import vo_condition
from dinoskip.diagnostics.signal import SignalRow, bundled_photos, signal_table
from dinoskip.measures import Conditioning, condition_number, effective_rank, token_cosine

__all__ = [
    "Conditioning",
    "SignalRow",
    "bundled_photos",
    "condition_number",
    "effective_rank",
    "signal_table",
    "token_cosine",
    "vo_condition",
]
