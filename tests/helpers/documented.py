"""The commands and examples of README.md and docs/, and the folder in which they can be run small."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from dinoskip.cli import main
from dinoskip.data.sets import AnyDataset, DatasetConfig
from dinoskip.models import create_model
from dinoskip.pipeline.rehearsal.layouts import make_real
from dinoskip.pipeline.rehearsal.shrink import Shrink, make_weights_file
from dinoskip.settings.config import read_yaml
from tests.helpers.shipped import CONFIGS
from tests.helpers.study import TINY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "concepts").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PROGRAMS = (
    "dinoskip",
    ".venv/bin/dinoskip",
    "make",
    "torchrun",
    "srun",
    "python",
    "pytest",
    "pip",
    "hf",
    "tensorboard",
)
CLUSTERS = (ROOT / "docs" / "cluster.md").read_text()


@dataclass(frozen=True)
class Command:
    """One line of a shell block, comments and continuations taken away."""

    page: str
    text: str


def commands() -> Iterator[Command]:
    """Every command of every page, in order."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text()):
            if language in {"sh", "bash", ""}:
                for line in block.replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True) if line.strip().startswith(PROGRAMS) else []
                    if words and (words[0] in PROGRAMS):
                        yield Command(page.relative_to(ROOT).as_posix(), shlex.join(words))


def snippets(page: str) -> list[str]:
    """The Python examples of a page."""
    return [text for language, text in BLOCK.findall((ROOT / page).read_text()) if language == "python"]


VIT = "timm:vit_tiny_patch16_224,pretrained=false"
STAND_INS = {
    r"timm:vit_\w+\.dino(?!,)": VIT,
    r"timm:vit_small_patch16_224\.dino,file=dino_vits16.pth": "timm:vit_small_patch16_224.dino,file=small.pth",
    r"\bSPEC\b": "run:runs/skipless",
    r"--rows STUDY": "--rows B",  # has rows of these weights
    r"\bWORD\b": "blur",
    r"data\.annotations=data/coco/": "data.annotations=../",  # relative to root
    r"/mnt/other/": "other/",
    r"teacher=timm:\S+": f"teacher={VIT},img_size=48",
}
"""What a reader would download or fill in: backbones with random weights in the place of trained ones."""

_NETWORK = "model.name=vit_mini_patch16 model.depth=2 model.img_size=48"
_EPOCH = "{0}.epochs=1 {0}.batch_size=4 {0}.warmup_epochs=0"
_DINO = (
    "pretrain.out_dim=64 pretrain.hidden_dim=32 pretrain.bottleneck_dim=16 pretrain.crops.global_size=48 "
    "pretrain.crops.local_size=32 pretrain.crops.num_local=1 pretrain.warmup_teacher_temp_epochs=0"
)
SMALLER = {
    "pretrain": f"{_NETWORK} {_EPOCH.format('pretrain')} {_DINO}",
    "supervise": f"{_NETWORK} {_EPOCH.format('supervise')} supervise.augment.size=48",
    "probe": "evaluate.probe.size=48 evaluate.probe.epochs=1",
    "knn": "evaluate.knn.size=48 evaluate.knn.k=[3]",
    "retrieve": "evaluate.retrieve.size=48 evaluate.retrieve.memory=200",
    "cluster": "evaluate.cluster.size=96",
    "objects": "evaluate.objects.size=96",
    "linear": "evaluate.linear.size=48 evaluate.linear.epochs=1 evaluate.linear.batch_size=8",
    "depth": "evaluate.depth.iterations=2 evaluate.depth.batch_size=2 evaluate.depth.crop=[48,48]",
    "normals": "evaluate.normals.epochs=1 evaluate.normals.batch_size=2",
    "video": "evaluate.video.short_side=48",
    "correspondence": "evaluate.correspondence.size=96",
    "detection": "evaluate.detection.short_side=48 evaluate.detection.long_side=96 evaluate.detection.epochs=1 "
    "evaluate.detection.batch_size=2 evaluate.detection.channels=8",
    "gallery": "gallery.first=20 gallery.size=48",
}  # fmt: skip
"""Sizes and steps, laid over what a command says."""
ON_A_DEVICE = {"pretrain", "supervise", "run", "gallery", "look"}


def _inputs_of(command: Command, name: str) -> list[str]:
    """Return what a command of this name reads and writes; empty where it is another or does not say all."""
    words = shlex.split(command.text)
    needed = ("--data", "--out")
    place = 2 if words[1] == "eval" else 1
    if words[place : place + 1] != [name] or not set(needed) <= set(words):
        return []
    return [words[place + 1], *(words[words.index(option) + step] for option in needed for step in (0, 1))]


