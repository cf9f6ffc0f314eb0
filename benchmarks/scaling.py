"""Cost of a DINO step on 1 to 256 GPUs, on paper: time, images a second, share of the peak, exchange and memory.

    python -m benchmarks.scaling [--batch 1024 | --images-per-gpu N] [--gpus 1,8,64,256] [--tf32] [--frequency 10]
    python -m benchmarks.scaling --shares [--gpus 1,8,64]      # what the rank that owns most has of SOAP and its kin
    python -m benchmarks.scaling --study configs/paper/table2_dino.yaml [--gpus 1,8,64] [--card h100]

For ViT-S/16 and ViT-B/16 (2 x 224 + 8 x 96 pixels, 65,536 prototypes), DDP and FSDP2, AdamW and SOAP. Operations are
those of dinoskip/settings/flops.py and dinoskip/optim/batched.py, which tests hold to counted ones; bytes of saved
activations are counted in a forward pass over fake tensors; the collective calls are those of :func:`collectives`,
which a test holds to the calls of four gloo processes. Rates are the published ones below; what share of them a step
reaches is assumed and named so. Nothing here has been measured on a GPU.

A step is: matrix products of the networks in bfloat16; the exchange of gradients (DDP) or of parameters and gradients
(FSDP2), as far as it does not fit behind the products; the optimizer's products in float32 (--tf32: rotations in TF32)
by the rank that owns most, or the exchange of its updates if that is longer; passes over all parameters in memory.

With --study all stages of a study are given to so many GPUs, the longest path first, as `dinoskip submit --spread`
does, with the seconds of dinoskip/pipeline/estimate/wall.py: what an H100 was measured to reach. Each training has the
number of GPUs with which the study ends first; it is taken to be as much faster. GPUs for which there is no stage make
parts of those of many images. No queue and no exchange is in it.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import AdamWConfig, EcsConfig, KLShampooConfig, OptimizerConfig, SoapConfig, build_optimizer
from dinoskip.optim.preconditioned import PreconditionedOptimizer, Share
from dinoskip.pipeline.estimate.cards import CARDS
from dinoskip.pipeline.estimate.costs import costs
from dinoskip.pipeline.estimate.wall import WallTime, greedy, node_parts, node_seconds
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.settings.flops import dino_step_flops
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.dino import MultiCrop
from dinoskip.training.parallel import Strategy

# NVIDIA H100 SXM5 80 GB: rates of its data sheet, and of the DGX H100 user guide.
_CARD = CARDS["h100"]
BF16, TF32, FP32, MEMORY = (
    _CARD.bf16 * 1e12,
    _CARD.tf32 * 1e12,
    _CARD.fp32 * 1e12,
    _CARD.memory * 1e12,
)  # FLOP/s, bytes/s
CAPACITY = 80e9  # bytes of HBM3
NVLINK = 450e9  # bytes/s and direction of a GPU to its node's others (NVLink 4: 900 GB/s both ways)
NETWORK = 50e9  # bytes/s and direction of a GPU's network card (400 Gb/s InfiniBand NDR, one a GPU)
NODE = 8  # GPUs of a machine

# Assumptions: shares of those rates that are reached, and what a call costs besides its bytes.
SHARE_BF16, SHARE_FP32, SHARE_MEMORY, SHARE_LINK = 0.4, 0.6, 0.8, 0.8
QR = 1e12  # FLOP/s of cuSOLVER's QR of matrices of side 384 to 3,072
CALL, HOP = 10e-6, 5e-6  # seconds: to start a collective, and for each doubling of the ranks

GLOBAL, LOCAL, LOCALS = 224, 96, 8  # pixels, pixels, number
HEAD = (65536, 2048, 256)  # prototypes, hidden, bottleneck
MICRO = 64  # images of a micro-batch at most
MODELS = ("vit_small_patch16", "vit_base_patch16")


@dataclass(frozen=True)
class Collective:
    """``calls`` of one kind in a step, and the bytes of all their results on one rank."""

    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast
    calls: int
    nbytes: int
    purpose: str

    def seconds(self, ranks: int) -> float:
        """Time by itself: bytes over the slowest link that a ring passes, and the cost of the calls."""
        if ranks == 1:
            return 0.0
        # Rings leave a machine through all of its cards.
        link = SHARE_LINK * (NVLINK if ranks <= NODE else min(NVLINK, NETWORK * NODE))
        passes = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(self.kind, (ranks - 1) / ranks)
        return passes * self.nbytes / link + self.calls * (CALL + HOP * math.log2(ranks))


def student_of(backbone: nn.Module, out_dim: int, hidden: int, bottleneck: int) -> MultiCrop:
    """Backbone and head as in training; parameters only, no forward pass is needed."""
    head = DINOHead(int(backbone.embed_dim), out_dim, hidden_dim=hidden, bottleneck_dim=bottleneck)  # type: ignore[arg-type]
    return MultiCrop(backbone, head)


def collectives(
    student: nn.Module, ranks: int, strategy: Strategy, optimizer: torch.optim.Optimizer
) -> list[Collective]:
    """The exchange of a plain DINO step (no logging, no checkpoint) of a whole ``student`` with two sizes of crops."""
    if ranks == 1:
        return []
    trained = [p for p in student.parameters() if p.requires_grad]
    total = 4 * sum(p.numel() for p in trained)
    prototypes = next(p for name, p in student.named_parameters() if name.endswith("last_v")).shape[0]
    calls = [Collective("all_reduce", 2, 4 * (3 + prototypes), "flags and centre")]
    if strategy == "ddp":
        first, others = dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20  # torch's own sizes of gradient buckets
        sizes, _ = dist._compute_bucket_assignment_by_size(trained[::-1], [first, others], [False] * len(trained))
        calls.append(Collective("all_reduce", len(sizes), total, "gradients"))
    else:
        blocks = [4 * sum(p.numel() for p in block.parameters()) for block in student.backbone.blocks]
        rest = 4 * sum(p.numel() for p in student.parameters()) - sum(blocks)
        # The teacher gathers each block once (global crops), the student for both sizes, forward and backward.
        gathers = 5 * len(blocks) + 3
        calls.append(Collective("all_gather", gathers, 5 * sum(blocks) + 3 * rest, "parameters"))
        calls.append(Collective("reduce_scatter", len(blocks) + 1, total, "gradients"))
        calls.append(Collective("all_reduce", 1, 4 * len(trained), "norms"))
    if isinstance(optimizer, PreconditionedOptimizer):
        if strategy == "fsdp":
            calls.append(Collective("all_gather", len(trained), total, "whole gradients"))
        messages = sum(share.messages for share in optimizer.shares(ranks))
        calls.append(Collective("broadcast", messages, total, "updates"))
    return calls


def saved_bytes(name: str) -> int:
    """Bytes that autograd keeps for one image's ten crops in bfloat16 autocast, counted over fake tensors."""
    student = student_of(create_model(name), *HEAD).train()
    weights = {p.untyped_storage()._cdata for p in student.parameters()}
    counts = []
    for images in (1, 2):
        kept: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with FakeTensorMode(allow_non_fake_inputs=True):
            views = [torch.empty(2 * images, 3, GLOBAL, GLOBAL), torch.empty(LOCALS * images, 3, LOCAL, LOCAL)]
            hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
            with hooks, torch.autocast("cpu", torch.bfloat16):
                scores = student(*views)
        saved = [tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights]
        counts.append(sum(saved) + scores.untyped_storage().nbytes())
    return counts[1] - counts[0]  # without what does not grow with the batch: weights in bfloat16


