"""Every kind of bad configuration gives one line per problem, with the place and the nearest name."""

import os
import time
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from dinoskip.errors import ConfigError
from dinoskip.settings.config import Config, RawConfig, apply_overrides, merge, read_yaml, validate


class Plain(Config):
    name: Literal["plain"] = "plain"


class Scaled(Config):
    name: Literal["scaled"] = "scaled"
    alpha: float = Field(1.8, gt=0)


class Inner(Config):
    depth: int = Field(12, ge=1)
    init: Annotated[Plain | Scaled, Field(discriminator="name")] = Plain()


class Outer(Config):
    title: str
    lr: float = Field(1e-3, gt=0)
    model: Inner = Inner()
    blocks: tuple[int, ...] = ()


def load(path: Path, overrides: tuple[str, ...] = ()) -> Outer:
    return validate(Outer, apply_overrides(read_yaml(path), overrides))


def problems(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert caught.value.exit_code == 2
    assert all("\n" not in line for line in caught.value.problems)
    return [line.replace(str(tmp_path) + "/", "") for line in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("title: a\nlrr: 1\n", "study.yaml:2: lrr: unknown key (did you mean lr?)"),
        ("title: a\nmodel:\n  dept: 3\n", "study.yaml:3: model.dept: unknown key (did you mean depth?)"),
        ("title: a\ndepth: 3\n", "study.yaml:2: depth: unknown key (did you mean model.depth?)"),
        ("title: a\nmodel: {init: {name: scaled, alfa: 2}}\n", "model.init.alfa: unknown key (did you mean alpha?)"),
        ("title: a\nmodel: {init: {name: scald}}\n", "'scald' is none of plain, scaled (did you mean scaled?)"),
        ("title: a\nmodel: {init: {name: plain, alpha: 2}}\n", "study.yaml:2: model.init.alpha: unknown key"),
        ("title: a\nmodel: {depth: 2.5}\n", "study.yaml:2: model.depth: "),
        ("title: a\nmodel: {depth: 0}\n", "model.depth: should be greater than or equal to 1, was given 0"),
        ("title: a\nlr: .nan\n", "study.yaml:2: lr: should be a finite number"),
        ("title: a\nlr: fast\n", "study.yaml:2: lr: should be a valid number"),
        ("lr: 1.0\n", "title: this key is required"),
        ("title: a\ntitle: b\n", "study.yaml:2: title: this key is given twice"),
        ("title: [a\n", "not valid YAML"),
        ("- a\n", "a configuration is a mapping"),
        ("title: a\nblocks: [1, two]\n", "study.yaml:2: blocks.1: should be a valid integer"),
        ("title: !!python/object/apply:os.system ['true']\n", "study.yaml"),
    ],
)
def test_one_line_with_place_and_hint(tmp_path: Path, text: str, expected: str) -> None:
    lines = problems(tmp_path, text)
    assert len(lines) == 1, lines
    assert expected in lines[0]


def test_all_problems_at_once(tmp_path: Path) -> None:
    lines = problems(tmp_path, "lrr: 1\nlr: -1\nmodel: {depth: x}\n")
    assert [line.split(": ")[1] for line in lines] == ["title", "lr", "model.depth", "lrr"]


def test_scientific_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("title: a\nlr: 1e-3\n")
    assert load(path).lr == 1e-3
    assert load(path, ("lr=5e-4",)).lr == 5e-4


@pytest.mark.parametrize("value", ["{split}", "'{split}'", "{split}_labels", " {split}/a b ", "labels/{split}"])
def test_a_path_by_split_needs_no_quotes(value: str) -> None:
    source = apply_overrides(RawConfig({}), [f"title={value}"])
    assert validate(Outer, source).title == value.strip().strip("'")


