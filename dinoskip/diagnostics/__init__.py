"""Diagnostics: what signals, gradients and weights look like."""

from dinoskip.diagnostics.attention import AttentionMeasures, attention_measures
from dinoskip.diagnostics.conditioning import drift, query_key_spectrum, query_key_trace, vo_condition
from dinoskip.diagnostics.examine import BlockRow, ExamineConfig, cka_between, examine
from dinoskip.diagnostics.gaussianity import Moments, excess_kurtosis, negentropy, negentropy_proxy
from dinoskip.diagnostics.gradients import gradient_norms
from dinoskip.diagnostics.jacobian import dominant_kappa, input_jacobian, weight_jacobian
from dinoskip.diagnostics.quantization import distortions, fake_quantise, normalised_mse, quantised, sqnr
from dinoskip.diagnostics.signal import SignalRow, bundled_photos, signal_table
from dinoskip.diagnostics.similarity import StreamingCKA, linear_cka
from dinoskip.diagnostics.tokens import norm_outliers, rankme, stable_rank
from dinoskip.diagnostics.trace import BlockTrace, trace
from dinoskip.measures import Conditioning, condition_number, effective_rank, token_cosine

__all__ = [
    "AttentionMeasures",
    "BlockRow",
    "BlockTrace",
    "Conditioning",
    "ExamineConfig",
    "Moments",
    "SignalRow",
    "StreamingCKA",
    "attention_measures",
    "bundled_photos",
    "cka_between",
    "condition_number",
    "distortions",
    "dominant_kappa",
    "drift",
    "effective_rank",
    "examine",
    "excess_kurtosis",
    "fake_quantise",
    "gradient_norms",
    "input_jacobian",
    "linear_cka",
    "negentropy",
    "negentropy_proxy",
    "norm_outliers",
    "normalised_mse",
    "quantised",
    "query_key_spectrum",
    "query_key_trace",
    "rankme",
    "signal_table",
    "sqnr",
    "stable_rank",
    "token_cosine",
    "trace",
    "vo_condition",
    "weight_jacobian",
]