@dataclass(frozen=True)
class Reckoning:
    """A step's seconds by part (they add up, each is what is not hidden behind another), and bytes of a rank."""

    products: float
    exchange: float
    optimizer: float
    memory_traffic: float
    images: int  # of all ranks
    operations: float  # of a rank's networks
    sent: int  # bytes that a rank's collectives result in
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds that a step takes."""
        return self.products + self.exchange + self.optimizer + self.memory_traffic

    @property
    def limit(self) -> str:
        """The part that takes most of what is not matrix products, or these if they take over two thirds."""
        if self.products > 2 / 3 * self.seconds:
            return "products"
        others = {"exchange": self.exchange, "optimizer": self.optimizer, "memory traffic": self.memory_traffic}
        return max(others, key=lambda part: others[part])


def optimizer_seconds(share: Share, *, tf32: bool) -> float:
    """The products and decompositions of the rank that owns most, in a mean step."""
    rotations = TF32 if tf32 else FP32
    products = share.rotation_flops / (SHARE_FP32 * rotations) + share.exact_flops / (SHARE_FP32 * FP32)
    return products + share.decomposition_flops / QR


def reckon(
    name: str, config: OptimizerConfig, strategy: Strategy, ranks: int, images: int, saved: int, *, tf32: bool
) -> Reckoning:
    """A step with ``images`` a rank; ``saved`` bytes of activations an image."""
    with torch.device("meta"):
        student = student_of(create_model(name), *HEAD)
    optimizer = build_optimizer(student, config)
    vit = VitConfig(name=name)
    operations = images * dino_step_flops(vit, head=HEAD, global_size=GLOBAL, local_size=LOCAL, num_local=LOCALS)
    products = operations / (SHARE_BF16 * BF16)
    calls = {call.purpose: call for call in collectives(student, ranks, strategy, optimizer)}
    alone = {purpose: call.seconds(ranks) for purpose, call in calls.items()}
    updates = alone.pop("updates", 0.0) + alone.pop("whole gradients", 0.0)
    # Gradients come during the backward pass, two thirds of the student's work, in the last micro-batch; parameters
    # are gathered ahead during all of it.
    last = products * min(1.0, MICRO / images)
    behind = (last if strategy == "fsdp" else last * 0.6) if ranks > 1 else 0.0
    hidden = min(alone.get("gradients", 0.0) + alone.get("parameters", 0.0), behind)
    exchange = sum(alone.values()) - hidden
    size = 4 * sum(p.numel() for p in student.parameters())
    part = size / ranks if strategy == "fsdp" else float(size)
    work, passes = 0.0, 12.0 if isinstance(optimizer, PreconditionedOptimizer) else 28.0  # bytes a parameter, of 4
    state = 2 * part
    if isinstance(optimizer, PreconditionedOptimizer):
        shares = optimizer.shares(ranks)
        work = max(optimizer_seconds(share, tf32=tf32) for share in shares)
        state = max(share.state_bytes for share in shares) + size * (2 if strategy == "fsdp" else 1)  # and its messages
    traffic = part / 4 * (passes + 12 + 8)  # the optimizer's, the teacher's moving average, norms and clip
    memory = 3 * part + state + min(images, MICRO) * saved  # student, teacher, gradients
    return Reckoning(
        products, exchange, max(work, updates), traffic / (SHARE_MEMORY * MEMORY), ranks * images, operations,
        sum(call.nbytes for call in calls.values()), memory,
    )  # fmt: skip


def print_shares(gpus: list[int]) -> None:
    """Operations, state and messages of the rank that owns most; operations also as a share of 16 images' step."""
    print("| model | optimizer | ranks | GFLOP a step, most / mean | of 16 images' step | state, MB | sent, MB |")
    print("|---" * 7 + "|")
    for name in MODELS:
        with torch.device("meta"):
            student = student_of(create_model(name), *HEAD)
        image = dino_step_flops(VitConfig(name=name), head=HEAD, global_size=GLOBAL, local_size=LOCAL, num_local=LOCALS)
        for config in (SoapConfig(), EcsConfig(), EcsConfig(max_precond_dim=4096), KLShampooConfig()):
            side = "" if config.max_precond_dim == type(config)().max_precond_dim else f", {config.max_precond_dim:,}"
            optimizer = build_optimizer(student, config)
            assert isinstance(optimizer, PreconditionedOptimizer)
            for ranks in gpus:
                shares = optimizer.shares(ranks)
                most, mean = max(share.flops for share in shares), sum(share.flops for share in shares) / ranks
                state, sent = (max(getattr(share, key) for share in shares) for key in ("state_bytes", "update_bytes"))
                print(
                    f"| {name[4:5].upper()} | {config.name}{side} | {ranks} | {most / 1e9:,.1f} / {mean / 1e9:,.1f} "
                    f"| {most / (16 * image):.1%} | {state / 1e6:,.0f} | {sent / 1e6:,.0f} |"
                )


