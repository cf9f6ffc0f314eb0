from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.data import ImageFolder, resident
from dinoskip.data.config import AugmentConfig, CropConfig, DataPath
from dinoskip.data.loader import Batch, BatchSplit
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.errors import ConfigError, DataError

CROPS = CropConfig(global_size=32, local_size=16, num_local=2)


def loader(images: ImageFolder, batch_size: int = 4, path: DataPath = "crops", **changes: Any) -> TrainLoader:
    cut = {key: changes.pop(key) for key in ("rank", "world_size", "accumulate") if key in changes}
    recipe = ViewRecipe(CROPS, AugmentConfig(), path)
    return TrainLoader(images, recipe, BatchSplit(batch_size, **cut), **{"seed": 5, "min_side": 8, **changes})


def same(one: Batch, two: Batch) -> bool:
    assert one.data.keys() == two.data.keys()
    return torch.equal(one.ids, two.ids) and all(torch.equal(one.data[name], two.data[name]) for name in one.data)


@pytest.fixture
def images(photo_folder: Path) -> ImageFolder:
    return ImageFolder.open(photo_folder)


def test_batches_have_the_stated_layout(images: ImageFolder) -> None:
    (batch, *rest) = loader(images).epoch(0)
    assert len(rest) == 2
    assert batch.ids.dtype == torch.int64
    assert batch.data["global_crops"].shape == (8, 32, 32, 3)
    assert batch.data["local_crops"].shape == (8, 16, 16, 3)
    assert batch.data["global_crops"].dtype == batch.data["local_crops"].dtype == torch.uint8
    globals_, locals_ = loader(images).views(batch)
    assert (globals_.shape, locals_.shape, globals_.dtype) == ((8, 3, 32, 32), (8, 3, 16, 16), torch.float32)
    # View-major: of each image both global crops, B apart, show the same picture's colours.
    means = batch.data["global_crops"].float().mean(dim=(1, 2)).view(2, 4, 3)
    own = (means[0] - means[1]).norm(dim=1).mean()
    assert own < (means[0] - means[1].roll(1, 0)).norm(dim=1).mean()


def test_every_epoch_shows_every_image_once_in_another_order(images: ImageFolder) -> None:
    orders = [torch.cat([batch.ids for batch in loader(images).epoch(epoch)]).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert loader(images, batch_size=5).steps_per_epoch == 2  # the incomplete batch is dropped


def test_start_step_cache_and_workers_change_nothing(images: ImageFolder) -> None:
    straight = list(loader(images).epoch(1))
    plain = loader(images, cache=False)
    assert all(same(a, b) for a, b in zip(plain.epoch(1), straight, strict=True))
    cached = loader(images)
    list(cached.epoch(0))
    assert all(same(a, b) for a, b in zip(cached.epoch(1, start_step=1), straight[1:], strict=True))
    working = loader(images, workers=2)
    next(iter(working.epoch(0)))  # left after one batch, as by a run that stops
    assert all(same(a, b) for a, b in zip(working.epoch(1), straight, strict=True))
    workers = working._loader._iterator._workers
    working.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_share_one_global_batch(images: ImageFolder, size: int) -> None:
    whole = list(loader(images).epoch(2))
    parts = [list(loader(images, rank=rank, world_size=size).epoch(2)) for rank in range(size)]
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([part[step].ids for part in parts]), batch.ids)
        assert_joined([part[step] for part in parts], batch)


def assert_joined(parts: list[Batch], whole: Batch) -> None:
    """Batches of two global and two local views, side by side, are the whole one."""
    for name, tensor in whole.data.items():
        joined = torch.cat([part.data[name].view(2, -1, *tensor.shape[1:]) for part in parts], dim=1)
        assert torch.equal(joined.flatten(0, 1), tensor), name


