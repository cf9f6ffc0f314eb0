"""Numbers that authors publish for frozen features of their networks, as facts: value, source, protocol.

Each says with which settings of ours it is measured again, what of our protocol differs, and how near ours has to come
(``band``); without a band it is *not comparable*, and why. ``dinoskip reproduce`` shows and measures them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DINO, DINOV2, DINOV3 = "facebookresearch/dino", "facebookresearch/dinov2", "facebookresearch/dinov3"
DINOV2_PAPER, DINO_PAPER = "arXiv 2304.07193", "arXiv 2104.14294"
UNCHECKED = " (from memory)"  # no text of the paper was at hand when its numbers were written down


@dataclass(frozen=True)
class PublicNetwork:
    """A network with published numbers: its name, number of blocks, and what specs of it look like.

    ``specs`` are regular expressions that a whole spec matches, as ``timm:vit_small_patch16_224.dino`` or the name of
    the authors' file.
    """

    name: str
    depth: int
    specs: tuple[str, ...]


@dataclass(frozen=True)
class PublicNumber:
    """A published number.

    ``task``, ``metric`` and ``settings`` (of the section ``evaluate.TASK``) are ours; ``data`` are settings of the data
    set (its ``kind`` and what else tells it from others of the kind), ``n`` how many units were scored. ``value`` is in
    the unit of our rows: percent, or metres. A metric that ends in ``*`` is the best over what follows. ``protocol`` is
    what rows of it begin with ("" : any). ``band``: ours is inside if it differs by no more; None: not comparable.
    ``differences`` are what of the protocols differs, or why they cannot be compared.
    """

    network: str
    task: str
    metric: str
    value: float
    data: Mapping[str, Any]
    n: int
    source: str
    band: float | None
    differences: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = ""

    @property
    def data_name(self) -> str:
        """The data set as tables call it: ``voc2007``, ``ade20k``; of images in folders by class it is ImageNet."""
        return "imagenet" if self.data["kind"] == "folder" else f"{self.data['kind']}{self.data.get('year', '')}"


def _networks() -> Iterable[PublicNetwork]:
    for letter, patch in (("S", 16), ("S", 8), ("B", 16), ("B", 8)):
        size, file = {"S": ("small", "deitsmall"), "B": ("base", "vitbase")}[letter]
        short = f"vit{letter.lower()}{patch}"
        yield PublicNetwork(
            f"DINO ViT-{letter}/{patch}", 12,
            (rf"timm:vit_{size}_patch{patch}_224\.dino", rf"hub:{DINO}.*:dino_{short.replace('vits', '(vit|deit)s')}",
             rf"hf:facebook/dino-{short}", rf".*dino_{file}{patch}_pretrain.*"),
        )  # fmt: skip
    for letter, size, depth in (("S", "small", 12), ("B", "base", 12), ("L", "large", 24), ("g", "giant", 40)):
        short, hub = f"vit{letter.lower()}14", f"hub:{DINOV2}.*:dinov2_"
        yield PublicNetwork(
            f"DINOv2 ViT-{letter}/14", depth,
            (rf"timm:vit_{size}_patch14_dinov2\.lvd142m", f"{hub}{short}", f"hf:facebook/dinov2-{size}",
             rf".*dinov2_{short}_pretrain\.pth"),
        )  # fmt: skip
        yield PublicNetwork(
            f"DINOv2 ViT-{letter}/14 with registers", depth,
            (rf"timm:vit_{size}_patch14_reg4_dinov2\.lvd142m", f"{hub}{short}_reg",
             f"hf:facebook/dinov2-with-registers-{size}", rf".*dinov2_{short}_reg4_pretrain\.pth"),
        )  # fmt: skip
    for letter, size, depth in (
        ("S", "small", 12), ("S+", "small_plus", 12), ("B", "base", 12), ("L", "large", 24), ("H+", "huge_plus", 32),
    ):  # fmt: skip
        short = f"vit{letter[0].lower()}16{'plus' if letter[1:] else ''}"
        yield PublicNetwork(
            f"DINOv3 ViT-{letter}/16", depth,
            (rf"timm:vit_{size}_patch16_dinov3(_qkvb)?\.lvd1689m", f"hub:{DINOV3}.*:dinov3_{short}",
             f"hf:facebook/dinov3-{short}-pretrain-lvd1689m", f".*dinov3_{short}_pretrain_lvd1689m.*"),
        )  # fmt: skip
    yield PublicNetwork("iBOT ViT-S/16", 12, (r".*ibot.*(vits|small).*16.*",))
    yield PublicNetwork("iBOT ViT-B/16", 12, (r".*ibot.*(vitb|base).*16.*",))
    yield PublicNetwork("CAPI ViT-L/14 (LVD-142M)", 24, (r".*capi_vitl14_lvd.*",))
    yield PublicNetwork("CAPI ViT-L/14 (ImageNet-1k)", 24, (r".*capi_vitl14_(in1k|i1k).*",))
    mae = (r"timm:vit_huge_patch14_224\.mae", r"hf:facebook/vit-mae-huge", r".*mae_pretrain_vit_huge.*")
    yield PublicNetwork("MAE ViT-H/14", 32, mae)


NETWORKS: tuple[PublicNetwork, ...] = tuple(_networks())
"""All networks that have numbers below."""

Data = Mapping[str, Any]
VOC2007: Data = {"kind": "voc", "year": 2007}
VOC2012: Data = {"kind": "voc", "year": 2012}
VOC_AUG: Data = {**VOC2012, "train_list": "trainaug"}
COCO20K: Data = {"kind": "coco20k"}
IMAGENET: Data = {"kind": "folder"}
ADE20K: Data = {"kind": "ade20k"}
NYU: Data = {"kind": "nyu"}
DAVIS: Data = {"kind": "davis"}
SPAIR: Data = {"kind": "spair"}
IMAGES = {"voc2007": 5011, "voc2012": 11540, "coco20k": 19817}  # of the splits that CorLoc is published on

CUT = (
    "A graph without one second eigenvector is a miss here and a box by rounding there; tied seeds take the lowest "
    "index. The tolerance is 25 to 100 images."
)
NEIGHBOURS = "Resized by antialiased bicubic interpolation from a decoder of other rounding; half precision there."
LINEAR = "A tenth of the training images is held out here; labels are taken at the nearest pixel centre."


def _discovery(method: str, network: str, values: Iterable[float]) -> Iterable[PublicNumber]:
    """CorLoc on VOC2007, VOC2012 and COCO20k from the keys of the last block, by README of the method's authors."""
    lost = method == "lost"
    settings = {"facet": "key", **({"lost_k": 100} if lost else {"tau": 0.2})}
    source = f"README of {'valeoai/LOST' if lost else 'YangtaoWANG95/TokenCut'}"
    for value, data in zip(values, (VOC2007, VOC2012, COCO20K), strict=True):
        n = IMAGES[f"{data['kind']}{data.get('year', '')}"]
        protocol = "lost k=100" if lost else "tokencut tau=0.2"
        yield PublicNumber(network, "tokencut", "CorLoc", value, data, n, source, 0.5, CUT, settings, protocol)


