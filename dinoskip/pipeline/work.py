"""What evaluations and pages do, in closed form: images through a network, products of heads, and work of the host.

Seconds are of a core of an Intel Xeon, by stages of the demo, of `configs/tasks.yaml` and of `dinoskip look`;
docs/measured.md has the ratios of whole estimates to real times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch

from dinoskip.data.sets.kind import Composed
from dinoskip.errors import ConfigError, DataError
from dinoskip.images import image_size
from dinoskip.models.backbone import adapter_for
from dinoskip.models.build import DEPTH, SHAPES, VitConfig
from dinoskip.models.export import weights_config
from dinoskip.models.flops import network_flops
from dinoskip.models.load import run_weights, split_spec
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.inputs import OPENERS
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.variants import Variant

IMAGENET = {"train": 1_281_167, "val": 50_000}
CLASSES = 21  # where a data set does not say: VOC's
_SIDES = {"nyu": (480, 640), "nyu_normals": (480, 640), "davis": (480, 854)}
_PHOTOGRAPH, _COCO = (375, 500), (480, 640)  # of VOC and ADE20K


@dataclass(frozen=True)
class Network:
    """Channels, side of a patch in pixels, blocks."""

    width: int
    patch: int
    depth: int

    def tokens(self, height: int, width: int) -> int:
        """Patches of an image, rounded up."""
        return math.ceil(height / self.patch) * math.ceil(width / self.patch)

    def flops(self, tokens: int) -> int:
        """Operations of a forward pass of one image of so many patches."""
        return network_flops(self.width, self.patch, self.depth, tokens)


@dataclass(frozen=True)
class Work:
    """Operations of forward and backward passes, images passed, operations of narrow products (heads, neighbours,
    clusters), and seconds of what the host does beside them.
    """

    flop: float = 0.0
    images: int = 0
    fits: float = 0.0
    host: float = 0.0


@dataclass(frozen=True)
class Passed:
    """Images of a split that a network has seen: how many, patches of each, blocks, and its operations an image."""

    network: Network
    images: int
    tokens: int
    blocks: int
    pixels: int

    @property
    def work(self) -> Work:
        """Of the pass; the host decodes and writes."""
        flop = float(self.network.flops(self.tokens)) * self.images
        return Work(flop, self.images, host=self.images * (READ_SECONDS + DECODE_SECONDS * self.pixels))


def network_of(variant: Variant | None) -> Network:
    """The network of a variant: its own, or its backbone's as far as a name or a header tells; else a ViT-S/16."""
    if variant is None or (variant.model is None and variant.backbone is None):
        return _of_config(VitConfig())
    if variant.model is not None:
        return _of_config(variant.model)
    kind, place, options = split_spec(str(variant.backbone))
    try:
        if kind in {"run", "weights"}:
            return _of_config(weights_config(run_weights(place, options.get("role")) if kind == "run" else Path(place)))
        if kind == "timm" and "/" not in place:
            ours = {"file", "seed", "pretrained", "pos_embed"}
            built = {name: value for name, value in options.items() if name not in ours}
            with torch.device("meta"):
                adapter = adapter_for(timm.create_model(place, pretrained=False, **built), place)
            return Network(adapter.dim, adapter.patch_size, len(adapter.blocks))
    except Exception:  # of timm any kind; said when it is opened
        pass
    return _of_config(VitConfig())


def _of_config(model: VitConfig) -> Network:
    width, patch = SHAPES[model.name]
    return Network(width, patch, model.depth or DEPTH)


def count_images(study: StudyBase, name: str, split: str, use: str) -> int:
    """Images of a split of one of the study's data sets, its subset or limit where one is asked for.

    As published; else, where the data are there, as opened; else ImageNet-1k's.
    """
    config: Any = study.data[name]
    limit = getattr(config, "limit", None) or math.inf
    if split == "train" and getattr(config, "subset", None):
        return int(min(config.subset, limit))
    wanted = getattr(config, "train_list", split) if split == "train" and use == "segmentation" else split
    splits = config.published_splits(Path(getattr(config, "root", ".")))
    of_use = [one.expected for one in splits if (one.task, one.split) == (use, wanted)]
    of_split = [one.expected for one in splits if one.split == wanted or len(splits) == 1]
    other = [one.expected for one in splits if one.split != "train" != wanted and isinstance(config, Composed)]
    known = [count for count in (*of_use, *of_split, *other) if count]
    return int(min(known[0] if known else _listed(config, wanted, use), limit))