@pytest.mark.parametrize(("size", "accumulate"), [(1, 2), (2, 2), (1, 4)])
def test_micro_batches_in_order_are_the_ranks_slice(images: ImageFolder, size: int, accumulate: int) -> None:
    for rank in range(size):
        whole = loader(images, rank=rank, world_size=size)
        cut = loader(images, rank=rank, world_size=size, accumulate=accumulate)
        micro = list(cut.epoch(1, start_step=1))
        assert len(micro) == 2 * accumulate
        for step, batch in enumerate(whole.epoch(1, start_step=1)):
            parts = micro[step * accumulate : (step + 1) * accumulate]
            assert torch.equal(torch.cat([part.ids for part in parts]), batch.ids)
            assert torch.equal(torch.from_numpy(cut.indices(1, step + 1)), batch.ids)
            assert_joined(parts, batch)


def test_views_leave_out_empty_groups(images: ImageFolder) -> None:
    none = CropConfig(global_size=32, local_size=16, num_local=0)
    one = TrainLoader(images, ViewRecipe(none, AugmentConfig()), BatchSplit(4), seed=5, min_side=8)
    assert [tuple(view.shape) for view in one.views(next(one.epoch(0)))] == [(8, 3, 32, 32)]


def test_order_is_known_without_loading(images: ImageFolder) -> None:
    one = loader(images)
    assert [one.indices(3, step).tolist() for step in range(3)] == [batch.ids.tolist() for batch in one.epoch(3)]


def test_global_random_state_is_untouched(images: ImageFolder) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one = loader(images)
    for batch in one.epoch(0):
        one.views(batch)
    assert torch.equal(torch.rand(3), expected)


MODES = ["crops", "decode", "resident"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", MODES[1:])
def test_modes_give_the_same_views(images: ImageFolder, mode: Literal["decode", "resident"], workers: int) -> None:
    plain = loader(images)
    other = loader(images, path=mode, workers=workers, accumulate=2)
    batches = other.epoch(1)
    for batch in plain.epoch(1):
        parts = [next(batches), next(batches)]
        assert torch.equal(torch.cat([part.ids for part in parts]), batch.ids)
        views = [[view.unflatten(0, (2, -1)) for view in other.views(part)] for part in parts]
        for group, expected in enumerate(plain.views(batch)):
            joined = torch.cat([part[group] for part in views], dim=1).flatten(0, 1)
            assert torch.equal(joined, expected)
    other.close()


def test_a_resident_set_is_refused_before_anything_is_decoded(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "free_memory", lambda device: 1000)
    monkeypatch.setattr(ImageFolder, "read", lambda self, index: pytest.fail("decoded"))
    with pytest.raises(ConfigError, match=r"12 images decode to 0.00 GiB, more than half of the 0.00 GiB free on cpu"):
        loader(images, path="resident")


def test_free_memory_is_that_of_this_machine() -> None:
    free = resident.free_memory(torch.device("cpu"))
    assert 1 << 20 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def many(tmp_path: Path) -> ImageFolder:
    """120 images, of which number 7 is cut short."""
    rng = np.random.default_rng(0)
    for number in range(120):
        path = tmp_path / f"{number:03}.png"
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(path)
    spoil(tmp_path / "007.png")
    return ImageFolder.open(tmp_path)


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:90])


def one_views(images: ImageFolder, batch: Batch) -> list[torch.Tensor]:
    return loader(images).views(batch)


@pytest.mark.parametrize(("workers", "mode"), [(0, "crops"), (1, "crops"), (0, "decode"), (0, "resident")])
def test_a_bad_image_is_listed_and_always_replaced_by_the_same(
    many: ImageFolder, workers: int, mode: Literal["crops", "decode", "resident"]
) -> None:
    one = loader(many, workers=workers, path=mode)
    batches = list(one.epoch(0))
    one.close()
    assert len(batches) == 30
    assert list(one.bad) == ["007.png"]
    assert "007.png" in one.bad["007.png"]
    where = next(batch for batch in batches if 7 in batch.ids)
    expected = next(batch for batch in loader(many).epoch(0) if 7 in batch.ids)
    assert all(torch.equal(a, b) for a, b in zip(one.views(where), one_views(many, expected), strict=True))
    assert all(
        same(a, b)
        for a, b in zip(loader(many, batch_size=8).epoch(0), loader(many, batch_size=8).epoch(0), strict=True)
    )


