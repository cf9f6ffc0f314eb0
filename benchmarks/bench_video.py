"""Label propagation through a video: ours against the public formulation, and PCK against maps upsampled in full.

``python -m benchmarks.bench_video`` prints CPU seconds a frame of both, on one thread in one process, their ratio, and
the share of pixels with the same label. The plain formulation is restated from the description of DINO's script: all
patches of the frame against all patches of the context (n·T × T), a mask of the window for every pair of patches, top-k
down its columns, a product with the masks. Features are pixels of composed videos, projected at random.

Of our time, products in float32 are 55 % and the selection of patches 16 % (one thread, Intel Xeon, 2026-11-22): ten
times the speed would need products in bfloat16, whose rounding chooses other patches.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from dinoskip.io.images import read_image
from dinoskip.runtime.console import table
from dinoskip_video.correspondence import CorrespondenceConfig, Matcher, Placement
from dinoskip_video.sets.scenes_video import ScenesVideoConfig
from dinoskip_video.video import PropagationRule, first_masks, hard_labels, propagate, unit_tokens

SIZE, CHANNELS, CONTEXT = (480, 832), 384, 8
VIDEO = 67  # frames of a video of DAVIS 2017 val, on average: the script makes its mask once for them


def features(patch: int, frames: int, folder: Path) -> tuple[Tensor, np.ndarray, tuple[int, int]]:
    """Tokens (frames, T, C) of a composed video at 480 x 832, the first label map, the grid."""
    config = ScenesVideoConfig(videos=3, frames=frames, size=480)
    sequence = config.open_sequences(config.generate(folder), "val", None).sequences[2]
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(3 * patch * patch, CHANNELS, generator=generator) / CHANNELS**0.5
    tokens = []
    for path in sequence.frames:
        image = torch.from_numpy(cv2.resize(read_image(path), SIZE[::-1])).permute(2, 0, 1)[None].float() / 255
        tokens.append(torch.nn.functional.unfold(image - 0.45, patch, stride=patch)[0].T @ projection)
    label = cv2.resize(sequence.label(0), SIZE[::-1], interpolation=cv2.INTER_NEAREST)
    return torch.stack(tokens), label, (SIZE[0] // patch, SIZE[1] // patch)


def window_mask(grid: tuple[int, int], radius: int) -> Tensor:
    """(1, T, T): one where a patch is inside another's window, set patch by patch as the script does."""
    height, width = grid
    mask = torch.zeros(height, width, height, width)
    for row in range(height):
        for column in range(width):
            for down in range(max(0, row - radius), min(height, row + radius + 1)):
                for across in range(max(0, column - radius), min(width, column + radius + 1)):
                    mask[row, column, down, across] = 1
    return mask.view(1, height * width, height * width)


def plain(target: Tensor, context: Tensor, masks: Tensor, window: Tensor, top_k: int, temperature: float) -> Tensor:
    """Soft masks (T, K) of raw tokens: the whole affinity, (n·T) x T."""
    frames, count = len(context), len(target)
    sources = normalize(context.transpose(1, 2), dim=1)
    wanted = normalize(target, dim=1)[None].repeat(frames, 1, 1)
    affinity = torch.exp(torch.bmm(wanted, sources) / temperature)
    affinity *= window
    affinity = affinity.transpose(2, 1).reshape(-1, count)
    least = affinity.topk(top_k, dim=0).values.min(0).values
    affinity[affinity < least] = 0
    affinity = affinity / affinity.sum(0, keepdim=True)
    return (masks.flatten(0, 1).T @ affinity).T


