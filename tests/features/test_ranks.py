"""Several processes write one store: the same bytes as one process, whoever is killed on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dinoskip.features import FeatureStore
from dinoskip.features.store import PROVENANCE
from dinoskip.io.files import list_files, sha256_file
from tests.features.conftest import make_images
from tests.helpers.launch import rank_environments
from tests.helpers.ranks import on_ranks

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"
NATIVE = [(32, 32), (16, 48), (32, 32), (32, 32), (20, 31), (16, 48), (32, 32), (32, 32), (32, 32)]


def command(images: Path, out: Path, *more: str) -> list[str]:
    export = ["features", "export", VIT, "--data", str(images), "--out", str(out)]
    return [*export, "--batch", "1", "--mode", "native", "--device", "cpu", *more]


def as_a_rank(env: dict[str, str], arguments: list[str], log: str, kill_at: int) -> None:
    """The command line in a process of its own; killed at its ``kill_at``-th batch, if there is one."""
    import sys

    import torch

    from dinoskip import cli
    from dinoskip.features import forward, writer

    os.environ.update(env)
    torch.set_num_threads(1)
    sys.stderr = open(log, "w", buffering=1)  # noqa: SIM115
    writer.FLUSH_SECONDS = 0.0
    finish, computed = writer.StoreWriter.finish, forward.ForwardPasses._computed
    seen: list[int] = []

    def counted(self: Any, batch: int) -> None:
        seen.append(batch)
        if len(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        finish(self, batch)
        self.settle()

    def noted(self: Any, number: int, images: Any) -> Any:
        print(f"batch {number}", file=sys.stderr)
        return computed(self, number, images)

    writer.StoreWriter.finish = counted  # type: ignore[method-assign]
    forward.ForwardPasses._computed = noted  # type: ignore[method-assign]
    sys.exit(cli.main(arguments))


def start(size: int, arguments: list[str], folder: Path, kill: dict[int, int]) -> tuple[list[int], list[str]]:
    """Run the command on ``size`` ranks; exit code and log of each."""
    context = multiprocessing.get_context("forkserver")
    made: list[BaseProcess] = []
    logs = [folder / f"log{rank}" for rank in range(size)]
    for rank, env in enumerate(rank_environments(size) if size > 1 else [{}]):
        made.append(context.Process(target=as_a_rank, args=(env, arguments, str(logs[rank]), kill.get(rank, 0))))
        made[-1].start()
    try:
        for process in made:
            process.join(120)
        return [int(process.exitcode or 0) for process in made], [log.read_text() for log in logs]
    finally:
        for process in made:
            process.kill()
            process.join(10)


def content(out: Path) -> dict[str, str]:
    """Of all that is to be alike: a date is not."""
    files = [name for name in list_files(out) if name != PROVENANCE]
    return {name: sha256_file(out / name) for name in [*files, "MANIFEST.json"]}


def batches(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("batch ")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("photos"), NATIVE).root


@pytest.fixture(scope="module")
def alone(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The store of one process."""
    folder = tmp_path_factory.mktemp("alone")
    codes, logs = start(1, command(photos, folder / "store"), folder, {})
    assert codes == [0], logs
    assert sorted(batches(logs[0])) == list(range(9))
    assert "features: 9 images in" in logs[0]
    assert "images/s" in logs[0]
    return content(folder / "store")


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_is_noticed_and_any_number_continues(
    photos: Path, alone: dict[str, str], tmp_path: Path, victim: int
) -> None:
    arguments = command(photos, tmp_path / "store")
    codes, logs = start(2, arguments, tmp_path, {victim: 2})
    assert codes[victim] == -signal.SIGKILL, logs
    assert codes[1 - victim] == 1, logs
    assert "another process of this job has ended before its work was done" in logs[1 - victim]
    assert f"rank {victim} on " in logs[1 - victim]
    assert "Traceback" not in logs[1 - victim]
    assert not (tmp_path / "store").exists()
    shares = [batches(log) for log in logs]
    assert not set(shares[0]) & set(shares[1])
    left = 3 if victim else 4  # 5 and 4 of 9 batches are theirs; the victim had done one, the other did its share
    codes, logs = start(1 if victim else 3, arguments, tmp_path, {})
    assert codes == [0] * len(codes), logs
    assert len([number for log in logs for number in batches(log)]) == left
    assert content(tmp_path / "store") == alone
    assert sorted(path.name for path in tmp_path.iterdir() if "log" not in path.name) == ["store"]


def test_two_ranks_share_the_work(photos: Path, alone: dict[str, str], tmp_path: Path) -> None:
    codes, logs = start(2, command(photos, tmp_path / "store"), tmp_path, {})
    assert codes == [0, 0], logs
    assert [len(batches(log)) for log in logs] == [5, 4]
    assert "with 2 processes" in logs[0]
    assert "images/s" not in logs[1]
    assert content(tmp_path / "store") == alone
    codes, logs = start(2, command(photos, tmp_path / "store"), tmp_path, {})
    assert codes == [0, 0]
    assert [batches(log) for log in logs] == [[], []]
    assert "is already complete" in logs[0]


@pytest.mark.slow  # a rank that ends is noticed above, a broken image named in test_export
def test_an_image_that_one_rank_cannot_read(photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "photos"
    broken.mkdir()
    for path in photos.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    damaged = broken / "image01.png"
    Image.open(damaged).save(tmp_path / "whole.jpg")
    damaged.write_bytes((tmp_path / "whole.jpg").read_bytes()[:-200])  # its header, which rank 0 reads, is whole
    codes, logs = start(2, command(broken, tmp_path / "store"), tmp_path, {})
    assert sorted(codes) == [1, 3], logs
    assert "image01.png: " in logs[codes.index(3)]
    assert "another process of this job has ended" in logs[codes.index(1)]


def other_weights(here: Any, images: str, out: str) -> None:
    from dinoskip.data import ImageFolder
    from dinoskip.errors import DataError
    from dinoskip.features import export
    from dinoskip.models import load_backbone

    backbone = load_backbone(f"{VIT},seed={here.rank}")
    with pytest.raises(DataError, match="rank 1 has other weights than rank 0"):
        export(backbone, ImageFolder.open(images), out, [1], here=here)


def settings_that_do_not_fit(here: Any, images: str, out: str) -> None:
    """An error that rank 0 finds is raised on every rank."""
    from dinoskip.data import ImageFolder
    from dinoskip.errors import ConfigError
    from dinoskip.features import export
    from dinoskip.models import load_backbone

    with pytest.raises(ConfigError, match=r"blocks.*1\.\.2"):
        export(load_backbone(VIT), ImageFolder.open(images), out, [3], here=here)


@pytest.mark.parametrize("action", [other_weights, settings_that_do_not_fit])
def test_ranks_that_disagree_or_err(photos: Path, tmp_path: Path, action: Callable[..., None]) -> None:
    on_ranks(2, tmp_path, action, str(photos), str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


@pytest.mark.slow  # two ranks' store has one's content, above
def test_ranks_make_a_store_that_opens(photos: Path, tmp_path: Path) -> None:
    codes, logs = start(2, command(photos, tmp_path / "store"), tmp_path, {})
    assert codes == [0, 0], logs
    store = FeatureStore.open(tmp_path / "store")
    assert store.verify() == []
    assert store.tokens(2).shape == (5 * 4 + 2 * 3 + 4 + 4, 192)
