"""NYU Depth V2: the lists of BTS in the places where people have them, and probe3d's files of normals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import dinoskip.data.sets.check as checks
from dinoskip.data.orientation import label_orientation
from dinoskip.data.recognise import recognise
from dinoskip.data.sets import open_images, open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.prepare import prepare
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import turn_upright
from dinoskip_dense.labels import DEPTH, NORMALS
from dinoskip_dense.sets.nyu import GEONET_MEANS, NOT_USED, NyuConfig, NyuNormalsConfig
from tests.helpers.signatures import SIZE, dataset, judged, save, stopping
from tests.io.test_arrays import bomb


def scene(folder: Path, number: int, metres: float = 2.0) -> str:
    """Write an image and its depth; return the line of a list."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8, 3), number, np.uint8)).save(folder / f"rgb_{number:05d}.jpg")
    Image.fromarray(np.full((6, 8), 1000 * metres).astype(np.uint16)).save(folder / f"sync_depth_{number:05d}.png")
    return f"/{folder.name}/rgb_{number:05d}.jpg /{folder.name}/sync_depth_{number:05d}.png 518.8579\n"


@pytest.mark.parametrize(
    ("train", "test", "lists"),
    [
        ("", "", ("nyu_train.txt", "nyu_test.txt")),
        ("sync", "official_splits/test", ("nyudepthv2_train_files_with_gt.txt", "nyudepthv2_test_files_with_gt.txt")),
    ],
)
def test_lists_in_either_layout(tmp_path: Path, train: str, test: str, lists: tuple[str, str]) -> None:
    second, first = scene(tmp_path / train / "study_0008", 2, 3.0), scene(tmp_path / train / "bathroom_0001", 1)
    (tmp_path / lists[0]).write_text(second + first + "/study_0008/rgb_00009.jpg None 518.8579\n")
    (tmp_path / lists[1]).write_text(scene(tmp_path / test / "kitchen", 5, 1.5))
    config = NyuConfig(root=str(tmp_path))
    opened = open_labels(DEPTH, config, "train")
    assert [Path(one).name for one in opened.ids] == ["rgb_00001.jpg", "rgb_00002.jpg"]  # sorted, as the toolbox does
    assert opened.depth(1).tolist() == np.full((6, 8), 3.0).tolist()
    assert open_images(config, split="train").ids == opened.ids
    assert open_labels(DEPTH, config, "test").depth(0)[0, 0] == 1.5
    assert [(row.split, row.found, row.expected) for row in checks.check(config)] == [
        ("train", 2, 24_231), ("test", 1, 654),
    ]  # fmt: skip


@pytest.mark.parametrize("between", [";", ",", "\t"])
def test_lists_saved_as_tables(tmp_path: Path, between: str) -> None:
    lines = [scene(tmp_path / "kitchen", number).replace(" ", between) for number in (1, 2)]
    (tmp_path / "nyu_train.txt").write_text("\ufeff" + "".join(lines).replace("\n", "\r\n"), encoding="utf-8")
    opened = open_labels(DEPTH, NyuConfig(root=str(tmp_path)), "train")
    assert [Path(one).name for one in opened.ids] == ["rgb_00001.jpg", "rgb_00002.jpg"]


def test_what_is_wrong_with_a_list_is_named(tmp_path: Path) -> None:
    config = NyuConfig(root=str(tmp_path))
    with pytest.raises(DataError, match=r"nyu_train\.txt: no such list"):
        open_labels(DEPTH, config, "train")
    (tmp_path / "nyu_train.txt").write_text("\na.jpg\n")
    with pytest.raises(DataError, match=r"nyu_train\.txt:2: a line is IMAGE DEPTH"):
        open_labels(DEPTH, config, "train")
    (tmp_path / "nyu_train.txt").write_text("a.jpg b.png\n")
    with pytest.raises(DataError, match=r"a\.jpg: no such file, the list of train names it"):
        open_labels(DEPTH, config, "train")
    with pytest.raises(DataError, match="there is no split 'val'"):
        open_labels(DEPTH, config, "val")
    with pytest.raises(ConfigError, match="nyu: this kind of dataset has no surface normals"):
        open_labels(NORMALS, config, "train")


