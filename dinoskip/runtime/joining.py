"""Meeting of the ranks of one job, and of no others, before the first collective.

Rank 0 opens torch's key-value store and writes there which job it is of. Every other rank compares that with itself and
says who it is; rank 0 answers. A process of another job is refused alone: it ends with one line, rank 0 warns of it and
waits on for its own. Ranks of one job that differ in code or settings all end with the same line.

A job is told by its launcher's name for it (:func:`job_token`), by its output and by its number of ranks. Where we
choose the port, it is the first free one of a row that is drawn from the token, and ranks look for their job along it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dinoskip
from dinoskip.errors import ConfigError, first_line
from dinoskip.io.files import hash_of
from dinoskip.runtime.console import log

PORTS = 32  # that are tried where we choose: three jobs of a node collide, 32 do not
LOW, HIGH = 12000, 32000  # of these: below the ports that systems hand out themselves (Linux: 32768 and more)
SLICE = 1.0  # seconds of one look at a port, and of the first wait for rank 0's answer; each next one is twice as long
LONGEST = 32.0  # seconds of such a wait: of each that ends torch writes two lines into the log
KNOCK = 5.0  # seconds that what listens at a port has to answer as a store does
LAST = 10.0  # seconds for further ranks to arrive, and for all to read why, once one has other settings
NAMED = 3  # settings that a refusal names
_JOINED = count(1)  # of this process; ranks run the same program, so it is the same number on all


@dataclass(frozen=True)
class Meeting:
    """Place where ranks meet: a host and the ports to try, or the given one. ``agent``: torchrun serves the store."""

    host: str = ""
    ports: tuple[int, ...] = ()
    agent: bool = False

    @property
    def place(self) -> str:
        """Host and first port."""
        return f"{self.host}:{self.ports[0]}"


@dataclass(frozen=True)
class RankIdentity:
    """Identity that a process sends to the other ranks. ``settings`` are by key; only rank 0's are sent."""

    rank: int
    size: int
    job: str
    output: str
    code: str
    settings: Mapping[str, Any]
    host: str
    pid: int

    @property
    def who(self) -> str:
        """Rank, host and process."""
        return f"rank {self.rank} on {self.host} (process {self.pid})"

    @property
    def of(self) -> str:
        """Its job, in words."""
        parts = [self.job, f"output {self.output}" if self.output else "", f"{self.size} ranks"]
        return ", ".join(part for part in parts if part)

    def same_job(self, other: RankIdentity) -> bool:
        """Whether both are of one job, as far as launcher, output and number of ranks tell."""
        return (self.job, self.output, self.size) == (other.job, other.output, other.size)

    def differences(self, main: RankIdentity) -> list[str]:
        """Return the differences of code and settings from rank 0's, as ``key: its → this rank's``."""
        found = [] if self.code == main.code else [f"code: {main.code} → {self.code}"]
        if hash_of(dict(self.settings)) != hash_of(dict(main.settings)):
            keys = sorted(main.settings.keys() | self.settings.keys(), key=lambda key: (key.count("."), key))
            pairs = [(key, main.settings.get(key, "absent"), self.settings.get(key, "absent")) for key in keys]
            found += [f"{key}: {old} → {new}" for key, old, new in pairs if hash_of([old]) != hash_of([new])]
        return found


def job_token() -> str:
    """The launcher's name for this job, empty where it has none: DINOSKIP_JOB, else torchrun's or SLURM's.

    torchrun calls all jobs "none" that were not given a name (``--rdzv-id``; ``--standalone`` draws one).
    """
    env = os.environ
    if env.get("DINOSKIP_JOB"):
        return f"job {env['DINOSKIP_JOB']}"
    parts = []
    if env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        parts.append(f"torchrun {env['TORCHELASTIC_RUN_ID']}")
    if "SLURM_JOB_ID" in env:
        step = "" if "RANK" in env else f".{env.get('SLURM_STEP_ID', '')}"
        again = f", restart {env['SLURM_RESTART_COUNT']}" if env.get("SLURM_RESTART_COUNT", "0") != "0" else ""
        parts.append(f"SLURM job {env['SLURM_JOB_ID']}{step}{again}")
    return ", ".join(parts)


def ports_of(token: str) -> tuple[int, ...]:
    """The ports at which a job's ranks may meet, in the order in which they are tried."""
    digests = (hashlib.sha256(f"{token}/{number}".encode()).digest() for number in range(PORTS))
    return tuple(LOW + int.from_bytes(digest[:8], "big") % (HIGH - LOW) for digest in digests)


def _packages_of_plugins() -> list[Path]:
    """The folders of the installed packages that declare parts of dinoskip."""
    groups = [group for group in entry_points().groups if group.startswith("dinoskip.")]
    declared = {point.module.split(".")[0] for group in groups for point in entry_points(group=group)}
    specs = [importlib.util.find_spec(name) for name in sorted(declared)]
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]