def _neighbours(network: str, value: float, source: str, *, best: bool) -> PublicNumber:
    """Accuracy of k-NN on ImageNet's 50,000 validation images by the class token; ``best`` over k, or of k = 20."""
    ks, metric = ((10, 20, 100, 200), "accuracy_k*") if best else ((20,), "accuracy_k20")
    return PublicNumber(
        network, "knn", metric, value, IMAGENET, 50_000, source, 0.3, NEIGHBOURS, {"k": list(ks), "size": 224}
    )


def _segmentation(network: str, value: float, data: Mapping[str, Any], n: int, source: str, name: str) -> PublicNumber:
    """Linear mIoU of the last block by a named protocol of ours."""
    return PublicNumber(network, "probe", "mIoU", value, data, n, source, 1.0, LINEAR, {"protocol": name}, name)


@dataclass(frozen=True)
class _Elsewhere:
    """A measure that ours cannot be compared with: of what, on what, by whom, and why."""

    task: str
    metric: str
    data: Mapping[str, Any]
    n: int
    source: str
    why: str

    def of(self, network: str, value: float) -> PublicNumber:
        return PublicNumber(network, self.task, self.metric, value, self.data, self.n, self.source, None, self.why)


def _of_dino() -> Iterable[PublicNumber]:
    readme = f"README of {DINO}"
    for network, knn in zip(("S/16", "S/8", "B/16", "B/8"), (74.5, 78.3, 76.1, 77.4), strict=True):
        yield _neighbours(f"DINO ViT-{network}", knn, readme, best=False)
    cuts = {"S/16": (68.8, 72.1, 58.8), "S/8": (67.3, 71.6, 60.7), "B/16": (68.8, 72.4, 59.0)}
    lost = {"S/16": (61.9, 64.0, 50.7), "S/8": (55.5, 57.0, 49.5), "B/16": (60.1, 63.3, 50.0)}
    for network in cuts:
        yield from _discovery("tokencut", f"DINO ViT-{network}", cuts[network])
        yield from _discovery("lost", f"DINO ViT-{network}", lost[network])
    frames = "Frames are resized without antialiasing by another library; half precision there."
    for network, value in zip(("S/16", "B/16", "S/8", "B/8"), (61.8, 62.3, 69.9, 71.4), strict=True):
        source = f"{DINO_PAPER}, table 5{UNCHECKED}"
        yield PublicNumber(f"DINO ViT-{network}", "video", "J&F", value, DAVIS, 30, source, 0.5, frames)


