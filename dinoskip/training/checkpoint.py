"""Checkpoints: a step and tensors, published whole or not at all, readable without any of our code.

``checkpoints/step-00000123/`` holds ``student.safetensors`` and ``teacher.safetensors`` (weights files of the
backbones), ``head.safetensors`` (``student.*``, ``teacher.*``, ``center``), ``optimizer.safetensors`` (state by
parameter name), ``state.json`` and, written last, ``MANIFEST.json`` with every file's sha256. It does not
depend on the number of ranks. Nothing in it depends on when or where it was written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dinoskip.errors import DataError, DinoskipError, DiskFull, WeightsError, translate_write_errors
from dinoskip.io.files import (
    TEMPORARY,
    load_tensors,
    publish_directory,
    read_json,
    save_tensors,
    verify_manifest,
    write_json,
    write_manifest,
)
from dinoskip.io.output import remove, remove_aside, remove_temporaries
from dinoskip.models.export import check_fit, save_weights
from dinoskip.optim.preconditioned import PreconditionedOptimizer
from dinoskip.runtime.console import log
from dinoskip.runtime.distributed import local, read_together, whole
from dinoskip.settings.specs import CHECKPOINTS, list_checkpoints
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.objective import Objective


@torch.no_grad()
def load_whole_(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into ``target``, of which this rank may hold a slice only; every rank passes the same value.

    ``value`` may lie on another device and have another dtype; its shape must be the target's whole shape.
    """
    if target.shape != value.shape:
        raise ValueError(f"shape {tuple(value.shape)} does not fit {tuple(target.shape)}")
    if isinstance(target, DTensor):
        # No source rank: each cuts its own slice, and nothing is sent.
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    local(target).copy_(local(value))


@torch.no_grad()
def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, whole and on the CPU; collective if it is sharded."""
    return {name: whole(tensor).cpu() for name, tensor in module.state_dict().items()}


def as_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    """``value`` cut as ``parameter`` is, if that is sharded and both have one shape; else ``value`` itself."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def name_of(step: int) -> str:
    """Directory name of the checkpoint taken after ``step`` steps."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Inverse of :func:`name_of`, for a checkpoint's directory."""
    return int(path.name.removeprefix("step-"))


class Newest(NamedTuple):
    """What a run goes on from: a checkpoint (None: none yet), and the newer ones that are damaged, with why."""

    path: Path | None
    damaged: dict[str, str]


def newest(run_dir: Path) -> Newest:
    """The newest checkpoint whose files all match its manifest; damaged ones are logged, named and passed over.

    Raises :class:`WeightsError` if there are some and all are damaged.
    """
    damaged: dict[str, str] = {}
    for path in list_checkpoints(run_dir).values():
        problems = verify_manifest(path)
        if not problems:
            return Newest(path, damaged)
        damaged[path.name] = "; ".join(problems)
        log.warning("%s: damaged, an older one is taken: %s", path, damaged[path.name])
    if damaged:
        name, problem = next(iter(damaged.items()))
        raise WeightsError(
            f"{run_dir}: none of its {len(damaged)} checkpoints is intact ({CHECKPOINTS}/{name}/{problem})",
            f"restore one from a backup, or remove {run_dir / CHECKPOINTS} to begin again",
        )
    return Newest(None, {})


def of_epoch(run_dir: Path, epoch: int) -> Path:
    """The verified checkpoint at the end of ``epoch`` (1, 2, ...); :class:`WeightsError` if there is none."""
    for path in list_checkpoints(run_dir).values():
        state = read_json(path / "state.json")
        if state["step"] == epoch * state["steps_per_epoch"]:
            problems = verify_manifest(path)
            if problems:
                raise WeightsError(f"{path}: damaged checkpoint: {'; '.join(problems)}")
            return path
    raise WeightsError(f"{run_dir}: no checkpoint of epoch {epoch}", "keep it with pretrain.keep_epochs")


def sweep(run_dir: Path) -> None:
    """Remove what a killed run left unfinished; what cannot be removed stays. Call it only with the run's lock."""
    for folder in (run_dir, run_dir / CHECKPOINTS):
        remove_temporaries(folder)


