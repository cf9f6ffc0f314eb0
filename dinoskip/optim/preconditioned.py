"""Base class of SOAP and KL-Shampoo: a torch optimizer whose stacks of matrices are distributed over the ranks.

Each matrix is owned by one rank, which alone holds its state, computes its update with those of its other matrices of
the same shape (:mod:`dinoskip.optim.batched`), and sends it to the others. Which rank owns what depends on shapes and
the number of ranks alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dinoskip.optim.batched import Group, Piece, Shape, Slot, Stack, State, mean_flops
from dinoskip.runtime.distributed import all_ranks, local, local_part, whole
from dinoskip.runtime.precision import tf32_products


@dataclass
class Incidents:
    """Counts of bases that were computed again in float64 (``retried``), and of old bases that were ``kept``."""

    retried: int = 0
    kept: int = 0


@dataclass
class Share:
    """Share of a rank: floating-point operations of a mean step, bytes of state, and the updates that it sends."""

    rotation_flops: float = 0.0  # into the bases and back
    exact_flops: float = 0.0  # factors, and the products of a refresh
    decomposition_flops: float = 0.0
    state_bytes: int = 0
    update_bytes: int = 0
    messages: int = 0

    @property
    def flops(self) -> float:
        """Floating-point operations of a mean step, all kinds together."""
        return self.rotation_flops + self.exact_flops + self.decomposition_flops


class PreconditionedOptimizer(torch.optim.Optimizer, ABC):
    """State in float32 whatever the parameters' dtype, in stacks that are shared out over the ranks.

    All ranks step at the same time with the same gradients (DDP has averaged them; FSDP's are gathered here, and each
    rank applies its slice of the update). ``state`` and ``state_dict()`` hold what this rank owns, :meth:`full_state`
    all of it; every rank loads the whole state and keeps its own, so the number of ranks may change in between.
    ``incidents`` counts bases that had to be computed in float64 or kept; ``slots`` says how a parameter is cut.
    """

    def __init__(self, params: Any, defaults: Group) -> None:
        if min(defaults[key] for key in ("precondition_frequency", "max_precond_dim", "blocks")) < 1:
            raise ValueError("precondition_frequency, max_precond_dim and blocks must be at least 1")
        betas = all(0 <= beta < 1 for beta in defaults["betas"]) and defaults["shampoo_beta"] < 1
        if min(defaults[key] for key in ("lr", "eps", "weight_decay")) < 0 or not betas:
            raise ValueError("lr, eps and weight_decay must not be negative; betas must be in [0, 1)")
        self.incidents = Incidents()
        self._forget()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("incidents", Incidents())
        self._forget()
        for number in range(len(self.param_groups)):
            self._place(number)

    def _forget(self) -> None:
        """Drop the stacks; they form again, from the state, at the next step."""
        self.slots: dict[Tensor, list[Slot]] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._tasks: list[list[tuple[float, list[Slot]]]] = []  # of each group: cost, and slots of one owner
        self._load = [0.0] * all_ranks().size

    @abstractmethod
    def _pieces(self, shape: Shape, group: Group) -> list[Piece]:
        """Return the pieces of a parameter of this shape. Raises ValueError if the group's settings do not fit it."""

    @abstractmethod
    def _step_size(self, group: Group, stack: Stack) -> float:
        """Return the factor by which a stack's update is multiplied; ``stack.step`` counts this step."""

    @abstractmethod
    def _step_stacks(
        self, group: Group, stacks: list[Stack], gradients: list[Tensor], send: Callable[[list[Tensor]], None]
    ) -> None:
        """Step own stacks, whose gradients (B, *core) are given, up to what is subtracted from the parameters.

        That is passed to ``send``, for all stacks whose ``step`` is not 0. Their ``step`` already counts this step;
        it is 0 for a stack that is only started by its first gradient.
        """

    def _moves_at_first(self, group: Group) -> bool:
        """Whether the first gradient of a parameter moves it, or only starts its state."""
        return False

    def _decays_first(self, group: Group) -> bool:
        """Whether a parameter is decayed before its update, or after."""
        return False

    @staticmethod
    def _due(group: Group, stacks: list[Stack]) -> list[Stack]:
        """The stacks whose bases are to be refreshed in this step; with ``stagger`` a shape's turn is its own."""
        period, shift = group["precondition_frequency"], group["stagger"]
        return [stack for stack in stacks if stack.step and (stack.step + shift * stack.slots[0].turn) % period == 0]

    @staticmethod
    def _factor_beta(group: Group) -> float:
        """Return beta of the factors' moving averages: ``shampoo_beta``, or betas[1] if it is negative."""
        return float(group["shampoo_beta"] if group["shampoo_beta"] >= 0 else group["betas"][1])

    # --- which stacks there are ------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; ValueError at once, naming the parameter, if its settings do not fit."""
        super().add_param_group(param_group)
        self._place(len(self.param_groups) - 1)

    def _place(self, number: int) -> None:
        """Cut the parameters of a group into slots, and give each an owner."""
        group = self.param_groups[number]
        together: dict[tuple[Any, ...], list[Slot]] = defaultdict(list)
        for at, parameter in enumerate(group["params"]):
            if parameter.is_complex():
                raise ValueError(f"{_name(group, at)}: complex parameters are not supported")
            try:
                pieces = self._pieces(tuple(parameter.shape), group)
            except ValueError as error:
                raise ValueError(f"{_name(group, at)}: {error}") from None
            self.slots[parameter] = [self._slot(parameter, number, group, piece) for piece in pieces]
            for slot in self.slots[parameter]:
                together[slot.key].append(slot)
        # Every matrix for itself; vectors and scalars, which are many and small, together.
        tasks = [task for key, slots in together.items() for task in ([slots] if key[-1] == "flat" else zip(slots))]
        # 20 operations a number are Adam's.
        costs = [sum(sum(mean_flops(s.piece, group)) + 20 * math.prod(s.shape) for s in task) for task in tasks]
        self._tasks.append([(cost, list(task)) for cost, task in zip(costs, tasks, strict=True)])
        shapes = [key for key in together if key[-1] != "flat"]
        for (_, task), owner in zip(
            self._tasks[-1], owners((cost for cost, _ in self._tasks[-1]), self._load), strict=True
        ):
            for slot in task:
                if slot.piece.factors:
                    slot.turn = shapes.index(slot.key) * group["precondition_frequency"] // len(shapes)
                slot.owner, slot.key = owner, (owner, *slot.key)

    def shares(self, ranks: int) -> list[Share]:
        """Return the shares of ``ranks`` ranks, whatever their number now; parameters may be on the meta device."""
        parts, load = [Share() for _ in range(ranks)], [0.0] * ranks
        for group, tasks in zip(self.param_groups, self._tasks, strict=True):
            stacks = set()
            for (_, task), owner in zip(tasks, owners((cost for cost, _ in tasks), load), strict=True):
                part = parts[owner]
                stacks.add((owner, task[0].key[1:]))
                for slot in task:
                    rotations, exact, decompositions = mean_flops(slot.piece, group)
                    part.rotation_flops += rotations
                    part.exact_flops += exact
                    part.decomposition_flops += decompositions
                    part.state_bytes += 4 * sum(math.prod(shape) for shape in slot.stored.values())
                    part.update_bytes += 4 * math.prod(slot.shape)
            for owner, _ in stacks:
                parts[owner].messages += 1
        return parts

    def _slot(self, parameter: Tensor, number: int, group: Group, piece: Piece) -> Slot:
        key: tuple[Any, ...] = (number, parameter.dtype, parameter.device)
        if not piece.factors and not group["normalize_grads"]:
            key = (*key, "flat")
        else:
            key = (*key, tuple(parameter.shape), piece.shape, piece.cut is None, piece.dims, piece.sided)
        shape = tuple(parameter.shape) if piece.cut is None else piece.dims
        return Slot(parameter, piece, shape, self._stored(piece, shape, group), key)

    def _stored(self, piece: Piece, shape: Shape, group: Group) -> dict[str, Shape]:
        """Name and shape of every tensor that the state holds for a piece whose own shape is ``shape``."""
        stored = {"exp_avg": shape, "exp_avg_sq": shape}
        for at, position in piece.factors:
            square = (piece.core[at], piece.core[at])
            stored |= {f"factor_{position}": square, f"basis_{position}": square}
        return stored

    def _active(self) -> list[tuple[Group, list[Stack]]]:
        """The stacks that have gradients, group by group: slots of one key and one step. New ones where needed.

        Slots that wait for a gradient have stacks of their own, so that no left-over stack stays in memory.
        """
        active, stacks = [], {}
        for group in self.param_groups:
            members: dict[tuple[Any, ...], list[Slot]] = defaultdict(list)
            for parameter in group["params"]:
                step = self.state[parameter].get("step") if parameter in self.state else None
                if parameter.grad is not None or step is not None:
                    for slot in self.slots[parameter]:
                        members[slot.key, step, parameter.grad is not None].append(slot)
            moving = []
            for (_, step, has_gradient), slots in members.items():
                identity = tuple(map(id, slots))
                stack = stacks[identity] = self._stacks.get(identity) or self._restored(slots, step)
                if has_gradient:
                    moving.append(stack)
            active.append((group, moving))
        self._stacks = stacks
        return active

    def _restored(self, slots: list[Slot], step: int | None) -> Stack:
        stack = Stack(slots, step, self.state)
        if stack.owned and step is not None:
            stack.load()
            stack.publish()
        return stack

    # --- the step ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. Parameters without a gradient are left alone, moments, decay and step count included."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, stacks in self._active():
            if stacks:
                device = stacks[0].slots[0].parameter.device
                tf32 = tf32_products(device) if group["tf32"] else nullcontext()  # what must be exact asks for it
                with torch.autocast(device.type, enabled=False), tf32:
                    self._step_group(group, stacks)
        return loss

    def _step_group(self, group: Group, stacks: list[Stack]) -> None:
        """Step all stacks; with several ranks an update is sent while its owner goes on with other stacks."""
        size = all_ranks().size
        gradients: dict[Tensor, Tensor] = {}  # gathered once, if a parameter has several pieces
        sent: list[tuple[Stack, Tensor, dist.Work | None]] = []
        for batch in [stacks] if size == 1 else [[stack] for stack in stacks]:
            for parameter in (slot.parameter for stack in batch for slot in stack.slots):
                if parameter not in gradients and parameter.grad is not None:
                    gradients[parameter] = whole(parameter.grad)
            self._count(group, batch)
            send = partial(self._send, group, sent, [stack for stack in batch if stack.step])
            owned = [stack for stack in batch if stack.owned]
            if owned:
                stacked = [stack.join([slot.of(gradients[slot.parameter]) for slot in stack.slots]) for stack in owned]
                self._step_stacks(group, owned, stacked, send)
            else:
                send([stack.empty() for stack in batch if stack.step])
        for _, _, work in sent:
            if work is not None:
                work.wait()
        self._apply(group, [stack for stack, _, _ in sent], [update for _, update, _ in sent])

    def _count(self, group: Group, stacks: list[Stack]) -> None:
        for stack in stacks:
            if stack.step is None and stack.owned:
                stack.begin()
                stack.publish()
            moves = stack.step is not None or self._moves_at_first(group)
            stack.step = (stack.step or 0) + moves
            for slot in stack.slots:
                self.state[slot.parameter]["step"] = stack.step

    @staticmethod
    def _send(
        group: Group,
        sent: list[tuple[Stack, Tensor, dist.Work | None]],
        stacks: list[Stack],
        updates: list[Tensor],
    ) -> None:
        """Send own updates, or receive others' into ``updates``, without waiting for it."""
        for stack, update in zip(stacks, updates, strict=True):
            if stack.owned and group["normalize_grads"]:
                inner = tuple(range(1, update.ndim))
                update.div_(update.square().mean(inner, keepdim=True).sqrt_().add_(1e-30))  # as nikhilvyas/SOAP
            whole_update = update.contiguous()
            several = all_ranks().size > 1
            work = dist.broadcast(whole_update, stack.owner, async_op=True) if several else None
            sent.append((stack, whole_update, work))

    def _apply(self, group: Group, stacks: list[Stack], updates: list[Tensor]) -> None:
        """Subtract the updates times their step sizes from the parameters; decay them by the raw learning rate."""
        decay = 1 - float(group["lr"]) * float(group["weight_decay"])
        decay_first = self._decays_first(group)
        targets: dict[float, list[Tensor]] = defaultdict(list)
        deltas: dict[float, list[Tensor]] = defaultdict(list)
        sizes = [self._step_size(group, stack) for stack in stacks]
        for parameter, size, delta in _whole_updates(stacks, updates, sizes):
            targets[size].append(local(parameter))
            deltas[size].append(local_part(delta, parameter))
        for size, parameters in targets.items():
            if decay_first and decay != 1:
                torch._foreach_mul_(parameters, decay)
            torch._foreach_add_(parameters, deltas[size], alpha=-size)
            if not decay_first and decay != 1:
                torch._foreach_mul_(parameters, decay)

    # --- bases and state ---------------------------------------------------------------------------------

    def _slots_with_state(self, parameter: Tensor) -> list[Slot]:
        if not any(parameter is known for known in self.slots):
            raise ValueError("this is no parameter of the optimizer")
        if "step" not in self.state.get(parameter, {}):
            raise ValueError("this parameter has had no gradient yet, so it has no bases")
        return self.slots[parameter]

    def _fetch(self, slot: Slot, key: str) -> Tensor:
        """One tensor of the state on every rank; collective."""
        ranks = all_ranks()
        if slot.owner == ranks.rank:
            value: Tensor = self.state[slot.parameter][slot.piece.label(key)].contiguous()
        else:
            value = torch.empty(slot.stored[key], dtype=torch.float32, device=slot.parameter.device)
        if ranks.size > 1:
            dist.broadcast(value, slot.owner)
        return value

    def full_state(self) -> dict[Tensor, State]:
        """The state of every parameter, on rank 0; collective. Other ranks get nothing but steps."""
        ranks = all_ranks()
        if ranks.size == 1:
            return dict(self.state)
        full: dict[Tensor, State] = {}
        for parameter, slots in self.slots.items():
            if "step" in self.state.get(parameter, {}):
                full[parameter] = {"step": self.state[parameter]["step"]}
                for slot in slots:
                    for key in slot.stored:
                        value = self._fetch(slot, key)
                        if ranks.rank == 0:
                            full[parameter][slot.piece.label(key)] = value.cpu()
        return full

    def bases(self, p: Tensor) -> list[Tensor | None]:
        """The bases of a parameter: for each dimension (n, n), eigenvectors in columns, or None; collective.

        Dimensions are those of the parameter after merging. The bases of a parameter that is cut into several
        matrices follow each other. ValueError before its first gradient.
        """
        bases: list[Tensor | None] = []
        for slot in self._slots_with_state(p):
            for position, sided in enumerate(slot.piece.sided):
                if f"basis_{position}" in slot.stored:
                    bases.append(self._fetch(slot, f"basis_{position}"))
                else:
                    bases.append(torch.ones(1, 1, dtype=torch.float32, device=p.device) if sided else None)
        return bases

    @torch.no_grad()
    def set_bases(self, p: Tensor, bases: Iterable[Any]) -> None:
        """Replace the bases of a parameter by orthogonal ones, in the form of :meth:`bases`.

        The first moment is carried over to the new bases, the second stays as it is. ValueError if the number or
        the shapes differ.
        """
        slots = self._slots_with_state(p)
        given = [
            None if basis is None else torch.as_tensor(basis, dtype=torch.float32, device=p.device) for basis in bases
        ]
        shapes = [
            (n, n) if on else None for slot in slots for n, on in zip(slot.piece.dims, slot.piece.sided, strict=True)
        ]
        if [None if basis is None else tuple(basis.shape) for basis in given] != shapes:
            raise ValueError(f"bases of shapes {shapes} are needed")
        remaining = iter(given)
        for slot in slots:
            named = {f"basis_{position}": next(remaining) for position in range(len(slot.piece.dims))}
            if slot.owner == all_ranks().rank:
                alone = Stack([slot], self.state[p]["step"], self.state)
                alone.load()
                new = {key: basis[None] for key, basis in named.items() if basis is not None and key in slot.stored}
                mean = alone.project(alone.project(alone.tensors["exp_avg"], back=True), bases=new)
                self.state[p][slot.piece.label("exp_avg")].copy_(mean.view(slot.shape))
                for key, value in new.items():
                    self.state[p][slot.piece.label(key)].copy_(value[0])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a whole state, float32 whatever the parameters' dtype; ValueError names what does not fit."""
        groups = state_dict["param_groups"]
        for group, saved in zip(self.param_groups, groups, strict=False):
            if "names" in group and "names" in saved and list(group["names"]) != list(saved["names"]):
                odd = sorted(set(group["names"]) ^ set(saved["names"])) or ["their order"]
                raise ValueError(f"the saved optimizer state is of other parameters: {', '.join(odd[:5])}")
        indices = [i for group in groups for i in group["params"]]
        super().load_state_dict({"state": {}, "param_groups": groups})
        places = [(group, at) for group in self.param_groups for at in range(len(group["params"]))]
        for index, (group, at) in zip(indices, places, strict=True):
            if index in state_dict["state"]:
                parameter = group["params"][at]
                self.state[parameter] = self._owned_part(_name(group, at), parameter, state_dict["state"][index])

    def _owned_part(self, name: str, parameter: Tensor, state: Mapping[str, Any]) -> State:
        """A copy of what this rank owns of one parameter's saved state, in float32 on its device."""
        expected: dict[str, Shape] = {"step": ()}
        loaded: State = {"step": int(state["step"])} if "step" in state else {}
        for slot in self.slots[parameter]:
            for key, shape in slot.stored.items():
                label = slot.piece.label(key)
                expected[label] = shape
                if label in state and slot.owner == all_ranks().rank:
                    value = whole(torch.as_tensor(state[label])).detach()
                    loaded[label] = value.to(parameter.device, torch.float32, copy=True)
        shapes = {key: tuple(torch.as_tensor(value).shape) for key, value in state.items()}
        for key in sorted(expected.keys() | shapes.keys()):
            if shapes.get(key) != expected.get(key):
                raise ValueError(
                    f"{name}: the saved optimizer state has {key} {shapes.get(key, 'nowhere')}, "
                    f"expected {expected.get(key, 'nowhere')} (was it saved with other settings?)"
                )
        return loaded


