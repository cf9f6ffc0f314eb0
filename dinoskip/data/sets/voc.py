"""Kind ``voc``, the PASCAL VOC layout: where things lie, and which ids a list names."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dinoskip.data.class_lists import listed_classes
from dinoskip.data.colours import find_colours
from dinoskip.data.detection import DetectionDataset, dominant_labels, read_voc_xml
from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.listing import is_image_name, read_text, require_folder
from dinoskip.data.segmentation import BACKGROUND, SegmentationDataset, save_mask
from dinoskip.data.sets.kind import Archives, CheckedSplit, DatasetKind, Published
from dinoskip.data.sets.numberings import voc_numbering
from dinoskip.data.sets.signatures import object_as_void
from dinoskip.errors import DataError, guard, translate_write_errors
from dinoskip.io.files import TEMPORARY, read_regular, write_text
from dinoskip.io.output import move_new, remove
from dinoskip.runtime.console import Progress

CLASSES_FILE = "classes.txt"
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def voc_folder(root: str | Path, year: int) -> Path:
    """Find the ``VOC<year>`` folder: ``root`` may be it, a VOCdevkit that holds it, or the folder above VOCdevkit.

    Raises :class:`DataError` if none of them has ``JPEGImages`` and ``ImageSets``.
    """
    root = Path(root)
    require_folder(root, f"a VOCdevkit or VOC{year} folder")
    candidates = [root / f"VOC{year}", root / "VOCdevkit" / f"VOC{year}"]
    if root.name == f"VOC{year}" or not root.name.startswith("VOC2"):
        candidates.insert(0, root)
    for candidate in candidates:
        if (candidate / "JPEGImages").is_dir() and (candidate / "ImageSets").is_dir():
            return candidate
    raise DataError(f"{root}: no VOC{year} here: expected VOC{year}/JPEGImages and VOC{year}/ImageSets in it")


def class_names(folder: Path) -> tuple[str, ...]:
    """Object class names (background not among them): those of ``classes.txt`` if the folder has one, else VOC's 20.

    CVAT's ``labelmap.txt`` is read where there is no ``classes.txt``. Raises :class:`DataError` for an empty or
    repeating list.
    """
    path = folder / CLASSES_FILE
    if not path.exists():
        coloured = find_colours(folder)
        return VOC_CLASSES if coloured is None else tuple(name for name in coloured.names if name != BACKGROUND)
    names, numbers = listed_classes(path)
    if numbers and numbers != tuple(range(1, len(names) + 1)):
        raise DataError(
            f"{path}: numbers its classes {numbers[0]} to {numbers[-1]}, but the first line is value 1 of masks",
            "list the names alone, without the background, in the order of their values",
        )
    if not names or len(set(names)) != len(names) or BACKGROUND in names or len(names) > 254:
        raise DataError(f"{path}: expected 1 to 254 different class names, one a line, without {BACKGROUND!r}")
    return names


def read_list(folder: Path, kind: str, split: str) -> tuple[str, ...]:
    """Read ``ImageSets/<kind>/<split>.txt``: the first word of every line is an id, or a path that ends in it.

    Lists such as DeepLab's have ``/JPEGImages/ID.jpg /SegmentationClassAug/ID.png`` in a line.
    Raises :class:`DataError` if the list is missing (naming those that are there), is empty, repeats an id, or has the
    flags of a list of one class, where -1 stands for images without it.
    """
    path = folder / "ImageSets" / kind / f"{split}.txt"
    if not path.is_file():
        lists = sorted(p.stem for p in path.parent.glob("*.txt") if "_" not in p.stem) if path.parent.is_dir() else []
        hint = f"there are {', '.join(lists)}" if lists else f"{path.parent} has no lists"
        raise DataError(f"{path}: no such image list for split {split!r}", hint)
    words = [line.split() for line in read_text(path, "image list").splitlines() if line.strip()]
    flags = {one[1] for one in words if len(one) == 2}
    if "-1" in flags and flags <= {"-1", "0", "1"}:
        raise DataError(
            f"{path}: its lines have flags, as those of one class have, and -1 says that an image is without the class",
            "list the images that are meant, a name a line without a flag",
        )
    first = (one[0].rpartition("/")[2] for one in words)
    ids = tuple(os.path.splitext(name)[0] if is_image_name(name) else name for name in first)
    if not ids:
        raise DataError(f"{path}: the image list is empty")
    if len(set(ids)) != len(ids):
        repeated = next(name for position, name in enumerate(ids) if name in ids[:position])
        raise DataError(f"{path}: {repeated!r} is listed twice")
    return ids


@dataclass(frozen=True)
class FileTable:
    """The files of one folder by stem; ``ending`` is that of a missing one, in messages."""

    folder: Path
    files: Mapping[str, str]
    ending: str

    @classmethod
    def images(cls, folder: Path) -> FileTable:
        """List the images in ``folder``; where two differ in extension only, the ``.jpg`` one."""
        names = sorted((n for n in _listing(folder) if is_image_name(n)), key=lambda n: (n.endswith(".jpg"), n))
        return cls(folder, {os.path.splitext(name)[0]: name for name in names}, ".jpg")

    @classmethod
    def of(cls, folder: Path, ending: str) -> FileTable:
        """List the files of ``folder`` that end in ``ending``, in capitals too; where two differ so, the small one."""
        names = sorted((n for n in _listing(folder) if n.lower().endswith(ending)), key=lambda n: n.endswith(ending))
        return cls(folder, {name[: -len(ending)]: name for name in names}, ending)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return a message for each id without a file."""
        lost = [self.folder / f"{name}{self.ending}" for name in ids if name not in self.files]
        return [f"{path}: missing, but the image list names it" for path in lost]

    def paths(self, ids: Sequence[str]) -> tuple[Path, ...]:
        """One path per id; :class:`DataError` naming the first id without a file and counting them all."""
        if missing := self.missing(ids):
            more = f" (and {len(missing) - 1} more of {len(ids)})" if len(missing) > 1 else ""
            raise DataError(f"{missing[0]}{more}")
        return tuple(self.folder / self.files[name] for name in ids)