@pytest.mark.parametrize("mode", MODES)
def test_more_than_one_percent_bad_ends_with_the_names(
    many: ImageFolder, mode: Literal["crops", "decode", "resident"]
) -> None:
    spoil(many.path(40))
    with pytest.raises(DataError, match=r"2 of 120 images cannot be read .* more than 1%: 007.png, 040.png"):
        list(loader(many, path=mode).epoch(0))


@pytest.mark.parametrize("mode", MODES)
def test_an_image_smaller_than_a_patch_is_left_out_as_a_broken_one(
    photo_folder: Path, mode: Literal["crops", "decode", "resident"]
) -> None:
    Image.new("RGB", (40, 7)).save(photo_folder / "zz.png")
    one = loader(ImageFolder.open(photo_folder), min_side=8, path=mode)
    assert len(list(one.epoch(0))) == one.steps_per_epoch
    list(one.epoch(1))
    assert list(one.bad) == ["zz.png"]
    assert "40×7 pixels is smaller than a patch (8)" in one.bad["zz.png"]
    Image.new("RGB", (7, 40)).save(photo_folder / "zy.png")
    with pytest.raises(DataError, match=r"2 of 14 images .* more than 1%: zy.png, zz.png"):
        _epochs(ImageFolder.open(photo_folder), mode, 3)


def _epochs(images: ImageFolder, mode: DataPath, count: int) -> None:
    one = loader(images, min_side=8, path=mode)
    for epoch in range(count):
        list(one.epoch(epoch))


def test_a_set_of_images_that_are_all_smaller_than_a_patch(many: ImageFolder) -> None:
    with pytest.raises(DataError, match=r"unreadable, as are the images drawn in its place"):
        loader(many, min_side=16, path="resident")
    for workers in (0, 1):
        one = loader(many, min_side=16, workers=workers)
        with pytest.raises(DataError, match=r"unreadable, as are .* pixels is smaller than a patch .16.") as caught:
            list(one.epoch(0))
        one.close()
        assert "\n" not in str(caught.value)


def test_all_bad_is_an_error_not_a_loop(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"not an image")
    with pytest.raises(DataError, match="unreadable, as are"):
        next(loader(ImageFolder.open(tmp_path)).epoch(0))


def test_impossible_batches_are_refused(images: ImageFolder) -> None:
    with pytest.raises(ConfigError, match=r"batch_size 4 cannot be shared equally by 3 processes .3 or 6 can"):
        loader(images, world_size=3)
    with pytest.raises(ConfigError, match=r"10 cannot be shared equally by 2 processes in 2 micro-batches each .8 or"):
        loader(images, batch_size=10, world_size=2, accumulate=2)
    with pytest.raises(DataError, match="12 images are fewer than one batch of 16"):
        loader(images, batch_size=16)


def test_killed_worker_is_one_line(images: ImageFolder) -> None:
    one = loader(images, workers=1, batch_size=1)
    epoch = one.epoch(0)
    next(epoch)
    os.kill(one._loader._iterator._workers[0].pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"a data worker .process \d+. died, near images ") as caught:
        list(epoch)
    assert "\n" not in str(caught.value)
    one.close()


def test_killed_workers_pipe_closes_before_its_signal_comes(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's handler of the signal raises wherever the parent is: it must not be at the line on the failure."""
    one = loader(images, workers=1, batch_size=1)
    next(one.epoch(0))
    indices = one._batches.indices

    def slow(*position: int) -> np.ndarray:
        time.sleep(1)
        return indices(*position)

    def lose_the_worker() -> None:
        with one.explained():
            os.kill(one._loader._iterator._workers[0].pid, signal.SIGKILL)
            raise ConnectionResetError

    monkeypatch.setattr(one._batches, "indices", slow)
    with pytest.raises(DataError, match=r"a data worker .process \d+. died, near images "):
        lose_the_worker()
    one.close()


def test_worker_outlives_the_signals_of_its_group(images: ImageFolder) -> None:
    """Ctrl-C and preemption reach the whole group; the parent still needs its batches to stop at a step's end."""
    one = loader(images, workers=1, batch_size=1)
    epoch = one.epoch(0)
    next(epoch)
    pid = one._loader._iterator._workers[0].pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        os.kill(pid, number)
    assert len(list(epoch)) == 11
    one.close()
