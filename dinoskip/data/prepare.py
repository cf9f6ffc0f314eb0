"""Data sets out of the archives that their authors publish: which go where, their md5, and where to get them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dinoskip.data.archives import md5_file, unpack
from dinoskip.data.coco import COCO20K_LIST, COCO20K_MD5
from dinoskip.errors import DataError
from dinoskip.files import atomic_path

Kind = Literal["voc", "ade20k", "coco_stuff", "coco20k"]
KINDS: tuple[Kind, ...] = ("voc", "ade20k", "coco_stuff", "coco20k")


@dataclass(frozen=True)
class Published:
    """A file that is published: where, its md5 (empty: not known), and what lies where when it is in place.

    ``gives`` are paths below the data set's root. ``into`` is the folder that it is unpacked into. ``needed``: whether
    the kind cannot do without.
    """

    url: str
    gives: tuple[str, ...]
    md5: str = ""
    into: str = ""
    needed: bool = True

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2]


_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_COCO = "http://images.cocodataset.org"
_VOC12, _VOC07 = "VOCdevkit/VOC2012", "VOCdevkit/VOC2007"
_STUFF = "http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/stuffthingmaps_trainval2017.zip"
_LOST = "https://raw.githubusercontent.com/valeoai/LOST/master/datasets"
PUBLISHED: dict[Kind, tuple[Published, ...]] = {
    "voc": (
        Published(
            f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
            (f"{_VOC12}/JPEGImages", f"{_VOC12}/SegmentationClass", f"{_VOC12}/Annotations", f"{_VOC12}/ImageSets"),
            "6cd6e144f989b92b3379bac3b3de84fd",
        ),
        Published(
            f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar",
            (f"{_VOC07}/JPEGImages", f"{_VOC07}/Annotations", f"{_VOC07}/ImageSets"),
            "c52e279531787c972589f7e41ab4ae64",
            needed=False,
        ),
    ),
    "ade20k": (
        Published(
            "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
            ("ADEChallengeData2016/images/training", "ADEChallengeData2016/annotations/validation"),
            "7328b3957e407ddae1d3cbf487f149ef",
        ),
    ),
    "coco_stuff": (
        Published(f"{_COCO}/zips/train2017.zip", ("train2017",), "cced6f7f71b7629ddf16f17bbcfab6b2"),
        Published(f"{_COCO}/zips/val2017.zip", ("val2017",), "442b8da7639aecaf257c1dceb8ba8c80"),
        Published(_STUFF, ("stuffthingmaps/train2017", "stuffthingmaps/val2017"), into="stuffthingmaps"),
    ),
    "coco20k": (
        Published(f"{_COCO}/zips/train2014.zip", ("train2014",), "0da8c0bd3d6becc4dcb32757491aca88"),
        Published(
            f"{_COCO}/annotations/annotations_trainval2014.zip",
            ("annotations/instances_train2014.json",),
            "0a379cfc70b0e71301e0f377548639bd",
        ),
        Published(f"{_LOST}/{COCO20K_LIST}", (COCO20K_LIST,), COCO20K_MD5),
    ),
}
_SBD = (
    "VOCdevkit/VOC2012/SegmentationClassAug and ImageSets/Segmentation/trainaug.txt are not there: the split trainaug"
    " needs them (10,582 masks merged from VOC2012 and SBD; published as SegmentationClassAug.zip in several places)"
)


def _known(kind: Kind, path: Path) -> Published | None:
    """The published file of this name, its md5 checked where one is known."""
    found = next((entry for entry in PUBLISHED[kind] if entry.name == path.name), None)
    if found is not None and found.md5 and (md5 := md5_file(path)) != found.md5:
        raise DataError(
            f"{path}: its md5 is {md5}, that of the published file {found.md5}",
            "download it again; if it is another file on purpose, give it another name",
        )
    return found


def _place(names: Sequence[str]) -> str:
    """Where an archive goes that is not known by name: masks that come without the folders above them."""
    tops = {name.partition("/")[0] for name in names}
    if tops <= {"SegmentationClassAug", "__MACOSX"}:
        return _VOC12
    if tops <= {"train2017", "val2017"} and all(name.endswith(".png") for name in names):
        return "stuffthingmaps"
    return ""


def _copy_list(path: Path, out: Path) -> str:
    """Put a list of ids where its kind looks for it."""
    target = out / _VOC12 / "ImageSets" / "Segmentation" / path.name if path.name == "trainaug.txt" else out / path.name
    if target.exists() and target.read_bytes() != path.read_bytes():
        raise DataError(f"{target}: differs from {path}", "move it away, or choose another --out")
    with atomic_path(target) as temporary:
        shutil.copyfile(path, temporary)
    return f"{path.name}: copied to {target}"


def prepare(kind: Kind, archives: Sequence[str | Path], out: str | Path) -> list[str]:
    """Unpack archives (and copy .txt lists) of one kind below ``out``; return a line of each on what was done.

    Where an md5 is known for a file of that name it is checked first. Files already there stay. Raises
    :class:`DataError` naming the archive, and the member, that is damaged or refused; what came before it stays.
    """
    out, lines = Path(out).expanduser(), []
    for path in map(Path, archives):
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        known = _known(kind, path)
        if path.suffix == ".txt":
            lines.append(_copy_list(path, out))
            continue
        into = known.into if known else ""
        count = unpack(path, out, lambda names, into=into: into or _place(names))  # type: ignore[misc]
        checked = "md5 as published" if known and known.md5 else "md5 not known, not checked"
        lines.append(f"{path.name}: {count:,} files, {checked}")
    return lines


def missing(kind: Kind, out: str | Path) -> list[str]:
    """Say in a line each which published files are still wanted below ``out``, and where to get them."""
    out, lines = Path(out).expanduser(), []
    for entry in PUBLISHED[kind]:
        if all((out / path).exists() for path in entry.gives):
            continue
        md5 = f" (md5 {entry.md5})" if entry.md5 else ""
        lines.append(f"{'missing' if entry.needed else 'optional'}: {', '.join(entry.gives)}: get {entry.url}{md5}")
    lists = out / _VOC12 / "ImageSets" / "Segmentation" / "trainaug.txt"
    if kind == "voc" and not ((out / _VOC12 / "SegmentationClassAug").is_dir() and lists.is_file()):
        lines.append(f"optional: {_SBD}")
    return lines