def with_files(
    ids: tuple[str, ...], images: Path, labels: Path, ending: str, faults: list[str] | None
) -> tuple[tuple[str, ...], tuple[Path, ...], tuple[Path, ...]]:
    """Return ids, and their images and labels in two folders; labels end in ``ending``.

    Raises :class:`DataError` for an id that lacks either; with ``faults`` it is noted there and left out.
    """
    tables = FileTable.images(images), FileTable.of(labels, ending)
    if faults is not None:
        faults += [message for table in tables for message in table.missing(ids)]
        ids = tuple(name for name in ids if all(name in table.files for table in tables))
    return ids, tables[0].paths(ids), tables[1].paths(ids)


def _listing(folder: Path) -> list[str]:
    require_folder(folder, "a folder of the VOC layout")
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def voc_images(root: Path, split: str, year: int) -> ImageFolder:
    """Open the images of ``ImageSets/Main/<split>.txt``, or of the list of masks where there is no ``Main``."""
    folder = voc_folder(root, year)
    masks_alone = not (folder / "ImageSets" / "Main").is_dir() and (folder / "ImageSets" / "Segmentation").is_dir()
    return listed_images(folder, "Segmentation" if masks_alone else "Main", split)


def listed_images(folder: Path, kind: str, split: str) -> ImageFolder:
    """Open the images of ``ImageSets/<kind>/<split>.txt``."""
    table = FileTable.images(folder / "JPEGImages")
    return ImageFolder(table.folder, tuple(path.name for path in table.paths(read_list(folder, kind, split))))


def voc_segmentation(
    root: str | Path, split: str, year: int = 2012, *, name: str | None = None, faults: list[str] | None = None
) -> SegmentationDataset:
    """Open a VOC segmentation set; ``root`` is the VOCdevkit or the ``VOC<year>`` folder.

    ``split`` names ``ImageSets/Segmentation/<split>.txt``: train (1,464 in VOC2012), val (1,449), trainval, or trainaug
    (10,582), whose masks are read from ``SegmentationClassAug`` instead of ``SegmentationClass``. Class 0 is
    background; the others are VOC's 20, or those of a ``classes.txt`` in the folder. With CVAT's ``labelmap.txt``
    classes are those of that list, and masks may be in its colours. Raises :class:`DataError` in one
    line for every missing folder, list, image or mask; with ``faults``, missing files are noted there and left out.
    """
    folder = voc_folder(root, year)
    masks = folder / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass")
    listed, coloured = read_list(folder, "Segmentation", split), None
    if not (folder / CLASSES_FILE).exists():
        coloured = find_colours(folder)
    names = (BACKGROUND, *class_names(folder)) if coloured is None else coloured.names
    ids, images, labels = with_files(listed, folder / "JPEGImages", masks, ".png", faults)
    return SegmentationDataset(name or f"voc{year}", split, ids, images, labels, class_names=names, remap=coloured)