def test_normals_of_geonet_and_of_the_labelled_images(tmp_path: Path) -> None:
    (tmp_path / "geonet").mkdir()
    (tmp_path / "test").mkdir()
    image = np.arange(4 * 5 * 3).reshape(4, 5, 3).astype(np.float64)
    normals = np.zeros((4, 5, 3))
    normals[..., 2] = -2.0
    depth = np.full((4, 5), 3.0)
    depth[0, 0], depth[0, 1] = 0.0, 11.0
    savemat(tmp_path / "geonet" / "a.mat", {"img": image - 2 * np.array(GEONET_MEANS), "norm": normals, "depth": depth})
    with open(tmp_path / "test" / "0001.npz", "wb") as stream:
        np.savez(stream, image=image.astype(np.uint8), normals=normals, depth=depth)
    config = NyuNormalsConfig(root=str(tmp_path))
    for split in ("train", "test"):
        read = open_labels(NORMALS, config, split).read(0)
        assert np.abs(read.image.astype(int) - image).max() <= 1
        np.testing.assert_allclose(read.normals, normals / 2)
        assert read.valid.sum() == 18
        assert not read.valid[0, :2].any()
    with open(tmp_path / "test" / "0001.npz", "wb") as stream:
        np.savez(stream, image=image)
    with pytest.raises(DataError, match=r"0001\.npz: holds no array 'depth'"):
        open_labels(NORMALS, config, "test").read(0)
    with pytest.raises(DataError, match="lie inside its"):
        open_images(config)


def test_two_of_geonets_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dinoskip_dense.sets.nyu.NOT_USED", (1,))
    (tmp_path / "geonet").mkdir()
    for name in "abc":
        (tmp_path / "geonet" / f"{name}.mat").touch()
    assert open_labels(NORMALS, NyuNormalsConfig(root=str(tmp_path)), "train").ids == ("a", "c")
    assert NOT_USED == (21_181, 6_919)


def test_depth_in_inches_may_be_in_centimetres(tmp_path: Path) -> None:
    metres = np.linspace(1.2, 4.1, SIZE[0] * SIZE[1]).reshape(SIZE)
    save(tmp_path / "i.jpg", np.zeros((*SIZE, 3), np.uint8))
    save(tmp_path / "d.png", np.rint(metres * 39.37).astype(np.uint16))
    (tmp_path / "nyu_train.txt").write_text("i.jpg d.png 1\n")
    found = judged("depth", ["train"], kind="nyu", root=str(tmp_path))
    assert stopping(found) == [("doubtful", "depth-scale")]
    assert "per_metre=39.37" in found[0].remedy


@pytest.mark.parametrize("written", [1000, 5000, 256])
@pytest.mark.parametrize("declared", [1000, 5000, 256])
def test_metres_against_what_a_sensor_sees(tmp_path: Path, written: int, declared: int) -> None:
    metres = np.linspace(0.9, 4.1, SIZE[0] * SIZE[1]).reshape(SIZE)
    save(tmp_path / "i.jpg", np.zeros((*SIZE, 3), np.uint8))
    save(tmp_path / "d.png", np.rint(metres * written).astype(np.uint16))
    (tmp_path / "nyu_train.txt").write_text("i.jpg d.png 1\n")
    found = judged("depth", ["train"], kind="nyu", root=str(tmp_path), per_metre=declared)
    assert stopping(found) == ([] if written == declared else [("refused", "depth-scale")])
    if found:
        assert f"per_metre={written} " in found[0].remedy
    opened = open_labels(LABELS["depth"], dataset(kind="nyu", root=str(tmp_path), per_metre=written), "train")
    assert np.abs(opened.depth(0) - metres).max() < 0.01


def test_large_rooms_of_1_256_m_are_not_taken_for_small_ones_in_millimetres(tmp_path: Path) -> None:
    save(tmp_path / "i.jpg", np.zeros((*SIZE, 3), np.uint8))
    (tmp_path / "nyu_train.txt").write_text("i.jpg d.png 1\n")
    metres = np.linspace(1.5, 7.5, SIZE[0] * SIZE[1]).reshape(SIZE)
    save(tmp_path / "d.png", np.rint(256 * metres).astype(np.uint16))
    found = judged("depth", ["train"], kind="nyu", root=str(tmp_path))
    assert stopping(found) == [("doubtful", "depth-unit")]
    assert "per_metre=256" in found[0].remedy
    assert not judged("depth", ["train"], kind="nyu", root=str(tmp_path), per_metre=256)
    save(tmp_path / "d.png", np.rint(1000 * metres).astype(np.uint16))
    assert not judged("depth", ["train"], kind="nyu", root=str(tmp_path))


