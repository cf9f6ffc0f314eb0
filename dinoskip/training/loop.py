"""The pretraining loop: resumes by itself, survives being killed at any step, and says what happened.

A run is a pure function of its job and images: order, crops and augmentation come from (seed, epoch, sample),
step noise from (seed, step, rank), schedules from the step. So a checkpoint holds the step and tensors only,
and a killed and resumed run ends with the same bits as a straight one (on a CPU, for one number of threads).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dinoskip.config import Config, dump
from dinoskip.console import Progress, log
from dinoskip.data.folders import ImageFolder
from dinoskip.data.loader import Batch, TrainLoader, make_views
from dinoskip.distributed import World, all_reduce_max, all_reduce_mean, gather, on_main, world
from dinoskip.errors import Interrupted, Preempted
from dinoskip.files import read_json, write_json
from dinoskip.init.build import ModelConfig, build_model
from dinoskip.models.export import CHECKPOINTS
from dinoskip.models.heads import DINOHead
from dinoskip.optim.build import AdamWConfig, OptimizerConfig, build_optimizer, set_rates
from dinoskip.randomness import derive
from dinoskip.training import checkpoint
from dinoskip.training.dino import (
    Dino,
    Gradients,
    MultiCrop,
    PretrainConfig,
    Rates,
    Schedules,
    apply_update,
    clip_each_,
    compute_gradients,
    entropy,
    gradients_of,
    make_teacher,
)
from dinoskip.training.guard import INTERRUPT, StopSignals
from dinoskip.training.journal import Journal
from dinoskip.training.rundir import RunDirectory, open_run


class PretrainJob(Config):
    """Everything that a pretraining run's result depends on, but the images."""

    seed: int = Field(0, ge=0)
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = AdamWConfig()
    pretrain: PretrainConfig = PretrainConfig()

    @model_validator(mode="after")
    def _whole_patches(self) -> PretrainJob:
        patch, crops = self.model.patch_size, self.pretrain.crops
        for key, size in (("global_size", crops.global_size), ("local_size", crops.local_size)):
            if size % patch:
                raise ValueError(f"pretrain.crops.{key}: {size} is not a multiple of the patch size {patch}")
        return self


