"""Disturbances of a run, or of the files it relies on; the table at the end names every kind.

A disturbance acts before the run starts (``before``), while it is at work (``during``), or shapes how it is started
(``prefix``, ``environment``). It returns a description of what it did, None where nothing came of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from dinoskip.io.files import MANIFEST
from dinoskip.pipeline.artifacts import PARTIAL, is_volatile
from dinoskip.pipeline.cleaning import RUNNING
from dinoskip.runtime.distributed import JOIN
from tests.chaos.site import Change, Running, Site

CLOCK_SOURCE = Path(__file__).with_name("clock.c")
YEAR = 365 * 86400
OBEYED = 5.0  # seconds after a signal to stop until no stage may begin any more


@dataclass
class Attempt:
    """A run under disturbance: where, when (as a node begins, plus a delay), and all that came of it."""

    site: Site
    rng: Random
    node: str
    delay: float
    deadline: float
    damaged: list[Path] = field(default_factory=list)
    beside: list[tuple[Running, set[int]]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """Of the command lines of single ranks."""
    main: Running | None = None
    published: int | None = None
    """Outputs that were there some time after a signal to stop; at most one more may be published."""
    after: list[Callable[[], str | None]] = field(default_factory=list)
    """What is looked at, and taken back, when all processes have ended: each returns what is wrong, if anything."""

    @property
    def run(self) -> Running:
        assert self.main is not None
        return self.main

    def moment(self) -> bool:
        """Wait for the moment; whether the run was still at work then."""
        if self.node:
            self.run.wait_for(self.site.study / RUNNING / self.node, self.deadline)
        time.sleep(self.delay)
        return self.run.alive

    def add_beside(self, running: Running, codes: set[int]) -> Running:
        """Note another command at work there, which may end with 0 or one of ``codes``."""
        self.beside.append((running, codes | {0}))
        return running


Act = Callable[[Attempt], str | None]


@dataclass(frozen=True)
class Disturbance:
    """One kind. ``codes``: exit codes besides 0 with which the disturbed run may end; ``of``: works that have it."""

    name: str
    codes: frozenset[int]
    before: Act | None = None
    during: Act | None = None
    prefix: Callable[[Attempt], tuple[str, ...]] | None = None
    environment: Callable[[Attempt], dict[str, str]] | None = None
    possible: Callable[[], bool] = lambda: True
    of: Callable[[Site], bool] = lambda site: True


# --- signals -----------------------------------------------------------------------------------------


def _send(*numbers: int, pause: float = 0.0) -> Act:
    def act(attempt: Attempt) -> str | None:
        if not attempt.moment():
            return None
        for number in numbers:
            attempt.run.signal(number)
            time.sleep(pause)
        with suppress(subprocess.TimeoutExpired):
            attempt.run.process.wait(OBEYED)
        attempt.published = len(outputs(attempt.site.study))
        return " ".join(signal.Signals(number).name for number in numbers)

    return act


def _stop_and_continue(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    seconds = attempt.rng.uniform(0.2, 6)
    attempt.run.signal(signal.SIGSTOP)
    time.sleep(seconds)
    attempt.run.signal(signal.SIGCONT)
    return f"stopped for {seconds:.1f} s"


# --- the disk ----------------------------------------------------------------------------------------


def _full(attempt: Attempt) -> str | None:
    free = int(attempt.rng.choice((0, 4096, 10 ** attempt.rng.uniform(4, 7))))
    return attempt.site.fill(free, attempt.run) if attempt.moment() else None


def _no_inodes(attempt: Attempt) -> str | None:
    left = attempt.rng.choice((0, 1, 3, 10, 30))
    return attempt.site.take_inodes(left) if attempt.site.mounted and attempt.moment() else None


def _read_only(attempt: Attempt) -> str | None:
    if not attempt.site.mounted or not attempt.moment() or not attempt.site.make_read_only(5):
        return None
    return "remounted read-only"


# --- damage to files ---------------------------------------------------------------------------------


def outputs(study: Path) -> list[Path]:
    """Published outputs of a study, or of a command: checkpoints, a feature store; not the stores within outputs."""
    stages = study / "stages"
    place = stages if stages.is_dir() else study
    sealed = {path.parent for path in place.rglob(MANIFEST)}
    whole = (path for path in sealed if sealed.isdisjoint(path.parents))
    return sorted(path for path in whole if not any(p.startswith((".partial-", ".tmp-")) for p in path.parts))


def _any_file(attempt: Attempt) -> Path | None:
    """A file of the study: of the kinds (suffixes) that there are, one, then a file of that kind."""
    files: dict[str, list[Path]] = {}
    for path in sorted(attempt.site.study.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:  # what a planted link names is another's
            files.setdefault("checkpoint" if "checkpoints" in path.parts else path.suffix, []).append(path)
    return attempt.rng.choice(files[attempt.rng.choice(sorted(files))]) if files else None


def _damage(attempt: Attempt, change: Callable[[bytearray, Random], str]) -> str | None:
    """Change a file's bytes in place; its times stay, as those of a decaying disk do."""
    path = _any_file(attempt)
    if path is None:
        return None
    content, state = bytearray(path.read_bytes()), path.stat()
    what = change(content, attempt.rng)
    with open(path, "r+b") as stream:  # the same inode
        stream.write(content)
        stream.truncate()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    attempt.damaged.append(path)
    return f"{path.relative_to(attempt.site.study)}: {what}"


