"""The shipped configurations, shrunk: the same study, of a size that a test can run.

Smaller are networks, images, sets, steps, crops, heads of objectives, and grids of learning rates. All else is as it
ships: variants, initialisations, optimizers, augmentation, schedules (as shares of the run), protocols, tables.
"""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from dinoskip.models import VitConfig, create_model, save_weights
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.study import load_study
from dinoskip.settings.config import read_yaml
from tests.helpers.real_layouts import make_real

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
CLUSTERS = "cluster"  # this folder's files are places of a cluster, not studies
NOT_RUN = {"paper/base.yaml"}
"""What others extend and their own first lines say is not run itself."""
SHIPPED = sorted(
    name
    for path in CONFIGS.rglob("*.yaml")
    if (name := path.relative_to(CONFIGS).as_posix()).partition("/")[0] != CLUSTERS and name not in NOT_RUN
)
SIDES = {8: 32, 14: 42, 16: 48}  # of images, by the patch
BLOCKS = 4  # of a network, unless its depth is what is compared
BATCH = 8
IMAGENET = 1000  # classes
SMALL = {
    "scenes": {"images": 32, "size": 64, "val_fraction": 0.25},
    "scenes_video": {"videos": 2, "frames": 3, "size": 48},
    "scenes_pairs": {"objects": 1, "views": 2, "size": 64},
    "rooms": {"images": 8, "size": 64, "val_fraction": 0.25},
}
"""What is composed; of what is read, :mod:`tests.helpers.real_layouts` makes little."""
STAND_IN = "timm:vit_tiny_patch16_224,pretrained=false,depth=4"  # for a network of timm's
FAMILIES = {
    "swin": "timm:swin_tiny_patch4_window7_224", "cait": "timm:cait_xxs24_224", "xcit": "timm:xcit_nano_12_p16_224",
    "pvt": "timm:pvt_v2_b0", "davit": "timm:davit_tiny", "convmixer": "timm:convmixer_768_32",
}  # fmt: skip
"""The smallest of timm's families that are trained under their own names; their images are of 32 pixels, or 28."""
HEADS = {"out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "decoder_dim": 64, "decoder_depth": 1, "queue": 32}
MEASURES: dict[str, dict[str, Any]] = {
    "probe": {"size": "side", "epochs": 1},
    "knn": {"size": "side"},
    "retrieve": {"size": "side"},
    "cluster": {"size": "side"},
    "objects": {"size": "side"},
    "linear": {"size": "side", "epochs": 1, "batch_size": 6},
    "depth": {"iterations": 2, "batch_size": 2, "crop": ["side", "side"], "bins": 8, "maps": 2},
    "normals": {"epochs": 1, "batch_size": 2, "maps": 2},
    "video": {"short_side": 48},
    "correspondence": {"size": "side"},
    "detection": {"short_side": "side", "long_side": 96, "epochs": 1, "batch_size": 2, "channels": 8},
}
"""Sizes and steps of evaluations; ``side`` is that of the images."""


def _depths_compared(study: StudyBase) -> bool:
    """Whether a published table that the report shows asks for numbers of blocks."""
    compare = study.report.compare
    if not compare:
        return False
    from dinoskip_papers.published import PUBLISHED  # of the plug-in that has the tables

    return any(cell.depth for name in compare if name in PUBLISHED for _, row in PUBLISHED[name].rows for cell in row)


class Shrink:
    """How one configuration is made small: its patch, its blocks, its epochs at the same shares of a shorter run.

    ``whole``: it keeps its depth, also if that is not what is compared.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.tree = copy.deepcopy(read_yaml(path).tree)
        self.study, self.variants = load_study(path)
        name = str(self.tree.get("model", {}).get("name", "vit_small_patch16"))
        self.timms = name.startswith("timm:")
        self.patch = 16 if self.timms else int(name.rpartition("patch")[2])
        self.side = {"timm:convmixer": 28}.get(name.partition("_")[0], 32) if self.timms else SIDES[self.patch]
        self.full = max((one.depth or 12 for one in self.variants), default=12)
        self.blocks = self.full if whole or _depths_compared(self.study) else min(self.full, BLOCKS)
        self.recipe: Any = self.study.find(PretrainSection) or self.study.find(SuperviseSection)
        self.epochs = self.recipe.epochs if self.recipe else 1
        gallery: Any = self.study.gallery
        said = [*self.study.evaluate.epochs, *gallery.epochs, *(self.recipe.keep_epochs if self.recipe else ())]
        self.each = math.gcd(self.epochs, *said)

    def epoch(self, epoch: float) -> float:
        """An epoch, or a length in epochs, at the same share of the shorter run."""
        return epoch / self.each

    def block(self, number: int) -> int:
        """The block at the same share of the depth; from the end, and 0, as they are."""
        return number if number <= 0 else math.ceil(number * self.blocks / self.full)

    def network(self, tree: dict[str, Any]) -> None:
        """A model's settings, or a variant's changes of them, in place."""
        if "name" in tree:
            family = re.match(r"timm:([a-z]+)", tree["name"])
            tree["name"] = FAMILIES[family[1]] if family else re.sub(r"vit_[a-z]+_", "vit_mini_", tree["name"])
        if "depth" in tree:
            tree["depth"] = self.block(tree["depth"])
        if "img_size" in tree:
            tree["img_size"] = self.side
        for part, key in ((tree, "backbone"), (tree.get("init", {}), "teacher")):
            if key in part:
                side = f",img_size={self.side}" if key == "teacher" else ""
                part[key] = re.sub(r"^timm:.*", f"{STAND_IN}{side}", part[key])

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
            teacher["backbone"] = re.sub(r"^timm:.*", STAND_IN, teacher["backbone"])
        tree["batch_size"] = IMAGENET // 2 if self.labelled else BATCH
        if hasattr(full, "crop_size"):
            tree["crop_size"] = self.side
        if hasattr(full, "crops"):
            sizes = {"global_size": self.side, "local_size": 2 * self.patch, "num_local": min(2, full.crops.num_local)}
            tree["crops"] = {**tree.get("crops", {}), **sizes}

    @property
    def labelled(self) -> bool:
        """Whether classifiers are trained on as many classes as ImageNet has."""
        return self.study.find(SuperviseSection) is not None and self.recipe.dataset == "imagenet"

    def measured(self, evaluate: dict[str, Any]) -> None:
        """The evaluations, in place."""
        if evaluate.get("epochs"):
            evaluate["epochs"] = [int(self.epoch(one)) for one in evaluate["epochs"]]
        for key in ("blocks", "multiscale"):
            if isinstance(evaluate.get(key), list):
                evaluate[key] = [self.block(number) for number in evaluate[key]]
        for name, small in MEASURES.items():
            if name in evaluate:
                own = evaluate[name]
                put = {key: [self.side] * 2 if isinstance(value, list) else self.side if value == "side" else value
                       for key, value in small.items()}  # fmt: skip
                if "iterations" in own or own.get("protocol") in {"dinov2", "dinov3"}:
                    put = {**put, "iterations": 2}
                    put.pop("epochs", None)
                own |= put | (
                    {"stride": self.side} if own.get("stride") or ("iterations" in put and name == "probe") else {}
                )

    def data(self, data: dict[str, Any]) -> None:
        """The data sets, in place."""
        for own in data.values():
            own |= {key: min(value, own.get(key, value)) for key, value in SMALL.get(own["kind"], {}).items()}
            if "val_fraction" in SMALL.get(own["kind"], {}):
                own["val_fraction"] = 0.25
            if own.get("subset"):
                own["subset"] = 6

    def shrunk(self) -> dict[str, Any]:
        """The study's tree, small."""
        tree = self.tree
        self.data(tree.get("data", {}))
        for part in (tree.get("model", {}), *tree.get("variants", {}).get("model", ())):
            self.network(part)
        if self.recipe:
            model = tree.setdefault("model", {})
            model |= {"img_size": self.side} | ({} if self.timms else {"depth": self.blocks})
            self.training(tree["pretrain" if self.study.find(PretrainSection) else "supervise"], self.recipe)
        if "supervise" in tree:
            tree["supervise"]["augment"] = {**tree["supervise"].get("augment", {}), "size": self.side}
        if "sweep" in tree:
            sweep = tree["sweep"]
            sweep |= {"lr": sweep["lr"][:2], "extend": 1}
            warm = sweep["pretrain"].get("warmup_epochs", 0) / sweep["pretrain"]["epochs"]
            sweep["pretrain"] |= {"epochs": 1, "warmup_epochs": warm}
        for name, part in tree.get("online", {}).items():
            few = {"knn": {"train_images": 12, "val_images": 4}, "probe": {"train_images": 6, "val_images": 3}}
            part |= few[name] | {"size": self.side}
            if "blocks" in part:
                part["blocks"] = [self.block(number) for number in part["blocks"]]
        self.measured(tree.setdefault("evaluate", {}))
        name = f"vit_mini_patch{self.patch}"
        tree["analyze"] = {
            **tree.get("analyze", {}),
            "model": name,
            "depth": self.blocks,
            "img_size": self.side,
            "photos": 1,
        }
        gallery = tree.setdefault("gallery", {})
        gallery |= {"first": 2, "size": self.side}
        if "block" in gallery:
            gallery["block"] = self.block(gallery["block"])
        if "epochs" in gallery:
            gallery["epochs"] = [int(self.epoch(one)) for one in gallery["epochs"]]
        return tree


def make_weights_file(path: Path, blocks: int = BLOCKS) -> None:
    """Write a small network with random weights: safetensors of ours, or a DINO state_dict for ``.pth``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config = VitConfig(name="vit_mini_patch16", depth=blocks, img_size=SIDES[16])
    state = create_model(config.name, depth=blocks, img_size=config.img_size).state_dict()
    if path.suffix == ".pth":
        torch.save(state, path)
    else:
        save_weights(path, state, config, {})


def make_weights(variants: Any, below: Path) -> None:
    """Weights files that backbones and teachers name, below a folder: small networks in the format of their kind."""
    for variant in variants:
        spec = variant.backbone or getattr(variant.model.init, "teacher", "")
        kind, _, file = spec.partition(":")
        if kind in {"weights", "dino"} and not (below / file).exists():
            make_weights_file(below / file)


def write_shrunk(name: str, below: Path, *, whole: bool = False) -> Path:
    """Write a shipped configuration, shrunk, with its data and weights at the places that it names, below a folder.

    ``whole``: networks keep their depth, as studies must that share networks with one that compares depths.
    """
    shrink = Shrink(CONFIGS / name, whole=whole)
    place = below / ("labelled" if shrink.labelled else "plain")  # ImageNet has more classes there
    place.mkdir(exist_ok=True)
    path = place / name.replace("/", "-")
    YAML(typ="safe", pure=True).dump(shrink.shrunk(), path)
    make_real(shrink.study.data, place, {shrink.recipe.dataset: IMAGENET} if shrink.labelled else {})
    make_weights(shrink.variants, place)
    return path