def voc_detection(
    root: str | Path,
    split: str = "trainval",
    year: int = 2007,
    *,
    name: str | None = None,
    faults: list[str] | None = None,
) -> DetectionDataset:
    """Open a VOC detection set: ids of ``ImageSets/Main/<split>.txt`` (trainval: 5,011 in 2007, 11,540 in 2012).

    ``root``, ``faults``, the class names and the errors are as in :func:`voc_segmentation`.
    """
    folder = voc_folder(root, year)
    listed, names = read_list(folder, "Main", split), class_names(folder)
    ids, images, boxes = with_files(listed, folder / "JPEGImages", folder / "Annotations", ".xml", faults)
    return DetectionDataset(name or f"voc{year}", split, ids, images, boxes, class_names=names)


def labelled_by_largest_box(boxes: DetectionDataset) -> LabelledFolder:
    """Give each image of a VOC layout the class of its largest box."""
    # DINO's k-NN is of ImageNet, where an image has one class; that of the largest box is ours.
    labels, classes = dominant_labels(boxes)
    folder = boxes.image_paths[0].parent
    return LabelledFolder(folder, tuple(path.name for path in boxes.image_paths), labels, classes)


def annotation_of(image: Path) -> Path:
    """Return the path of the boxes of an image of a VOC layout; the file need not exist."""
    return image.parent.parent / "Annotations" / f"{image.stem}.xml"


_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_VOC12, _VOC07 = "VOCdevkit/VOC2012", "VOCdevkit/VOC2007"
_SBD = "benchmark_RELEASE/dataset"


def _folder_for(names: Sequence[str]) -> str:
    """The augmented masks come without the folders above them."""
    return _VOC12 if {name.partition("/")[0] for name in names} <= {"SegmentationClassAug", "__MACOSX"} else ""


def _sbd_mask(path: Path) -> np.ndarray:
    """The class map of one of SBD's files, uint8 (H, W); :class:`DataError` if it is none."""
    from scipy.io import loadmat  # only where SBD is merged

    with guard(path, "mask of SBD"):
        mask = np.asarray(loadmat(io.BytesIO(read_regular(path, 64 << 20)), variable_names="GTcls")["GTcls"][0, 0][1])
    if mask.ndim != 2 or mask.dtype != np.uint8 or mask.max(initial=0) > len(VOC_CLASSES):
        raise DataError(f"{path}: not a mask of SBD: expected classes 0 to {len(VOC_CLASSES)} in two dimensions")
    return mask


def merge_sbd(root: Path) -> list[str]:
    """Make ``SegmentationClassAug`` and ``trainaug.txt`` of VOC2012 and SBD, if both are there and they are not yet.

    The list: VOC's train and all of SBD, without VOC's val (10,582). VOC's own masks for its train images, SBD's for
    the others.
    """
    folder, sbd = root / _VOC12, root / _SBD
    final, listed = folder / "SegmentationClassAug", folder / "ImageSets" / "Segmentation" / "trainaug.txt"
    if not (sbd / "cls").is_dir() or not (folder / "SegmentationClass").is_dir() or listed.exists() or final.exists():
        return []
    train, val = (set(read_list(folder, "Segmentation", split)) for split in ("train", "val"))
    theirs = {name for part in ("train", "val") for name in read_text(sbd / f"{part}.txt", "image list").split()}
    ids = sorted((train | theirs) - val)
    temporary = folder / f"{TEMPORARY}trainaug-{os.getpid()}"
    with translate_write_errors(final), Progress("masks of SBD", len(ids), "mask") as progress:
        try:
            temporary.mkdir()
            for name in ids:
                if name in train:
                    shutil.copyfile(folder / "SegmentationClass" / f"{name}.png", temporary / f"{name}.png")
                else:
                    save_mask(temporary / f"{Path(name).name}.png", _sbd_mask(sbd / "cls" / f"{Path(name).name}.mat"))
                progress.advance()
            move_new(temporary, final)
        finally:
            remove(temporary, quiet=True)
    write_text(listed, "".join(f"{name}\n" for name in ids))
    return [
        f"{final}: {len(ids):,} masks, {len(train - val):,} of VOC2012 and the others of SBD; {listed.name} names them"
    ]


