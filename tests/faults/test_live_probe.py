"""A live probe that is stopped leaves nothing that looks finished, and runs from its beginning next time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import MANIFEST

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_stopped_by_sigterm(tmp_path: Path) -> None:
    assert main(["data", "scenes", str(tmp_path / "voc"), "images=8", "size=64", "val_fraction=0.5", "-q"]) == 0
    out = tmp_path / "out"
    command = ["eval", "probe", "timm:vit_tiny_patch16_224,pretrained=false,depth=1", "--protocol", "dinov2"]
    command += ["--data", str(tmp_path / "voc"), "--out", str(out), "--device", "cpu"]
    command += ["evaluate.probe.size=32", "evaluate.probe.stride=32"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dinoskip", *command], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        seen = ""
        while "probes " not in seen:
            seen = process.stderr.readline()
            assert seen, "it ended before it began"
        time.sleep(2)  # somewhere in the 40,000 iterations
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 75
    assert "stopped by a signal" in said
    assert "Traceback" not in said
    assert not list((out / "stages" / "probe").rglob(MANIFEST))
    assert not list((out / "stages" / "probe").rglob("rows.json"))
    assert main([*command, "evaluate.probe.iterations=2", "-q"]) == 0
    assert list((out / "stages" / "probe").rglob("rows.json"))
