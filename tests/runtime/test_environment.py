"""The machine: its name, matmul rate and GPU."""

import itertools
import subprocess
from pathlib import Path

import pytest
import torch

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.distributed import choose_device
from dinoskip.runtime.environment import _commit, gpu_problem, machine, matmul_gflops, visible_gpu


def test_the_rate_is_operations_by_seconds() -> None:
    before = torch.get_num_threads()
    try:
        for threads, side in ((1, 384), (2, 384), (4, 768)):
            torch.set_num_threads(threads)
            ticks = itertools.count().__next__  # every product takes one second
            assert matmul_gflops(torch.device("cpu"), torch.float32, ticks) == 2 * side**3 / 1e9
    finally:
        torch.set_num_threads(before)


def test_the_best_product_counts_but_for_the_first() -> None:
    took = itertools.chain([4, 2, 8], itertools.repeat(4))
    ticks = itertools.chain([0], itertools.chain.from_iterable((0, one) for one in took))  # the first is read once
    side = 384 * int(torch.get_num_threads() ** 0.5)
    assert matmul_gflops(torch.device("cpu"), torch.float32, ticks.__next__) == 2 * side**3 / 1e9 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_rate_is_plausible_and_draws_no_random_numbers(dtype: torch.dtype) -> None:
    state = torch.get_rng_state()
    assert 0.1 < matmul_gflops(torch.device("cpu"), dtype) < 1e6
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
def test_bfloat16_is_faster_than_float32_on_a_gpu() -> None:
    device = torch.device("cuda")
    assert matmul_gflops(device, torch.bfloat16) > 1.5 * matmul_gflops(device, torch.float32)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of a GPU, and no device file."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "value", "seen"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1", True),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937", True),
        ("CUDA_VISIBLE_DEVICES", "", False),
        ("CUDA_VISIBLE_DEVICES", "-1", False),
        ("SLURM_STEP_GPUS", "2", True),
        ("SLURM_JOB_GPUS", "0,1", True),
        ("SLURM_GPUS_ON_NODE", "8", True),
        ("SLURM_GPUS_ON_NODE", "0", False),
    ],
)
def test_gpus_that_the_system_shows(no_gpu: pytest.MonkeyPatch, variable: str, value: str, seen: bool) -> None:
    assert visible_gpu() is None
    no_gpu.setenv(variable, value)
    assert visible_gpu() == (f"{variable}={value}" if seen else None)


def test_a_gpu_that_torch_cannot_use_stops_what_would_run_on_the_cpu(no_gpu: pytest.MonkeyPatch) -> None:
    no_gpu.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    no_gpu.setenv("SLURM_JOB_GPUS", "0")
    for asked in ("auto", "cuda"):
        with pytest.raises(ConfigError, match=r"visible \(SLURM_JOB_GPUS=0\), but torch cannot use it") as caught:
            choose_device(asked)
        assert "--device cpu" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert choose_device("cpu").type == "cpu"
    no_gpu.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_device("auto").type == "cpu", "GPUs that are hidden are not meant"


def test_the_driver_that_a_build_needs_is_named(no_gpu: pytest.MonkeyPatch) -> None:
    no_gpu.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "needs a driver of series 580 or later" in str(gpu_problem("13.0", False))
    assert "needs a driver of series 525 or later" in str(gpu_problem("12.6", False))
    assert "built for the CPU alone" in str(gpu_problem(None, False))
    assert gpu_problem("13.0", True) is None


def test_doctor_says_so_and_fails(no_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    no_gpu.setattr("torch.cuda.is_available", lambda: False)
    assert main(["doctor"]) == 0
    no_gpu.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["doctor"]) == 2
    captured = capsys.readouterr()
    assert "error: a GPU is visible (CUDA_VISIBLE_DEVICES=0), but torch cannot use it" in captured.err
    assert "torchvision" in captured.out


def test_a_machine_is_its_processor_threads_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine().endswith(f", threads: {available_cores()}, GPU")
    assert machine("cpu") == machine().removesuffix(", GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert machine().endswith(", threads: 3")


def test_a_slow_git_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(subprocess, "run", slow)
    assert _commit() == ""
