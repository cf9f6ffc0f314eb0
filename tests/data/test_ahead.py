"""Views made ahead on a stream of their own, on the pretended device: the same ones, and never read too early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

from dinoskip.data import ImageFolder
from dinoskip.data.ahead import ViewsAhead
from dinoskip.data.config import AugmentConfig, CropConfig, DataPath
from dinoskip.data.loader import BatchSplit
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from tests.helpers.pretended_device import CUDA, PretendedDevice, Stream, StreamRace

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")
CROPS = CropConfig(global_size=32, local_size=16, num_local=2)


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    with PretendedDevice() as there:
        yield there


def loader_of(folder: Path, path: DataPath = "crops") -> TrainLoader:
    return TrainLoader(
        ImageFolder.open(folder), ViewRecipe(CROPS, AugmentConfig(), path), BatchSplit(2), seed=3, device=CUDA
    )


@pytest.mark.parametrize("path", ["crops", "decode", "resident"])
def test_batches_and_views_are_those_of_the_loader_in_its_order(
    device: PretendedDevice, path: DataPath, photo_folder: Path
) -> None:
    loader = loader_of(photo_folder, path)
    expected = [(batch.ids.tolist(), [view.cpu() for view in loader.views(batch)]) for batch in loader.epoch(1)]
    ahead, batches = ViewsAhead(loader.views, CUDA), loader.epoch(1)
    taken: list[tuple[list[int], list[Tensor]]] = []
    for _ in expected:
        batch, views = ahead.take(batches)
        ahead.begin(batches)
        taken.append((batch.ids.tolist(), [view.cpu() for view in views]))
    assert len(expected) > 1
    assert [ids for ids, _ in taken] == [ids for ids, _ in expected]
    for (_, ours), (_, theirs) in zip(taken, expected, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    with pytest.raises(StopIteration):
        ahead.take(batches)


def test_what_was_begun_of_an_epoch_that_is_left_is_dropped(device: PretendedDevice, photo_folder: Path) -> None:
    loader = loader_of(photo_folder)
    first, second = (next(loader.epoch(epoch)).ids.tolist() for epoch in (0, 1))
    ahead = ViewsAhead(loader.views, CUDA)
    ahead.begin(loader.epoch(0))
    assert ahead.take(loader.epoch(1))[0].ids.tolist() == second != first


@pytest.mark.parametrize("left_out", ["wait_event", "record_stream"])
def test_a_step_that_reads_too_early_would_be_seen(device: PretendedDevice, left_out: str, photo_folder: Path) -> None:
    loader = loader_of(photo_folder)
    ahead = ViewsAhead(loader.views, CUDA)
    owner = Stream if left_out == "wait_event" else Tensor
    with mock.patch.object(owner, left_out):
        _, views = ahead.take(loader.epoch(0))
    with pytest.raises(StreamRace):
        views[0] + 1
