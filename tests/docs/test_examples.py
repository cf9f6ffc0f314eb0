"""The examples of docs/examples run, with fewer steps, and what they share is right."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats
import torch

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = ("language_models", "residual_free", "listops")

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'dinoskip[hub]'")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that the examples share; theirs are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import small

    yield small
    for name in (*NAMES, "small"):
        sys.modules.pop(name, None)


def test_masked_bytes_alone_are_told(small: ModuleType) -> None:
    fitted, held = small.text_bytes()
    assert len(fitted) > 300_000
    assert 8 < len(fitted) / len(held) < 10
    generator = torch.Generator().manual_seed(0)
    taken = small.windows(fitted, 40, 32, generator)
    batch = small.masked(taken, generator)
    hidden = batch["input_ids"] == small.MASK
    assert 0.1 < hidden.float().mean() < 0.2
    assert (batch["labels"][hidden] == taken[hidden]).all()
    assert (batch["labels"][~hidden] == -100).all()


def test_intervals_are_those_of_t(small: ModuleType) -> None:
    values = [1.0, 2.0, 4.0]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert small.interval(values) == f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"
    rows = {"a": {"bits": [1.0, 2.0]}, "b": {"bits": [2.0, 3.0]}}
    assert "minus a 1.000 [1.000, 1.000]" in small.table(rows, against="a")


def test_blocks_without_skips_and_rounded_networks(small: ModuleType) -> None:
    import language_models

    torch.manual_seed(0)
    model = language_models.gpt2().eval()
    batch = language_models.batch_of(small.text_bytes()[1], 4, "GPT-2", torch.Generator().manual_seed(0))
    with_skips = model(**batch).loss.item()
    close = small.bits(small.quantised(model, 16, 16, [batch]), [batch])
    assert close == pytest.approx(with_skips / np.log(2), abs=1e-3)
    assert small.bits(small.quantised(model, 2, 2, [batch]), [batch]) != pytest.approx(close, abs=1e-3)
    assert small.bits(model, [batch]) == pytest.approx(with_skips / np.log(2), abs=1e-5), "a copy is rounded"
    skipless = small.without_skips(model)
    block = skipless.transformer.h[0]
    for part in (block.attn.c_proj, block.mlp.c_proj):
        torch.nn.init.zeros_(part.weight)
        torch.nn.init.zeros_(part.bias)
    assert (block(torch.rand(1, 3, 64)) == 0).all()


def test_expressions_have_their_value_and_landmarks_attend_to_no_padding(small: ModuleType) -> None:
    import listops

    batch = listops.batch_of(200, random.Random(0))
    assert batch["input_ids"].shape == (200, listops.LENGTH)
    for tokens, value in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        words = [listops.SYMBOLS[token] for token in tokens if token != listops.PAD]
        assert words[0] == "CLS"
        assert 32 <= len(words) - 1 < listops.LENGTH
        assert evaluated(words[1:]) == value
    torch.manual_seed(0)
    model = listops.nystromformer().eval()
    padded = batch["input_ids"] == listops.PAD
    assert padded.any()
    attention = model.nystromformer.encoder.layer[0].attention.self
    seen: list[torch.Tensor] = []
    softmax = torch.nn.functional.softmax
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "softmax", lambda x, dim: seen.append(softmax(x, dim)) or seen[-1])
        attention(model.nystromformer.embeddings(batch["input_ids"]), batch["attention_mask"])
    landmarks_to_symbols = seen[-1]
    assert landmarks_to_symbols.shape == (200, 2, listops.LANDMARKS, listops.LENGTH)
    assert not landmarks_to_symbols.masked_select(padded[:, None, None]).any()


def evaluated(words: list[str]) -> int:
    """Value of an expression, by a stack."""
    rules = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(np.median(x)), "[SM": lambda x: sum(x) % 10}
    stack: list[list[str | int]] = [[]]
    for word in words:
        if word == "]":
            name, *values = stack.pop()
            stack[-1].append(rules[str(name)](values))
        elif word in rules:
            stack.append([word])
        else:
            stack[-1].append(int(word))
    [[value]] = stack
    return int(value)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, small: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example = __import__(name)
    example.main(steps=4, seeds=(0, 1))
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.search(r"\d+\.\d{3} \[-?\d", line)]
    assert len(rows) == {"language_models": 6, "residual_free": 4, "listops": 3}[name]
    assert not any("nan" in line for line in rows)
    page = (EXAMPLES.parent / "examples.md").read_text()
    said = [line for line in page.splitlines() if re.search(r"\d+\.\d{3} \[-?\d", line)]
    assert {row[:28].strip() for row in rows} <= {line[:28].strip() for line in said}, "the page has every line"
