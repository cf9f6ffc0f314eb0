"""The training loop: resumes by itself, survives being killed at any step, and says what happened.

A run is a pure function of its job and images: order, crops and augmentation come from (seed, epoch, sample),
step noise from (seed, step, slice of the batch), schedules from the step. So a checkpoint holds the step and tensors
only, and a killed and resumed run ends with the same bits as a straight one (on a CPU, for one number of threads).
A step's batch is cut in ranks × micro-batches slices: 8 ranks, or 2 ranks of 4 micro-batches each, compute the same
but for the order of summation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from dinoskip.data.ahead import ViewsAhead
from dinoskip.data.augment import MEAN, STD
from dinoskip.data.loader import BatchLoader
from dinoskip.diagnostics.live import LiveDiagnostics, Row, gradient_rows, is_known
from dinoskip.errors import ConfigError, Interrupted, Preempted
from dinoskip.io.files import read_json, write_json
from dinoskip.optim.build import build_optimizer
from dinoskip.results.rows import normalisation_of
from dinoskip.runtime.console import Progress, log
from dinoskip.runtime.distributed import World, agree, all_reduce_mean, gather, on_main, watched, whole, world
from dinoskip.runtime.environment import matmul_gflops
from dinoskip.runtime.heartbeat import ProgressCallback
from dinoskip.runtime.provenance import made, today
from dinoskip.settings.config import dump, flatten
from dinoskip.settings.keys import every_setting, settings_for_key
from dinoskip.settings.specs import CHECKPOINTS
from dinoskip.training import checkpoint, parallel
from dinoskip.training.boards import Boards
from dinoskip.training.calibration import Start, begin_with
from dinoskip.training.checkpoint import whole_state
from dinoskip.training.compilation import Compiler, CompilerWatch
from dinoskip.training.guard import INTERRUPT, StopSignals
from dinoskip.training.journal import Journal
from dinoskip.training.objective import Engine, Objective, Step
from dinoskip.training.recipe import Job, TrainConfig
from dinoskip.training.run_directory import RunDirectory, identity, open_run
from dinoskip.training.skip_dial import SkipDial

T = TypeVar("T")
PREPARING = 4  # times rank_patience, an hour: files of a million images are listed, a teacher's features measured
EVALUATING = 96  # times rank_patience, a day: all layers of a large set on a CPU; later ones, twice the longest before


class Observer(Protocol):
    """Evaluates a network while it trains, on every rank; the same numbers for the same weights."""

    score: str  # the measure, more is better, that tells the best checkpoint

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """Measures of ``network`` (eval mode, on ``here.device``) by name, equal on all ranks."""


@dataclass(frozen=True)
class Training:
    """Training of a run: an objective, its micro-batches, and the names and texts by which they are reported.

    ``names`` are the images', by the numbers in ``Batch.ids``; ``verdict`` says in a line what a run waits for, given
    the share of time that steps waited for images. ``start`` gives the backbones' first weights, where they are not
    those that the objective built them with.
    """

    objective: Objective
    loader: BatchLoader
    names: Sequence[str]
    verdict: Callable[[float], str]
    start: Start | None = None


def train(
    job: Job,
    prepare: Callable[[World], Training],
    data: Callable[[], Mapping[str, Any]],
    run_dir: str | Path,
    *,
    device: str = "auto",
    observer: Observer | None = None,
    allow: Collection[str] = (),
    images_format: str = "",
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    ``prepare`` makes networks and loader on this rank. ``data`` says what the images are (their fingerprint), alike on
    all ranks: with the job, it is what a resumed run must share, but for the keys in ``allow``. ``observer`` evaluates
    every ``online_every`` epochs. ``images_format`` is what headers of weights say of the images beside their
    fingerprint, such as ``voc``; a run may go on under another.
    Ranks must have the same ``job``, ``allow`` and ``run_dir``.
    Raises :class:`ConfigError` (another configuration or data than the run's, or on another rank, unusable directory),
    :class:`OutputInUse`, :class:`NonFiniteError`, :class:`DiskFull`, and, with the state saved,
    :class:`Preempted` (SIGTERM, SIGUSR2) and :class:`Interrupted` (Ctrl-C).
    """
    config = next(value for value in dict(job).values() if isinstance(value, TrainConfig))
    same = flatten(dump(job)) | {"allow": sorted(allow), "observer": observer and type(observer).__name__}
    with (
        world(device, same, run_dir) as here,
        watched(config.rank_timeout) as note,
        StopSignals() as signals,
    ):
        gpus = [here.device] if here.device.type == "cuda" else []
        note(0, "looking at the images", PREPARING * config.rank_patience)
        found = dict(data())
        note(0, "comparing the images among ranks", config.rank_patience)
        read = {"data": agree(found, "the images")}
        recorded, changed = ({**settings_of(job), **read} for settings_of in (every_setting, settings_for_key))
        note(0, "opening the run directory", config.rank_patience)
        with (
            open_run(Path(run_dir), recorded, here, allow, changed) as run,
            torch.random.fork_rng(gpus),
            watched(config.rank_timeout, run.lost),
        ):
            signals.leave = run.stopped_at_once
            note(0, "preparing networks and images", PREPARING * config.rank_patience)
            training = prepare(here)
            if training.start is not None:
                note(0, "first weights", PREPARING * config.rank_patience)
                begin_with(training.objective, training.start)
            note(0, "sharing the networks among ranks", config.rank_patience)
            images = {"images": str(found.get("fingerprint", "")), "images_format": images_format}
            return _Loop(job, training, here, run, signals, observer, note, images).run()


