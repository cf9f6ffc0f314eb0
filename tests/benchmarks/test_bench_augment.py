"""The benchmark of the augmentation switches parts off one by one, and times what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import bench_augment as bench
from benchmarks.plain_augment import plain_augment
from dinoskip.data.augment import GREY, augment


def test_both_forms_make_the_same_views() -> None:
    (large, of_large), (small, of_small) = bench.drawn_views(2)
    assert large.shape == (4, 3, 224, 224)
    assert small.shape == (16, 3, 96, 96)
    assert torch.equal(augment(large, of_large), plain_augment(large, of_large))
    assert torch.equal(augment(small, of_small), plain_augment(small, of_small))


def test_a_part_has_its_own_operation_alone() -> None:
    views = bench.drawn_views(2)
    switches = np.array(list(bench.PARTS.values()))
    for (crops, vectors), (same, grey) in zip(views, bench.with_only(views, GREY), strict=True):
        assert same is crops
        assert torch.equal(grey[:, GREY], vectors[:, GREY])
        assert not grey[:, switches[switches != GREY]].any()
    assert all(not vectors[:, switches].any() for _, vectors in bench.with_only(views, None))


def test_the_table_has_every_part_and_the_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_augment", "--images", "1", "--rounds", "1"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # what other tests run with stays
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in lines[1:-1]] == ["to floats, normalise", *bench.PARTS, "all"]
    before, after, ratio = (float(word) for word in lines[-2].split()[1:])
    assert min(before, after) > 0
    assert ratio == pytest.approx(before / after, rel=0.02)
    assert lines[-1].endswith("True")
