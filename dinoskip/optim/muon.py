"""Muon for hidden matrices and AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

OUTPUT_LAYERS = ("last_v", "head.weight", "fc.weight")  # DINO's prototypes, a classifier


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon takes a parameter: a matrix that is no embedding, bias or output layer (Jordan et al., 2024)."""
    output = any(name == last or name.endswith(f".{last}") for last in OUTPUT_LAYERS)
    return parameter.ndim == 2 and not name.endswith("bias") and not output


class MuonAdamW(torch.optim.Optimizer):
    """``torch.optim.Muon`` for ``matrices`` and fused ``torch.optim.AdamW`` for ``others``, lists of groups.

    Both are used as they are, over this object's own groups and state, so rates set in ``param_groups`` reach them
    and state is stored and restored for both at once. ``adjust_lr_fn="match_rms_adamw"`` gives Muon's updates the
    size of AdamW's, so one learning rate fits both.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        lr: float = 1e-3,  # as all numbers below torch.optim.Muon's, betas and eps AdamW's
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        # Copies: AdamW and Muon write their defaults into the groups they are given.
        matrices, others = [dict(group) for group in matrices], [dict(group) for group in others]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn=adjust_lr_fn,
            )
            self._parts.append(muon)
        if others:
            adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
            self._parts.append(adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._link()

    def _link(self) -> None:
        """Let the parts work on this object's groups and state."""
        remaining = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(remaining) for _ in part.param_groups]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both; parameters without a gradient are left alone."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of both."""
        super().load_state_dict(state_dict)
        self._link()