def seconds(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The least CPU time of each of ``runs``, taken in turns."""
    least = [float("inf")] * len(runs)
    for _ in range(repeats):
        for number, run in enumerate(runs):
            began = time.process_time()
            run()
            least[number] = min(least[number], time.process_time() - began)
    return least


def print_operations(run: Callable[[], object], most: int = 4) -> None:
    """Print what share of a run's CPU time its largest operations take, and how many products it makes a second."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as profile:
        run()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    shares = [f"{event.key.removeprefix('aten::')} {100 * event.self_cpu_time_total / total:.0f} %" for event in events]
    flop = sum(event.flops for event in events if event.key == "aten::mm")
    print(f"ours: {', '.join(shares[:most])}; {flop / 1e9:.1f} GFLOP in products")


def compare_propagation(patch: int, repeats: int, folder: Path) -> list[str]:
    """A line of the table: a frame at the end of a full context, and labels of a whole video by both."""
    tokens, label, grid = features(patch, CONTEXT + 4, folder)
    rule = PropagationRule()
    began = time.process_time()
    window = window_mask(grid, rule.radius)
    making = time.process_time() - began
    unit, first = unit_tokens(tokens), torch.from_numpy(first_masks(label, grid))
    held = {"ours": [first], "plain": [first]}
    same = []
    for frame in range(1, len(tokens)):
        before = [0, *range(max(1, frame - CONTEXT + 1), frame)]
        ours = propagate(unit[frame], unit[before], torch.stack([held["ours"][i] for i in before]), grid, rule)
        theirs = plain(
            tokens[frame], tokens[before], torch.stack([held["plain"][i] for i in before]), window, rule.top_k, 0.1
        )
        held["ours"].append(ours)
        held["plain"].append(theirs)
        same.append(float((hard_labels(ours, grid, patch) == hard_labels(theirs, grid, patch)).mean()))
    masks = torch.stack([held["ours"][i] for i in before])
    fast, slow = seconds(
        [
            lambda: propagate(unit[-1], unit[before], masks, grid, rule),
            lambda: plain(tokens[-1], tokens[before], masks, window, rule.top_k, 0.1),
        ],
        repeats,
    )
    print_operations(lambda: propagate(unit[-1], unit[before], masks, grid, rule))
    whole = slow + making / VIDEO
    return [
        f"propagation, patch {patch}", f"{slow:.3f} + {making / VIDEO:.3f}", f"{fast:.3f}", f"{slow / fast:.1f}",
        f"{whole / fast:.1f}", f"{100 * np.mean(same):.3f} %",
    ]  # fmt: skip


def compare_matching(repeats: int) -> list[str]:
    """A line of the table: 3 keypoints of a pair by the rule of DIFT, 500 x 375 pixels, 48 x 48 patches."""
    generator = torch.Generator().manual_seed(1)
    config, size = CorrespondenceConfig(), (375, 500)
    source, target = torch.randn(2, 48 * 48, CHANNELS, generator=generator)
    points = np.floor(np.random.default_rng(0).random((3, 2)) * size[::-1])
    place, matcher = Placement.of(size, config), Matcher(config, (48, 48), 16)

    def ours() -> np.ndarray:
        prepared = matcher.prepared(target, place)
        return matcher.match(matcher.descriptors(source, points, place), prepared, points, 100.0, place).found

    def in_full() -> np.ndarray:
        maps = [interpolate(map_.T.reshape(1, -1, 48, 48), size=size, mode="bilinear")[0] for map_ in (source, target)]
        matches = []
        for x, y in points.astype(int):  # point by point, as the script does
            vector, every = maps[0][:, y, x][None], maps[1].flatten(1).T
            best = int((normalize(every) @ normalize(vector).T).argmax())
            matches.append((best % size[1], best // size[1]))
        return np.array(matches)

    fast, slow = seconds([ours, in_full], repeats)
    same = float((ours() == in_full()).all(1).mean())
    return ["keypoints by dift", f"{slow:.3f}", f"{fast:.3f}", f"{slow / fast:.1f}", "", f"{100 * same:.1f} %"]


def main() -> None:
    """Time propagation and scoring, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patches", type=int, nargs="+", default=[16])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare_propagation(patch, arguments.repeats, Path(folder)) for patch in arguments.patches]
    rows.append(compare_matching(max(1, arguments.repeats // 2)))
    heading = ["", "plain, s (+ its mask)", "ours, s", "ratio", "with its mask", "the same"]
    print(f"one thread, {SIZE[0]} x {SIZE[1]} pixels, {CONTEXT} frames of context, {CHANNELS} channels")
    print(table(rows, heading))


if __name__ == "__main__":
    main()