class _Loop:
    def __init__(
        self,
        job: Job,
        training: Training,
        here: World,
        run: RunDirectory,
        signals: StopSignals,
        observer: Observer | None,
        note: ProgressCallback,
        images: Mapping[str, str],
    ) -> None:
        self.images = images  # their fingerprint and format, for what is written of the weights
        self._tell, self.first = note, 1  # the first step of this session
        self.job, self.training, self.here = job, training, here
        self.run_dir, self.signals, self.observer = run, signals, observer
        self.identity = on_main(lambda: identity(run.path))
        self.objective, self.loader = training.objective, training.loader
        self.config, self.student = self.objective.config, self.objective.networks["student"]
        self.epoch_steps = self.loader.steps_per_epoch
        self.total = self.config.epochs * self.epoch_steps
        self.dial = SkipDial(job.model, self.total)
        on_gpu = here.device.type == "cuda"
        self.bf16 = self.config.precision == "bf16" or (self.config.precision == "auto" and on_gpu)
        forward = self._distribute(self.config.compile is True or (self.config.compile == "auto" and on_gpu))
        self.optimizer = build_optimizer(self.student, job.optimizer)
        self.engine = Engine(
            self.student, forward, self.optimizer, self.loader, here, job.seed, self.config.accumulate, self.bf16,
            requests=self._requests, inspect=self._inspect, note=self.note, patience=self.loader.patience,
            ahead=ViewsAhead(self.loader.views, here.device) if on_gpu else None,
        )  # fmt: skip
        diagnosed = self.config.diagnose_every > 0
        if diagnosed and not is_known(self.student.get_submodule("backbone")):
            raise ConfigError(
                f"{self.config.section}.diagnose_every: {job.model.name} has no attention that is known", "leave it out"
            )
        self.live = LiveDiagnostics(self.loader.images, job.model.img_size) if diagnosed else None
        self.bad_images = self.run_dir.path / "bad_images.json"  # name -> reason, of all sessions of the run
        if here.is_main and self.bad_images.exists():
            self.loader.bad.update(read_json(self.bad_images))
        self.bad_written = len(self.loader.bad)
        self.keep = {epoch * self.epoch_steps for epoch in (*self.config.keep_epochs, self.config.epochs)}
        self.came_from = 0  # the step this session goes on from; its checkpoint is kept until the last step
        self._set_next_save()

    def note(self, step: int, action: str, patience: float = 0.0) -> None:
        """Say what this rank does from now on; the first step of a session, which compiles, has the patience for it."""
        self._tell(step, action, max(patience, self.config.rank_patience) if step <= self.first else patience)

    def _on_main(self, step: int, what: str, action: Callable[[], T]) -> T:
        """``action()`` of rank 0, for which the others wait: it has noted less than they, so a hang is its."""
        self.note(step, what, self.config.rank_patience)
        if not self.here.is_main:
            self.note(step, f"waiting for rank 0: {what}", self.config.rank_patience)
        result = on_main(action)
        if self.here.is_main:
            self.note(step, f"{what}: done", self.config.rank_patience)
        return result

    def _distribute(self, compiled: bool) -> torch.nn.Module:
        """The student as called in training: compiled and spread over the ranks; the other networks likewise."""
        compiler = Compiler() if compiled else None
        if compiler is not None:
            for network in self.objective.networks.values():
                compiler.compile_(network, self.here, by_block=self.objective.by_block)
        self.compiled = CompilerWatch(compiler, self.run_dir.note_environment)
        for role, network in self.objective.networks.items():
            if role != "student":
                parallel.shard(network, self.here, self.config.parallel)
        return parallel.wrap(self.student, self.here, self.config.parallel)

    def _resume(self) -> int:
        """Load the newest intact checkpoint, if any; return the number of steps done, which may be more than asked."""
        newest, damaged = self._on_main(0, "verifying checkpoints", lambda: checkpoint.newest(self.run_dir.path))
        self.run_dir.note_start(newest, damaged)
        if newest is None:
            return 0
        step = checkpoint.step_of(newest)
        self.note(0, "loading a checkpoint", self.config.rank_patience)
        checkpoint.load(newest, self.objective, self.optimizer, self.identity)
        self.came_from = step
        if step < self.total:
            log.info("%s: goes on after step %d of %d", self.run_dir.path, step, self.total)
        else:
            log.info("%s: is finished: %d steps are done, %d asked for", self.run_dir.path, step, self.total)
        return step

    def _journal(self, step: int) -> Journal:
        score = self.observer.score if self.observer else None
        boards = Boards(self.config.boards, self.run_dir.path, step, dump(self.job)) if self.here.is_main else None
        return Journal(self.run_dir, step, self.objective.alarm, self.config.max_nonfinite, score, boards)

    def _note_speed(self) -> None:
        """Record what this device can do at most, in this run's precision, while no other rank computes."""
        rate = matmul_gflops(self.here.device, torch.bfloat16 if self.bf16 else torch.float32)
        self.run_dir.note_environment(matmul_gflops=round(rate, 1))

    def run(self) -> Path:
        self._on_main(0, "measuring the speed of the device", self._note_speed)
        step = self._resume()
        self.first = step + 1
        self.run_dir.accept(step)
        self.run_dir.report(now=True, step=step, steps=self.total, epochs=self.config.epochs)
        tensors = [*self.student.state_dict().values()]
        self.run_dir.warn_if_tight(4 * sum(t.numel() * t.element_size() for t in tensors))
        with (
            closing(self.loader),
            self.loader.explained(),
            Progress("train", self.total, "step", start=step, show=self.here.is_main) as progress,
            closing(self._journal(step)) as self.journal,
        ):
            self.note(step, "beginning the first step", self.config.rank_patience)
            for epoch in range(step // self.epoch_steps, self.config.epochs):
                done = step - epoch * self.epoch_steps
                batches = self.loader.epoch(epoch, start_step=done)
                for _ in range(done, self.epoch_steps):
                    self.dial.set(self.objective.networks.values(), step)
                    taken = Step(self.engine, step, batches)
                    self.objective.step(taken)
                    self.compiled.look()
                    step += 1
                    self.journal.count(self.config.batch_size, taken.waited)
                    progress.advance(note=self._record(step, taken))
                    self._boundary(step, taken)
                self.journal.log_epoch(epoch + 1, self.config.epochs, self.training.verdict)
            self.note(step, "the end", self.config.rank_patience)
        return self.run_dir.path / CHECKPOINTS / checkpoint.name_of(step)

    # --- within a step ---------------------------------------------------------------------------------------

    def _requests(self) -> tuple[int, bool]:
        """Return this rank's requests to all ranks: the signal that came (0: none), and whether it is time to save."""
        return self.signals.requested, self.here.is_main and time.monotonic() >= self.next_save

    def _inspect(self, step: int) -> Row:
        """Diagnostics of a step that has its gradients and no update yet, if it is time; it changes nothing."""
        if self.live is None or step % self.config.diagnose_every:
            return {}
        self.note(step, "diagnostics", self.config.rank_patience)
        began = time.perf_counter()
        student = self.student.get_submodule("backbone")
        row = gradient_rows(student, lambda p: None if p.grad is None else whole(p.grad))
        if self.here.size > 1 and self.config.parallel == "fsdp":  # a sharded network cannot be walked block by block
            student = self._plain("student", step - 1).get_submodule("backbone")
        row |= self.live.signals(student)
        self.journal.leave_out(time.perf_counter() - began)
        return row

    def _plain(self, role: str, step: int) -> torch.nn.Module:
        """A whole copy of a network on this rank's device, neither sharded nor compiled; every rank must call it.

        Its skips have their weight after ``step`` steps.
        """
        network = self.objective.build_network(role)
        self.dial.set_copy(network, step)
        network.load_state_dict(whole_state(self.objective.networks[role]))
        return network.to(self.here.device)

    # --- between steps ----------------------------------------------------------------------------------

    def _record(self, step: int, taken: Step) -> str:
        """Log the step if it is time, or if it was not finite; return the note for the progress line."""
        epoch = (step - 1) // self.epoch_steps + 1
        if not taken.finite:
            ids = torch.cat(taken.ids).tolist()
            names = [self.training.names[i] for part in gather(ids) for i in part]
            self.journal.nonfinite(step, float(taken.means["loss"]), names)
            if self._due(step):  # of the weights of the step before
                self.journal.measured(step, epoch, self._online(step))
            return "not finite"
        self.journal.finite()
        if taken.inside:
            self.journal.diagnostics(step, epoch, taken.inside)
        online = self._online(step) if self._due(step) else {}
        if not online and step % self.config.log_every and step != self.total:
            return ""
        scalars = {name: value for name, value in taken.means.items() if value.ndim == 0}
        means = all_reduce_mean(torch.stack([value.float() for value in scalars.values()])).tolist()
        values = dict(zip(scalars, means, strict=True)) | {"grad_norm": taken.grad_norm} | taken.rates.logged()
        values |= self.dial.logged(step - 1)
        self.journal.row(step, epoch, values | online, len(self.loader.bad))
        return f"loss {values['loss']:.3f}"

    def _due(self, step: int) -> bool:
        """Whether the step ends an epoch after which the network is evaluated."""
        every, (epoch, left) = self.config.online_every, divmod(step, self.epoch_steps)
        return self.observer is not None and every > 0 and not left and (epoch % every == 0 or step == self.total)

    def _online(self, step: int) -> dict[str, float]:
        """Evaluate a plain copy of the observed network; the run's own networks and random numbers stay as they are."""
        assert self.observer is not None
        self.note(step, "evaluating", EVALUATING * self.config.rank_patience)
        began = time.perf_counter()
        gpus = [self.here.device] if self.here.device.type == "cuda" else []
        network = self._plain(self.objective.observed, step)
        with torch.random.fork_rng(gpus), torch.no_grad():
            values = self.observer(network.eval(), self.here)
        self.journal.leave_out(time.perf_counter() - began)
        return values

    def _boundary(self, step: int, taken: Step) -> None:
        """List new bad images, save if it is time, and stop if asked to."""
        if step % self.epoch_steps == 0:  # a rank has seen its part of the set alone; the 1 % rule is for the whole
            for bad in gather(self.loader.bad):
                self.loader.note(tuple(bad.items()))
        if self.here.is_main and len(self.loader.bad) > self.bad_written:
            write_json(self.bad_images, self.loader.bad)
            self.bad_written = len(self.loader.bad)
        every = self.config.checkpoint_every_steps
        asked = taken.stop or taken.save or (every and step % every == 0)
        if asked or step in self.keep or self._due(step):
            self._save(step)
        if taken.stop and step < self.total:
            kind = Interrupted if taken.stop == INTERRUPT else Preempted
            raise kind(f"{self.run_dir.path}: stopped after step {step}; the same command goes on from there")

    def _save(self, step: int) -> None:
        self.note(step, "collecting a checkpoint", self.config.rank_patience)
        info: dict[str, Any] = {
            "step": step, "epoch": step // self.epoch_steps, "epochs": self.config.epochs, "seed": self.job.seed,
            "steps_per_epoch": self.epoch_steps, "init": self.job.model.init.name, "optimizer": self.job.optimizer.name,
            "normalisation": normalisation_of(MEAN, STD), **made(), "date": today(), **self.images,
        }  # fmt: skip
        model, about = self.dial.exported(step)
        content = checkpoint.collect(self.objective, self.optimizer)  # of all ranks
        keep = self.keep | {self.journal.best} | ({self.came_from} if step < self.total else set())

        def save() -> None:
            self.run_dir.check()
            checkpoint.save(self.run_dir.path, content, model, {**info, **about}, keep, self.identity)

        self._on_main(step, "saving a checkpoint", save)
        self.run_dir.report(now=True, step=step)
        self._set_next_save()

    def _set_next_save(self) -> None:
        self.next_save = time.monotonic() + 60 * self.config.checkpoint_every_minutes