def test_maps_whose_floor_is_farther_are_doubtful(tmp_path: Path) -> None:
    metres = np.linspace(4.1, 0.9, SIZE[0] * SIZE[1]).reshape(SIZE)
    for number in range(10):
        save(tmp_path / f"{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
    lines = [f"{number}.jpg {number}.png 1\n" for number in range(10)]
    (tmp_path / "nyu_train.txt").write_text("".join(lines))
    for values, expected in ((1000 * metres, []), (4000 / metres, [("doubtful", "inverse-depth")])):
        for number in range(10):
            save(tmp_path / f"{number}.png", np.rint(values + number).astype(np.uint16))
        found = judged("depth", ["train"], kind="nyu", root=str(tmp_path))
        assert stopping(found) == expected


def test_depth_that_is_no_room_in_any_unit_is_doubtful(tmp_path: Path) -> None:
    save(tmp_path / "i.jpg", np.zeros((*SIZE, 3), np.uint8))
    (tmp_path / "nyu_train.txt").write_text("i.jpg d.png 1\n")
    for value in (0, 3):
        save(tmp_path / "d.png", np.full(SIZE, value, np.uint16))
        found = judged("depth", ["train"], kind="nyu", root=str(tmp_path))
        assert stopping(found) == [("doubtful", "depth-scale")]


def turned_rooms(root: Path, orientation: int, upright: bool, plain: bool = False) -> NyuConfig:
    """Four square photographs that EXIF turns, of a near and a far plane, and one that it does not turn."""
    lines = []
    for number in range(5):
        its = orientation if number < 4 else 1
        back = {6: 8, 8: 6}.get(its, its)
        depth = np.full((48, 48), 3000, np.uint16)
        depth[6 + number : 25, 5 : 20 + number] = 1500
        pixels = np.repeat((depth == 1500)[..., None] * (0 if plain else 120) + 60, 3, 2)
        pixels += 0 if plain else np.arange(48)[None, :, None]
        exif = Image.Exif()
        exif[0x0112] = its
        stored = turn_upright(pixels.astype(np.uint8), back)
        (root / "a").mkdir(exist_ok=True, parents=True)
        Image.fromarray(stored).save(root / f"a/{number}.png", exif=exif)
        Image.fromarray(depth if upright else turn_upright(depth, back)).save(root / f"a/{number}_depth.png")
        lines.append(f"a/{number}.png a/{number}_depth.png\n")
    (root / "nyu_train.txt").write_text("".join(lines))
    return NyuConfig(root=str(root))


@pytest.mark.parametrize("orientation", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("upright", [False, True])
def test_depth_of_photographs_that_exif_turns_lies_on_them(tmp_path: Path, orientation: int, upright: bool) -> None:
    opened = open_labels(DEPTH, turned_rooms(tmp_path, orientation, upright), "train")
    assert opened.labels_upright is upright
    assert label_orientation(opened).startswith("upright (" if upright else "stored (")
    for index in range(len(opened)):
        near = opened.depth(index) < 2
        image = opened.read(index)[..., 0]
        assert (near == (image > 150)).all()


def test_depth_that_no_photograph_shows_is_refused_or_read_as_set(tmp_path: Path) -> None:
    config = turned_rooms(tmp_path, 3, upright=True, plain=True)
    with pytest.raises(DataError, match="label_orientation"):
        open_labels(DEPTH, config, "train")
    photo = np.zeros((48, 48, 3), np.uint8)
    photo[:9] = 200
    with Image.open(tmp_path / "a/0.png") as image:
        Image.fromarray(photo).save(tmp_path / "a/0.png", exif=image.getexif())
    for way, bright in (("upright", -1), ("stored", 0)):
        opened = open_labels(DEPTH, config.model_copy(update={"label_orientation": way}), "train")
        assert opened.read(0)[bright, 0, 0] == 200


# --- HDF5 ------------------------------------------------------------------------------------------------


def labelled_set(root: Path, count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """The labelled set in MATLAB's order of axes, of small pictures; returns images and depths as they are seen."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, 6, 8, 3), dtype=np.uint8)
    depths = rng.uniform(1, 4, (count, 6, 8)).astype(np.float32)
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w") as opened:
        opened["images"], opened["depths"] = images.transpose(0, 3, 2, 1), depths.transpose(0, 2, 1)
    savemat(root / "splits.mat", {"trainNdxs": np.array([[1], [4]]), "testNdxs": np.array([[2], [3]])})
    return images, depths


def test_the_labelled_set_becomes_pictures_and_lists(tmp_path: Path) -> None:
    images, depths = labelled_set(tmp_path)
    with pytest.raises(DataError, match=r"nyu_train\.txt: no such list.*data prepare nyu --out"):
        open_labels(DEPTH, NyuConfig(root=str(tmp_path)), "train")
    assert len(prepare("nyu", [tmp_path / "splits.mat"], tmp_path)) == 1
    for split, numbers in (("train", (0, 3)), ("test", (1, 2))):
        opened = open_labels(DEPTH, NyuConfig(root=str(tmp_path)), split)
        for place, number in enumerate(numbers):
            np.testing.assert_array_equal(opened.read(place), images[number])
            np.testing.assert_allclose(opened.depth(place), depths[number], atol=6e-4)
    assert prepare("nyu", [], tmp_path) == [], "what is there stays"


def test_files_of_fastdepth_become_pictures_and_lists(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for split in ("train", "val"):
        path = tmp_path / "nyudepthv2" / split / "kitchen" / "00001.h5"
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as opened:
            opened["rgb"] = np.full((3, 6, 8), 9, np.uint8)
            opened["depth"] = np.full((6, 8), 2.5, np.float32)
    prepare("nyu", [], tmp_path)
    assert open_labels(DEPTH, NyuConfig(root=str(tmp_path)), "test").depth(0)[0, 0] == 2.5


@pytest.mark.parametrize("change", ["link", "shape", "damaged", "splits", "type"])
def test_hdf5_that_is_not_the_labelled_set_is_one_line(tmp_path: Path, change: str) -> None:
    labelled_set(tmp_path)
    h5py, path = pytest.importorskip("h5py"), tmp_path / "nyu_depth_v2_labeled.mat"
    with h5py.File(path, "r+") as opened:
        if change in {"link", "shape", "type"}:
            del opened["depths"]
            wrong = {"link": h5py.ExternalLink("other.h5", "/depths"), "shape": np.zeros((4, 6, 8), np.float32),
                     "type": np.zeros((4, 8, 6), np.int32)}  # fmt: skip
            opened["depths"] = wrong[change]
    if change == "damaged":
        path.write_bytes(path.read_bytes()[:900])
    if change == "splits":
        savemat(tmp_path / "splits.mat", {"trainNdxs": np.array([[1]]), "testNdxs": np.array([[9]])})
    with pytest.raises(DataError) as caught:
        prepare("nyu", [], tmp_path)
    assert "\n" not in str(caught.value)
    assert ("splits.mat" if change == "splits" else "labeled.mat") in str(caught.value)
    assert not (tmp_path / "nyu_train.txt").exists()


# --- KITTI -----------------------------------------------------------------------------------------------


def test_kitti_by_the_lists_of_bts(tmp_path: Path) -> None:
    drive = "2011_09_26_drive_0002_sync"
    lines = []
    for number in range(3):
        image = f"2011_09_26/{drive}/image_02/data/{number:010d}.png"
        depth = f"{drive}/proj_depth/groundtruth/image_02/{number:010d}.png"
        save(tmp_path / "raw" / image, np.full((*SIZE, 3), 9, np.uint8))
        metres = np.random.default_rng(number).uniform(5, 60, SIZE)
        save(tmp_path / "data_depth_annotated/val" / depth, (256 * metres).astype(np.uint16))
        lines.append(f"{image} {depth} 721.5377\n")
    (tmp_path / "eigen_test_files_with_gt.txt").write_text("".join(lines))
    root = str(tmp_path)
    assert recognise(tmp_path).layout.settings == {"kind": "nyu", "per_metre": 256, "outdoor": True}
    config = NyuConfig(root=root, per_metre=256, outdoor=True)
    assert config.dataset_name == "kitti"
    assert 5 <= open_labels(DEPTH, config, "test").depth(1).mean() <= 60
    assert not judged("depth", ["test"], kind="nyu", root=root, per_metre=256, outdoor=True)
    for settings, state in (({"per_metre": 256}, "refused"), ({"per_metre": 5000, "outdoor": True}, "doubtful")):
        found = judged("depth", ["test"], kind="nyu", root=root, **settings)
        assert stopping(found) == [(state, "depth-scale")]
    assert "outdoor=true" in judged("depth", ["test"], kind="nyu", root=root, per_metre=256)[0].remedy


def test_a_file_of_normals_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    """It holds 300 MB of zeros, which deflate to a thousandth."""
    bomb(tmp_path / "test" / "a.npz", (100 << 10, 1 << 10), 100 << 20)
    with pytest.raises(DataError, match="more than 268,435,456"):
        open_labels(NORMALS, NyuNormalsConfig(root=str(tmp_path)), "test").read(0)
