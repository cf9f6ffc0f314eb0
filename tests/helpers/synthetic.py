"""What holds of every kind that is made from bundled photographs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.data.sets import KINDS, synthetic_kinds
from dinoskip.data.sets.check import check
from dinoskip.data.sets.kind import Synthetic
from dinoskip.errors import OutputInUse
from tests.helpers.folders import contents


def kinds_of(package: str) -> set[str]:
    """The synthetic kinds that a package has."""
    return {kind for kind in synthetic_kinds() if KINDS[kind].__module__.startswith(f"{package}.")}


def same_settings_same_bytes_and_a_finished_folder_is_kept(config: Synthetic, tmp_path: Path) -> None:
    folder = config.generate(tmp_path / "first")
    before = contents(folder)
    assert contents(config.generate(tmp_path / "second")) == before
    assert contents(config.model_copy(update={"seed": 4}).generate(tmp_path / "third")) != before
    assert all(row.ok for row in check(config, folder, sample=None))  # type: ignore[arg-type]
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert config.model_copy(update={"limit": 2}).generate(tmp_path / "first") == folder, "is no part of what is made"
    with pytest.raises(OutputInUse, match="holds other data"):
        config.model_copy(update={"seed": 4}).generate(tmp_path / "first")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times


def interrupted_it_leaves_nothing_and_foreign_data_stay(
    config: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    name = config.generate(tmp_path).name
    (tmp_path / "foreign" / name).mkdir(parents=True)
    (tmp_path / "foreign" / name / "precious.txt").write_text("x")
    with pytest.raises(OutputInUse):
        config.generate(tmp_path / "foreign")
    assert (tmp_path / "foreign" / name / "precious.txt").read_text() == "x"
    monkeypatch.setattr("dinoskip.data.sets.scenes.write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        config.generate(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
