"""A node that is large is cut: workers without a node of their own make parts of it, and its bytes are the same."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dinoskip.errors import DinoskipError
from dinoskip.io.files import find_below
from dinoskip.pipeline.executor import ForeignWorkers
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner, Spread
from dinoskip.pipeline.stage import Stage, Task
from tests.pipeline.test_workers import hashes

COUNT = 8


def _shared(task: Task) -> None:
    mark, broken = Path(task.runtime["mark"]), task.settings.get("broken")

    def make(number: int, folder: Path) -> dict[str, np.ndarray]:
        time.sleep(0.15)
        if broken == "helper" and task.parts.helps:
            raise ValueError("a helper's memory is too small")
        if broken == "part" and number == COUNT - 1:
            raise DinoskipError("the last part cannot be made")
        (folder / f"{number}.txt").write_text(str(number))
        (mark / f"{number}-{'helper' if task.parts.helps else 'own'}-{threading.get_ident()}").touch()
        return {"values": np.arange(number)}

    found = list(task.parts.each("work", COUNT, make, task.out))
    np.save(task.out / "values.npy", np.concatenate([arrays["values"] for arrays in found]))


STAGES = {"shared": Stage("shared", _shared)}


def four_threads() -> Executor:
    return ThreadPoolExecutor(4)


def run(folder: Path, engine: ForeignWorkers | None = None, memory: float = 0.0, **settings: object) -> list[str]:
    """Make one node; return who made which part, by its number."""
    mark = folder / "mark"
    mark.mkdir(parents=True, exist_ok=True)
    node = Node("shared/a", "shared", settings, runtime={"mark": str(mark)}, variant="a")
    spread = None if engine is None else lambda: Spread(engine)
    bounded = {"shared/a": memory}
    Runner(folder / "study", [node], STAGES, device="cpu", memory=lambda: bounded).run({"shared/a"}, spread)
    return sorted(path.name.rsplit("-", 1)[0] for path in mark.iterdir())


def bytes_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in find_below(folder / "study/stages/shared", "*.*") if path.suffix in {".npy", ".txt"}]
    return {path.name: path.read_bytes() for path in paths}


def test_workers_that_are_free_make_parts_of_a_node(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone")
    assert alone == [f"{number}-own" for number in range(COUNT)]
    spread = run(tmp_path / "spread", ForeignWorkers(f"{__name__}:four_threads", None))
    assert [name.split("-")[0] for name in spread] == [str(number) for number in range(COUNT)], "each part once"
    assert {"0-own", f"{COUNT - 1}-helper"} <= set(spread)
    assert bytes_of(tmp_path / "spread") == bytes_of(tmp_path / "alone")
    assert hashes(tmp_path / "spread/study") == hashes(tmp_path / "alone/study")
    assert len(bytes_of(tmp_path / "alone")) == COUNT + 1
    for study in ("alone", "spread"):
        assert not find_below(tmp_path / study, "*-parts*"), "parts go when the node is published"
        assert len(hashes(tmp_path / study / "study")) == 1


@pytest.mark.parametrize(("needed", "most"), [(4.0, 2), (6.0, 1)])
def test_each_worker_at_a_node_needs_its_memory(tmp_path: Path, needed: float, most: int) -> None:
    engine = ForeignWorkers(f"{__name__}:four_threads", None)
    engine.memory = 10
    assert len(run(tmp_path, engine, memory=needed)) == COUNT
    assert len({path.name.rsplit("-", 1)[1] for path in (tmp_path / "mark").iterdir()}) == most


def test_a_helper_that_fails_takes_nothing_along(tmp_path: Path) -> None:
    made = run(tmp_path, ForeignWorkers(f"{__name__}:four_threads", None), broken="helper")
    assert made == [f"{number}-own" for number in range(COUNT)]


def test_a_part_that_cannot_be_made_fails_the_node_and_the_others_stay(tmp_path: Path) -> None:
    with pytest.raises(DinoskipError, match="the last part cannot be made"):
        run(tmp_path, ForeignWorkers(f"{__name__}:four_threads", None), broken="part")
    assert len(find_below(tmp_path / "study/stages/shared", "*.npz")) == COUNT - 1
