"""The common part of SOAP and KL-Shampoo: a torch optimizer whose state lives in stacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dinoskip.optim import sharing
from dinoskip.optim.layout import Piece
from dinoskip.optim.linalg import Incidents, Method, all_finite, repair_, solve
from dinoskip.optim.stacks import Slot, Stack
from dinoskip.precision import exact_products

Group = dict[str, Any]


class StackedOptimizer(torch.optim.Optimizer, ABC):
    """State in float32 whatever the parameters' dtype; a step is a handful of batched operations a shape.

    Parameters take part whole: sharded gradients (DTensor) are gathered and the update is written to the local
    shard. The state is the same on every rank and does not depend on their number. ``incidents`` counts bases that
    had to be computed in float64 or kept (:mod:`dinoskip.optim.linalg`).
    """

    whole_state = True  # the state is never sharded: checkpoints load it as it is
    second_moment = True  # whether preconditioned parameters have exp_avg_sq
    roots = False  # whether a dimension has a vector root_i besides its factor and basis

    def __init__(self, params: Any, defaults: Group) -> None:
        if min(defaults[key] for key in ("precondition_frequency", "max_precond_dim", "blocks")) < 1:
            raise ValueError("precondition_frequency, max_precond_dim and blocks must be at least 1")
        betas = all(0 <= beta < 1 for beta in defaults["betas"]) and defaults["shampoo_beta"] < 1
        if min(defaults[key] for key in ("lr", "eps", "weight_decay")) < 0 or not betas:
            raise ValueError("lr, eps and weight_decay must not be negative; betas must be in [0, 1)")
        self._forget()
        self.incidents = Incidents()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("incidents", Incidents())
        self._forget()

    def _forget(self) -> None:
        """Drop the stacks; they form again, from the state, at the next step."""
        self._slots: dict[Tensor, list[Slot]] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}

    @abstractmethod
    def _pieces(self, shape: tuple[int, ...], group: Group) -> list[Piece]:
        """How a parameter of this shape is cut; ValueError if the group's settings do not fit it."""

    @abstractmethod
    def _step_group(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        """Step the stacks of one group whose gradients (B, *core) are given. A new stack's ``step`` is None."""

    @staticmethod
    def _due(group: Group, stacks: list[Stack]) -> list[Stack]:
        """The stacks whose bases are to be renewed after this step."""
        return [stack for stack in stacks if stack.step and stack.step % group["precondition_frequency"] == 0]

    @staticmethod
    def _factor_beta(group: Group) -> float:
        """How slowly the factors' averages move."""
        return float(group["shampoo_beta"] if group["shampoo_beta"] >= 0 else group["betas"][1])

    # --- which stacks there are ------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; ValueError at once, naming the parameter, if its settings do not fit."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for at, parameter in enumerate(group["params"]):
            if parameter.is_complex():
                raise ValueError(f"{_name(group, at)}: complex parameters are not supported")
            try:
                self._pieces(tuple(parameter.shape), group)
            except ValueError as error:
                raise ValueError(f"{_name(group, at)}: {error}") from None

    def _slots_of(self, parameter: Tensor, number: int, group: Group) -> list[Slot]:
        if parameter not in self._slots:
            base = (number, parameter.dtype, parameter.device)
            self._slots[parameter] = [
                Slot(parameter, piece, self._key(base, parameter, piece, group))
                for piece in self._pieces(tuple(parameter.shape), group)
            ]
        return self._slots[parameter]

    @staticmethod
    def _key(base: tuple[Any, ...], parameter: Tensor, piece: Piece, group: Group) -> tuple[Any, ...]:
        if not piece.factors and not group["normalize_grads"]:
            return (*base, "flat")
        return (*base, tuple(parameter.shape), piece.shape, piece.cut is None, piece.dims, piece.sided)

    def _plan(self) -> list[tuple[Group, list[Stack]]]:
        """The stacks of every parameter that has a gradient, group by group; new ones where the old do not fit."""
        plan, stacks = [], {}
        for number, group in enumerate(self.param_groups):
            members: dict[tuple[Any, ...], list[Slot]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step = self.state[parameter].get("step") if parameter in self.state else None
                    for slot in self._slots_of(parameter, number, group):
                        members[slot.key, step].append(slot)
            found = []
            for (_, step), slots in members.items():
                identity = tuple(map(id, slots))
                stack = self._stacks.get(identity)
                if stack is None:
                    stack = Stack(slots, step)
                    if step is not None:
                        stack.load(self.state)
                        stack.publish(self.state)
                stacks[identity] = stack
                found.append(stack)
            plan.append((group, found))
        self._keep_idle(stacks)
        self._stacks = stacks
        return plan

    def _keep_idle(self, stacks: dict[tuple[int, ...], Stack]) -> None:
        """Keep what waits for a gradient; apart from others that go on, so that no left-over stack stays in memory."""
        for identity, stack in self._stacks.items():
            idle = [slot for slot in stack.slots if slot.parameter.grad is None]
            if identity not in stacks and len(idle) == len(stack.slots):
                stacks[identity] = stack
            elif identity not in stacks and idle:
                apart = Stack(idle, stack.step)
                apart.load(self.state)
                apart.publish(self.state)
                stacks[tuple(map(id, idle))] = apart

    # --- the step ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. Parameters without a gradient are left alone, moments, decay and step count included."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, stacks in self._plan():
            if stacks:
                with torch.autocast(stacks[0].slots[0].parameter.device.type, enabled=False):
                    whole = _WholeGradients()
                    self._step_group(group, stacks, [stack.gather(whole) for stack in stacks])
        return loss

    def _begin(self, stacks: Iterable[Stack]) -> None:
        for stack in stacks:
            stack.begin(second_moment=self.second_moment)
            stack.publish(self.state)

    def _count(self, stacks: Iterable[Stack]) -> None:
        for stack in stacks:
            stack.step = (stack.step or 0) + 1
            for parameter in stack.parameters:
                self.state[parameter]["step"] = stack.step

    def _adam(self, group: Group, stacks: list[Stack], rotated: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Move both moments of the stacks, and return them."""
        beta1, beta2 = group["betas"]
        means = [stack.tensors["exp_avg"] for stack in stacks]
        squares = [stack.tensors["exp_avg_sq"] for stack in stacks]
        torch._foreach_lerp_(means, rotated, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, rotated, rotated, 1 - beta2)
        return means, squares

    def _apply(
        self, group: Group, stacks: list[Stack], updates: list[Tensor], sizes: list[float], *, decay_first: bool
    ) -> None:
        """Subtract ``sizes`` times the ``updates`` from the parameters, and decay them by the raw learning rate."""
        if group["normalize_grads"]:
            for update in updates:
                inner = tuple(range(1, update.ndim))
                update.div_(update.square().mean(inner, keepdim=True).sqrt_().add_(1e-30))
        decay = 1 - float(group["lr"]) * float(group["weight_decay"])
        targets: dict[float, list[Tensor]] = defaultdict(list)
        deltas: dict[float, list[Tensor]] = defaultdict(list)
        for parameter, size, delta in _whole_updates(stacks, updates, sizes):
            targets[size].append(sharing.local(parameter))
            deltas[size].append(sharing.part(delta, parameter))
        for size, parameters in targets.items():
            if decay_first and decay != 1:
                torch._foreach_mul_(parameters, decay)
            torch._foreach_add_(parameters, deltas[size], alpha=-size)
            if not decay_first and decay != 1:
                torch._foreach_mul_(parameters, decay)

    def _renew(self, stacks: list[Stack], method: Method) -> None:
        """New bases for all dimensions of the stacks. Moments are carried over: exp_avg turned, exp_avg_sq permuted."""
        tasks = [(stack, at, position) for stack in stacks for at, position in stack.factors]
        if not tasks:
            return
        sorts = method.sort and not method.eigh

        def compute(mine: list[int]) -> dict[int, list[Tensor]]:
            found = {}
            for number in mine:
                stack, _, position = tasks[number]
                factors, old = stack.tensors[f"factor_{position}"], stack.tensors[f"basis_{position}"]
                with exact_products(factors.device):
                    found[number] = solve(method, factors, old)
            for number, fine in zip(
                found, all_finite([new for new, _ in found.values()]) if found else [], strict=True
            ):
                if not fine:
                    stack, _, position = tasks[number]
                    what = f"{type(self).__name__}: dimension {position} of {len(stack)} × {tuple(stack.core)}"
                    old, factors = stack.tensors[f"basis_{position}"], stack.tensors[f"factor_{position}"]
                    repair_(method, *found[number], factors, old, self.incidents, what)
            return {
                number: [new.contiguous()] if order is None else [new.contiguous(), order]
                for number, (new, order) in found.items()
            }

        def like(number: int) -> list[Tensor]:
            stack, at, position = tasks[number]
            new = torch.empty_like(stack.tensors[f"basis_{position}"])
            shape = (len(stack), stack.core[at])
            return [new, torch.empty(shape, dtype=torch.long, device=new.device)] if sorts else [new]

        costs = [float(len(stack)) * stack.core[at] ** 3 for stack, at, _ in tasks]
        results = iter(sharing.shared(costs, compute, like))
        for stack in stacks:
            if stack.factors:
                self._turn(stack, [next(results) for _ in stack.factors])

    def _turn(self, stack: Stack, results: list[list[Tensor]]) -> None:
        """Put new bases (and the order of their columns) in place and express the moments in them."""
        new = {f"basis_{position}": one[0] for (_, position), one in zip(stack.factors, results, strict=True)}
        if stack.step:  # at the very start both moments are zero
            mean = stack.rotate(stack.tensors["exp_avg"], back=True)
            stack.tensors["exp_avg"] = stack.rotate(mean, bases=new)
        for (at, _), (_, *order) in zip(stack.factors, results, strict=True):
            if order and "exp_avg_sq" in stack.tensors:
                square = stack.tensors["exp_avg_sq"]
                index = order[0].view(len(stack), *(-1 if i == at else 1 for i in range(len(stack.core))))
                stack.tensors["exp_avg_sq"] = square.gather(at + 1, index.expand_as(square))
        stack.tensors |= new
        stack.publish(self.state, [*new, *({"exp_avg", "exp_avg_sq"} & stack.tensors.keys())])

    # --- bases and state ---------------------------------------------------------------------------------

    def _slots_with_state(self, parameter: Tensor) -> list[Slot]:
        for number, group in enumerate(self.param_groups):
            if any(parameter is one for one in group["params"]):
                if "step" not in self.state.get(parameter, {}):
                    raise ValueError("this parameter has had no gradient yet, so it has no bases")
                return self._slots_of(parameter, number, group)
        raise ValueError("this is no parameter of the optimizer")

    def bases(self, p: Tensor) -> list[Tensor | None]:
        """The bases of a parameter: for each dimension (n, n), eigenvectors in columns, or None.

        Dimensions are those of the parameter after merging. The bases of a parameter that is cut into several
        matrices follow each other. ValueError before its first gradient.
        """
        found: list[Tensor | None] = []
        for slot in self._slots_with_state(p):
            stored = {position for _, position in slot.piece.factors}
            for position, sided in enumerate(slot.piece.sided):
                if position in stored:
                    found.append(self.state[p][slot.piece.label(f"basis_{position}")])
                else:
                    found.append(torch.ones(1, 1, dtype=torch.float32, device=p.device) if sided else None)
        return found

    @torch.no_grad()
    def set_bases(self, p: Tensor, bases: Iterable[Any]) -> None:
        """Replace the bases of a parameter by orthogonal ones, in the form of :meth:`bases`.

        The first moment is carried over to the new bases, the second stays as it is. ValueError if the number or
        the shapes differ.
        """
        given = [None if one is None else torch.as_tensor(one, dtype=torch.float32, device=p.device) for one in bases]
        shapes = [None if one is None else one.shape for one in self.bases(p)]
        if [None if one is None else one.shape for one in given] != shapes:
            raise ValueError(f"bases of shapes {[one and tuple(one) for one in shapes]} are needed")
        remaining = iter(given)
        for slot in self._slots_with_state(p):
            alone = Stack([slot], self.state[p]["step"])
            alone.load(self.state)
            own = {f"basis_{position}": next(remaining) for position in range(len(slot.piece.dims))}
            new = {f"basis_{at}": own[f"basis_{at}"][None] for _, at in slot.piece.factors}  # type: ignore[index]
            mean = alone.rotate(alone.rotate(alone.tensors["exp_avg"], back=True), bases=new)
            state = self.state[p]
            state[slot.piece.label("exp_avg")].copy_(mean.view(slot.shape))
            for key, value in new.items():
                state[slot.piece.label(key)].copy_(value[0])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state, float32 whatever the parameters' dtype. ValueError names what does not fit."""
        groups = state_dict["param_groups"]
        for own, saved in zip(self.param_groups, groups, strict=False):
            if "names" in own and "names" in saved and list(own["names"]) != list(saved["names"]):
                odd = sorted(set(own["names"]) ^ set(saved["names"])) or ["their order"]
                raise ValueError(f"the saved optimizer state is of other parameters: {', '.join(odd[:5])}")
        places = [(i, group, at) for group in groups for at, i in enumerate(group["params"])]
        parameters = [p for group in self.param_groups for p in group["params"]]
        super().load_state_dict({"state": {}, "param_groups": groups})
        for (index, _, at), parameter in zip(places, parameters, strict=True):
            if index in state_dict["state"]:
                number = next(i for i, g in enumerate(self.param_groups) if any(parameter is p for p in g["params"]))
                group = self.param_groups[number]
                slots = self._slots_of(parameter, number, group)
                self.state[parameter] = self._checked(_name(group, at), parameter, slots, state_dict["state"][index])

    def _checked(self, name: str, parameter: Tensor, slots: list[Slot], state: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of one parameter's saved state, in float32 on its device."""
        expected: dict[str, tuple[int, ...]] = {"step": ()}
        for slot in slots:
            expected |= slot.stored(second_moment=self.second_moment, roots=self.roots)
        found = {key: tuple(torch.as_tensor(value).shape) for key, value in state.items()}
        for key in sorted(expected.keys() | found.keys()):
            if found.get(key) != expected.get(key):
                raise ValueError(
                    f"{name}: the saved optimizer state has {key} {found.get(key, 'nowhere')}, "
                    f"expected {expected.get(key, 'nowhere')} (was it saved with other settings?)"
                )
        loaded: dict[str, Any] = {
            key: sharing.whole(torch.as_tensor(value)).detach().to(parameter.device, torch.float32, copy=True)
            for key, value in state.items()
            if key != "step"
        }
        return {**loaded, "step": int(state["step"])}


def _name(group: Group, at: int) -> str:
    return str(group["names"][at]) if "names" in group else f"parameter {at} of its group"


class _WholeGradients:
    """The gathered gradient of a parameter; of one in several pieces it is gathered once."""

    def __init__(self) -> None:
        self.kept: dict[Tensor, Tensor] = {}

    def __call__(self, parameter: Tensor) -> Tensor:
        if parameter not in self.kept:
            assert parameter.grad is not None
            self.kept[parameter] = sharing.whole(parameter.grad)
        return self.kept[parameter]


def _whole_updates(
    stacks: list[Stack], updates: list[Tensor], sizes: list[float]
) -> Iterable[tuple[Tensor, float, Tensor]]:
    """(parameter, step size, update of the parameter's shape) for every parameter in the stacks."""
    cut: dict[Tensor, list[tuple[Slot, Tensor, float]]] = defaultdict(list)
    for stack, update, size in zip(stacks, updates, sizes, strict=True):
        for slot, delta in zip(stack.slots, stack.spread(update), strict=True):
            if slot.piece.cut is None:
                yield slot.parameter, size, delta
            else:
                cut[slot.parameter].append((slot, delta, size))
    for parameter, parts in cut.items():
        pairs = [(slot.piece.cut, delta) for slot, delta, _ in parts]
        yield parameter, parts[0][2], sharing.assemble(pairs, parameter.shape, parts[0][0].piece.shape)