# --- optimizer state by name -------------------------------------------------------------------------


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten the optimizer's per-parameter state to ``NAME.KEY`` tensors (for AdamW: exp_avg, exp_avg_sq, step).

    Parameters that were never updated (a frozen last layer) have no state and no entry. Collective; what ranks share
    out among them (SOAP and its kin) is complete on rank 0 alone.
    """
    flat = {}
    states = optimizer.full_state() if isinstance(optimizer, PreconditionedOptimizer) else optimizer.state
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for key, value in states.get(parameter, {}).items():
                flat[f"{name}.{key}"] = torch.as_tensor(value)
    return flat


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor], source: Path) -> None:
    """Inverse of :func:`optimizer_tensors`; what fits no parameter, or not as expected, is a :class:`WeightsError`."""
    groups = optimizer.param_groups
    names = [name for group in groups for name in group["names"]]
    index = {name: i for i, name in enumerate(names)}
    parameters = dict(zip(names, (p for group in groups for p in group["params"]), strict=True))
    takes_whole = isinstance(optimizer, PreconditionedOptimizer)  # it keeps what this rank owns
    state: dict[int, dict[str, Tensor]] = {}
    unknown = []
    for entry, value in flat.items():
        name, _, key = entry.rpartition(".")
        if name in index:
            state.setdefault(index[name], {})[key] = value if takes_whole else as_parameter(parameters[name], value)
        else:
            unknown.append(entry)
    dtypes = {
        # of 16-bit parameters the state may be kept in 32
        entry: value.dtype if entry.endswith(".step") or value.dtype == torch.float32 else parameters[name].dtype
        for entry, value in flat.items()
        if (name := entry.rpartition(".")[0]) in parameters
    }
    _check_values({entry: flat[entry] for entry in dtypes}, dtypes, source)
    if unknown:
        raise WeightsError(f"{source}: {len(unknown)} entries fit no parameter, such as {unknown[0]}")
    # torch wants its own numbering, in the order of the groups, and keeps its choice of where "step" lives.
    try:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except ValueError as error:
        raise WeightsError(f"{source}: {error}") from error


# --- save and load -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """The tensors of a checkpoint, whole and independent of the ranks, on the CPU."""

    backbones: dict[str, dict[str, Tensor]]  # by role
    head: dict[str, Tensor]  # "ROLE.NAME" and the objective's buffers
    optimizer: dict[str, Tensor]  # "NAME.KEY"

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors of a checkpoint take."""
        groups = [*self.backbones.values(), self.head, self.optimizer]
        return sum(tensor.numel() * tensor.element_size() for group in groups for tensor in group.values())


def collect(objective: Objective, optimizer: torch.optim.Optimizer) -> Content:
    """Bring all tensors together; every rank must call it. Only rank 0's result is complete on sharded runs."""
    backbones, head = {}, {name: value.cpu() for name, value in objective.buffers.items()}
    for role, network in objective.networks.items():
        state = whole_state(network)
        backbones[role] = {n.removeprefix("backbone."): t for n, t in state.items() if n.startswith("backbone.")}
        head |= {f"{role}.{n.removeprefix('head.')}": t for n, t in state.items() if n.startswith("head.")}
    flat = {name: whole(tensor).cpu() for name, tensor in optimizer_tensors(optimizer).items()}
    return Content(backbones, head, flat)


def save(
    run_dir: Path, content: Content, model: VitConfig, info: Mapping[str, Any], keep: Collection[int], run: str = ""
) -> Path:
    """Write and publish the checkpoint of step ``info["step"]``, then drop old ones (see :func:`retain`).

    ``run`` is the identity of the run, which :func:`load` compares.

    Raises :class:`DiskFull` or :class:`ConfigError` (not writable); earlier checkpoints are then untouched and
    the unfinished one is removed.
    """
    step = int(info["step"])
    final = run_dir / CHECKPOINTS / name_of(step)
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
    try:
        with translate_write_errors(final):
            temporary.mkdir(parents=True)
            _write(temporary, content, model, info, run)
            write_manifest(temporary, {"step": step})
            publish_directory(temporary, final)
    except DiskFull as error:
        remove(temporary, quiet=True)  # before its space is counted
        free = shutil.disk_usage(run_dir).free
        hint = "free some space, then the same command goes on from the checkpoint before"
        raise DiskFull(
            f"{final}: no space left: a checkpoint takes {content.nbytes} bytes, {free} are free", hint
        ) from error
    finally:
        remove(temporary, quiet=True)
    retain(run_dir, final, keep)
    return final


