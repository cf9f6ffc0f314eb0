"""Rounding of the CPU's kernels: MKL's setting in every process, and its independence of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info
from torch.utils.data import DataLoader, Dataset

from dinoskip.io.files import read_json, write_json
from dinoskip.runtime.arithmetic import EQUAL_BITS, VARIABLE, arithmetic, kernels
from dinoskip.runtime.distributed import World
from tests.helpers.ranks import on_ranks

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch computes without MKL")

DECOMPOSED = """
torch.set_num_threads(1)
stack = torch.randn(4, 33, 33, generator=torch.Generator().manual_seed(0))
together, alone = torch.linalg.qr(stack)[0], torch.stack([torch.linalg.qr(matrix)[0] for matrix in stack])
symmetric = stack @ stack.mT
vectors = torch.linalg.eigh(symmetric)[1], torch.stack([torch.linalg.eigh(matrix)[1] for matrix in symmetric])
from dinoskip.runtime.arithmetic import arithmetic
import json
print(json.dumps({**arithmetic(), "equal": torch.equal(together, alone) and torch.equal(*vectors)}))
"""


def result(code: str, **variables: str) -> dict[str, Any]:
    """Return what a fresh process prints, as JSON, with ``MKL_CBWR`` unset unless given."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@needs_mkl
@pytest.mark.parametrize(
    "imports",
    ["import dinoskip, torch", pytest.param("import torch\nfrom eval.knn import evaluate", marks=pytest.mark.slow)],
)
def test_a_matrix_is_decomposed_alike_alone_and_in_a_stack(imports: str) -> None:
    """MKL's kernels for an old Intel processor, as for an AMD's, ask where an array lies."""
    seen = result(imports + DECOMPOSED, MKL_ENABLE_INSTRUCTIONS="SSE4_2")
    assert seen[VARIABLE] == EQUAL_BITS
    assert seen["equal"]


@needs_mkl
def test_what_the_user_chose_stays_and_is_told() -> None:
    seen = result("import dinoskip, torch" + DECOMPOSED, MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41")
    assert (seen[VARIABLE], seen["ONEDNN_MAX_CPU_ISA"]) == ("COMPATIBLE", "SSE41")


def test_what_mkl_did_before_is_told() -> None:
    late = "import torch\ntorch.ones(4, 4) @ torch.ones(4, 4)\nimport dinoskip"
    assert result(late + DECOMPOSED)[VARIABLE] == ("off" if torch.backends.mkl.is_available() else "no MKL")


def written(here: World, folder: str) -> None:
    write_json(Path(folder) / f"{here.rank}.json", arithmetic())


class Told(Dataset[dict[str, str]]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, str]:
        return arithmetic()


def test_ranks_and_data_workers_compute_as_their_parent(tmp_path: Path) -> None:
    here = arithmetic()
    assert here[VARIABLE] != "off" or os.environ[VARIABLE] == ""
    assert here["processor"]
    on_ranks(2, tmp_path, written, str(tmp_path))
    assert [read_json(tmp_path / f"{rank}.json") for rank in range(2)] == [here, here]
    for start in ("fork", "spawn"):
        loader = DataLoader(Told(), batch_size=None, num_workers=1, multiprocessing_context=start)
        assert list(loader) == [here], start


def test_kernels_are_those_of_numpy_and_torch_whatever_else_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import cv2  # noqa: F401  (it brings a BLAS of its own)

    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    of_numpy = {library["architecture"] for library in blas if "numpy" in library["filepath"]}
    named = kernels()
    assert [architecture in named for architecture in of_numpy] in ([], [True])
    assert len(named.split(", ")) <= 2
    assert named.endswith(f", torch {torch.backends.cpu.get_cpu_capability()}")
    monkeypatch.delitem(sys.modules, "torch")
    assert kernels() == named.rpartition(", torch")[0]
    assert "torch" not in sys.modules, "naming kernels must not import what takes seconds"