def pretrain(
    job: PretrainJob, images: ImageFolder, run_dir: str | Path, *, device: str = "auto", workers: int = 0
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    Raises :class:`ConfigError` (another configuration or data than the run's, unusable directory),
    :class:`OutputInUse`, :class:`NonFiniteError`, :class:`DiskFull`, and, with the state saved,
    :class:`Preempted` (SIGTERM, SIGUSR2) and :class:`Interrupted` (Ctrl-C).
    """
    with world(device) as here, StopSignals() as signals:
        data = {"fingerprint": on_main(images.fingerprint), "images": len(images)}
        gpus = [here.device] if here.device.type == "cuda" else []
        with open_run(Path(run_dir), {**dump(job), "data": data}, here) as run, torch.random.fork_rng(gpus):
            return _Training(job, images, here, run, signals, workers).run()


def build(job: PretrainJob, device: torch.device) -> Dino:
    """Student (with drop path if it has skips) and teacher at their start; weights depend on ``job.seed`` alone."""
    config = job.pretrain
    drop_path = job.model.drop_path if job.model.skip is True else 0.0
    backbone = build_model(job.model, job.seed, drop_path=drop_path, device=str(device))

    def head(norm_last_layer: bool) -> DINOHead:
        sizes = {"hidden_dim": config.hidden_dim, "bottleneck_dim": config.bottleneck_dim}
        made = DINOHead(backbone.embed_dim, config.out_dim, norm_last_layer=norm_last_layer, seed=job.seed, **sizes)
        return made.to(device)

    student = MultiCrop(backbone, head(config.norm_last_layer)).train()
    return Dino(student, make_teacher(student, head(True)), torch.zeros(config.out_dim, device=device))


@dataclass
class _Step:
    """What one step leaves for the log, on the host but for the tensors in ``gradients``."""

    rates: Rates
    gradients: Gradients
    grad_norm: float
    finite: bool
    stop: int
    save: bool


class _Training:
    def __init__(
        self, job: PretrainJob, images: ImageFolder, here: World, run: RunDirectory, signals: StopSignals, workers: int
    ) -> None:
        self.job, self.config, self.images, self.here, self.run_dir, self.signals = (
            job, job.pretrain, images, here, run, signals,
        )  # fmt: skip
        config = self.config
        self.loader = TrainLoader(
            images, config.crops, config.augment, seed=job.seed, batch_size=config.batch_size,
            rank=here.rank, world_size=here.size, workers=workers, device=here.device, min_side=job.model.patch_size,
        )  # fmt: skip
        self.epoch_steps = self.loader.steps_per_epoch
        self.total = config.epochs * self.epoch_steps
        self.schedules = Schedules(config, job.optimizer, self.epoch_steps)
        self.dino = build(job, here.device)
        self.optimizer = build_optimizer(self.dino.student, job.optimizer)
        self.next_save = time.monotonic() + 60 * config.checkpoint_every_minutes
        self.bad_images = self.run_dir.path / "bad_images.json"  # name -> reason, of all sessions of the run
        if here.is_main and self.bad_images.exists():
            self.loader.bad.update(read_json(self.bad_images))
        self.bad_written = len(self.loader.bad)
        self.keep = {epoch * self.epoch_steps for epoch in (*config.keep_epochs, config.epochs)}

    def _forward(self) -> nn.Module:
        """The student as called in training: compiled and wrapped for several ranks where that applies."""
        on_gpu = self.here.device.type == "cuda"
        if self.config.compile is True or (self.config.compile == "auto" and on_gpu):
            for role in (self.dino.student, self.dino.teacher):
                role.backbone.compile(dynamic=False)  # in place: names and state stay as they are
        if self.here.size == 1:
            return self.dino.student
        return nn.parallel.DistributedDataParallel(self.dino.student, [self.here.device] if on_gpu else None)

    def _resume(self) -> int:
        """Load the newest intact checkpoint, if any; return the number of steps done."""
        newest = on_main(lambda: checkpoint.newest(self.run_dir.path))
        if newest is None:
            return 0
        step = checkpoint.load(newest, self.dino, self.optimizer)
        log.info("%s: goes on after step %d of %d", self.run_dir.path, step, self.total)
        return step

    def run(self) -> Path:
        step = self._resume()
        self.run_dir.report(now=True, step=step, steps=self.total, epochs=self.config.epochs)
        tensors = [*self.dino.student.state_dict().values()]
        self.run_dir.warn_if_tight(4 * sum(t.numel() * t.element_size() for t in tensors))
        forward = self._forward()
        with (
            closing(self.loader),
            Progress("pretrain", self.total, "step", start=step, show=self.here.is_main) as progress,
            closing(Journal(self.run_dir, step, self.config.out_dim, self.config.max_nonfinite)) as journal,
        ):
            for epoch in range(step // self.epoch_steps, self.config.epochs):
                for batch, waited in _timed(self.loader.epoch(epoch, start_step=step - epoch * self.epoch_steps)):
                    outcome = self._step(step, batch, forward)
                    step += 1
                    journal.count(self.config.batch_size, waited)
                    progress.advance(note=self._record(journal, step, batch, outcome))
                    self._boundary(step, outcome)
        return self.run_dir.path / CHECKPOINTS / checkpoint.name_of(self.total)

    def _step(self, step: int, batch: Batch, forward: nn.Module) -> _Step:
        """One update, or none if any rank's gradients are not finite. Waits for the device once."""
        rates, device = self.schedules.at(step), self.here.device
        torch.manual_seed(derive(self.job.seed, "noise", step, self.here.rank))
        set_rates(self.optimizer, rates.lr, rates.weight_decay)
        self.optimizer.zero_grad(set_to_none=True)
        bf16 = self.config.precision == "bf16" or (self.config.precision == "auto" and device.type == "cuda")
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
        views = [crops for crops in make_views(batch, device) if len(crops)]
        result = compute_gradients(self.dino, forward, views, rates, self.config, autocast)
        gradients = gradients_of(self.dino.student)
        norms = torch.stack(torch._foreach_norm(gradients))
        bad, stop, save, norm_list = self._agree(norms, result.loss)
        if not bad:
            clip_each_(gradients, norm_list, self.config.clip_grad)
            momentum = self.config.center_momentum
            apply_update(self.dino, self.optimizer, result.batch_center, rates.momentum, momentum)
        return _Step(rates, result, sum(n * n for n in norm_list) ** 0.5, not bad, stop, save)

    def _agree(self, norms: Tensor, loss: Tensor) -> tuple[bool, int, bool, list[float]]:
        """Agree among ranks on: non-finite, stop signal, time to save; and bring the norms to the host."""
        late = self.here.is_main and time.monotonic() >= self.next_save
        host = torch.tensor([0.0, float(self.signals.requested), float(late)])
        flags = host.to(norms.device, non_blocking=True)
        flags[0] = 1.0 - torch.isfinite(norms.sum() + loss).float()
        bad, stop, save, *values = torch.cat([all_reduce_max(flags), norms.float()]).tolist()
        return bool(bad), int(stop), bool(save), values

    def _record(self, journal: Journal, step: int, batch: Batch, outcome: _Step) -> str:
        """Log the step if it is time, or if it was not finite; return the note for the progress line."""
        if not outcome.finite:
            ids = [self.images.ids[i] for part in gather(batch.ids.tolist()) for i in part]
            journal.nonfinite(step, float(outcome.gradients.loss), ids)
            return "not finite"
        journal.finite()
        if step % self.config.log_every and step != self.total:
            return ""
        measured = all_reduce_mean(torch.stack([outcome.gradients.loss, entropy(outcome.gradients.targets)]))
        loss, spread = measured.tolist()
        epoch = (step - 1) // self.epoch_steps + 1
        journal.row(step, epoch, loss, spread, outcome.grad_norm, outcome.rates, len(self.loader.bad))
        return f"loss {loss:.3f}"

    def _boundary(self, step: int, outcome: _Step) -> None:
        """List new bad images, save if it is time, and stop if asked to."""
        if self.here.is_main and len(self.loader.bad) > self.bad_written:
            write_json(self.bad_images, self.loader.bad)
            self.bad_written = len(self.loader.bad)
        every = self.config.checkpoint_every_steps
        if outcome.stop or outcome.save or step in self.keep or (every and step % every == 0):
            on_main(lambda: self._save(step))
            self.run_dir.report(now=True, step=step)
        if outcome.stop and step < self.total:
            kind = Interrupted if outcome.stop == INTERRUPT else Preempted
            raise kind(f"{self.run_dir.path}: stopped after step {step}; the same command goes on from there")

    def _save(self, step: int) -> None:
        info: dict[str, Any] = {
            "step": step, "epoch": step // self.epoch_steps, "epochs": self.config.epochs, "seed": self.job.seed,
            "steps_per_epoch": self.epoch_steps, "init": self.job.model.init.name, "optimizer": self.job.optimizer.name,
        }  # fmt: skip
        checkpoint.save(self.run_dir.path, self.dino, self.optimizer, self.job.model, info, self.keep)
        self.next_save = time.monotonic() + 60 * self.config.checkpoint_every_minutes


def _timed(batches: Iterable[Batch]) -> Iterator[tuple[Batch, float]]:
    """Yield each batch with the seconds spent waiting for it."""
    source = iter(batches)
    while True:
        began = time.perf_counter()
        batch = next(source, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - began
