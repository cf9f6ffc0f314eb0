"""A machine without network: one line, at once, that says how to give a file, whoever was to be asked for it."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

NEW_NETWORK = 0x40000000  # CLONE_NEWNET: a network of one's own, with nothing in it
PAUSES = 5.0  # seconds slept between tries; the clients' own retries sleep longer

WAYS_OUT = {
    "timm:vit_small_patch16_224.dino": "timm:vit_small_patch16_224.dino,file=FILE (.safetensors or .pth)",
    "timm:hf-hub:timm/vit_tiny_patch16_224": "timm:hf-hub:timm/vit_tiny_patch16_224,file=FILE",
    "hf:facebook/dinov2-small": "hf:./FOLDER with config.json and model.safetensors in it",
    "hub:facebookresearch/dino:dino_vits16": "hub:./CLONE:dino_vits16,file=FILE.pth",
    "dino:dino_vits16.pth": "dino_vits16.pth: no such file",
}


def cut_off(folder: str, specs: list[str], stderr: str, answers: str) -> None:
    """Ask for each backbone from the command line in a process without network; write exit codes and seconds."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        os._exit(77)
    from huggingface_hub import constants

    from dinoskip.cli import main

    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ["TORCH_HOME"], constants.HF_HUB_CACHE = folder, folder
    os.chdir(folder)
    sys.stderr = open(stderr, "w", buffering=1)  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), 2)
    found, slept = [], [0.0]
    time.sleep = slept.append  # type: ignore[assignment]
    for spec in specs:
        before = sum(slept)
        found.append((main(["models", "show", spec]), sum(slept) - before))
    Path(answers).write_text(json.dumps(found))


def test_without_network(tmp_path: Path) -> None:
    specs = list(WAYS_OUT)
    if find_spec("transformers") is None:
        specs.remove("hf:facebook/dinov2-small")
    (tmp_path / "empty").mkdir()
    stderr, answers = tmp_path / "stderr", tmp_path / "answers.json"
    child = multiprocessing.get_context("forkserver").Process(
        target=cut_off, args=(str(tmp_path / "empty"), specs, str(stderr), str(answers))
    )
    child.start()
    try:
        child.join(200)
        if child.exitcode == 77:
            pytest.skip("this user may not cut a process off")
        assert child.exitcode == 0, stderr.read_text()
    finally:
        child.kill()
        child.join(10)
    found, lines = json.loads(answers.read_text()), stderr.read_text().splitlines()
    assert [code for code, _ in found] == [3] * len(specs)
    assert len(lines) == len(specs), "one line each"
    for spec, line, (_, seconds) in zip(specs, lines, found, strict=True):
        assert line.startswith("error: ")
        assert WAYS_OUT[spec] in line
        if not spec.startswith("dino:"):
            assert spec in line
            assert "needs network" in line
        assert seconds < PAUSES, f"{spec}: {line}"
