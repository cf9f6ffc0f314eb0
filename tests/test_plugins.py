"""Plug-ins: files and their content in keys, tables of parts, what is refused and what is left out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dinoskip import plugins
from dinoskip.data.sets import KINDS
from dinoskip.data.sets.labels import LABELS, Label
from dinoskip.errors import ConfigError
from dinoskip.init.config import ModelConfig
from dinoskip.plugins import FILES, Table, found, use_files
from dinoskip.settings.config import RawConfig, models_of, validate
from dinoskip.settings.keys import settings_for_key
from dinoskip.settings.tasks import TASKS
from dinoskip.training.recipe import Job

LION = """
from typing import Literal
from dinoskip.optim.schedules import Scheduled

class TameConfig(Scheduled):
    name: Literal["tame"] = "tame"
    mane: int = 3

    def build(self, groups):
        raise NotImplementedError

PARTS = {"optimizers": {"tame": TameConfig}}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a plug-in's file of a name and source, for this test alone."""
    monkeypatch.setenv(FILES, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def write(name: str, source: str) -> Path:
        (tmp_path / name).write_text(source)
        return tmp_path / name

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]
    found.cache_clear()
    plugins._part.cache_clear()
    plugins._sha256.cache_clear()


def test_a_files_optimizer_is_read_dumped_and_its_content_is_in_the_key(plugin) -> None:
    path = plugin("tamer.py", LION)
    use_files([path])
    job = validate(Job, RawConfig({"seed": 0, "model": {}, "optimizer": {"name": "tame", "mane": 4}}))
    assert type(job.optimizer).__name__ == "TameConfig"
    assert job.optimizer.mane == 4  # type: ignore[union-attr]
    dumped = job.model_dump(mode="json")["optimizer"]
    assert (dumped["name"], dumped["mane"], dumped["lr"]) == ("tame", 4, 5e-4)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    assert settings_for_key(job)["optimizer"]["plugin"] == content
    assert "plugin" not in settings_for_key(job.model)
    assert "TameConfig" in {kind.__name__ for kind in models_of(Job.model_fields["optimizer"])}


def test_what_is_wrong_below_a_plugins_key_is_said_at_its_place(plugin) -> None:
    use_files([plugin("tamer.py", LION)])
    tree = {"seed": 0, "model": {}, "optimizer": {"name": "tame", "mane": "x", "wrong": 1}}
    with pytest.raises(ConfigError) as refused:
        validate(Job, RawConfig(tree))
    assert {line.split(": ")[1] for line in refused.value.problems} == {"optimizer.mane", "optimizer.wrong"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("empty.py", ""),
        ("list.py", "PARTS = ['tasks']"),
        ("group.py", "PARTS = {'networks': {'a': 1}}"),
        ("raises.py", "1 / 0"),
        ("syntax.py", "def"),
        ("not-a-name.py", "PARTS = {'tasks': {'a': 1}}"),
        ("json.py", "PARTS = {'tasks': {'a': 1}}"),  # another module has this name
    ],
)
def test_a_file_that_is_no_plugin_is_refused_by_its_name(name: str, source: str, plugin) -> None:
    with pytest.raises(ConfigError, match=name):
        use_files([plugin(name, source)])


def test_a_file_that_is_not_there_is_refused(plugin) -> None:
    with pytest.raises(ConfigError, match=r"gone\.py"):
        use_files(["gone.py"])


def test_two_parts_of_one_name_are_refused_whoever_has_the_other(plugin) -> None:
    use_files([plugin("tamer.py", LION), plugin("tamer_too.py", LION)])
    with pytest.raises(ConfigError) as refused:
        found()
    assert "tamer.py" in str(refused.value)
    assert "tamer_too.py" in str(refused.value)


def test_a_part_of_our_name_is_refused(plugin) -> None:
    use_files([plugin("masks.py", "PARTS = {'labels': {'segmentation': 1}}")])
    with pytest.raises(ConfigError, match=r"masks\.py"):
        _ = LABELS["segmentation"]


def test_a_part_of_another_kind_is_left_out_with_one_warning(plugin, caplog: pytest.LogCaptureFixture) -> None:
    use_files([plugin("odd.py", "PARTS = {'labels': {'odd': 3}, 'data_kinds': {'odder': int}}")])
    with caplog.at_level("WARNING"):
        assert "odd" not in LABELS
        assert "odder" not in KINDS
        assert "odd" not in list(LABELS)
    assert len(caplog.records) == 2
    assert all("odd.py" in record.getMessage() for record in caplog.records)


def test_a_table_has_ours_first_and_imports_only_what_is_asked_for() -> None:
    table: Table[Label[Any]] = Table("labels", {"ours": LABELS["classes"]}, Label)
    assert next(iter(table)) == "ours"
    assert table["ours"] is LABELS["classes"]
    assert "theirs" not in table


def test_our_own_settings_have_no_plugin_in_their_key() -> None:
    assert "plugin" not in settings_for_key(ModelConfig())
    assert plugins.content_of(ModelConfig) is None
    assert plugins.content_of_part("tasks", "probe") is None


def test_a_headline_of_which_lower_is_better_is_refused_when_the_record_is_made() -> None:
    record = TASKS["knn"]
    with pytest.raises(ValueError, match="headline"):
        replace(record, headline=replace(record.headline, lower_is_better=True))