def _write(folder: Path, content: Content, model: VitConfig, info: Mapping[str, Any], run: str) -> None:
    for role, state in content.backbones.items():
        save_weights(folder / f"{role}.safetensors", state, model, {**info, "role": role})
    save_tensors(folder / "head.safetensors", content.head)
    save_tensors(folder / "optimizer.safetensors", content.optimizer)
    write_json(folder / "state.json", {"format": 1, **info, **({"run": run} if run else {})})


def pinned(run_dir: Path) -> set[int]:
    """Steps that the user wants kept: those of files ``checkpoints/step-NNNNNNNN.pin``, whatever they hold."""
    steps = [path.stem.removeprefix("step-") for path in (run_dir / CHECKPOINTS).glob("step-*.pin")]
    return {int(step) for step in steps if step.isdecimal()}


def retain(run_dir: Path, written: Path, keep: Collection[int]) -> None:
    """Keep ``written``, the newest other checkpoint that verifies, those of the steps in ``keep`` and the pinned."""
    others = [path for path in list_checkpoints(run_dir).values() if path != written]
    spare = next((path for path in others if not verify_manifest(path)), written)
    prune(run_dir, {*keep, step_of(written), step_of(spare)})


def prune(run_dir: Path, keep: Collection[int]) -> None:
    """Remove all checkpoints but those of the steps in ``keep`` and the pinned; warn of what cannot be removed."""
    kept = {*keep, *pinned(run_dir)}
    for step, path in list_checkpoints(run_dir).items():
        if step not in kept:
            try:
                remove_aside(path, "trash")
            except DinoskipError as error:
                said = getattr(error.__cause__, "strerror", None) or error
                log.warning("%s: an old checkpoint that cannot be removed: %s", path, said)


def load(path: Path, objective: Objective, optimizer: torch.optim.Optimizer, run: str = "") -> int:
    """Fill networks, buffers and optimizer from a verified checkpoint, in place; return the number of steps done.

    Every rank must call it; one that cannot see the checkpoint is sent what rank 0 reads. Raises :class:`WeightsError`
    for a checkpoint of another ``run``, tensors of other shapes or dtypes, and values that are not finite.
    """
    step, files = read_together(lambda: _read(path, objective.networks, run), str(path))
    head = files["head"]
    for role, network in objective.networks.items():
        load_whole(network.get_submodule("backbone"), files[role], path / f"{role}.safetensors")
        state = {name.removeprefix(f"{role}."): t for name, t in head.items() if name.startswith(f"{role}.")}
        load_whole(network.get_submodule("head"), state, path / "head.safetensors")
    buffers = {name: head[name] for name in objective.buffers}
    _check_values(buffers, {name: buffer.dtype for name, buffer in objective.buffers.items()}, path)
    for name, buffer in objective.buffers.items():
        buffer.copy_(buffers[name])
    load_optimizer_tensors(optimizer, files["optimizer"], path / "optimizer.safetensors")
    return step


def _read(path: Path, roles: Collection[str], run: str) -> tuple[int, dict[str, dict[str, Tensor]]]:
    """The step of a checkpoint of ``run`` and the tensors of its files, by name without the suffix."""
    state = read_json(path / "state.json")
    if not isinstance(state, dict) or state.get("format") != 1:
        raise DataError(f"{path / 'state.json'}: not a checkpoint of format 1")
    if run and state.get("run", run) != run:  # an earlier version wrote none
        raise WeightsError(
            f"{path}: a checkpoint of another run: its settings or its seed ({state.get('seed')}) are not those of "
            "config.json",
            "put it back where it came from, or name it as the start of a new run",
        )
    return int(state["step"]), {
        name: load_tensors(path / f"{name}.safetensors") for name in (*roles, "head", "optimizer")
    }


def _check_values(state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], source: Path) -> None:
    """:class:`WeightsError` for tensors of other dtypes than a run's own, which a copy would cast, or not finite."""
    for name, tensor in state.items():
        if tensor.dtype != dtypes[name]:
            raise WeightsError(f"{source}: {name} is {tensor.dtype}, not {dtypes[name]}: not this run's state")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise WeightsError(f"{source}: {name} is not finite")


@torch.no_grad()
def load_whole(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Fill a module, sharded or not, from whole tensors.

    Raises :class:`WeightsError` unless every one fits, has the module's dtype and is finite.
    """
    expected = module.state_dict()
    check_fit(expected, state, source)
    _check_values(state, {name: target.dtype for name, target in expected.items()}, source)
    for name, target in expected.items():
        load_whole_(target, state[name])
