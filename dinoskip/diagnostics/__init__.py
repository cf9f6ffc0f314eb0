"""Diagnostics: what signals, gradients and weights look like."""

from dinoskip.diagnostics.activations import BlockActivations, block_activations
from dinoskip.diagnostics.attention import AttentionMeasures, attention_measures
from dinoskip.diagnostics.block_analysis import BlockAnalysis, BlockAnalysisConfig, BlockRow, analyze_blocks
from dinoskip.diagnostics.conditioning import drift, query_key_spectrum, query_key_trace, vo_condition
from dinoskip.diagnostics.gaussianity import Moments, excess_kurtosis, negentropy
from dinoskip.diagnostics.gradients import gradient_norms
from dinoskip.diagnostics.jacobian import input_jacobian, weight_jacobian, weight_spectrum
from dinoskip.diagnostics.propagation import PropagationRow, propagation
from dinoskip.diagnostics.quantization import distortions, fake_quantise, normalised_mse, quantised, sqnr
from dinoskip.diagnostics.signal import SignalRow, bundled_photos, dial_table, signal_table
from dinoskip.diagnostics.similarity import StreamingCKA, cka_between, linear_cka
from dinoskip.diagnostics.tokens import norm_outliers, rankme, stable_rank
from dinoskip.models.rank_collapse import Conditioning, condition_number, effective_rank, token_cosine

__all__ = [
    "AttentionMeasures",
    "BlockActivations",
    "BlockAnalysis",
    "BlockAnalysisConfig",
    "BlockRow",
    "Conditioning",
    "Moments",
    "PropagationRow",
    "SignalRow",
    "StreamingCKA",
    "analyze_blocks",
    "attention_measures",
    "block_activations",
    "bundled_photos",
    "cka_between",
    "condition_number",
    "dial_table",
    "distortions",
    "drift",
    "effective_rank",
    "excess_kurtosis",
    "fake_quantise",
    "gradient_norms",
    "input_jacobian",
    "linear_cka",
    "negentropy",
    "norm_outliers",
    "normalised_mse",
    "propagation",
    "quantised",
    "query_key_spectrum",
    "query_key_trace",
    "rankme",
    "signal_table",
    "sqnr",
    "stable_rank",
    "token_cosine",
    "vo_condition",
    "weight_jacobian",
    "weight_spectrum",
]