def test_extends_and_overrides_and_places(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("title: base\nmodel: {depth: 3}\nlr: 0.5\n")
    (tmp_path / "study.yaml").write_text("extends: base.yaml\nmodel:\n  init: {name: scaled}\n")
    source = apply_overrides(read_yaml(tmp_path / "study.yaml"), ["model.init.alpha=2", "blocks=[1, 2]"])
    config = validate(Outer, source)
    assert (config.title, config.model.depth, config.lr, config.blocks) == ("base", 3, 0.5, (1, 2))
    assert isinstance(config.model.init, Scaled)
    assert config.model.init.alpha == 2
    assert source.place("model.depth").endswith("base.yaml:2")
    assert source.place("model.init.name").endswith("study.yaml:3")
    assert source.place("model.init.alpha") == "command line"


def test_what_is_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("report: {note: theirs, title: t}\nplain: 5\n")
    (tmp_path / "middle.yaml").write_text("extends: base.yaml\nreport: {costs: true}\n")
    (tmp_path / "own.yaml").write_text("extends: middle.yaml\nreport: {note: own}\n")
    keys = ("report.note", "plain.note", "absent.note")
    assert read_yaml(tmp_path / "base.yaml", not_inherited=keys).tree["report"]["note"] == "theirs"
    assert read_yaml(tmp_path / "middle.yaml", not_inherited=keys).tree["report"] == {"title": "t", "costs": True}
    assert read_yaml(tmp_path / "own.yaml", not_inherited=keys).tree == {
        "report": {"title": "t", "costs": True, "note": "own"}, "plain": 5,
    }  # fmt: skip
    assert read_yaml(tmp_path / "middle.yaml").tree["report"]["note"] == "theirs"


@pytest.mark.parametrize("extends", ["/etc/passwd", "missing.yaml", "study.yaml", "[base.txt]", "5", ""])
def test_bad_extends(tmp_path: Path, extends: str) -> None:
    assert len(problems(tmp_path, f"extends: {extends}\ntitle: a\n")) == 1


@pytest.mark.parametrize("override", ["lr", "=3", "blocks.7=1", "lr.deep=1", "blocks.0.deep=1"])
def test_bad_overrides(tmp_path: Path, override: str) -> None:
    assert len(problems(tmp_path, "title: a\nlr: 1.0\nblocks: [1]\n", override)) == 1


def test_a_folder_of_results_names_the_record_of_its_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as plain:
        read_yaml(tmp_path)
    (tmp_path / "command.json").write_text("{}")
    with pytest.raises(ConfigError) as made:
        read_yaml(tmp_path)
    assert "command.json" in str(made.value)
    assert "command.json" not in str(plain.value)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("title: a\n")
    with pytest.raises(ConfigError, match=r"did you mean .*demo\.yaml"):
        read_yaml(tmp_path / "dmo.yaml")


def test_alias_bomb_is_refused(tmp_path: Path) -> None:
    levels = "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]\n" for i in range(1, 10))
    (tmp_path / "b.yaml").write_text("k0: &k0 [x]\n" + levels)
    with pytest.raises(ConfigError, match="aliases"):
        read_yaml(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 20_000 + "]" * 20_000, "study.yaml:1: refused: lists and mappings more than 32 deep"),
        ("- " * 20_000 + "x", "more than 32 deep"),
        ("a: " + "{b: " * 5_000, "more than 32 deep"),
        ("a: &a [*a]", "study.yaml:1: a: unknown key"),
        ("lr: " + "9" * 100_000, "not valid YAML: Exceeds the limit"),
        ("title: a\nlr: 0x" + "f" * 1_000, "study.yaml:2: lr: the number does not fit in 64 bits"),
        ("lr: 1e999", "lr: should be a finite number"),
        ("%YAML 1.3\n---\ntitle: a", "study.yaml: not valid YAML: version minor part"),
        ("title: 2001-01-01", "study.yaml:1: title: a value of type"),
        ("a" * 2**20 + ": 1", "refused: longer than 1048576 bytes"),
    ],
    ids=["brackets", "dashes", "braces", "itself", "digits", "hexadecimal", "infinite", "version", "date", "length"],
)
def test_bounds_of_a_file(tmp_path: Path, text: str, message: str) -> None:
    began = time.perf_counter()
    assert message in "\n".join(problems(tmp_path, text))
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    "override", ["lr=" + "[" * 20_000, "lr=" + "9" * 9_999, "a" + ".a" * 9_999 + "=1", "lr=0x" + "f" * 99]
)
def test_bounds_of_an_override(tmp_path: Path, override: str) -> None:
    (line,) = problems(tmp_path, "title: a\n", override)
    assert line.startswith("command line: ")
    assert len(line) < 300


def test_files_that_extend_one_another_without_end(tmp_path: Path) -> None:
    """Each extends the next one twice: 2^30 files to read."""
    for index in range(30):
        (tmp_path / f"{index}.yaml").write_text(f"extends: [{index + 1}.yaml, {index + 1}.yaml]\n")
    (tmp_path / "30.yaml").write_text("title: a\n")
    with pytest.raises(ConfigError, match=r"0\.yaml: refused: it extends more than 100 files"):
        read_yaml(tmp_path / "0.yaml")


def test_merge_keys_and_few_aliases_are_fine(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("model: &m {depth: 3}\ntitle: a\n")
    assert load(tmp_path / "m.yaml").model.depth == 3
    (tmp_path / "m.yaml").write_text("title: a\nmodel:\n  <<: {depth: 4}\n")
    assert load(tmp_path / "m.yaml").model.depth == 4


def test_merge_replaces_another_kind_whole() -> None:
    base = {"kind": "voc", "root": "a", "year": 2007}
    assert merge(base, {"kind": "images", "root": "b"}) == {"kind": "images", "root": "b"}
    assert merge(base, {"root": "b"}) == {"kind": "voc", "root": "b", "year": 2007}


def test_merge_replaces_another_initialisation_whole() -> None:
    base = {"name": "vit", "depth": 3, "init": {"name": "skipless", "alpha": 2.0}}
    assert merge(base, {"init": {"name": "mimetic"}}) == {"name": "vit", "depth": 3, "init": {"name": "mimetic"}}
    assert merge(base, {"init": {"alpha": 1.0}})["init"] == {"name": "skipless", "alpha": 1.0}
    assert merge(base, {"name": "other"})["depth"] == 3


def test_frozen() -> None:
    config = validate(Outer, RawConfig({"title": "a"}))
    with pytest.raises(Exception, match="frozen"):
        config.title = "b"  # type: ignore[misc]


def test_a_fifo_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    for path, said in ((tmp_path / "a.yaml", "is not a regular file"), (tmp_path, "a folder, where")):
        with pytest.raises(ConfigError, match=said) as caught:
            read_yaml(path)
        assert not caught.value.hint
