"""Files that commands make, and those they leave alone: foreign files, links at names of theirs, data."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError, DataError
from dinoskip.features.writer import discard, partial_path, refuse_foreign
from dinoskip.io import output
from dinoskip.io.files import read_json, write_bytes, write_manifest, write_text
from dinoskip.io.output import MADE, Output
from dinoskip.pipeline.report.results_folder import publish_results
from tests.helpers.commands import dinoskip
from tests.helpers.tiny import make_images

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but lists of what was made and locks."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith((MADE, ".lock"))}  # fmt: skip


def make(out: Path, kind: str = "board", **files: str) -> None:
    with Output(out, kind).filled() as folder:
        for name, text in files.items():
            write_text(folder / name.replace("_", "/"), text)


def test_what_was_made_is_replaced_and_what_is_not_made_again_is_removed(tmp_path: Path) -> None:
    make(tmp_path, page="1", img_a="a", img_b="b", old="gone")
    (tmp_path / "notes.txt").write_text("mine")
    make(tmp_path, page="2", img_a="A")
    assert tree(tmp_path) == {"page": b"2", "img/a": b"A", "notes.txt": b"mine"}


@pytest.mark.parametrize(
    "plant",
    [
        lambda out: (out / "page").write_text("mine"),
        lambda out: (out / "img" / "mine").write_text("mine"),
        lambda out: (out / "old").write_text("changed"),
        lambda out: ((out / "page").unlink(), (out / "page").mkdir(), (out / "page" / "x").write_text("mine")),
    ],
    ids=["changed", "in a folder", "not made again", "a folder"],
)
def test_a_foreign_file_is_named_and_nothing_is_touched(plant: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path, page="1", img_a="a", old="o")
    plant(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"page|img/mine|old"):
        make(tmp_path, page="2", img_a="A")
    assert tree(tmp_path) == before
    assert not list(tmp_path.glob(".tmp-*"))


def test_what_is_made_for_others_has_no_list_and_is_never_another(tmp_path: Path) -> None:
    for text in ("1", "1"):
        with Output(tmp_path, "models convert", listed=False).filled() as folder:
            write_text(folder / "README.md", text)
    assert os.listdir(tmp_path) == ["README.md"]
    with pytest.raises(ConfigError, match=r"README\.md"), Output(tmp_path, "", listed=False).filled() as folder:
        write_text(folder / "README.md", "2")
    assert tree(tmp_path) == {"README.md": b"1"}


@pytest.mark.parametrize("name", ["page", "img", MADE])
def test_a_link_at_a_name_of_ours_is_named_and_not_followed(name: str, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    make(other, page="other", img_a="other")
    out.mkdir()
    (out / name).symlink_to(other / name)
    before = tree(other), (other / MADE).read_bytes()
    with pytest.raises(ConfigError, match=f"{name}: is a link"):
        make(out, page="1", img_a="a")
    assert (tree(other), (other / MADE).read_bytes()) == before
    assert (out / name).is_symlink()


def test_kinds_of_commands_do_not_replace_each_other(tmp_path: Path) -> None:
    make(tmp_path, "study", page="study")
    with pytest.raises(ConfigError, match="page"):
        make(tmp_path, "board", page="board")
    assert tree(tmp_path) == {"page": b"study"}


def test_a_kill_between_the_files_leaves_all_of_them_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, a="1", b="1", img_c="1")
    moved = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == tmp_path / "b":
            raise KeyboardInterrupt
        moved(source, target)

    monkeypatch.setattr(output.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, a="2", b="2", img_c="2")
    monkeypatch.undo()
    assert tree(tmp_path)["a"] == b"2", "the kill was in the middle"
    make(tmp_path, a="3", b="3", img_c="3")
    assert tree(tmp_path) == {"a": b"3", "b": b"3", "img/c": b"3"}


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    make(tmp_path, page="1")
    (tmp_path / MADE).write_text('{"format": 1, "kind": "board", "entries": {"page": 3}}')
    with pytest.raises(DataError, match=MADE):
        make(tmp_path, page="2")
    assert tree(tmp_path) == {"page": b"1"}


def test_a_given_link_is_written_through(tmp_path: Path) -> None:
    """--out as a link to a folder on a bigger disk, there or not yet: the link stays and data go where it points."""
    (tmp_path / "big").mkdir()
    for name, target in (("a", tmp_path / "big"), ("b", tmp_path / "big" / "new")):
        (tmp_path / name).symlink_to(target)
        place = output.given_folder(tmp_path / name)
        assert place == target
        make(place, page=name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name / "page").read_text() == name
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ConfigError, match="circle"):
        output.given_folder(tmp_path / "circle")


def test_an_output_lies_neither_in_the_data_nor_around_them(tmp_path: Path) -> None:
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for out in ("data", "data/images/out", "link/out", ".", "data/../data/out"):
        with pytest.raises(ConfigError, match="data"):
            output.given_folder(tmp_path / out, [tmp_path / "data"])
    assert output.given_folder(tmp_path / "data-2", [tmp_path / "data"]) == tmp_path / "data-2"


def test_what_is_left_of_an_entry_is_replaced_and_what_was_added_is_not(tmp_path: Path) -> None:
    make(tmp_path, img_a="a", img_b="b")
    (tmp_path / "img" / "a").unlink()
    make(tmp_path, img_a="a", img_b="b")
    assert tree(tmp_path) == {"img/a": b"a", "img/b": b"b"}
    (tmp_path / "img" / "a").unlink()
    (tmp_path / "img" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="img/mine"):
        make(tmp_path, img_a="a", img_b="b")
    assert tree(tmp_path) == {"img/mine": b"mine", "img/b": b"b"}


@pytest.mark.parametrize("kind", ["link", "folder", "FIFO"])
def test_a_file_is_written_in_the_place_of_a_file_alone(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "status.json", tmp_path / "other"
    other.write_text("mine")
    {"link": lambda: path.symlink_to(other), "folder": path.mkdir, "FIFO": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(ConfigError, match=r"status\.json"):
        write_bytes(path, b"ours")
    assert (other.read_text(), sorted(tmp_path.iterdir())) == ("mine", sorted([path, other]))


def test_the_mode_of_a_file_is_that_of_a_new_one(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_removing_follows_no_link(tmp_path: Path) -> None:
    make(tmp_path / "other", a="mine")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "inside").symlink_to(tmp_path / "other")
    for call in (output.remove, lambda path: output.remove_aside(path, "old"), output.own_folder):
        with pytest.raises(ConfigError, match="link"):
            call(tmp_path / "link")
    output.remove(tmp_path / "link", quiet=True)
    assert (tmp_path / "link").is_symlink()
    output.remove(tmp_path / "ours")
    assert tree(tmp_path / "other") == {"a": b"mine"}
    assert not (tmp_path / "ours").exists()


# --- commands ----------------------------------------------------------------------------------------


def test_an_exports_working_folder_is_its_own(tmp_path: Path) -> None:
    """A working folder that was a link to another folder was once emptied: 7 of 7 files gone, exit code 0."""
    photos, other, out = make_images(tmp_path / "photos", 2), tmp_path / "other", tmp_path / "features"
    for name in ("state.json", "journal-0", "store/a.npy", "notes"):
        write_text(other / name, "mine")
    partial_path(out).symlink_to(other)
    before = tree(other)
    done = dinoskip("features", "export", VIT, "--data", str(photos), "--out", str(out), "-q")
    assert done.returncode == 2
    assert str(partial_path(out)) in done.stderr
    assert (tree(other), partial_path(out).is_symlink(), out.exists()) == (before, True, False)


@pytest.mark.parametrize("planted", ["journal-0", "store", "notes"])
def test_what_is_not_an_exports_in_its_working_folder_is_named(planted: str, tmp_path: Path) -> None:
    work, other = tmp_path / ".partial-features", tmp_path / "other"
    write_text(other / "a.npy", "mine")
    write_text(work / "state.json", "{}")
    (work / planted).write_text("mine") if planted == "notes" else (work / planted).symlink_to(other)
    with pytest.raises(ConfigError, match=planted):
        refuse_foreign(work)
    if planted != "notes":
        with pytest.raises(ConfigError, match=planted):
            discard(work)
    assert tree(other) == {"a.npy": b"mine"}


def test_an_export_to_a_link_goes_where_it_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The link was replaced, the data went to the wrong disk, and .tmp-old- stayed."""
    photos = make_images(tmp_path / "photos", 2)
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big" / "features")
    command = ["features", "export", VIT, "--data", str(photos), "--out", str(tmp_path / "out")]
    assert main([*command, "--size", "32", "-q"]) == 0
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "big" / "features" / "MANIFEST.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "out", "photos"]
    assert [path.name for path in (tmp_path / "big").iterdir()] == ["features"]
    write_text(tmp_path / "mine" / "notes", "mine")
    assert main([*command[:-1], str(tmp_path / "mine"), "--size", "32", "-q"]) == 2
    assert "notes" in capsys.readouterr().err
    assert main([*command[:-1], str(photos / "out"), "--size", "32", "-q"]) == 2
    assert tree(tmp_path / "mine") == {"notes": b"mine"}


