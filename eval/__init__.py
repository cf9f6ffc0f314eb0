"""Evaluation of frozen features: linear probes, k-NN, TokenCut. Write ``from eval.probe import ...``."""