def _flip(content: bytearray, rng: Random) -> str:
    place = rng.randrange(min(len(content), rng.choice((200, len(content)))))
    bit = rng.randrange(8)
    content[place] ^= 1 << bit
    return f"bit {bit} of byte {place} flipped"


def _tear(content: bytearray, rng: Random) -> str:
    place = rng.randrange(len(content))
    if rng.random() < 0.5:
        del content[place:]
        return f"cut off at byte {place}"
    content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    return f"up to 4096 bytes from {place} are zeros"


def _damage_first(change: Callable[[bytearray, Random], str]) -> Act:
    return lambda attempt: _damage(attempt, change)


def _damage_live(change: Callable[[bytearray, Random], str]) -> Act:
    return lambda attempt: _damage(attempt, change) if attempt.moment() else None


def _delete(attempt: Attempt) -> str | None:
    """Remove outputs, records, the report, unfinished work or single files."""
    study, rng = attempt.site.study, attempt.rng
    places: list[Path] = [*outputs(study), *study.glob("*"), *study.glob("stages/**/.partial-*")]
    file = _any_file(attempt)
    if file is None:
        return None
    target = file if rng.random() < 0.4 else rng.choice(sorted(places))
    attempt.damaged.append(target)
    if target.is_dir():
        shutil.rmtree(target, ignore_errors=True)  # the run may be writing there
    else:
        target.unlink(missing_ok=True)
    return f"{target.relative_to(study)} deleted"


def _delete_live(attempt: Attempt) -> str | None:
    return _delete(attempt) if attempt.moment() else None


# --- whose an output is, and what no result depends on ------------------------------------------------


