"""A study killed at random moments, restarted each time, ends with the bytes of an undisturbed one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dinoskip.io.files import MANIFEST, read_manifest, verify_manifest
from dinoskip.runtime.randomness import numpy_rng
from tests.helpers.study import TINY

ROOT = Path(__file__).parents[2]
KILLS = 10


def start(config: Path, output: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dinoskip", "run", str(config), f"output={output}", "-q"]
    command += ["pretrain.checkpoint_every_steps=1", "pretrain.epochs=3"]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def hashes(output: Path) -> dict[str, str]:
    manifests = [read_manifest(path.parent) for path in output.rglob(MANIFEST)]
    return {manifest.info["node"]: manifest.hash for manifest in manifests if "node" in manifest.info}


@pytest.mark.slow
@pytest.mark.timeout(7200)  # nine undisturbed runs, on a machine that others use
def test_random_kills(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    began = time.monotonic()
    assert start(config, tmp_path / "straight").wait(timeout=1200) == 0
    whole = time.monotonic() - began
    rng = numpy_rng(0, "kills")
    for _ in range(KILLS):
        process = start(config, tmp_path / "killed")
        time.sleep(float(rng.uniform(0.3, 0.9)) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        for manifest in (tmp_path / "killed").rglob(MANIFEST):
            if not any(part.startswith((".partial-", ".tmp-")) for part in manifest.parts):
                assert verify_manifest(manifest.parent) == []
    assert start(config, tmp_path / "killed").wait(timeout=300 + 4 * whole) == 0
    assert hashes(tmp_path / "straight") == hashes(tmp_path / "killed"), "trained networks included"
    left = [path for path in (tmp_path / "killed").rglob("*") if path.name.startswith((".tmp-", ".partial-"))]
    assert not [path for path in left if path.is_dir()]