def _listed(config: Any, split: str, use: str) -> int:
    opened = _opened(config, split, use)
    return IMAGENET.get(split, IMAGENET["val"]) if opened is None else len(opened)


def _opened(config: Any, split: str, use: str) -> Any:
    """A split where the data are there and can be read, else None; a stage says why."""
    if use not in OPENERS or not Path(getattr(config, "root", "")).expanduser().is_dir():
        return None
    try:
        return OPENERS[use](config, split)
    except (ConfigError, DataError):
        return None


def seen(config: Any) -> tuple[tuple[int, int], int]:
    """((height, width), classes with the background) of a data set: as composed, or of its first image where it is
    there, or as most of its kind are. COCO's lists are not opened for it.
    """
    if isinstance(config, Composed):
        return (config.size, config.size), int(getattr(config, "classes", CLASSES - 1)) + 1  # type: ignore[attr-defined]
    for use in ("segmentation", "classes") if not config.kind.startswith("coco") else ():
        opened = _opened(config, "val", use)
        if opened is not None and len(opened):
            return image_size(opened.path(0)), len(opened.class_names)
    return _SIDES.get(config.kind, _COCO if config.kind.startswith("coco") else _PHOTOGRAPH), CLASSES


class StudyWork:
    """Reckons the work of the nodes of one study."""

    def __init__(self, study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node]) -> None:
        self.study = study
        self.networks = {variant.name: network_of(variant) for variant in variants}
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}
        self.stores = {node.id: self.passed(node, node.settings) for node in nodes if node.stage == "features"}

    def network(self, node: Node) -> Network:
        """The network that a node is of."""
        return self.networks.get(node.variant) or network_of(None)

    def data(self, node: Node) -> str:
        """The name of the data set that a node reads."""
        if "context" in node.settings:
            return str(node.settings["context"]["dataset"])
        last = node.id.rpartition("/")[2]
        return next(one for one in sorted(self.study.data, key=len, reverse=True) if f"{last}-".startswith(f"{one}-"))

    def passed(self, node: Node, settings: Mapping[str, Any]) -> Passed:
        """Images through a network with the settings of a feature store."""
        network, name = self.network(node), self.data(node)
        blocks = network.depth if isinstance(settings["blocks"], str) else len(settings["blocks"])
        size = settings["transform"].get("size", 224)
        own = self.sides(name)
        sides = own if settings["transform"]["mode"] in {"native", "rounded"} else (size, size)
        split = settings.get("split") or settings["dataset"]["split"]
        images = count_images(self.study, name, split, settings["use"])
        return Passed(network, images, network.tokens(*sides), blocks, math.prod(own))

    def read(self, node: Node) -> dict[str, Passed]:
        """The stores that a node reads, and the windows that it makes itself, by role."""
        kept = {role: self.stores[source] for role, source in node.inputs.items() if source in self.stores}
        return kept | self.windows(node)

    def windows(self, node: Node) -> dict[str, Passed]:
        """The windows that a node makes itself."""
        return {
            key.removeprefix("features "): self.passed(node, own)
            for key, own in node.settings.items()
            if key.startswith("features ")
        }

    def of(self, node: Node) -> Work:
        """The work of a node that neither trains nor exports features."""
        rule = RULES.get(node.stage)
        made = [passed.work for passed in self.windows(node).values()]
        made += [rule(self, node)] if rule else []
        return Work(*(sum(getattr(one, name) for one in made) for name in ("flop", "images", "fits", "host")))

    def sides(self, name: str) -> tuple[int, int]:
        """(height, width) of a data set's images."""
        return self._look(name)[0]

    def classes(self, node: Node) -> int:
        """Classes of its data set, with the background."""
        return self._look(self.data(node))[1]

    def _look(self, name: str) -> tuple[tuple[int, int], int]:
        if name not in self._seen:
            self._seen[name] = seen(self.study.data[name])
        return self._seen[name]

    def live(self, node: Node, use: str, epochs: float, tokens: int) -> Passed:
        """Training images so often, and the scored ones once, through a network."""
        own, name = node.settings[node.stage], self.data(node)
        train, val = (count_images(self.study, name, own[f"{part}_split"], use) for part in ("train", "val"))
        pixels = math.prod(self.sides(name))
        return Passed(self.network(node), int(train * epochs) + val, tokens, _blocks(self, node), pixels)


