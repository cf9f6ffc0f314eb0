"""DDP and FSDP2 on gloo ranks against one process: whole DINO updates, accumulation, norms, gathering."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dinoskip.io.files import load_tensors, save_tensors
from dinoskip.models.build import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import AdamWConfig, build_optimizer, set_rates
from dinoskip.runtime.distributed import World, local, whole
from dinoskip.training import compilation
from dinoskip.training.checkpoint import load_whole_
from dinoskip.training.dino import MultiCrop, make_teacher
from dinoskip.training.gradients import clip_each_, gradient_norms, gradients_of, last_only
from dinoskip.training.parallel import Strategy, shard, wrap
from tests.helpers.ranks import on_ranks

OUT = 33  # rows of the last layer: an odd number, so that slices differ in size
STEPS = 6
FROZEN = 2  # steps in which the last layer's gradients are dropped
CLIP = 0.02
IMAGES = 12


def make_pair(norm_last_layer: bool) -> tuple[MultiCrop, MultiCrop]:
    """A student with both skips and its teacher, in float64, where rounding cannot hide an error."""
    torch.manual_seed(0)
    backbone = create_model("vit_tiny_patch16", depth=2, img_size=32)

    head = DINOHead(192, OUT, hidden_dim=15, bottleneck_dim=8, norm_last_layer=norm_last_layer)
    student = MultiCrop(backbone, head).double()
    return student, make_teacher(student)


def views_of(step: int, images: slice) -> list[Tensor]:
    """Two global and three local views of these images of a step, stacked view-major."""
    rng = torch.Generator().manual_seed(step)
    groups = [torch.randn(n, IMAGES, 3, s, s, generator=rng, dtype=torch.float64) for n, s in ((2, 32), (3, 16))]
    return [group[:, images].flatten(0, 1) for group in groups]


def updates(here: World, out: str, strategy: Strategy, norm_last_layer: bool) -> None:
    """Six updates of student and teacher with all that a DINO step does; rank 0 writes every tensor they leave."""
    student, teacher = make_pair(norm_last_layer)
    forward = wrap(student, here, strategy)
    shard(teacher, here, strategy)
    optimizer = build_optimizer(student, AdamWConfig())
    own = dict(student.named_parameters())
    averaged = [(mean.detach(), own[name].detach()) for name, mean in teacher.named_parameters()]
    part, log = IMAGES // here.size, []
    for step in range(STEPS):
        set_rates(optimizer, 1e-3 * (step + 1), 0.1)
        optimizer.zero_grad(set_to_none=True)
        views = views_of(step, slice(part * here.rank, part * (here.rank + 1)))
        with torch.no_grad():
            targets = teacher(views[0]).softmax(-1).view(2, part, OUT).sum(0)
        scores = forward(*views).log_softmax(-1).view(5, part, OUT)
        torch.autograd.backward(-(scores * targets).sum() / part)
        frozen = student.head.last_layer_parameters() if step < FROZEN else []
        for parameter in frozen:
            parameter.grad = None
        gradients = gradients_of(student)
        norms = gradient_norms(gradients)
        assert len(norms) == len(own) - len(frozen)
        clip_each_(gradients, norms.tolist(), CLIP)
        optimizer.step()
        torch._foreach_lerp_([mean for mean, _ in averaged], [new for _, new in averaged], 0.1)
        log.append(norms)
    assert min(n.min() for n in log) < CLIP < max(n.max() for n in log), "some are clipped, some are not"
    tensors = {f"norms.{step}": norms for step, norms in enumerate(log)}
    for role, module in (("student", student), ("teacher", teacher)):
        tensors |= {f"{role}.{name}": whole(value).clone() for name, value in module.state_dict().items()}
    for name, parameter in student.named_parameters():
        tensors |= {
            f"{key}.{name}": whole(value).clone() for key, value in optimizer.state[parameter].items() if key != "step"
        }
    sharded = [isinstance(p, DTensor) for m in (student, teacher) for p in m.parameters()]
    assert all(sharded) if strategy == "fsdp" and here.size > 1 else not any(sharded)
    if here.is_main:
        save_tensors(Path(out), tensors)


def accumulated(here: World, out: str, strategy: Strategy, parts: int) -> None:
    """The gradient of a classifier's mean loss over twelve images, in ``parts`` micro-batches a rank."""
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", depth=2, img_size=32, num_classes=5).double()
    forward = wrap(model, here, strategy)
    share = IMAGES // here.size
    images = views_of(0, slice(share * here.rank, share * (here.rank + 1)))[0][:share]
    labels = torch.arange(IMAGES)[share * here.rank : share * (here.rank + 1)] % 5
    for step in range(2):  # twice: the first step's buffers must not leak into the second
        for p in model.parameters():
            p.grad = None
        for i, (x, y) in enumerate(zip(images.chunk(parts), labels.chunk(parts), strict=True)):
            with last_only(forward, last=i == parts - 1):
                loss = nn.functional.cross_entropy(forward(x * (1 + step)), y) / parts
                torch.autograd.backward(loss)
    gradients = {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}
    if here.is_main:
        save_tensors(Path(out), gradients)