def _name(group: Group, at: int) -> str:
    return str(group["names"][at]) if "names" in group else f"parameter {at} of its group"


def _whole_updates(
    stacks: list[Stack], updates: list[Tensor], sizes: list[float]
) -> Iterable[tuple[Tensor, float, Tensor]]:
    """(parameter, step size, update of the parameter's shape) for every parameter in the stacks."""
    cut: dict[Tensor, tuple[float, Tensor]] = {}
    for stack, update, size in zip(stacks, updates, sizes, strict=True):
        for slot, delta in zip(stack.slots, stack.spread(update), strict=True):
            parameter, piece = slot.parameter, slot.piece
            if piece.cut is None:
                yield parameter, size, delta
                continue
            if parameter not in cut:
                cut[parameter] = size, delta.new_empty(parameter.shape)
            cut[parameter][1].view(piece.shape)[piece.cut] = delta
    for parameter, (size, delta) in cut.items():
        yield parameter, size, delta


def owners(costs: Iterable[float], load: list[float]) -> list[int]:
    """The rank that does each task: dearest first, each to the rank with the least to do; ``load`` (a rank) grows."""
    costs = list(costs)
    chosen = [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda i: -costs[i]):
        chosen[task] = min(range(len(load)), key=lambda rank: load[rank])
        load[chosen[task]] += costs[task]
    return chosen