@pytest.mark.parametrize("name", ["notes", "config.json"])
def test_a_training_takes_no_others_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other programs have a config.json, too: it was overwritten."""
    photos, out = make_images(tmp_path / "photos", 4), tmp_path / "out"
    write_text(out / name, '{"architectures": ["ViTModel"]}')
    before = tree(out)
    command = ["pretrain", "--data", str(photos), "pretrain.batch_size=2", "pretrain.warmup_epochs=0", "--out"]
    assert main([*command, str(out)]) == 2
    assert name in capsys.readouterr().err
    assert tree(out) == before
    assert main([*command, str(photos / "run")]) == 2
    assert not (photos / "run").exists()
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").symlink_to(out / name)
    assert main([*command, str(run)]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
    assert tree(out) == before


def test_a_study_keeps_what_it_did_not_make(tmp_path: Path) -> None:
    page = tmp_path / "stages" / "report" / "key"
    write_text(page / "index.html", "page")
    write_manifest(page)
    study = tmp_path / "study"
    publish_results(study, [], {"report": page})
    publish_results(study, [], {"report": page})
    assert list(tree(study)) == ["index.html", "report/index.html"]
    assert read_json(study / MADE)["kind"] == "study"
    (study / "index.html").write_text("mine")
    with pytest.raises(ConfigError, match=r"index\.html"):
        publish_results(study, [], {"report": page})
    assert (study / "index.html").read_text() == "mine"


def test_a_study_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    page, study = tmp_path / "page", tmp_path / "study"
    write_text(page / "index.html", "page")
    write_manifest(page)
    publish_results(study, [], {"report": page})
    (study / MADE).unlink()
    with pytest.raises(ConfigError, match=r"study/index\.html"):
        publish_results(study, [], {"report": page})
    (study / "records").mkdir()
    publish_results(study, [], {"report": page})
    (study / MADE).unlink()
    (study / "index.html").write_text("mine")
    with pytest.raises(ConfigError, match=r"study/index\.html"):
        publish_results(study, [], {"report": page})


def test_a_board_replaces_a_boards_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "rows.json", "[]")
    study = tmp_path / "study"
    make(study, "study", **{"index.html": "study", "rows.csv": "study"})
    for out in (study, tmp_path / "mine"):
        write_text(tmp_path / "mine" / "index.html", "mine")
        before = tree(out)
        assert main(["board", str(tmp_path / "rows.json"), "--out", str(out)]) == 2
        assert f"{out / 'index.html'}" in capsys.readouterr().err
        assert tree(out) == before


def test_no_command_writes_into_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = make_images(tmp_path / "photos", 2)
    before, inside = tree(photos), str(photos / "out")
    for command in (
        ["gallery", VIT, "--kind", "images", "--data", str(photos), "--out", inside],
        ["look", VIT, "--data", str(photos), "--out", inside],
        ["data", "pack", inside, "--data", str(photos)],
        ["features", "export", VIT, "--data", str(photos), "--out", str(tmp_path)],
    ):
        assert main(command) == 2, command
        assert str(photos) in capsys.readouterr().err
        assert tree(photos) == before


def test_single_files_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, mine = make_images(tmp_path / "photos", 1), tmp_path / "mine"
    for name in ("a.png", "a.safetensors", "a.onnx", "a.csv"):
        write_text(mine / name, "mine")
    before = tree(mine)
    for command in (
        ["cuts", VIT, str(photos / "image 00.png"), "--out", str(mine / "a.png")],
        ["models", "convert", VIT, str(mine / "a.safetensors")],
        ["models", "convert", VIT, str(mine / "a.onnx")],
        ["eval", "knn", VIT, "--data", str(photos), "--out", str(tmp_path / "out"), "--csv", str(mine / "a.csv")],
    ):
        assert main(command) == 2, command
        assert str(mine) in capsys.readouterr().err
        assert tree(mine) == before
    for name in ("own.png", "own.pdf"):
        draw = ["cuts", VIT, str(photos / "image 00.png"), "--out", str(mine / name), "--facet", "out", "--tau"]
        assert [main([*draw, tau]) for tau in ("0.2", "0.3")] == [0, 0], "its own is replaced"
