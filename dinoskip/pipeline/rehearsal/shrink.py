"""A study made small: networks, images, sets, steps, crops, heads of objectives and grids of learning rates.

All else is as it is written: variants, initialisations, optimizers, augmentation, schedules (as shares of the run),
protocols, tables.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dinoskip.data.sets.kind import Synthetic
from dinoskip.io.files import write_text
from dinoskip.io.torch_files import save_torch_file
from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.pipeline.rehearsal.layouts import make_real
from dinoskip.pipeline.report.reproduce import yaml_of
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.gallery import GallerySection
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.study import study_of
from dinoskip.settings.config import RawConfig, apply_overrides, read_yaml
from visualize.report.config import ReportConfig
from visualize.report.papers import PAPERS

SIDES = {8: 32, 14: 42, 16: 48}  # of images, by the patch; other patches: three of them
BLOCKS = 4  # of a network, unless its depth is what is compared
BATCH = 8  # several steps an epoch of COMPOSED's 32 images
IMAGENET = 1000  # classes; what tables call ImageNet is known by their number
COMPOSED = {"images": 32, "videos": 2, "frames": 3, "objects": 1, "views": 2, "size": 64}
"""Most of what is composed, of whichever kind; of what is read, :mod:`.layouts` makes little."""
HELD_OUT = 0.25  # of what is composed: enough images of a few
STAND_IN = "timm:vit_tiny_patch16_224,pretrained=false,depth=4"  # for networks that would be downloaded
FAMILIES = {
    "swin": "timm:swin_tiny_patch4_window7_224", "cait": "timm:cait_xxs24_224", "xcit": "timm:xcit_nano_12_p16_224",
    "pvt": "timm:pvt_v2_b0", "davit": "timm:davit_tiny", "convmixer": "timm:convmixer_768_32",
}  # fmt: skip
"""The smallest of timm's families that are trained under their own names; their images are of 32 pixels, or 28."""
# At most, by setting: full heads would cost more than the shrunk networks.
HEADS = {"out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "decoder_dim": 64, "decoder_depth": 1, "queue": 32}
SIDE = "side"
TASKS: dict[str, int | str] = {
    "size": SIDE, "short_side": SIDE, "long_side": 96, "crop": SIDE, "epochs": 1, "iterations": 2, "batch_size": 6,
    "bins": 8, "maps": 2, "channels": 8,
}  # fmt: skip
"""Most of an evaluation's settings of these names, of whichever task; ``side`` is that of the images."""
NOTE = (
    "A rehearsal: networks, images and steps are made small, and the data are synthetic. Its numbers say nothing; "
    "it shows that every stage runs and which cells are filled."
)


def _compares_depths(study: StudyBase) -> bool:
    """Whether a printed table that the report shows asks for numbers of blocks."""
    asked = study.section(ReportConfig).compare
    return any(table in paper.by_depth for paper in PAPERS.values() for table in asked)


def _below(root: str) -> Path:
    """A path without what leads elsewhere: its anchor, ``~`` and ``..``."""
    path = Path(root)
    return Path(*[part for part in path.parts if part not in {path.anchor, "..", "~"}] or ["data"])


class Shrink:
    """Reduction of one study to a small one: its patch, its blocks, its epochs at the same shares of a shorter run.

    ``place`` is the folder in which its data and weights files will lie. ``whole``: it keeps its depth, also if depths
    are not compared.
    """

    def __init__(self, source: RawConfig, place: Path, *, whole: bool = False) -> None:
        self.tree, self.place = copy.deepcopy(source.tree), place
        self.study, self.variants = study_of(source)
        name = str(self.tree.get("model", {}).get("name", "vit_small_patch16"))
        self.timms = name.startswith("timm:")
        written = re.search(r"patch(\d+)", name)
        self.patch = 16 if self.timms or written is None else int(written[1])
        own = {"timm:convmixer": 28}.get(name.partition("_")[0], 32)
        self.side = own if self.timms else SIDES.get(self.patch, 3 * self.patch)
        self.full = max((one.depth or 12 for one in self.variants), default=12)
        self.blocks = self.full if whole or _compares_depths(self.study) else min(self.full, BLOCKS)
        self.recipe: Any = self.study.find(PretrainSection) or self.study.find(SuperviseSection)
        self.epochs = self.recipe.epochs if self.recipe else 1
        gallery = self.study.section(GallerySection)
        said = [*self.study.evaluate.epochs, *gallery.epochs, *(self.recipe.keep_epochs if self.recipe else ())]
        self.each = math.gcd(self.epochs, *said)
        self.files: dict[str, None] = {}

    def epoch(self, epoch: float) -> float:
        """An epoch, or a length in epochs, at the same share of the shorter run."""
        return epoch / self.each

    def block(self, number: int) -> int:
        """The block at the same share of the depth; from the end, and 0, as they are."""
        return number if number <= 0 else math.ceil(number * self.blocks / self.full)

    @property
    def labelled(self) -> bool:
        """Whether classifiers are trained on as many classes as ImageNet has."""
        return self.study.find(SuperviseSection) is not None and self.recipe.dataset == "imagenet"

    # --- networks ----------------------------------------------------------------------------------------

    def spec(self, spec: str, side: str = "") -> str:
        """Return the stand-in for an existing network: a small one with random weights, in a file of the same format.

        Networks that ship with dinoskip are small enough, and those of a Python file are the user's: both stay.
        ``side`` are further options of timm's.
        """
        kind, _, rest = spec.partition(":")
        if kind in {"timm", "hub", "hf"}:
            return STAND_IN + side
        if kind not in {"weights", "dino", "run"}:
            return spec
        file = str(_below(rest.partition(",")[0]))
        kind, file = ("weights", f"{file}/teacher.safetensors") if kind == "run" else (kind, file)
        self.files[file] = None
        return f"{kind}:{self.place / file}"

    def network(self, tree: dict[str, Any]) -> None:
        """A model's settings, or a variant's changes of them, in place."""
        if "name" in tree:
            family = re.match(r"timm:([a-z]+)", tree["name"])
            small = re.sub(r"vit_[a-z]+_", "vit_mini_", tree["name"])
            tree["name"] = FAMILIES.get(family[1], tree["name"]) if family else small
        if "depth" in tree:
            tree["depth"] = self.block(tree["depth"])
        if "img_size" in tree:
            tree["img_size"] = self.side
        for part, key in ((tree, "backbone"), (tree.get("init", {}), "teacher")):
            if isinstance(part, dict) and part.get(key):
                part[key] = self.spec(part[key], f",img_size={self.side}" if key == "teacher" else "")

    # --- recipes -----------------------------------------------------------------------------------------

    def training(self, tree: dict[str, Any], full: Any) -> None:
        """A recipe's section, in place; ``full`` has it with its defaults."""
        last = int(self.epoch(self.epochs))
        tree |= {"epochs": last, "warmup_epochs": min(self.epoch(full.warmup_epochs), last / 2)}
        tree["keep_epochs"] = [int(self.epoch(one)) for one in full.keep_epochs]
        for key in ("warmup_teacher_temp_epochs", "freeze_last_layer"):
            if hasattr(full, key):
                tree[key] = round(self.epoch(getattr(full, key)))
        if full.online_every:
            tree["online_every"] = max(1, round(self.epoch(full.online_every)))
        if full.diagnose_every:
            tree["diagnose_every"] = 1
        tree |= {key: min(most, getattr(full, key)) for key, most in HEADS.items() if getattr(full, key, None)}
        for teacher in tree.get("teachers", []):
            teacher["backbone"] = self.spec(teacher["backbone"])
        tree["batch_size"] = IMAGENET // 2 if self.labelled else BATCH
        if hasattr(full, "crop_size"):
            tree["crop_size"] = self.side
        if hasattr(full, "crops"):
            sizes = {"global_size": self.side, "local_size": 2 * self.patch, "num_local": min(2, full.crops.num_local)}
            tree["crops"] = {**tree.get("crops", {}), **sizes}

    def sweep(self, tree: dict[str, Any]) -> None:
        """The short runs that choose a learning rate, in place: two rates, an epoch each."""
        tree |= {"lr": tree["lr"][:2], "extend": 1}
        short = tree["pretrain"]
        short |= {"epochs": 1, "warmup_epochs": short.get("warmup_epochs", 0) / short["epochs"]}

    # --- evaluations -------------------------------------------------------------------------------------

    def measured(self, evaluate: dict[str, Any]) -> None:
        """The evaluations, in place."""
        if evaluate.get("epochs"):
            evaluate["epochs"] = [int(self.epoch(one)) for one in evaluate["epochs"]]
        for key in ("blocks", "multiscale"):
            if isinstance(evaluate.get(key), list):
                evaluate[key] = [self.block(number) for number in evaluate[key]]
        for name, tree in evaluate.items():
            full: Any = getattr(self.study.evaluate, name, None)
            if isinstance(tree, dict) and getattr(full, "datasets", None):
                self.task(tree, full)

    def task(self, tree: dict[str, Any], full: Any) -> None:
        """One evaluation's section, in place; ``full`` has it with its defaults and those of its protocol."""
        for key, most in TASKS.items():
            value = getattr(full, key) if key in type(full).model_fields else None
            if isinstance(value, str) or value is None:
                continue
            least = self.side if most == SIDE else most
            assert isinstance(least, int)
            tree[key] = [min(least, one) for one in value] if isinstance(value, tuple) else min(least, value)
        if getattr(full, "iterations", None) and getattr(full, "epochs", None) is None:
            tree.pop("epochs", None)  # the one or the other
        elif getattr(full, "epochs", None) is not None and getattr(full, "iterations", None) is None:
            tree.pop("iterations", None)
        if getattr(full, "stride", None):
            tree["stride"] = self.side

    def online(self, parts: dict[str, Any]) -> None:
        """Reduce the measurements during training, in place."""
        few = {"knn": {"train_images": 12, "val_images": 4}, "probe": {"train_images": 6, "val_images": 3}}
        for name, part in parts.items():
            part |= few.get(name, {}) | {"size": self.side}
            if "blocks" in part:
                part["blocks"] = [self.block(number) for number in part["blocks"]]

    def data(self, data: dict[str, Any]) -> None:
        """The data sets, in place: less of what is composed; what is read lies in :attr:`place`."""
        for name, own in data.items():
            full: Any = self.study.data[name]
            if isinstance(full, Synthetic):
                numbers = {key: getattr(full, key, None) for key in COMPOSED}
                own |= {key: min(COMPOSED[key], one) for key, one in numbers.items() if isinstance(one, int)}
                own |= {"val_fraction": HELD_OUT} if hasattr(full, "val_fraction") else {}
            else:
                own["root"] = str(_below(full.root))
                for key in ("images", "masks", "classes", "annotations"):
                    if isinstance(own.get(key), str) and Path(own[key]).is_absolute():
                        own[key] = str(_below(own[key]))
            if own.get("subset"):
                own["subset"] = 6

    # --- all ---------------------------------------------------------------------------------------------

    def shrunk(self) -> dict[str, Any]:
        """The study's tree, small."""
        tree = self.tree
        self.data(tree.get("data", {}))
        for part in (tree.get("model", {}), *tree.get("variants", {}).get("model", ())):
            self.network(part)
        if self.recipe:
            model = tree.setdefault("model", {})
            model |= {"img_size": self.side} | ({} if self.timms else {"depth": self.blocks})
            name = "pretrain" if self.study.find(PretrainSection) else "supervise"
            self.training(tree.setdefault(name, {}), self.recipe)
        if tree.get("supervise"):
            tree["supervise"]["augment"] = {**tree["supervise"].get("augment", {}), "size": self.side}
        if tree.get("sweep"):
            self.sweep(tree["sweep"])
        self.online(tree.get("online", {}))
        self.measured(tree.setdefault("evaluate", {}))
        if "analyze" in type(self.study).model_fields:
            small = {"model": f"vit_mini_patch{self.patch}", "depth": self.blocks, "img_size": self.side, "photos": 1}
            tree["analyze"] = {**tree.get("analyze", {}), **small}
            # every precision is a pass over all images: of the networks' own size and few
            few = {"quantise": {"train_images": 12, "val_images": 4}, "label_free": {"images": 8}}
            for part, numbers in few.items():
                if tree["analyze"].get(part):
                    tree["analyze"][part] |= numbers | {"size": self.side}
        gallery = tree.setdefault("gallery", {})
        gallery |= {"first": 2, "size": self.side}
        if "block" in gallery:
            gallery["block"] = self.block(gallery["block"])
        if "epochs" in gallery:
            gallery["epochs"] = [int(self.epoch(one)) for one in gallery["epochs"]]
        if "plugins" in tree:
            tree["plugins"] = [str(Path(file).resolve()) for file in tree["plugins"]]
        tree.setdefault("report", {})["note"] = NOTE
        return tree

    def make_files(self) -> None:
        """Compose the data, and write networks with random weights into the files that specs name."""
        classes = {self.recipe.dataset: IMAGENET} if self.labelled else {}
        data = {
            name: config if isinstance(config, Synthetic) else config.model_copy(update=self.tree["data"][name])
            for name, config in self.study.data.items()
        }
        make_real(data, self.place, classes)
        patch, side = (self.patch, self.side) if self.recipe else (16, SIDES[16])
        for file in self.files:
            if not (self.place / file).exists():
                make_weights_file(self.place / file, self.blocks, patch, side)


def make_weights_file(path: Path, blocks: int = BLOCKS, patch: int = 16, side: int = SIDES[16]) -> None:
    """Write a small network with random weights: safetensors of ours, or a DINO state_dict for ``.pth``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config = VitConfig(name=f"vit_mini_patch{patch}", depth=blocks, img_size=side)
    state = create_model(config.name, depth=blocks, img_size=config.img_size).state_dict()
    if path.suffix == ".pth":
        save_torch_file(path, state)
    else:
        save_weights(path, state, config, {})


def write_rehearsal(
    config: str | Path, below: Path, overrides: Iterable[str] = (), *, name: str = "study.yaml", whole: bool = False
) -> Path:
    """Write a study's configuration, small, with its data and weights files, below a folder; return the YAML's path.

    Studies of one folder share their data, those with ImageNet's classes apart from others, since theirs are more.
    """
    shrink = Shrink(apply_overrides(read_yaml(config), list(overrides)), below, whole=whole)
    place = below / ("labelled" if shrink.labelled else "plain")
    place.mkdir(parents=True, exist_ok=True)
    shrink.place = place.resolve()
    tree = shrink.shrunk()
    shrink.make_files()
    for own in tree.get("data", {}).values():
        if "root" in own:
            own["root"] = str(place.resolve() / own["root"])
    tree["output"] = str(place.resolve() / "runs")
    write_text(place / name, yaml_of(tree))
    return place / name