def _write_victim(folder: Path) -> dict[str, bytes]:
    """A folder of somebody else: notes, rows and a page of theirs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {"notes.txt": b"mine\n" * 99, "rows.csv": b"a,b\n1,2\n", "index.html": b"<p>mine</p>\n"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


def _plant_link(attempt: Attempt) -> str | None:
    """Put a link to somebody else's folder, or to a file in it, where an undisturbed run has a folder or a file.

    Where a link is met, an error names it. Whether one is met or not, nothing of the other's is touched.
    """
    site, victim = attempt.site, attempt.site.out / "victim"
    files = _write_victim(victim)
    name, is_folder = attempt.rng.choice(site.places)
    link = site.disk / name
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    made = [folder for folder in link.parents if not folder.exists()]  # the nearest first
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim if is_folder else victim / "notes.txt")
    attempt.damaged.append(link)

    def look() -> str | None:
        if link.is_symlink():
            link.unlink()
        for folder in made:
            with suppress(OSError):  # it is of the run's now
                folder.rmdir()
        found = {path.relative_to(victim).as_posix(): path.read_bytes() for path in victim.rglob("*") if path.is_file()}
        return None if found == files else f"what the planted link {name} leads to was changed"

    attempt.after.append(look)
    return f"{name} is a link to another's {'folder' if is_folder else 'file'}"


def _linked_output(attempt: Attempt) -> str:
    """Name the output by a link to it: it is written where the link leads, and the link stays."""
    site, link = attempt.site, attempt.site.out / "link"
    link.unlink(missing_ok=True)
    target = site.disk if site.is_study else site.study
    link.symlink_to(target)

    def change(rank: int, words: list[str]) -> list[str]:
        given = {str(target): str(link), f"output={target}": f"output={link}"}
        return [given.get(word, word) for word in words]

    def look() -> str | None:
        return None if link.is_symlink() and link.resolve() == target.resolve() else "the given link was replaced"

    attempt.changes.append(change)
    attempt.after.append(look)
    return f"{target.name} named by a link"


def _edit_note(attempt: Attempt) -> str | None:
    """Edit a published log or note: a warning, and no output is made again for it. Afterwards it is put back."""
    published = outputs(attempt.site.study)
    notes = [path for place in published for path in place.rglob("*") if path.is_file() and is_volatile(path.name)]
    if not attempt.site.is_study:
        notes = [attempt.site.study / name for name in ("env.json", "metrics.jsonl", "status.json")]
        notes = [path for path in notes if path.is_file()]
    if not notes:
        return None
    path = attempt.rng.choice(sorted(notes))
    content, state = path.read_bytes(), path.stat()
    edits: dict[str, bytes | None] = {"a blank added": content + b" ", "an empty line added": content + b"\n",
             "removed": None, "its end cut off": content[: len(content) // 2]}  # fmt: skip
    what = attempt.rng.choice(sorted(edits))
    edited = edits[what]
    if edited is None:
        path.unlink()
    else:
        path.write_bytes(edited)
    attempt.damaged.append(path)
    inodes = {place: (place / MANIFEST).stat().st_ino for place in published}

    def look() -> str | None:
        made_again = [place for place, inode in inodes.items() if _inode(place / MANIFEST) not in (inode, None)]
        if made_again:
            return f"{made_again[0].relative_to(attempt.site.study)} was made again, {path.name} had been edited"
        if attempt.site.is_study and path.parent.is_dir():
            with suppress(OSError):  # another disturbance of the event has made the disk read-only: it stays edited
                path.write_bytes(content)
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
                attempt.damaged.remove(path)
        return None

    attempt.after.append(look)
    return f"{path.relative_to(attempt.site.study)}: {what}"


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def places_of(work: Path, root: Path) -> list[tuple[str, bool]]:
    """Names below ``root`` that an undisturbed run uses, and whether each is a folder; of what it built them under."""
    found: list[tuple[str, bool]] = []
    for path in sorted(work.rglob("*")):
        name = path.relative_to(root)
        found.append((name.as_posix(), path.is_dir()))
        if (path / MANIFEST).is_file():
            found += [(name.with_name(f"{PARTIAL}{name.name}").as_posix(), True)] * 3
    return [*found, (f"{PARTIAL}{work.name}", True)]


# --- others at the same study ------------------------------------------------------------------------


def _second_run(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    attempt.add_beside(attempt.site.start_work(), {5})
    return "a second run began"


def _second_run_killed(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    other = attempt.add_beside(attempt.site.start_work(), {5, -signal.SIGKILL})
    time.sleep(attempt.rng.uniform(3, 12))
    for rank in range(attempt.site.work.ranks):
        other.signal(signal.SIGKILL, rank)
    return "a second run began and was killed"


def _taken_over(before: tuple[str, ...]) -> Act:
    """Stop a run for longer than its heartbeat lasts; another goes on in its place; then the first wakes up."""

    def act(attempt: Attempt) -> str | None:
        if not attempt.moment():
            return None
        attempt.run.signal(signal.SIGSTOP)
        for lock in [*attempt.site.study.rglob(".lock")]:
            os.utime(lock, (time.time() - 3600,) * 2)
        attempt.add_beside(attempt.site.start_work(before=before), {5})
        time.sleep(attempt.rng.uniform(4, 20))
        attempt.run.signal(signal.SIGCONT)
        return f"stopped, its locks an hour old, a second run began{' by ' + ' '.join(before[:2]) if before else ''}"

    return act


def _readers(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    for _ in range(2):
        options = attempt.rng.choice(
            (("status",), ("plan",), ("gc",), ("gc", "--delete"), ("gc", "--delete-unfinished"))
        )
        attempt.add_beside(attempt.site.start(attempt.site.command(*options)), {2, 5}).end(attempt.deadline)
    return "status, plan or gc beside it"


# --- ranks, and photographs that lie elsewhere ------------------------------------------------------


def _other_rank(number: int) -> Act:
    def act(attempt: Attempt) -> str | None:
        if not attempt.moment():
            return None
        attempt.run.signal(number, 1)
        return f"{signal.Signals(number).name} to rank 1"

    return act


def _rank_hangs(attempt: Attempt) -> str | None:
    """Stop a rank for good: the others must name it and end within the bound, 20 s, however busy the machine.

    One that has not joined yet is named after :data:`dinoskip.runtime.distributed.JOIN`.
    """
    if not attempt.moment():
        return None
    attempt.run.signal(signal.SIGSTOP, 1)
    begun = Path(f"/proc/{attempt.run.process.pid}").stat().st_mtime
    opened = attempt.site.study / "env.json"  # written when the ranks have met
    met = opened.is_file() and opened.stat().st_mtime > begun
    bound = attempt.deadline if met else max(attempt.deadline, JOIN.total_seconds() + 60)
    try:
        attempt.run.process.wait(bound)
    except subprocess.TimeoutExpired:
        attempt.after.append(lambda: f"rank 0 was still running {bound:.0f} s after rank 1 had been stopped")
    attempt.run.signal(signal.SIGKILL, 1)
    return "rank 1 stopped for good"


def _other_settings(attempt: Attempt) -> str:
    """Give rank 1 one setting of its own: both must refuse before the first step."""
    word = attempt.rng.choice(("optimizer.lr=0.1", "seed=5", "model.skip=false", "pretrain.epochs=7"))
    attempt.changes.append(lambda rank, words: [*words, word] if rank else words)
    return f"rank 1 with {word}"


def _hang_in_a_step(attempt: Attempt) -> str:
    """Let the main thread of one rank alone hang: in the first step, in a later one, or, of rank 0, in a save."""
    hanging = attempt.rng.choice((0, 1))
    saving = ("checkpoint.before_save",) if hanging == 0 else ()
    point = attempt.rng.choice(("step.before_update", "step.gradients", *saving))
    spec = f"{point}:hang@{attempt.rng.choice((1, 1, 3))}"

    def change(rank: int, words: list[str]) -> list[str]:
        at = words.index("dinoskip")
        return [*words[:at], "tests.chaos.failing", spec, *words[at + 1 :]] if rank == hanging else words

    attempt.changes.append(change)
    return f"rank {hanging}: {spec}"


def _same_port(attempt: Attempt) -> str | None:
    """Start another job, with another output, at this one's port: one of the two trains, the other is refused."""
    if not attempt.moment():
        return None
    place = attempt.site.out / "other"
    shutil.rmtree(place, ignore_errors=True)
    port = {"MASTER_PORT": attempt.run.environments[0]["MASTER_PORT"]}
    attempt.add_beside(attempt.site.start_work(disk=place, environment=port), {2})
    return f"another job at port {port['MASTER_PORT']}"