def gathering(here: World) -> None:
    """Whole tensors go into slices and come back, whatever the first axis' length."""
    rng = torch.Generator().manual_seed(7)
    module = nn.Module()
    shapes = {"big": (5, 3), "row": (1, 4), "even": (6,), "one": (1,)}
    module.weights = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
    shard(module, here, "fsdp")
    values = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    for name, parameter in module.weights.items():
        assert isinstance(parameter, DTensor)
        load_whole_(parameter, values[name].double())
        assert torch.equal(whole(parameter), values[name])
        with pytest.raises(ValueError, match="does not fit"):
            load_whole_(parameter, torch.zeros(2, 2))
    norms = gradient_norms([parameter.detach() for parameter in module.weights.values()])
    torch.testing.assert_close(norms, torch.stack([values[name].norm() for name in module.weights]))
    broken = [parameter.detach().clone() for parameter in module.weights.values()]
    if here.is_main:
        local(broken[0])[0] = float("nan")
    found = gradient_norms(broken)  # one rank's value is every rank's norm
    assert torch.isnan(found[0])
    assert torch.isfinite(found[1:]).all()


def compiled(here: World, out: str, strategy: Strategy) -> None:
    """A step whose backbone was compiled in place before it was wrapped."""
    student, _ = make_pair(True)
    compilation.BACKEND = "aot_eager"  # the C++ compiler takes minutes
    compilation.Compiler().compile_(student, here)
    forward = wrap(student, here, strategy)
    part = IMAGES // here.size
    for step in range(2):
        for p in student.parameters():
            p.grad = None
        scores = forward(*views_of(step, slice(part * here.rank, part * (here.rank + 1))))
        torch.autograd.backward(scores.square().mean())
    gradients = {name: whole(p.grad).clone() for name, p in student.named_parameters() if p.grad is not None}
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, "one for each crop size, whatever the depth"
    if here.is_main:
        save_tensors(Path(out), gradients)


def overlapping(here: World, out: str) -> None:
    """Two compiled steps under DDP: in the second, what is sent of the gradients before the backward pass is over."""
    student, _ = make_pair(True)
    events: list[str] = []
    compilation.BACKEND = aot_autograd(  # type: ignore[assignment]  # a backend may be a function, too
        fw_compiler=boxed_nop, bw_compiler=partial(noted, events)
    )
    compilation.Compiler().compile_(student, here)
    forward = wrap(student, here, "ddp")
    assert isinstance(forward, DistributedDataParallel)

    def sent(_, bucket):  # type: ignore[no-untyped-def]  # torch takes no annotation that is text
        events.append("exchange")
        return allreduce_hook(dist.group.WORLD, bucket)

    forward.register_comm_hook(None, sent)
    for name, parameter in student.backbone.blocks.named_parameters():
        if name.endswith("attn.qkv.weight"):
            parameter.register_post_accumulate_grad_hook(lambda _, block=name[0]: events.append(f"block {block}"))
    losses = []
    for step in range(2):
        for p in student.parameters():
            p.grad = None
        events.clear()
        part = IMAGES // here.size
        scores = forward(*views_of(step, slice(part * here.rank, part * (here.rank + 1))))
        loss = scores.square().mean()
        torch.autograd.backward(loss)
        losses.append(loss.detach())
    graphs = [number for number, event in enumerate(events) if event == "graph"]
    assert len(graphs) == 4, f"two blocks at two sizes of crops, each in one piece: {events}"
    assert events.index("block 1") < graphs[-1] < events.index("block 0")
    assert events.index("exchange") < graphs[-1]
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    gradient = student.backbone.blocks[0].mlp.fc1.weight.grad
    if here.is_main:
        save_tensors(Path(out), {"losses": mean / here.size, "gradient": gradient})


