"""A study disturbed again and again, and compared with an undisturbed one each time that it is whole again."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dinoskip.io.files import read_json, read_manifest
from dinoskip.io.locks import STALE
from dinoskip.pipeline.artifacts import is_volatile
from dinoskip.pipeline.cleaning import RUNNING
from tests.chaos.disturbances import TABLE, Act, Attempt, Disturbance, outputs, places_of
from tests.chaos.outcomes import INSIDE, contents, differences, names_of, of_end, output_of, problems
from tests.chaos.site import ROOT, Running, Site
from tests.chaos.works import WORKS

SPIN = 0.05  # seconds of a core that tell how much slower than alone this process runs
KEPT_FAULTS = 5  # copies of studies in which a fault was seen
TRIES = 6  # undisturbed runs, with what an error named removed in between, until a study must be whole


class Campaign:
    """One piece of a chaos run: ``out`` has the log of all pieces, the undisturbed study and copies of faults."""

    def __init__(self, out: Path, seed: int, work: str, kinds: Sequence[str] = ()) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.seed, self.rng, self.site = out, seed, Random(seed), Site(out, WORKS[work])
        self.began, self.piece = time.monotonic(), f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{work}-{seed}"
        self._deck: list[Disturbance] = []
        self._kinds = [kind for kind in TABLE if not kinds or kind.name in kinds]
        self._chain: list[int] = []  # events since the study was last compared
        self._damaged: list[Path] = []  # in them
        self._gone: set[Path] = set()  # folders that were removed in them, by a disturbance or by this program
        self._number = 0
        self._left = False  # whether a lock of an earlier event lay there when the last run began

    def log(self, entry: str, **content: Any) -> dict[str, Any]:
        """Append a line to ``log.jsonl``; the line."""
        line = {"entry": entry, "piece": self.piece, "seconds": round(time.monotonic() - self.began, 1), **content}
        with open(self.out / "log.jsonl", "a") as stream:
            stream.write(without_places(json.dumps(line), self.out) + "\n")
        return line

    def straight(self) -> None:
        """Run the study undisturbed, to learn what is expected, its nodes, and how long each takes."""
        place = self.out / "straight"
        shutil.rmtree(place, ignore_errors=True)
        slow, began = slowness(), time.monotonic()
        running = self.site.start_work(disk=place)
        code, wrong = running.end(1800)
        assert (code, wrong) == (0, []), running.log
        self.lasted = time.monotonic() - began
        self.slow = min(slow, slowness())  # while that was measured
        self.site.places = places_of(place / "tiny", place)
        self.expected = contents(place / "tiny")
        self.files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
        self.nodes = sorted(read_manifest(path).info.get("node", "") for path in outputs(place / "tiny"))
        self.nodes = [node for node in self.nodes if node]  # a command's outputs have none
        self.lasts = {
            node: max(read_json(path)["seconds"] for path in (place / "tiny" / "stages" / node).glob("*/timing.json"))
            for node in self.nodes
        }
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        left_out = [kind.name for kind in TABLE if not kind.possible()]
        disk = "tmpfs" if self.site.mounted else "folder, RLIMIT_FSIZE"
        self.log(
            "piece", seed=self.seed, commit=commit.stdout.strip(), disk=disk, left_out=left_out, nodes=len(self.nodes)
        )

    @property
    def deadline(self) -> float:
        """Seconds that a run may last: four undisturbed ones and 90 s; in proportion, where others use the cores."""
        return (90 + 4 * self.lasted) * max(1.0, slowness() / self.slow)

    # --- one event ------------------------------------------------------------------------------------

    def event(self) -> str:
        """One disturbed run, by one kind or two; its outcome."""
        self.site.write_data()
        slow, state = slowness(), self._prepare()
        self._left = self._locks_left()
        kinds = [self._draw() for _ in range(1 if self.rng.random() < 0.75 else 2)]
        missing = [node for node in self.nodes if not list((self.site.study / "stages" / node).glob("[0-9a-f]*"))]
        node = self.rng.choice([*missing, ""]) if missing else ""
        delay = self.rng.uniform(0, 1.3 * self.lasts[node] if node else 4)
        delay = delay if self.nodes else self.rng.uniform(0, self.lasted)
        attempt = Attempt(self.site, self.rng, node, delay, self.deadline)
        did = {kind.name: kind.before(attempt) if kind.before else None for kind in kinds}
        self._start(attempt, kinds)
        for kind in kinds:
            if kind.during:
                did[kind.name] = self._during(kind.during, attempt)
                attempt.node, attempt.delay = "", self.rng.uniform(0, 1)
        code, outcome = self._end(attempt, kinds)
        self.site.give_back()
        self._number += 1
        self._chain.append(self._number)
        self._damaged += attempt.damaged
        self._gone.update(attempt.damaged)
        self.log(
            "event", number=self._number, kinds=[{"name": name, "did": what} for name, what in did.items()],
            did="; ".join(filter(None, did.values())) or None, state=state, node=node, delay=round(delay, 2),
            code=code, outcome=outcome, slow=round(max(slow, slowness()), 1),
        )  # fmt: skip
        if outcome.startswith("FAULT"):
            self._keep(attempt)
        return outcome

    def _during(self, act: Act, attempt: Attempt) -> str | None:
        """Disturb; None where the other disturbance of the event has taken away what this one needs (the disk)."""
        try:
            return act(attempt)
        except OSError:
            attempt.run.signal(signal.SIGCONT)
            return None

    def _draw(self) -> Disturbance:
        if not self._deck:
            self._deck = [kind for kind in self._kinds if kind.possible() and kind.of(self.site)]
            self.rng.shuffle(self._deck)
        return self._deck.pop()

    def _prepare(self) -> str:
        """Begin with nothing, with some outputs removed, or with what is there."""
        there = outputs(self.site.study)
        chance = self.rng.random()
        if not there or chance < 0.2:
            shutil.rmtree(self.site.study, ignore_errors=True)
            return "empty"
        if chance < 0.85:
            for path in self.rng.sample(there, min(len(there), self.rng.randint(1, 8))):
                shutil.rmtree(path, ignore_errors=True)
                self._gone.add(path)
            return "some outputs removed"
        return "as it was"

    def _start(self, attempt: Attempt, kinds: list[Disturbance]) -> None:
        before = [word for kind in kinds if kind.prefix for word in kind.prefix(attempt)]
        environment = {k: v for kind in kinds if kind.environment for k, v in kind.environment(attempt).items()}
        workers = self.rng.choice(("0", "0", "2"))
        attempt.main = self.site.start_work(
            "--workers", workers, before=before, environment=environment, changes=attempt.changes
        )

    def _end(self, attempt: Attempt, kinds: list[Disturbance]) -> tuple[int, str]:
        """Wait for all processes; the exit code of the main one, and the worst outcome of any."""
        allowed = {code for kind in kinds for code in kind.codes}
        ends, first = [], None
        for running, codes in [(attempt.run, allowed), *attempt.beside]:
            code, wrong = running.end(self._limit(attempt.damaged))
            first = code if first is None else first
            ends.append(f"FAULT: {wrong[0]}" if wrong else self._judge(code, running, codes | allowed, attempt.damaged))
        if attempt.published is not None and not first and len(outputs(self.site.study)) > attempt.published + 1:
            ends.append("FAULT: a signal to stop was lost")
        ends += [f"FAULT: {wrong}" for look in attempt.after if (wrong := look())]
        faults = [end for end in ends if end.startswith("FAULT")]
        return first or 0, faults[0] if faults else ends[0]

    def _judge(self, code: int, running: Running, allowed: set[int], damaged: list[Path]) -> str:
        damaged = [*damaged, *self._damaged]
        named = [name for path in damaged for name in names_of(path, self.site.study)]
        allowed = allowed | ({3} if damaged else set()) | ({5} if self._locks(damaged) else set())
        if running.ended_by_launcher:
            allowed = allowed | {75, -signal.SIGTERM, -signal.SIGKILL}
        if damaged and not self.site.is_study:  # a setting in config.json may be another, or the file be gone
            allowed = allowed | {2, 5}
        top = [str(path) for path in damaged if self._is_shown(path)]
        if top:  # rows, pages and tables that are not as they were made, and are not replaced
            allowed = allowed | {2}
        others = [*top, str(self.site.disk), "no space left", *(["rank "] if self.site.work.ranks > 1 else [])]
        link = self.site.out / "link"  # errors name what lies in an output that was named by it by that name
        log = running.log.replace(str(link), str(link.resolve()))
        return of_end(code, log, allowed, named if code == 3 else others)

    def _is_shown(self, path: Path) -> bool:
        """Whether a file is one of those that a study shows, which no node's output has: rows, the report's folder."""
        inside = path.relative_to(self.site.study).parts if path.is_relative_to(self.site.study) else ()
        return len(inside) == 1 or (self.site.is_study and bool(inside) and inside[0] not in INSIDE)

    def _limit(self, damaged: list[Path]) -> float:
        """Seconds that a run may take: longer where a lock that is held, or was left, can only be waited out."""
        return self.deadline + (STALE if self._left or self._locks(damaged) else 0)

    def _locks_left(self) -> bool:
        """Whether locks lie there while no run is at work: of a run whose clock was another boot's, or whose disk had
        become read-only."""
        return any((self.site.study / RUNNING).rglob(".lock"))

    def _locks(self, damaged: list[Path]) -> bool:
        """Whether a lock is damaged, by this event or one before it: it is held until it is old."""
        return any(path.name == ".lock" for path in (*damaged, *self._damaged))

    # --- whole again ----------------------------------------------------------------------------------

    def settle(self) -> str:
        """Run undisturbed to the end, removing what errors and ``verify`` name, and compare; ``equal`` or a fault."""
        outcome, found, said = "", False, []
        for _ in range(TRIES):
            self.site.write_data()
            self._left = self._locks_left()
            running = self.site.start_work()
            code, wrong = running.end(self._limit([]))
            outcome = f"FAULT: {wrong[0]}" if wrong else self._judge(code, running, set(), [])
            if outcome.startswith("FAULT"):
                said = running.log.splitlines()[-5:]
                break
            said = problems(self.site.study) if outcome == "end" else []
            foreign = [line for line in said if not any(name in line for name in self._names())]
            if outcome == "end" and not said:
                said = [name for name in differences(self.expected, self.site.study) if not self._is_spare(name)]
                said = said or self._leftovers()
                outcome = f"FAULT: differs: {said[:3]}" if said else "equal"
                break
            if foreign:
                outcome = f"FAULT: damaged by the program: {foreign[0]}"
                break
            found = found or bool(said)
            self._remove_damaged()
        if outcome != "equal" and not outcome.startswith("FAULT"):
            outcome = f"FAULT: not whole after {TRIES} runs"
        self.log("settled", events=[(self.piece, n) for n in self._chain], outcome=outcome, found=found, said=said[:9])
        if outcome != "equal":
            self._keep(None)
        self._chain, self._damaged, self._gone = [], [], set()
        return outcome

    def _is_spare(self, name: str) -> bool:
        """Whether a file is of an earlier checkpoint that was taken from a finished run, which makes none again."""
        folder = (self.site.study / name).parent
        later = any(path.name > folder.name for path in folder.parent.glob("step-*"))
        return folder.parent.name == "checkpoints" and not folder.exists() and folder in self._gone and later

    def _names(self) -> Iterator[str]:
        return (name for path in self._damaged for name in names_of(path, self.site.study))

    def _remove_damaged(self) -> None:
        for path in self._damaged:
            target = output_of(path, self.site.study)
            if not self.site.is_study and path.is_relative_to(self.site.data):
                target = self.site.study  # a run that ended with other photographs is refused with these
            self._gone.add(target)
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            if self.site.is_study and is_volatile(path.name):
                # logs are in no hash of inputs: a report that was drawn from a damaged one, with a warning, stays
                shutil.rmtree(self.site.study / "stages" / "report", ignore_errors=True)

    def _leftovers(self) -> list[str]:
        """Now and then: what ``gc`` leaves that an undisturbed run does not make, or the other way round."""
        if self.rng.random() < 0.7 or not self.site.is_study:
            return []
        for lock in (self.site.study / RUNNING).rglob(".lock"):  # torn ones: no run is at work
            lock.unlink()
        running = self.site.start(self.site.command("gc", "--delete", "--delete-unfinished"))
        code, wrong = running.end(self.deadline)
        if code or wrong:
            return [f"gc: exit {code}", *wrong, *running.log.splitlines()[-3:]]
        there = {path.relative_to(self.site.disk).as_posix() for path in self.site.disk.rglob("*") if path.is_file()}
        # Verdicts on data are kept by the times of their files, which are others in a study that was made again.
        # Records of finished outputs say what a later plan changes; where a link replaced them they are not made again.
        lost = [path for path in self._damaged if "records" in path.parts]
        return sorted(
            name for name in there ^ self.files
            if "verdicts" not in Path(name).parts and not any((self.site.disk / name).is_relative_to(at) for at in lost)
        )  # fmt: skip

    def _keep(self, attempt: Attempt | None) -> None:
        """Copy a study in which a fault was seen, and what its processes said, and begin with nothing."""
        place = self.out / "faults" / f"{self.piece}-{self._number}"
        if self.site.study.exists() and len(list((self.out / "faults").glob("*"))) < KEPT_FAULTS:
            shutil.copytree(self.site.study, place / "study", dirs_exist_ok=True, symlinks=True)
        place.mkdir(parents=True, exist_ok=True)
        runs = [attempt.run, *(running for running, _ in attempt.beside)] if attempt else []
        for number, running in enumerate(runs):
            (place / f"log-{number}{'' if attempt else '-settling'}").write_text(running.log)
        if attempt is None:
            shutil.rmtree(self.site.study, ignore_errors=True)


def slowness() -> float:
    """Return how many times slower than alone on a core this process runs now."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < SPIN:
        pass
    return (time.monotonic() - began) / SPIN


def without_places(text: str, out: Path) -> str:
    """``text`` without the names of this machine and its folders, as logs are kept."""
    words = {str(out): "OUT", str(ROOT): "ROOT", sys.prefix: "PYTHON", socket.gethostname(): "HOST"}
    for name in sorted(words, key=len, reverse=True):  # one place may lie in another, as the environment in the tree
        text = text.replace(name, words[name])
    return text


def run(out: Path, seed: int, minutes: float, work: str, kinds: Sequence[str] = ()) -> int:
    """One piece of ``minutes`` on a work, of all kinds or some; the number of faults seen."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background of a shell it is ignored, by children too
    campaign = Campaign(out, seed, work, kinds)
    campaign.straight()
    faults = 0
    while time.monotonic() - campaign.began < 60 * minutes:
        outcome = campaign.event()
        if outcome.startswith("FAULT") or campaign.rng.random() < 0.6:
            outcome = campaign.settle() if not outcome.startswith("FAULT") else f"{outcome}; {campaign.settle()}"
        faults += "FAULT" in outcome
    if campaign.settle().startswith("FAULT"):
        faults += 1
    campaign.log("piece ended", faults=faults)
    return faults