def _of_dinov2() -> Iterable[PublicNumber]:
    card = f"MODEL_CARD of {DINOV2}"
    four = "Four blocks side by side under one head, several image sizes and mirror images at test: not built here."
    joined = "Depths from four blocks side by side under one head."
    segmentation = f"{DINOV2_PAPER}, table 10{UNCHECKED}"
    four_blocks = _Elsewhere("probe", "mIoU", ADE20K, 2000, card, four)
    four_depths = _Elsewhere("depth", "RMSE", NYU, 654, card, joined)
    for letter, knn, ade, voc, four_ade, one_depth, four_depth in (
        ("S", 79.0, 44.3, 81.1, 47.2, 0.449, 0.417), ("B", 82.1, 47.3, 82.5, 51.3, 0.399, 0.362),
        ("L", 83.5, 47.7, 82.1, 53.1, 0.384, 0.333), ("g", 83.5, 49.0, 83.0, 53.0, 0.344, 0.298),
    ):  # fmt: skip
        network = f"DINOv2 ViT-{letter}/14"
        yield _neighbours(network, knn, card, best=True)
        yield _segmentation(network, ade, ADE20K, 2000, segmentation, "dinov2")
        yield _segmentation(network, voc, VOC_AUG, 1449, segmentation, "dinov2")
        yield four_blocks.of(network, four_ade)
        yield PublicNumber(
            network, "depth", "RMSE", one_depth, NYU, 654, f"{DINOV2_PAPER}, table 11{UNCHECKED}", 0.015,
            "A tenth of the training images is held out here.", {"protocol": "dinov2"}, "dinov2",
        )  # fmt: skip
        yield four_depths.of(network, four_depth)
    for letter, knn in zip("SBLg", (79.1, 82.0, 83.8, 83.7), strict=True):
        yield _neighbours(f"DINOv2 ViT-{letter}/14 with registers", knn, f"README of {DINOV2}", best=True)


def _of_dinov3() -> Iterable[PublicNumber]:
    card = f"MODEL_CARD of {DINOV3}"
    videos = _Elsewhere("video", "J&F", DAVIS, 30, card, "Other image sizes and context than DINO's, which are ours.")
    why = "Correspondence by recall of matches, not by PCK of key points."
    pairs = _Elsewhere("correspondence", "recall", SPAIR, 12_234, card, why)
    for letter, ade, rmse, tracked, matched in (
        ("S", 47.0, 0.403, 72.7, 50.4), ("S+", 48.8, 0.399, 75.5, 55.2), ("B", 51.8, 0.373, 77.2, 57.2),
        ("L", 54.9, 0.352, 79.9, 61.3), ("H+", 54.8, 0.352, 79.3, 56.3),
    ):  # fmt: skip
        network = f"DINOv3 ViT-{letter}/16"
        yield _segmentation(network, ade, ADE20K, 2000, card, "dinov3")
        yield PublicNumber(
            network, "depth", "RMSE", rmse, NYU, 654, card, 0.015,
            "A tenth of the training images is held out here.", {"protocol": "dinov3"}, "dinov3",
        )  # fmt: skip
        yield videos.of(network, tracked)
        yield pairs.of(network, matched)


def _of_others() -> Iterable[PublicNumber]:
    readme, segmentation = "README of bytedance/ibot", f"{DINOV2_PAPER}, table 10{UNCHECKED}"
    for size, knn in (("S", 75.2), ("B", 77.1)):  # the README's table prints 74.5 for S, DINO's number; its text 75.2
        yield _neighbours(f"iBOT ViT-{size}/16", knn, readme, best=True)
    patches = "k-NN of patches on ADE20K: votes of single training patches; ours weighs whole neighbourhoods."
    capi = _Elsewhere("retrieve", "mIoU", ADE20K, 2000, "README of facebookresearch/capi", patches)
    for images, value in (("LVD-142M", 32.1), ("ImageNet-1k", 29.2)):
        yield capi.of(f"CAPI ViT-L/14 ({images})", value)
    for value, data, n in ((33.3, ADE20K, 2000), (67.6, VOC_AUG, 1449)):
        yield _segmentation("MAE ViT-H/14", value, data, n, segmentation, "dinov2")


NUMBERS: tuple[PublicNumber, ...] = (*_of_dino(), *_of_dinov2(), *_of_dinov3(), *_of_others())


def network_of(spec: str, networks: Iterable[PublicNetwork] = NETWORKS) -> PublicNetwork | None:
    """The public network that a spec, or its own name, tells; None for any other."""
    for network in networks:
        if spec == network.name or any(re.fullmatch(form, spec) for form in network.specs):
            return network
    return None