def smaller(command: Command, before: list[Command]) -> list[str]:
    """The arguments of ``dinoskip`` with which a command is run: stand-ins, smaller; ``...`` is of the one before."""
    text = command.text
    for written, stand_in in STAND_INS.items():
        text = re.sub(written, stand_in, text)
    words = shlex.split(text)[1:]
    name = words[1] if words[0] == "eval" else words[0]
    if "..." in words:
        options = [given for one in reversed(before) if one.page == command.page
                   if (given := _inputs_of(one, name))]  # fmt: skip
        at = words.index("...")
        words = [*words[:at], *options[0], *words[at + 1 :]]
    extra = shlex.split(SMALLER.get(name, ""))
    if "--protocol" in words and name == "probe":
        extra = ["evaluate.probe.size=48", "evaluate.probe.iterations=2", "evaluate.probe.stride=48"]
    if words[0] == "submit" or (words[0] == "run" and "configs/paper" in text):
        extra = ["--dry-run"]  # a cluster; studies that tests/pipeline/test_shipped.py runs
        extra += ["pretrain.batch_size=16"] if words[0] == "submit" and "--data" in words else []  # few images
    if words[0] == "rehearse":  # shipped ones are in tests/pipeline/test_shipped.py
        words[1] = "study.yaml"
    if words[:3] == ["init-study", "NAME", "train"]:  # two pages write one file
        words[1] = f"NAME{len(before)}"
    if words[0] in {"pretrain", "supervise"}:  # a new run each: pages give one name to several
        words[words.index("--out") + 1] = f"made/{len(before)}"
    if name in set(SMALLER) | ON_A_DEVICE:
        extra = [*extra, "--device", "cpu"]
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *extra, *words[at:]]


def data_sets() -> dict[str, AnyDataset]:
    """The data sets that the pages' commands name, by their places."""
    trees: dict[str, dict[str, Any]] = {
        "voc": {"root": "VOCdevkit"}, "ade20k": {"root": "ADE"}, "davis": {"root": "DAVIS"}, "nyu": {"root": "NYU"},
        "spair71k": {"root": "SPair-71k"}, "pf_pascal": {"root": "PF-dataset-PASCAL"}, "ecssd": {"root": "ECSSD"},
        "nyu_normals": {"root": "NYU_NORMALS"},
    }  # fmt: skip
    listed = [{"kind": kind, **tree} for kind, tree in trees.items()]
    listed += [{"kind": "folder", "root": name} for name in ("imagenette", "IMAGENET", "flowers", "data/imagenet")]
    listed += [{"kind": kind, "root": "data/coco"} for kind in ("coco_stuff", "coco", "coco20k")]
    listed += [{"kind": kind, "root": "COCO"} for kind in ("coco", "coco20k")] + [
        {"kind": "voc", "root": "data/VOCdevkit"}
    ]
    listed += [{"kind": "ade20k", "root": "data/ADEChallengeData2016"}]
    listed += [{"kind": "images", "root": name} for name in ("PHOTOS", "photos", "DIR")]
    listed += [
        {"kind": "coco_json", "root": "data/coco/val2017", "annotations": "../annotations/instances_val2017.json"}
    ]
    adapter: TypeAdapter[AnyDataset] = TypeAdapter(DatasetConfig)
    return {str(number): adapter.validate_python(tree) for number, tree in enumerate(listed)}


def make_place(place: Path) -> None:
    """Make what a reader of the pages has: data sets, shrunk studies, two trained networks, weights files, rows."""
    make_real(data_sets(), place)
    for name in ("PHOTOS/a.jpg", "PHOTOS/b.jpg", "photo.jpg"):
        shutil.copy(place / "PHOTOS" / "0.jpg", place / name)
    (place / "boxes_val.json").write_text("{}")
    shutil.copytree(CONFIGS / "cluster", place / "configs" / "cluster")
    yaml = YAML(typ="safe", pure=True)
    for name in ("demo.yaml", "paper/table1_supervised.yaml", "paper/table2_dino.yaml"):
        path = place / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        yaml.dump(Shrink(read_yaml(CONFIGS / name), place).shrunk(), path)
    (place / "my_cluster.yaml").write_text(next(text for kind, text in BLOCK.findall(CLUSTERS) if kind == "yaml"))
    for name in ("dino_deitsmall16_pretrain.pth", "dino_vits16.pth", "weights.safetensors"):
        make_weights_file(place / name, 12)
    torch.save(create_model("vit_small_patch16").state_dict(), place / "small.pth")
    for file, name in (("study.yaml", "NAME"), ("STUDY.yaml", "STUDY")):
        (place / file).write_text(TINY.replace("name: tiny", f"name: {name}") + "output: .\n")
    assert main(["run", "STUDY.yaml", "--device", "cpu", "-q"]) == 0
    for file in ("my.yaml", "job.yaml"):
        (place / file).write_text("optimizer: {name: adamw}\n")
    network = shlex.split(SMALLER["pretrain"].replace("depth=2", "depth=12"))
    for name in ("skip", "skipless"):
        skip = [] if name == "skip" else ["model.skip=false"]
        assert main(["pretrain", "--data", "photos", "--out", f"runs/{name}", *network, *skip, "--device", "cpu"]) == 0
    knn = ["eval", "knn", "--data", "imagenette", *shlex.split(SMALLER["knn"]), "--device", "cpu"]
    for name, backbone in (("A", "run:runs/skip"), ("B", "run:runs/skipless")):
        assert main([*knn, backbone, "--out", name]) == 0
    for other in ("runs/paper", "runs/backbones", "other/runs/paper"):
        shutil.copytree(place / "A", place / other)