def code_version() -> str:
    """Version, a hash of all source files, plug-ins' too, and torch's version, whose protocols ranks speak."""
    top = Path(dinoskip.__file__).parent
    digest = hashlib.sha256()
    for package in (top, top.with_name("eval"), top.with_name("visualize"), *_packages_of_plugins()):
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes() + b"\0")
    return f"{dinoskip.__version__} ({digest.hexdigest()[:12]}), torch {torch.__version__}"


def this_rank(rank: int, size: int, settings: Mapping[str, Any], output: str | Path) -> RankIdentity:
    """This process."""
    place = str(Path(output).absolute()) if output else ""
    plain = json.loads(json.dumps(dict(settings), default=str))
    return RankIdentity(rank, size, job_token(), place, code_version(), plain, socket.gethostname(), os.getpid())


# --- the store ----------------------------------------------------------------------------------------


class _Deadline:
    """A moment, ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())


def _wait(store: dist.Store, key: str, until: _Deadline) -> str:
    """The value of ``key``, once it is there; torch's DistStoreError after ``until``.

    In a thread, since no Ctrl-C interrupts torch's wait, which is silent only until it ends without the value.
    """
    came: list[str | Exception] = []

    def listen() -> None:
        try:
            store.wait([key], timedelta(seconds=max(0.01, until.left)))  # above 0: at the deadline it looks once more
            came.append(store.get(key).decode())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=listen, name="joining", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    [found] = came
    if isinstance(found, Exception):
        raise found
    return found


def _client(host: str, port: int) -> dist.Store | None:
    """A connection to the store that listens there; None where what listens is not one.

    In a thread: torch waits without end for the answer of a program that accepts connections and says nothing.
    """
    made: list[dist.Store] = []

    def connect() -> None:
        limit = timedelta(seconds=KNOCK)
        with suppress(RuntimeError):
            made.append(dist.TCPStore(host, port, None, False, timeout=limit, wait_for_workers=False))

    thread = threading.Thread(target=connect, name="joining", daemon=True)
    thread.start()
    thread.join(2 * KNOCK)
    return made[0] if made else None


def _serve(host: str, ports: tuple[int, ...]) -> tuple[dist.Store | None, int]:
    """Open the store at the first port that is free; None, and the last port, if none is."""
    for port in ports:
        try:
            store = dist.TCPStore(
                host, port, None, True, timeout=timedelta(seconds=KNOCK), wait_for_workers=False, multi_tenant=True
            )
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
        else:
            return store, port
    return None, ports[-1]


def _door(store: dist.Store, number: int) -> dist.Store:
    return dist.PrefixStore(f"dinoskip/{number}", store)


def _read(text: str) -> RankIdentity:
    """A member from what it says; ValueError for what other versions of this program say."""
    try:
        return RankIdentity(**json.loads(text))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _other_job(me: RankIdentity, other: RankIdentity | None, place: str) -> ConfigError:
    whose = "another program" if other is None else f"another job: {other.of}; {other.who}"
    return ConfigError(
        f"rank {me.rank} is not let in: at {place} is {whose}; its own job is {me.of}",
        "give each job a MASTER_PORT of its own, or start it with torchrun --standalone or srun, which choose one",
    )


# --- the handshake ------------------------------------------------------------------------------------


def join(meeting: Meeting, me: RankIdentity, seconds: float) -> dist.Store:
    """The store of this job, once all its ranks are there and of one mind; every rank calls it.

    Raises :class:`ConfigError`, in one line, for a process of another job, for ranks of other code or settings (on all
    ranks), and for ranks that have not come after ``seconds`` (on those that have).
    """
    number, until = next(_JOINED), _Deadline(seconds)
    try:
        return (_come if me.rank else _open_door)(meeting, me, number, until)
    except (dist.DistError, ValueError) as error:
        raise ConfigError(
            f"rank {me.rank} of {me.size} met no others at {meeting.place}: {first_line(error)}",
            "all ranks must start together and reach that host; MASTER_ADDR and MASTER_PORT may name another",
        ) from None


def _open_door(meeting: Meeting, me: RankIdentity, number: int, until: _Deadline) -> dist.Store:
    """:func:`join` on rank 0."""
    if meeting.agent:
        store, port = _client(meeting.host, meeting.ports[0]), meeting.ports[0]
        if store is None:
            raise dist.DistStoreError("torchrun's own store does not answer")
    else:
        store, port = _serve(meeting.host, meeting.ports)
    place = f"{meeting.host}:{port}"
    if store is None:
        heard = _hear(meeting.host, port, number, _Deadline(SLICE))
        raise _other_job(me, heard and heard[1], place)
    door = _door(store, number)
    mine = json.dumps(asdict(me))
    there = door.compare_set("job", "", mine).decode()
    if there != mine:
        raise _other_job(me, _read(there), place)
    _admit(door, me, until, place)
    return door


def _come(meeting: Meeting, me: RankIdentity, number: int, until: _Deadline) -> dist.Store:
    """:func:`join` on the other ranks."""
    door, main, place = _found(meeting, me, number, until)
    if not main.same_job(me):
        with suppress(RuntimeError):
            _say(door, me, stranger=True)
        raise _other_job(me, main, place)
    arrival = _say(door, me, differences=me.differences(main))
    verdict = _answer(door, arrival, _Deadline(until.left + LAST))  # rank 0 says who has not come
    door.set(f"read/{arrival}", "")
    if verdict is None:
        raise ConfigError(_taken(me, place))
    if verdict:
        raise ConfigError(verdict)
    return door


def _answer(door: dist.Store, arrival: int, until: _Deadline) -> str | None:
    """Return rank 0's answer to an arrival: empty if all is well; None if rank 0 had stopped listening before."""
    slice_ = SLICE
    while True:
        try:
            return _wait(door, f"verdict/{arrival}", _Deadline(min(slice_, until.left)))
        except dist.DistStoreError:
            if door.check(["closed"]) and arrival > int(door.get("closed")):
                return None
            if not until.left:
                raise
        slice_ = min(2 * slice_, LONGEST)