class VocConfig(DatasetKind):
    """A VOCdevkit (or its ``VOC<year>`` folder). ``train_list`` is what the split ``train`` of masks stands for."""

    archives = Archives(
        published=(
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
            Published(
                "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",
                (f"{_VOC12}/SegmentationClassAug", f"{_VOC12}/ImageSets/Segmentation/trainaug.txt"),  # merged of it
                "82b4d87ceb2ed10f6038a1cba92111cb",
                needed=False,
            ),
        ),
        folder_for=_folder_for,
        list_folders={"trainaug.txt": f"{_VOC12}/ImageSets/Segmentation"},
        finish=merge_sbd,
    )

    signatures = (voc_numbering, object_as_void)
    kind: Literal["voc"] = "voc"
    root: str = Field(description="VOCdevkit, or its VOC<year> folder")
    year: Literal[2007, 2012] = Field(2012, description="of the challenge")
    train_list: Literal["train", "trainaug"] = Field("train", description="what the split train of masks stands for")

    @property
    def paper_name(self) -> str:
        """As in Cutting the Skip."""
        return f"VOC{self.year}"

    @property
    def dataset_name(self) -> str:
        return f"voc{self.year}"

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a list (:func:`voc_images`)."""
        return voc_images(root, split, self.year)

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open a split of masks; ``train`` is what ``train_list`` says."""
        split = self.train_list if split == "train" else split
        return voc_segmentation(root, split, self.year, name=self.dataset_name, faults=faults)

    def named_classes(self, image: Path) -> frozenset[str] | None:
        """The classes of the photograph's boxes, where it has any."""
        annotation = annotation_of(image)
        if not annotation.is_file():
            return None
        return frozenset(box.label for box in read_voc_xml(annotation).objects)

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open a split of boxes."""
        return voc_detection(root, split, self.year, name=self.dataset_name, faults=faults)

    def open_labelled(self, root: Path, split: str, faults: list[str] | None) -> LabelledFolder:
        """Open a split with the class of each image's largest box."""
        return labelled_by_largest_box(self.open_detection(root, split, faults))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The published splits of the labels that are there: without ``ImageSets/Main``, for example, no boxes.

        Without trainval, boxes of train and val; trainaug, which many do without, only where its list is.
        """
        published = self.published_splits(root)
        try:
            lists = voc_folder(root, self.year) / "ImageSets"
        except DataError:
            return [split for split in published if split.split != "trainaug"]  # each is a fault then
        masks, boxes = lists / "Segmentation", lists / "Main"
        found = []
        for one in published:
            listed = boxes if one.task == "detection" else masks
            if listed.is_dir() and (one.split != "trainaug" or (listed / "trainaug.txt").is_file()):
                found.append(one)
        if not (boxes / "trainval.txt").is_file():  # a set of one's own
            own = [CheckedSplit("detection", name) for name in ("train", "val") if (boxes / f"{name}.txt").is_file()]
            found = [one for one in found if one.task != "detection" or not own] + own
        return found or published

    def published_splits(self, root: Path) -> list[CheckedSplit]:
        """VOC2007's boxes; VOC2012's masks, with SBD's (trainaug), and boxes.

        A folder with a list of other classes than VOC's is a set of one's own, of which no numbers are published.
        """
        boxes = CheckedSplit("detection", "trainval", 5011 if self.year == 2007 else 11_540)
        segmentation = {} if self.year == 2007 else {"train": 1464, "val": 1449, "trainaug": 10_582}
        masks = [CheckedSplit("segmentation", split, count) for split, count in segmentation.items()]
        own = self._is_own(root)
        return [one._replace(expected=None) if own else one for one in (*masks, boxes)]

    def own_layout(self, root: Path) -> str:
        """Say that the folder's classes are others than VOC's; "" for VOC itself."""
        return f"a set of your own in VOC{self.year}'s layout: its classes are not VOC's" if self._is_own(root) else ""

    def _is_own(self, root: Path) -> bool:
        try:
            return class_names(voc_folder(root, self.year)) != VOC_CLASSES
        except DataError:  # said where the split is opened
            return False
