"""What an earlier attempt left and the system would not delete is in no output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dinoskip.files import read_manifest
from dinoskip.pipeline.artifacts import Artifacts, Record

KEY = "a" * 64


def stubborn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file that cannot be deleted, as one that another machine has open on NFS."""
    unlink = os.unlink

    def refuse(path: object, *args: object, **kwargs: object) -> None:
        if str(path).endswith(name):
            raise OSError(16, "Device or resource busy")
        unlink(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", refuse)


@pytest.mark.parametrize("name", ["head.safetensors", ".nfs0000000000a1"])
@pytest.mark.parametrize("keep", [False, True])
def test_leftovers_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keep: bool) -> None:
    artifacts = Artifacts(tmp_path)
    (artifacts.fresh_partial("probe", KEY, keep=keep) / "inner").mkdir()
    (artifacts.partial("probe", KEY) / "inner" / name).write_text("of another attempt")
    stubborn(monkeypatch, name)
    out = artifacts.fresh_partial("probe", KEY, keep=keep)
    (out / "rows.json").write_text("[]")
    artifacts.publish("probe", KEY, Record("probe", 1, {}, {}, {}), {})
    expected = {"rows.json", f"inner/{name}"} if keep and not name.startswith(".nfs") else {"rows.json"}
    assert set(read_manifest(artifacts.path("probe", KEY)).files) == expected
    assert artifacts.find("probe", KEY)