def _found(meeting: Meeting, me: RankIdentity, number: int, until: _Deadline) -> tuple[dist.Store, RankIdentity, str]:
    """A store along the ports and its rank 0: this job's, or whichever is at the one port that was given."""
    given = len(meeting.ports) == 1
    while True:
        for port in meeting.ports:
            heard = _hear(meeting.host, port, number, until if given else _Deadline(SLICE))
            if heard is not None and (given or heard[1].same_job(me)):
                return *heard, f"{meeting.host}:{port}"
        if not until.left:
            raise dist.DistStoreError("no rank 0 of this job is there")
        time.sleep(0.1)  # between rounds over all ports, where a refused connection returns at once


def _hear(host: str, port: int, number: int, until: _Deadline) -> tuple[dist.Store, RankIdentity] | None:
    """The store at a port, and who opened it; None where there is none, or where it says nothing of a job."""
    with suppress(
        OSError, ValueError, dist.DistError
    ):  # a store may also be that of a training before, which is being closed
        socket.create_connection((host, port), timeout=KNOCK).close()
        store = _client(host, port)
        if store is not None:
            door = _door(store, number)
            return door, _read(_wait(door, "job", until))
    return None


def _say(door: dist.Store, me: RankIdentity, *, stranger: bool = False, differences: Sequence[str] = ()) -> int:
    """Tell rank 0 who has come; the number under which it answers."""
    arrival = door.add("arrivals", 1)
    member = json.dumps(asdict(me) | {"settings": {}})
    door.set(f"arrival/{arrival}", json.dumps({"member": member, "stranger": stranger, "differences": [*differences]}))
    return arrival


def _admit(door: dist.Store, me: RankIdentity, until: _Deadline, place: str) -> None:
    """:func:`join` on rank 0: hear everybody who comes until all ranks are there, and tell all of them the same."""
    arrivals: dict[int, int] = {}  # by rank
    verdict, number, asked = "", 0, until.left
    while len(arrivals) < me.size - 1:
        number += 1
        try:
            said = json.loads(_wait(door, f"arrival/{number}", until))
        except dist.DistStoreError:
            missing = [rank for rank in range(1, me.size) if rank not in arrivals]
            verdict = verdict or _absent(missing, me, asked, place)
            break
        other = _read(said["member"])
        if said["stranger"]:
            log.warning("refused %s at %s: it is of another job (%s)", other.who, place, other.of)
        elif other.rank in arrivals:
            log.warning("refused %s at %s: that rank has joined already", other.who, place)
            door.set(f"verdict/{number}", _taken(other, place))
        else:
            arrivals[other.rank] = number
            if said["differences"] and not verdict:
                verdict, until = _disagreement(other, said["differences"]), _Deadline(min(LAST, until.left))
    door.set("closed", str(number))  # whoever comes later has that from it
    for arrival in arrivals.values():
        door.set(f"verdict/{arrival}", verdict)
    if verdict:
        with suppress(RuntimeError):  # the store ends with this process: they must have read it
            for arrival in arrivals.values():
                _wait(door, f"read/{arrival}", _Deadline(LAST))
        raise ConfigError(verdict)


def _taken(other: RankIdentity, place: str) -> str:
    return (
        f"{other.who}: another process has joined as this rank already, at {place} "
        "(start every rank once, and give each job a MASTER_PORT of its own)"
    )


def _absent(missing: list[int], me: RankIdentity, seconds: float, place: str) -> str:
    named = ", ".join(map(str, missing[:NAMED])) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
    return (
        f"rank 0 of {me.size} met no others at {place} for {seconds:.0f} s: rank {named} has not come "
        "(all ranks must start together and reach that host; MASTER_ADDR and MASTER_PORT may name another)"
    )


def _disagreement(other: RankIdentity, differences: list[str]) -> str:
    more = f", and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
    return (
        f"{other.who} has other settings than rank 0: {', '.join(differences[:NAMED])}{more} "
        "(start all ranks with the same command, of the same code)"
    )