def _spoil_photograph(attempt: Attempt) -> str | None:
    path = attempt.rng.choice(sorted(attempt.site.data.rglob("*.png")))
    content = bytearray(path.read_bytes())
    kind = attempt.rng.choice((_flip, _tear, None))
    what = kind(content, attempt.rng) if kind else "deleted"
    attempt.damaged.append(path)
    if kind:
        path.write_bytes(content)
    else:
        path.unlink()
    return f"{path.name}: {what}"


def _spoil_photograph_live(attempt: Attempt) -> str | None:
    return _spoil_photograph(attempt) if attempt.moment() else None


# --- clocks ------------------------------------------------------------------------------------------


def _file_times(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    shift = attempt.rng.choice((-10 * YEAR, -7200, -900, 900, 7200, 10 * YEAR))
    for path in [*attempt.site.study.rglob("*")]:
        if path.exists():
            os.utime(path, (time.time() + shift,) * 2)
    return f"times of all files moved by {shift} s"


def _jump_file(attempt: Attempt) -> Path:
    return attempt.site.out / "jump"


def _clock_of(attempt: Attempt, seconds: int) -> dict[str, str]:
    library = attempt.site.out / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    _jump_file(attempt).write_bytes(struct.pack("q", seconds))
    return {"LD_PRELOAD": str(library), "JUMP_FILE": str(_jump_file(attempt))}


def _with_clock(attempt: Attempt) -> dict[str, str]:
    return _clock_of(attempt, attempt.rng.choice((0, -YEAR, YEAR)))


def _gc_by_another_clock(attempt: Attempt) -> str | None:
    """Run gc as on another machine, whose clock is wrong, and which cannot see the run's process."""
    if not attempt.moment():
        return None
    seconds = attempt.rng.choice((-YEAR, -700, 700, 3600, YEAR))
    command = attempt.site.command("gc", "--delete", "--delete-unfinished")
    gc = attempt.site.start(command, environment=_clock_of(attempt, seconds))
    attempt.add_beside(gc, {2, 5}).end(attempt.deadline)  # 2: what unfinished stages need is not known
    return f"gc by a clock that is {seconds} s off"


def _wall_clock(attempt: Attempt) -> str | None:
    if not attempt.moment():
        return None
    seconds = attempt.rng.choice((-10 * YEAR, -86400, -3600, 3600, 86400, 10 * YEAR))
    with open(_jump_file(attempt), "r+b") as stream:
        stream.write(struct.pack("q", seconds))
    return f"wall clock moved by {seconds} s"


def _other_time(attempt: Attempt) -> tuple[str, ...]:
    seconds = str(attempt.rng.choice((1000, 10**6, 10**8)))
    return ("unshare", "--time", "--boottime", seconds, "--monotonic", seconds, "--")


@cache
def _works(*command: str) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
_OTHER_TIME = ("unshare", "--time", "--boottime", "1", "--monotonic", "1", "--")


def _kinds() -> Iterator[Disturbance]:
    def kind(name: str, *codes: int, **how: object) -> Disturbance:
        return Disturbance(name, frozenset(codes), **how)  # type: ignore[arg-type]

    yield kind("SIGKILL", -9, during=_send(signal.SIGKILL))
    yield kind("SIGTERM", 75, during=_send(signal.SIGTERM))
    yield kind("SIGUSR2", 75, during=_send(signal.SIGUSR2))
    yield kind("SIGINT", 130, during=_send(signal.SIGINT))
    yield kind("SIGTERM twice", 75, during=_send(signal.SIGTERM, signal.SIGTERM, pause=0.05))
    yield kind("SIGSTOP, SIGCONT", during=_stop_and_continue)
    yield kind("disk full", 6, during=_full)
    yield kind("no inodes left", 6, during=_no_inodes)
    yield kind("read-only disk", 2, during=_read_only)
    yield kind("bit flipped before", 3, before=_damage_first(_flip))
    yield kind("bit flipped during", 3, during=_damage_live(_flip))
    yield kind("file torn before", 3, before=_damage_first(_tear))
    yield kind("file torn during", 3, during=_damage_live(_tear))
    yield kind("cache deleted before", 3, before=_delete)
    yield kind("cache deleted during", 3, 5, during=_delete_live)
    yield kind("a planted link", 2, 3, before=_plant_link)
    yield kind("output named by a link", before=_linked_output)
    yield kind("a log or note edited", before=_edit_note)
    yield kind("two runs", 5, during=_second_run)
    yield kind("two runs, one killed", 5, during=_second_run_killed)
    yield kind("stopped, a second run", 5, during=_taken_over(()))
    yield kind("taken over", 5, during=_taken_over(CONTAINER), possible=lambda: _works(*CONTAINER))
    yield kind("status, plan, gc beside", during=_readers, of=lambda site: site.is_study)
    yield kind("file times moved", during=_file_times)
    yield kind(
        "wall clock jumps", during=_wall_clock, environment=_with_clock, possible=lambda: _works("cc", "--version")
    )
    yield kind(
        "two runs, two boot clocks", 5, during=_second_run, prefix=_other_time, possible=lambda: _works(*_OTHER_TIME)
    )
    yield kind(
        "gc by another clock", during=_gc_by_another_clock, prefix=_other_time, of=lambda site: site.is_study,
        possible=lambda: _works(*_OTHER_TIME) and _works("cc", "--version"),
    )  # fmt: skip
    yield kind("photograph spoilt before", 3, before=_spoil_photograph)
    yield kind("photograph spoilt during", 3, during=_spoil_photograph_live)
    # 2: before it has joined, the other says after 300 s that rank 1 has not come
    yield kind("rank 1 SIGKILL", 1, 2, 75, during=_other_rank(signal.SIGKILL), of=lambda site: site.work.ranks > 1)
    yield kind("rank 1 SIGTERM", 2, 75, during=_other_rank(signal.SIGTERM), of=lambda site: site.work.ranks > 1)
    yield kind("rank 1 with other settings", 2, before=_other_settings, of=lambda site: site.work.ranks > 1)
    yield kind("a rank's main thread hangs", 1, 75, before=_hang_in_a_step, of=lambda site: site.work.ranks > 1)
    yield kind("another job at the port", 2, during=_same_port, of=lambda site: site.work.ranks > 1)
    yield kind("rank 1 hangs", 1, 2, 75, during=_rank_hangs, of=lambda site: site.work.ranks > 1)


TABLE: tuple[Disturbance, ...] = tuple(_kinds())
