"""GPT-2 and BERT with three initialisations, small: ``python docs/examples/language_models.py``, with transformers.

The question of tables 5 and 7 to 11 of *Conditioned Initialization for Attention*: does a language model learn better
from conditioned than from default or mimetic attention? Here: four blocks of 64 channels on 420 kB of text, byte by
byte, a few hundred steps, three seeds of weights and batches, which all initialisations share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from small import Batch, bits, masked, table, text_bytes, train, windows
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from dinoskip.init import conditioned_, mimetic_

LENGTH, IMAGES = 32, 16  # bytes a sequence, sequences a step
STARTS: dict[str, Callable[[nn.Module, int], object]] = {
    "default": lambda model, seed: model,
    "mimetic": lambda model, seed: mimetic_(model, seed=seed),
    "conditioned": lambda model, seed: conditioned_(model, seed=seed),
}


def gpt2() -> nn.Module:
    """Four causal blocks."""
    none = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    shape = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 4, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**shape, **none, bos_token_id=0, eos_token_id=0))


def bert() -> nn.Module:
    """Four blocks that see both sides; one more token, the mask."""
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "max_position_embeddings": LENGTH}
    shape = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    return BertForMaskedLM(BertConfig(**shape, **none, intermediate_size=256))


MODELS = {"GPT-2": (gpt2, 2e-3), "BERT": (bert, 1e-3)}
"""Networks and their rate of AdamW, not tuned: GPT-2's was the only one tried, BERT's the better of two."""


def batch_of(text: torch.Tensor, count: int, model: str, generator: torch.Generator) -> Batch:
    """Sequences with what is to be told of them."""
    taken = windows(text, count, LENGTH, generator)
    return {"input_ids": taken, "labels": taken} if model == "GPT-2" else masked(taken, generator)


def measured(model: str, start: str, seed: int, steps: int) -> float:
    """Bits a byte on the held-out text after training."""
    fitted, held = text_bytes()
    torch.manual_seed(seed)
    make, rate = MODELS[model]
    network = make()
    STARTS[start](network, seed)
    stream, scored = torch.Generator().manual_seed(100 + seed), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    train(network, optimizer, steps, lambda _: batch_of(fitted, IMAGES, model, stream))
    return bits(network, [batch_of(held, 128, model, scored) for _ in range(4)])


def main(steps: int = 300, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Print a line of each start."""
    for model in MODELS:
        rows = {name: {"bits": [measured(model, name, seed, steps) for seed in seeds]} for name in STARTS}
        print(f"{model}, {steps} steps, bits a byte on held-out text (lower is better)")
        print(table(rows, against="default"), flush=True)


if __name__ == "__main__":
    main()