def _blocks(work: StudyWork, node: Node) -> int:
    blocks = node.settings.get("blocks", work.study.evaluate.block_list)
    return work.network(node).depth if isinstance(blocks, str) else len(blocks)


def _data(work: StudyWork, node: Node) -> Work:
    name = node.id.rpartition("/")[2]
    config: Any = work.study.data[name]
    splits = {(one.split, one.expected or 0) for one in config.published_splits(Path("."))}
    height, width = work.sides(name)
    return Work(host=sum(count for _, count in splits) * height * width * 6e-7 if isinstance(config, Composed) else 1.0)


def _probe(work: StudyWork, node: Node) -> Work:
    own, read, classes = node.settings["probe"], work.read(node), work.classes(node)
    train, val = (
        read[part].images if read else count_images(work.study, work.data(node), own[f"{part}_split"], "segmentation")
        for part in ("train", "val")
    )
    epochs = own["iterations"] * own["batch_size"] / train if own["iterations"] else own["epochs"]
    tokens = work.network(node).tokens(own["size"], own["size"])
    passed = read["val"] if read else work.live(node, "segmentation", epochs, tokens)
    heads = passed.blocks * len(own["learning_rates"]) * len(own["weight_decay"]) * own["seeds"]
    fits = 6.0 * heads * train * epochs * passed.tokens * passed.network.width * classes
    scored = 20.0 * val * passed.blocks * own["size"] ** 2 * classes
    passes = Work() if read else passed.work
    return Work(passes.flop, passes.images, fits + scored, passes.host + FITTING)


def _knn(work: StudyWork, node: Node) -> Work:
    read = work.read(node)
    train, val = read["train"], read["val"]
    return Work(fits=2.0 * train.images * val.images * val.network.width * val.blocks)


def _retrieve(work: StudyWork, node: Node) -> Work:
    val, own = work.read(node)["val"], node.settings["retrieve"]
    return Work(fits=2.0 * own["memory"] * val.images * val.tokens * val.network.width * val.blocks)


def _cluster(work: StudyWork, node: Node) -> Work:
    val, own = work.read(node)["val"], node.settings["cluster"]
    clusters = max(own["clusters"], default=work.classes(node))
    products = 2.0 * clusters * val.network.width * val.blocks * own["seeds"]
    points = min(own["points"] * clusters, val.images * val.tokens)
    by_adam = own["steps"] * own["batch_size"] * val.tokens
    fitted = own["iterations"] * own["restarts"] * points if own["method"] == "kmeans" else by_adam
    return Work(fits=products * (fitted + val.images * val.tokens), host=0.002 * val.images * val.blocks)


def _cuts(each: float, part: str = "store") -> Callable[[StudyWork, Node], Work]:
    def rule(work: StudyWork, node: Node) -> Work:
        store = work.read(node)[part]
        rounds = node.settings[node.stage].get("rounds", 1)
        return Work(host=store.images * store.blocks * rounds * (each + CUT_SECONDS * store.tokens**2))

    return rule


def _linear(work: StudyWork, node: Node) -> Work:
    own = node.settings["linear"]
    seen = work.live(node, "classes", own["epochs"], work.network(node).tokens(own["size"], own["size"]))
    heads = seen.blocks * len(own["inputs"]) * len(own["last"]) * len(own["learning_rates"])
    fits = 6.0 * heads * seen.images * seen.network.width * work.classes(node)
    return Work(seen.work.flop, seen.images, fits, seen.work.host + 0.003 * seen.images)


