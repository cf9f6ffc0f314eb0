"""The programs of a pretended SLURM that runs jobs on this machine: state of each job in a file of one folder."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path


def _asked(text: str) -> dict[str, str]:
    words = [word for line in text.splitlines() if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]
    return {key.removeprefix("--"): value for key, _, value in (word.partition("=") for word in words)}


def _set(folder: Path, job: str, **state: object) -> None:
    path = folder / f"{job}.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({**old, **state}))
    os.replace(beside, path)


def sbatch(here: str, words: list[str]) -> int:
    """Note the members of an array (a job without one is member 0), and run them in a process of its own."""
    folder, text = Path(here), Path(words[-1]).read_text()
    number = 100 + len(list(folder.glob("script-*")))
    (folder / f"script-{number}").write_text(text)
    array, _, most = _asked(text).get("array", "0-0%1").partition("%")
    members = range(int(array.partition("-")[2]) + 1)
    for member in members:
        _set(folder, f"{number}_{member}", state="PENDING", pids=[])
    run = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import running_slurm as s; "
    run += f"s.run_all({here!r}, {number}, {len(members)}, {int(most)})"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen([sys.executable, "-c", run], start_new_session=True, **quiet)  # type: ignore[call-overload]
    print(f"Submitted batch job {number}")
    return 0


def run_all(here: str, number: int, count: int, most: int) -> None:
    """Run the members of an array, ``most`` at once."""
    with ThreadPoolExecutor(most) as pool:
        list(pool.map(lambda member: _run_one(Path(here), number, member), range(count)))


def _run_one(folder: Path, number: int, member: int) -> None:
    job, text = f"{number}_{member}", (folder / f"script-{number}").read_text()
    if json.loads((folder / f"{job}.json").read_text())["state"] != "PENDING":
        return
    _set(folder, job, state="RUNNING")
    asked = _asked(text)
    own = 1000 * number + member if "array" in asked else number  # each member has a number of its own
    nodes, each = int(asked.get("nodes", 1)), int(asked.get("ntasks-per-node", 1))
    env = {
        **os.environ, "SLURM_JOB_ID": str(own), "SLURM_NTASKS": str(nodes * each), "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": str(nodes),
        **({"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(member)} if "array" in asked else {}),
    }  # fmt: skip
    code = subprocess.run(["bash", str(folder / f"script-{number}")], env=env, check=False).returncode
    _set(folder, job, state="COMPLETED" if code == 0 else "FAILED", pids=[])


def srun(here: str, words: list[str]) -> int:
    """Start the ranks of a step, and wait for them."""
    files = dict.fromkeys(("--output", "--error"), os.devnull)
    while words[0].startswith("--"):
        word = words.pop(0)
        if word in files:
            files[word] = words.pop(0)
    env, ranks = os.environ, int(os.environ["SLURM_NTASKS"])
    number, member = env.get("SLURM_ARRAY_JOB_ID", env["SLURM_JOB_ID"]), env.get("SLURM_ARRAY_TASK_ID", "0")
    job = f"{number}_{member}"
    started = []
    for rank in range(ranks):
        of_rank = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(ranks),
        }
        names = {"%j": env["SLURM_JOB_ID"], "%A": number, "%a": member, "%t": str(rank)}
        streams = []
        for path in files.values():
            for sign, value in names.items():
                path = path.replace(sign, value)
            streams.append(open(path, "a"))  # noqa: SIM115 - the rank's own
        started.append(subprocess.Popen(words, env={**env, **of_rank}, stdout=streams[0], stderr=streams[1]))
    _set(Path(here), job, pids=[process.pid for process in started])
    return max(abs(process.wait()) for process in started)


def sacct(here: str, words: list[str]) -> int:
    """The states of all jobs."""
    print("JobID|State|NodeList")
    for path in sorted(Path(here).glob("*_*.json")):
        state = json.loads(path.read_text())["state"]
        number, _, member = path.stem.partition("_")
        print(f"{path.stem}|{state}|localhost")
        if member == "0":
            print(f"{number}|{state}|localhost")
    return 0


def scancel(here: str, words: list[str]) -> int:
    """Cancel queued jobs by --state=PENDING, or signal the ranks of running ones by --signal."""
    for job in words[1:]:
        name = job if "_" in job else f"{job}_0"
        state = json.loads((Path(here) / f"{name}.json").read_text())
        if words[0] == "--state=PENDING" and state["state"] == "PENDING":
            _set(Path(here), name, state="CANCELLED")
        elif words[0].startswith("--signal=") and state["state"] == "RUNNING":
            for pid in state["pids"]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.Signals[f"SIG{words[0].partition('=')[2]}"])
    return 0