TRAININGS = {"pretrain", "supervise", "sweep"}
CORES = 12  # of each GPU, for reading images: as configs/cluster/h100_8gpu.yaml


def _width(ranks: int, node: Node) -> int:
    return ranks if node.stage in TRAININGS else 1


def spread_study(config: str, card: str, gpus: int) -> tuple[int, WallTime]:
    """The GPUs of a training with which all stages of a study end first on so many GPUs, and their schedule."""
    study, variants = load_study(config, [])
    nodes, images = build_nodes(study, variants), StudyImages(study, assume=True)
    every_cost, found = costs(images, study, variants, nodes), dict[int, WallTime]()
    parts = node_parts(images, nodes)
    for ranks in (2**power for power in range(gpus.bit_length())):
        seconds = node_seconds(images, study, variants, nodes, every_cost, card, ranks=ranks, cores=CORES)
        width = partial(_width, ranks)
        found[ranks] = greedy(nodes, seconds, gpus, width, parts=parts)
    best = min(found, key=lambda ranks: found[ranks].seconds)
    return best, found[best]


def print_study(config: str, card: str, gpus: list[int]) -> None:
    """Hours and idle share of a whole study on so many GPUs."""
    print("| GPUs | of a training | hours | GPU hours | idle |")
    print("|---:" * 5 + "|")
    for count in gpus:
        ranks, whole = spread_study(config, card, count)
        print(f"| {count} | {ranks} | {whole.seconds / 3600:,.1f} | {whole.busy / 3600:,.1f} | {whole.idle:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024, help="images of all GPUs")
    parser.add_argument("--images-per-gpu", type=int, help="instead of --batch")
    parser.add_argument("--gpus", default="1,8,64,256")
    parser.add_argument("--study", metavar="CONFIG", help="all stages of this study instead")
    parser.add_argument("--card", choices=tuple(CARDS), default="h100", help="of --study")
    parser.add_argument("--frequency", type=int, default=10, help="of SOAP's refreshes")
    parser.add_argument("--tf32", action="store_true", help="SOAP's rotations in TF32")
    parser.add_argument("--shares", action="store_true", help="the parts of SOAP and its kin instead")
    given = parser.parse_args()
    gpus = [int(number) for number in given.gpus.split(",")]
    if given.study:
        return print_study(given.study, given.card, gpus)
    if given.shares:
        print_shares(gpus)
        return
    columns = (
        "model", "optimizer", "parallel", "GPUs", "images a GPU", "step, ms", "images/s", "share of peak",
        "products / exchange / optimizer / memory traffic, ms", "exchanged a rank, MB", "memory a rank, GB",
        "limited by",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for name in MODELS:
        saved = saved_bytes(name)
        for config in (AdamWConfig(), SoapConfig(precondition_frequency=given.frequency, tf32=given.tf32)):
            for strategy in ("ddp", "fsdp"):
                for ranks in gpus:
                    if ranks == 1 and strategy == "fsdp":
                        continue
                    images = given.images_per_gpu or given.batch // ranks
                    row = reckon(name, config, strategy, ranks, images, saved, tf32=given.tf32)
                    parts = (row.products, row.exchange, row.optimizer, row.memory_traffic)
                    full = " (does not fit)" if row.memory > CAPACITY else ""
                    print(
                        f"| {name[4:5].upper()} | {config.name} | {strategy} | {ranks} | {images} "
                        f"| {row.seconds * 1e3:.1f} "
                        f"| {row.images / row.seconds:,.0f} | {row.operations / row.seconds / BF16:.0%} "
                        f"| {' / '.join(f'{part * 1e3:.1f}' for part in parts)} | {row.sent / 1e6:,.0f} "
                        f"| {row.memory / 1e9:.1f}{full} | {row.limit} |"
                    )


if __name__ == "__main__":
    main()