def _depth(work: StudyWork, node: Node) -> Work:
    own, network, name = node.settings["depth"], work.network(node), work.data(node)
    tokens = network.tokens(*(own["crop"] or work.sides(name)))
    train = own["iterations"] * own["batch_size"]
    val = count_images(work.study, name, own["val_split"], "depth") * (2 if own["flip_test"] else 1)
    seen = Passed(network, train + val, tokens, _blocks(work, node), math.prod(work.sides(name)))
    places = tokens * own["upsample"] ** 2
    heads = seen.blocks * len(own["learning_rates"])
    fits = 6.0 * heads * train * places * network.width * own["bins"] * (2 if own["cls"] else 1)
    pixels = float(tokens * network.patch**2)
    return Work(seen.work.flop, seen.images, fits, seen.work.host + (train + val) * heads * pixels * PIXEL_SECONDS)


def _normals(work: StudyWork, node: Node) -> Work:
    own, network = node.settings["normals"], work.network(node)
    height, width = work.sides(work.data(node))
    seen = work.live(node, "normals", own["epochs"], network.tokens(height, width))
    heads = seen.blocks * len(own["learning_rates"])
    channels = 4 if own["uncertainty"] else 3
    fits = 6.0 * heads * seen.images * seen.tokens * own["upsample"] ** 2 * network.width * channels
    host = seen.images * heads * float(height * width) * channels * NORMAL_SECONDS
    return Work(seen.work.flop, seen.images, fits, seen.work.host + host)


def _video(work: StudyWork, node: Node) -> Work:
    own, network, name = node.settings["video"], work.network(node), work.data(node)
    height, width = work.sides(name)
    scale = own["short_side"] / min(height, width)
    seen = Passed(
        network,
        count_images(work.study, name, own["split"], "video"),
        network.tokens(round(height * scale), round(width * scale)),
        _blocks(work, node),
        height * width,
    )
    near = min(seen.tokens, (2 * own["radius"] + 1) ** 2 if own["radius"] else seen.tokens)
    fits = 2.0 * seen.images * seen.blocks * own["memory"] * seen.tokens * near * network.width
    return Work(seen.work.flop, seen.images, fits, seen.work.host + 0.004 * seen.images * seen.blocks)


def _correspondence(work: StudyWork, node: Node) -> Work:
    own, network, name = node.settings["correspondence"], work.network(node), work.data(node)
    pairs = count_images(work.study, name, node.settings["dataset"]["split"], "correspondence")
    pixels = math.prod(work.sides(name))
    seen = Passed(network, pairs, network.tokens(own["size"], own["size"]), _blocks(work, node), pixels)
    return Work(seen.work.flop, seen.images, 0.0, seen.work.host + 0.002 * pairs * seen.blocks)


def _gallery(work: StudyWork, node: Node) -> Work:
    own = node.settings["gallery"]
    flop = host = 0.0
    for network in (work.networks.get(one["variant"]) or network_of(None) for one in node.settings["models"]):
        flop += own["first"] * network.flops(network.tokens(own["size"], own["size"]))
        host += 0.02 * own["first"] * network.depth
    return Work(flop, own["first"] * len(node.settings["models"]), 0.0, 4.0 + host)


def _analyze(work: StudyWork, node: Node) -> Work:
    return Work(host=6.0 + 1.5 * len(work.networks))


def _report(work: StudyWork, node: Node) -> Work:
    return Work(host=5.0 + 0.2 * len(node.inputs))


CUT_SECONDS = 1.4e-8
"""Of one core of an Intel Xeon for a cut, times the square of its number of tokens: 20 ms at 1,200 of them
(``python -m benchmarks.bench_tokencut``)."""
FITTING = 0.5  # seconds beside the products of a fit
READ_SECONDS, DECODE_SECONDS = 5e-4, 2e-8  # of an image, and of a pixel of it
PIXEL_SECONDS, NORMAL_SECONDS = 5e-8, 3e-7  # of a predicted value at a pixel: loss, gradient, scores
RULES: Mapping[str, Callable[[StudyWork, Node], Work]] = {
    "data": _data,
    "probe": _probe,
    "tokencut": _cuts(0.002),
    "knn": _knn,
    "retrieve": _retrieve,
    "cluster": _cluster,
    "saliency": _cuts(0.009),
    "objects": _cuts(0.004),
    "linear": _linear,
    "depth": _depth,
    "normals": _normals,
    "video": _video,
    "correspondence": _correspondence,
    "gallery": _gallery,
    "analyze": _analyze,
    "report": _report,
}
