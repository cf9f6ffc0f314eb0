"""Sound outlines in COCO's format, spoilt at random, each read three times under a limit of memory.

``python -m tests.helpers.outline_mutations CASES SEED MEBIBYTES`` prints how many ended how, as JSON. It has a process
of its own for its limit: MEBIBYTES of address space beside what is taken once the modules are there.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import resource
import sys
from collections import Counter
from typing import Any

import numpy as np
from pycocotools import mask as reference

from dinoskip.data.outlines import OutlineError, mask_of_outline

Size = tuple[int, int]
EXTREMES: tuple[Any, ...] = (
    math.inf, -math.inf, math.nan, 10**400, -(10**400), 2**20, 2**31, 2**63, -1, -20, -0.0, 1e9, 1e308, 0, 1, 1.5, 3.0,
    True, None, "3", "", [], {}, [1, 2], "o" * 5_000, "0" * 5_000, "P" * 5_000 + "0", "\u00e9", "!", [0] * 5_000,
)  # fmt: skip


def runs_of(mask: np.ndarray) -> list[int]:
    """The runs of a mask (H, W), column by column, background first, counted pixel by pixel."""
    runs, colour = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != colour:
            runs.append(0)
            colour = pixel
        runs[-1] += 1
    return runs


def compressed(runs: list[int]) -> str:
    """Runs as COCO's text, written from its description."""
    text = ""
    for at, run in enumerate(runs):
        value = run - runs[at - 2] if at > 2 else run
        while not -16 <= value < 16:
            text += chr(48 + 32 + (value & 31))
            value >>= 5
        text += chr(48 + (value & 31))
    return text


def sound(rng: np.random.Generator) -> tuple[Any, Size, list[float]]:
    """An outline that is a mask of an image of the size, and a box around all of it."""
    height, width = (int(side) for side in rng.integers(4, 24, 2))
    size, box = (height, width), [0.0, 0.0, float(width), float(height)]
    if rng.random() < 0.4:
        parts = []
        for _ in range(rng.integers(1, 3)):
            points = rng.uniform(-1, [width + 1, height + 1], (rng.integers(3, 9), 2))
            parts.append((points if rng.random() < 0.5 else points.round()).ravel().tolist())
        return parts, size, box
    mask = rng.random(size) < rng.choice([0.1, 0.5, 0.9])
    runs = runs_of(mask)
    return {"size": list(size), "counts": runs if rng.random() < 0.5 else compressed(runs)}, size, box


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container inside a value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


def spoilt(outline: Any, rng: np.random.Generator) -> Any:
    """An outline after up to three changes; some stay sound."""
    holder = [copy.deepcopy(outline)]
    for _ in range(rng.integers(0, 4)):
        places = _places(holder)
        container, key = places[rng.integers(len(places))]
        old, change = container[key], rng.integers(6)
        if change == 0:
            container[key] = copy.deepcopy(EXTREMES[rng.integers(len(EXTREMES))])
        elif change == 1 and type(old) in {int, float}:
            container[key] = old + int(rng.integers(-3, 4))
        elif change == 2 and isinstance(old, str) and old:
            at = int(rng.integers(len(old)))
            container[key] = old[:at] + chr(int(rng.integers(40, 120))) * int(rng.integers(0, 3)) + old[at + 1 :]
        elif change == 3 and isinstance(old, list) and old:
            old.insert(int(rng.integers(len(old) + 1)), copy.deepcopy(old[rng.integers(len(old))]))
        elif change == 4 and container is not holder:
            del container[key]
        elif change == 5:
            container[key] = [old]
    return holder[0]


def outcome(outline: Any, size: Size, box: list[float]) -> tuple[str, str]:
    """The reason of a refusal, or ``sound`` with the mask's sha256."""
    try:
        mask = mask_of_outline(outline, size, box)
    except OutlineError as error:
        return error.reason, str(error)
    assert mask.shape == size
    assert mask.any()
    if isinstance(outline, list):
        runs = reference.merge(reference.frPyObjects(outline, *size))
        np.testing.assert_array_equal(mask, reference.decode([runs])[..., 0].astype(bool))
    else:
        assert mask.sum() == sum(runs_of(mask)[1::2])
    return "sound", hashlib.sha256(np.ascontiguousarray(mask).tobytes()).hexdigest()


def limit_memory(mebibytes: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as stream:
        taken = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (mebibytes << 20),) * 2)


def main(cases: int, seed: int, mebibytes: int) -> None:
    """Spoil so many outlines and print how they ended."""
    rng, counts = np.random.default_rng(seed), Counter[str]()
    limit_memory(mebibytes)
    for number in range(cases):
        outline, size, box = sound(rng)
        if rng.random() < 0.1:
            box[int(rng.integers(2))] += 30
        outline = spoilt(outline, rng)
        ends = {outcome(copy.deepcopy(outline), size, box) for _ in range(3)}
        assert len(ends) == 1, (number, ends)
        counts[ends.pop()[0]] += 1
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