def noted(events: list[str], graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
    """A graph of a backward pass that runs as it is and says so."""
    run = boxed_nop(graph, inputs)

    def called(given: list[Tensor]) -> object:
        events.append("graph")
        return run(given)

    called._boxed_call = True  # type: ignore[attr-defined]
    return called


def uncompiled(here: World, out: str) -> None:
    """The same two steps in one process, with nothing compiled."""
    student, _ = make_pair(True)
    losses = []
    for step in range(2):
        for p in student.parameters():
            p.grad = None
        losses.append(student(*views_of(step, slice(IMAGES))).square().mean())
        torch.autograd.backward(losses[-1])
    gradient = student.backbone.blocks[0].mlp.fc1.weight.grad
    assert gradient is not None
    save_tensors(Path(out), {"losses": torch.stack(losses).detach(), "gradient": gradient})


def assert_same(one: Path, other: Path) -> None:
    expected, found = load_tensors(one), load_tensors(other)
    assert list(found) == list(expected)
    for name, value in expected.items():
        # Float64 sums in another order, which AdamW's division enlarges where a gradient is near its eps (1e-8).
        tolerance = {"rtol": 1e-6, "atol": 1e-8}
        torch.testing.assert_close(found[name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("norm_last_layer", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ddp_and_fsdp_updates_equal_those_of_one_process(norm_last_layer: bool, tmp_path: Path) -> None:
    on_ranks(1, tmp_path, updates, str(tmp_path / "one"), "ddp", norm_last_layer)
    for strategy in ("ddp", "fsdp"):
        folder = tmp_path / strategy
        folder.mkdir()
        on_ranks(2, folder, updates, str(folder / "two"), strategy, norm_last_layer)
        assert_same(tmp_path / "one", folder / "two")
    before = make_pair(norm_last_layer)[0].state_dict()
    after = load_tensors(tmp_path / "one")
    for name, value in before.items():
        assert torch.equal(after[f"student.{name}"], value) == (name == "head.last_g" and norm_last_layer), name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(strategy: Strategy, tmp_path: Path) -> None:
    on_ranks(1, tmp_path, accumulated, str(tmp_path / "one"), strategy, 1)
    on_ranks(2, tmp_path, accumulated, str(tmp_path / "two"), strategy, 3)
    assert_same(tmp_path / "one", tmp_path / "two")


def test_whole_tensors_survive_being_cut_and_gathered(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, gathering)
    plain = torch.randn(3, requires_grad=True)
    assert torch.equal(whole(plain), plain)
    load_whole_(plain, torch.ones(3, dtype=torch.float64))
    assert torch.equal(plain, torch.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_backbone_compiled_before_wrapping_gives_the_same_gradients(strategy: Strategy, tmp_path: Path) -> None:
    on_ranks(1, tmp_path, compiled, str(tmp_path / "one"), strategy)
    on_ranks(2, tmp_path, compiled, str(tmp_path / "two"), strategy)
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_gradients_of_compiled_blocks_are_exchanged_during_the_backward_pass(tmp_path: Path) -> None:
    on_ranks(1, tmp_path, uncompiled, str(tmp_path / "one"))
    on_ranks(2, tmp_path, overlapping, str(tmp_path / "two"))
    assert_same(tmp_path / "one", tmp_path / "two")


def test_one_rank_passes_everything_through() -> None:
    alone = World(0, 1, torch.device("cpu"))
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    for strategy in ("ddp", "fsdp"):
        assert wrap(model, alone, strategy) is model
        shard(model, alone, strategy)
        with last_only(model, last=False):
            model(torch.ones(1, 3))
    assert all(type(p) is nn.Parameter and torch.equal(p, before[name]) for name, p in model.named_parameters())
