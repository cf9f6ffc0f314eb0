from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.augmentation_traffic import compiled_traffic
from dinoskip.data.augment import augment, view_parameters
from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.fused_augment import FusedAugment, fused_augment, fused_parameters
from dinoskip.data.multicrop import MultiCropTransform
from tests.helpers.crops import crops, vectors


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((8, 31, 64)))
def test_what_a_compiler_fuses_is_the_same(seed: int, size: int) -> None:
    config = AugmentConfig(blur=(0.5, 0.5, 0.5), solarise=(0.5, 0.5, 0.5))
    host = view_parameters(config, 2, seed, 0, np.arange(6))[:, 1]
    batch = crops(6, size)
    fused = fused_augment(batch, torch.from_numpy(fused_parameters(host)))
    torch.testing.assert_close(fused, augment(batch, torch.from_numpy(host)), atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_compiler_fuses_it_into_few_kernels_that_move_few_bytes() -> None:
    """Operation by operation, 128 images of 10 crops took 727 launches and 29.4 GB; 60 and a quarter are allowed."""
    launches, moved = compiled_traffic(128)
    assert launches <= 30
    assert moved < 0.25 * 29.4e9


@pytest.mark.parametrize("kind", [torch._dynamo.exc.TorchDynamoException, RuntimeError])
def test_compiling_that_fails_is_a_warning(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(*_: object) -> torch.Tensor:
        raise kind("no Triton here\nmore")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: no_compiler)
    way = MultiCropTransform(CropConfig(), AugmentConfig(), 0)
    there = torch.empty(2, 3, 16, 16, dtype=torch.uint8, device="meta")
    with caplog.at_level("WARNING", logger="dinoskip"):
        for _ in range(2):
            assert way.augmented(there, vectors(2, FLIP=1)).shape == (2, 3, 16, 16)
    assert [record.getMessage() for record in caplog.records] == [
        "the augmentation is not compiled and slower: no Triton here"
    ]


def test_memory_that_runs_out_is_no_failure_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("48 GiB")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: full)
    way = FusedAugment()
    with pytest.raises(torch.OutOfMemoryError):
        way(torch.empty(2, 3, 16, 16, dtype=torch.uint8, device="meta"), vectors(2, FLIP=1))
    assert way.works


def test_under_a_dispatch_mode_for_which_torch_does_not_compile_it_runs() -> None:
    """torch 2.15 refuses, older ones run it uncompiled."""

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    batch, parameters, way = crops(2, 16), vectors(2, FLIP=1), FusedAugment()
    with Passing():
        ours = way(batch, parameters)
    torch.testing.assert_close(ours, augment(batch, parameters), atol=2e-5, rtol=0)


@pytest.mark.gpu
def test_compiled_on_a_gpu_gives_the_same_and_never_waits() -> None:
    batch = crops(6, 64)
    parameters = torch.from_numpy(view_parameters(AugmentConfig(), 2, 0, 0, np.arange(6))[:, 0])
    way = MultiCropTransform(CropConfig(), AugmentConfig(), 0)
    there = batch.cuda()
    way.augmented(there, parameters)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = way.augmented(there, parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert way.fused is not None
    assert way.fused.works
    torch.testing.assert_close(ours.cpu(), augment(batch, parameters), atol=2e-3, rtol=0)
