"""Files of our own kinds, damaged: YAML, weights headers, manifests of checkpoints and stores, locks.

Read as if whole, or refused in one line that names the file; never another exception, never without end.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import ImageFolder
from dinoskip.errors import ConfigError, DataError, DinoskipError, OutputInUse, WeightsError
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.init import ModelConfig
from dinoskip.io.files import MANIFEST, read_manifest, verify_manifest, write_manifest
from dinoskip.io.locks import STALE, directory_lock
from dinoskip.models import Backbone, VitConfig, build_from_weights, create_model, save_weights
from dinoskip.settings.config import Config, RawConfig, apply_overrides, read_yaml, validate
from dinoskip.settings.specs import newest_checkpoint
from tests.helpers.lockfiles import lock_of
from tests.helpers.mutations import attack

CASES = [20, pytest.param(4_000, marks=pytest.mark.slow)]
SECONDS = 20.0
"""What a single case may take: none builds what a header asks for."""
VIT = VitConfig(name="vit_tiny_patch16", depth=1, img_size=32)


def bounded(call: Callable[[], object], kinds: tuple[type[DinoskipError], ...], named: str = "") -> None:
    """Run ``call``, which may end in one of ``kinds``, in one line a problem, within a bound of time."""
    began, problems = time.monotonic(), (named,)
    try:
        call()
    except kinds as error:
        problems = error.problems if isinstance(error, ConfigError) else (str(error),)
    assert named in "".join(problems)
    assert not any("\n" in line for line in problems)
    assert time.monotonic() - began < SECONDS


class Settings(Config):
    model: ModelConfig = ModelConfig()
    seed: int = 0
    blocks: tuple[int, ...] = ()


YAML = [
    b"seed: 3\nmodel:\n  skip: false\n  init: {name: skipless, alpha: 1.8, c: [2, 3]}\nblocks: [1, 2]\n",
    b"defaults: &d {skip: true}\nmodel:\n  <<: *d\n  depth: 0x0c\nseed: 1e3\n",
    b"extends: [a.yaml]\nmodel: {graying: {kind: dct, epsilon: .5}}\n# a comment\n? seed\n: !!int 3\n",
    b"%YAML 1.2\n---\nseed: |\n  7\n...\n",
]


@pytest.mark.parametrize("cases", CASES)
def test_yaml(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    (tmp_path / "a.yaml").write_text("seed: 1\n")

    def check(content: bytes) -> None:
        path.write_bytes(content)
        bounded(lambda: validate(Settings, read_yaml(path)), (ConfigError,))
        text = content.decode("latin-1")
        bounded(lambda: validate(Settings, apply_overrides(RawConfig(), [f"model.depth={text}"])), (ConfigError,))

    attack(YAML, check, cases)


@pytest.mark.parametrize("cases", CASES)
def test_weights_headers(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, create_model("vit_tiny_patch16", depth=1, img_size=32).state_dict(), VIT, {"epoch": 3})
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header, rest = whole[8 : 8 + length], whole[8 + length :]

    def with_metadata(changed: bytes) -> bytes:
        content = json.loads(header)
        content["__metadata__"] = {"dinoskip": changed.decode("latin-1")}
        text = json.dumps(content).encode()
        return struct.pack("<Q", len(text)) + text + rest

    def check(content: bytes) -> None:
        for changed in (whole[:8] + content + rest, content + rest, with_metadata(content)):
            path.write_bytes(changed)
            bounded(lambda: build_from_weights(path), (WeightsError,), path.name)

    ours = json.loads(header)["__metadata__"]["dinoskip"]
    attack([header, ours.encode()], check, max(1, cases // 3))


@pytest.mark.parametrize("cases", CASES)
def test_checkpoint_manifests(cases: int, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    state = create_model("vit_tiny_patch16", depth=1, img_size=32).state_dict()
    save_weights(folder / "teacher.safetensors", state, VIT, {})
    write_manifest(folder, {"step": 4})
    whole = (folder / MANIFEST).read_bytes()

    def check(content: bytes) -> None:
        (folder / MANIFEST).write_bytes(content)
        bounded(lambda: read_manifest(folder), (DataError,), MANIFEST)
        assert all("\n" not in problem for problem in verify_manifest(folder))
        bounded(lambda: newest_checkpoint(tmp_path), (WeightsError,))

    attack([whole], check, cases)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    root = tmp_path_factory.mktemp("fuzz")
    (root / "images").mkdir()
    for name in "ab":
        Image.new("RGB", (32, 48)).save(root / "images" / f"{name}.png")
    backbone = Backbone.from_model(create_model("vit_tiny_patch16", depth=2, img_size=32))
    images = ImageFolder.open(root / "images")
    return export(backbone, images, root / "store", "all", transform=Transform(mode="native"))


def use(path: Path) -> None:
    """Everything that evaluations read of a store."""
    opened = FeatureStore.open(path)
    for block in opened.blocks:
        if opened.manifest["tokens"]:
            assert np.isfinite(opened.tokens(block, len(opened) - 1)).all()
        opened.cls(block)
    for image in range(len(opened)):
        assert min(*opened.image_size(image), *opened.grid(image)) > 0


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("name", ["features.json", "tokens_block1.npy", MANIFEST])
def test_stores(cases: int, name: str, store: FeatureStore) -> None:
    path = store.path / name
    whole, manifest = path.read_bytes(), (store.path / MANIFEST).read_bytes()

    def check(content: bytes) -> None:
        path.write_bytes(content)
        if name != MANIFEST:  # as a store made to do harm: its manifest agrees with what it holds
            write_manifest(store.path, json.loads(manifest)["info"])
        bounded(lambda: use(store.path), (DataError, ConfigError))

    try:
        attack([whole], check, cases)
    finally:
        path.write_bytes(whole)
        (store.path / MANIFEST).write_bytes(manifest)
    use(store.path)


@pytest.mark.parametrize("cases", CASES)
def test_locks(cases: int, tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    seeds = [lock_of("here"), lock_of("elsewhere", 7, boot="x"), '{"pid": null}', "", "[[[["]

    def hold() -> None:
        with directory_lock(tmp_path) as lock:
            lock.check()

    def check(content: bytes) -> None:
        path.write_bytes(content)
        bounded(hold, (OutputInUse,), str(tmp_path))
        if path.exists():  # believed: until it has given no sign of life for long
            then = time.time() - STALE - 1
            os.utime(path, (then, then))
            hold()

    attack([seed.encode() for seed in seeds], check, cases)
