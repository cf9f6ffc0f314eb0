"""A store holds what the backbone returns, image by image."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.cli import main
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore, Transform, as_float, export
from dinoskip.features.convert import SAVE
from dinoskip.io.images import read_image
from dinoskip.models import Backbone

SQUARE = Transform(size=32)


def by_hand(backbone: Backbone, path: Path, height: int, width: int) -> torch.Tensor:
    """Normalise with the ImageNet statistics and pad with zeros, in float64."""
    pixels = read_image(path).astype(np.float64) / 255
    normal = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    padded = np.zeros((height, width, 3))
    padded[: normal.shape[0], : normal.shape[1]] = normal
    return torch.from_numpy(padded).permute(2, 0, 1)[None].float()


@pytest.mark.parametrize("facet", ["out", "key"])
@pytest.mark.parametrize("norm", ["none", "final"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_square_equals_backbone(
    tmp_path: Path, backbone: Backbone, images: Callable, facet: str, norm: str, dtype: str
) -> None:
    dataset = images([(32, 32)] * 3)
    store = export(backbone, dataset, tmp_path / "store", "all", facet, norm, dtype, transform=SQUARE, batch_size=2)
    assert (store.ids, store.blocks, store.facet, store.norm, store.dtype) == (dataset.ids, (1, 2), facet, norm, dtype)
    assert not store.ragged
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}[dtype]
    for i in range(3):
        assert store.grid(i) == (4, 4)
        wanted = backbone.layers(by_hand(backbone, dataset.path(i), 32, 32), [1, 2], facet, norm)
        for block in store.blocks:
            have, exact = store.tokens(block, i), wanted[block].tokens[0].numpy()
            assert have.dtype == np.float32
            np.testing.assert_allclose(have, exact, rtol=tolerance, atol=tolerance * np.abs(exact).max())
            np.testing.assert_array_equal(as_float(store.tokens(block)[i]), have)
            cls, exact = store.cls(block), wanted[block].cls[0].numpy()
            np.testing.assert_allclose(cls[i], exact, rtol=tolerance, atol=tolerance * np.abs(exact).max())


def test_several_facets_are_one_pass_and_each_what_it_is_alone(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, passed = images([(24, 16), (17, 30), (24, 16)]), []
    facets, norms = ["out", "key", "hidden"], ["final", "none", "layer"]
    native = {"transform": Transform(mode="native"), "batch_size": 2}
    alone = {
        facet: export(backbone, dataset, tmp_path / facet, "all", facet, norm, **native)
        for facet, norm in zip(facets, norms, strict=True)
    }
    run_block = backbone.adapter.run_block
    monkeypatch.setattr(backbone.adapter, "run_block", lambda i, *rest: passed.append(i) or run_block(i, *rest))
    first = export(backbone, dataset, tmp_path / "all", "all", facets, norms, **native)
    assert passed == [0, 1] * 2, "two batches through two blocks"
    assert (first.facet, first.facets) == ("out", tuple(facets))
    for facet, norm in zip(facets, norms, strict=True):
        store = FeatureStore.open(tmp_path / "all", facet=facet)
        assert (store.facet, store.norm, store.dim) == (facet, norm, 768 if facet == "hidden" else 192)
        for block in (1, 2):
            np.testing.assert_array_equal(store.tokens(block), alone[facet].tokens(block))
            np.testing.assert_array_equal(store.cls(block), alone[facet].cls(block))
    assert not FeatureStore.open(tmp_path / "all").verify()
    with pytest.raises(DataError, match="holds no facet mlp"):
        FeatureStore.open(tmp_path / "all", facet="mlp")


def test_facets_that_cannot_be_exported_are_said_before_the_first_image(
    tmp_path: Path, backbone: Backbone, images: Callable
) -> None:
    dataset = images([(32, 32)])
    with pytest.raises(ConfigError, match="the final norm is not as wide as facet hidden"):
        export(backbone, dataset, tmp_path / "store", "all", ["out", "hidden"], "final")
    with pytest.raises(ConfigError, match="each once, and a norm for each"):
        export(backbone, dataset, tmp_path / "store", "all", ["out", "out"], "none")
    assert not (tmp_path / "store").exists()


def test_native_sizes_keep_dataset_order(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    sizes = [(24, 16), (17, 30), (24, 16), (9, 8), (20, 31)]
    dataset = images(sizes)
    store = export(
        backbone, dataset, tmp_path / "store", [2], dtype="float32", transform=Transform(mode="native"), batch_size=2
    )
    assert store.ragged
    assert store.tokens(2).shape == (sum(store.grid(i)[0] * store.grid(i)[1] for i in range(5)), 192)
    for i, (height, width) in enumerate(sizes):
        grid = (-(-height // 8), -(-width // 8))
        assert store.grid(i) == grid
        assert store.image_size(i) == (height, width)
        wanted = backbone.layers(by_hand(backbone, dataset.path(i), grid[0] * 8, grid[1] * 8), [2], norm="final")[2]
        np.testing.assert_allclose(store.tokens(2, i), wanted.tokens[0].numpy(), atol=2e-5)
        np.testing.assert_allclose(store.cls(2)[i], wanted.cls[0].numpy(), atol=2e-5)
        start, end = store.offsets[i : i + 2]
        np.testing.assert_array_equal(store.tokens(2)[start:end], store.tokens(2, i))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_gpu_stores_what_a_cpu_does(tmp_path: Path, backbone: Backbone, images: Callable, dtype: str) -> None:
    """Many small batches: every copy that is not waited for has arrived when its rows are written."""
    dataset, native = images([(24, 16), (16, 24)] * 40), Transform(mode="native")
    settings = {"facet": "key", "norm": "none", "dtype": dtype, "transform": native, "batch_size": 3}
    cpu = export(backbone, dataset, tmp_path / "cpu", "all", **settings)
    try:
        gpu = export(backbone.to("cuda"), dataset, tmp_path / "gpu", "all", **settings)
    finally:
        backbone.to("cpu")
    for block in cpu.blocks:
        peak = np.abs(as_float(cpu.tokens(block))).max()
        np.testing.assert_allclose(as_float(gpu.tokens(block)), as_float(cpu.tokens(block)), atol=0.01 * peak)
        np.testing.assert_allclose(gpu.cls(block), cpu.cls(block), atol=0.01 * peak)


def test_resizing_is_close_to_pillow(tmp_path: Path) -> None:
    from dinoskip.features.transform import load_pixels

    ramp = np.linspace(0, 255, 60 * 90).reshape(60, 90, 1) * [1, 0.5, 0.25]
    ramp[20:40, 30:60] = 255 - ramp[20:40, 30:60]
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    square = load_pixels(Transform(size=32), tmp_path / "a.png", 8).permute(1, 2, 0).numpy()
    assert np.abs(square.astype(int) - np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC))).max() <= 1
    cropped = load_pixels(Transform(mode="center_crop", size=28), tmp_path / "a.png", 14).permute(1, 2, 0).numpy()
    whole = np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(cropped - whole[2:30, 10:38]).max() <= 1


def test_only_what_was_asked_for(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(32, 32)])
    store = export(backbone, dataset, tmp_path / "cls", [1], tokens=False, transform=SQUARE)
    assert store.cls(1).shape == (1, 192)
    with pytest.raises(DataError, match="no tokens of block 1"):
        store.tokens(1)
    store = export(backbone, dataset, tmp_path / "tokens", [2], cls=False, transform=SQUARE)
    assert store.cls(2) is None
    with pytest.raises(DataError, match=r"block 1.*it has blocks 2"):
        store.tokens(1, 0)


def test_size_is_said_before_the_start(
    tmp_path: Path, backbone: Backbone, images: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dinoskip"):
        export(backbone, images([(32, 32)] * 2), tmp_path / "store", [1, 2], transform=SQUARE)
    assert "2 images × 2 blocks" in caplog.text
    assert "26 kB" in caplog.text  # 2 × 2 × (16 + 1) × 192 × 2 bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": [3]}, r"blocks.*1\.\.2"),
        ({"blocks": []}, "blocks"),
        ({"transform": Transform(size=30)}, "30 is not a multiple of the patch size 8"),
        ({"dtype": "int8"}, "dtype"),
        ({"facet": "keys"}, "facet 'keys'"),
        ({"batch_size": 0}, "batch_size"),
        ({"tokens": False, "cls": False}, "neither"),
    ],
)
def test_impossible_settings(tmp_path: Path, backbone: Backbone, images: Callable, change: dict, message: str) -> None:
    settings = {"blocks": [1], "transform": SQUARE} | change
    with pytest.raises(ConfigError, match=message):
        export(backbone, images([(32, 32)]), tmp_path / "store", **settings)
    assert not (tmp_path / "store").exists()


def test_unreadable_image_is_named(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(32, 32)] * 4)
    whole = dataset.path(2).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not an image"):
        dataset.path(2).write_bytes(content)
        with pytest.raises(DataError, match="image02"):
            export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)
    dataset.path(2).unlink()
    with pytest.raises(DataError, match="image02"):
        export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)
    assert not (tmp_path / "store").exists()


def test_image_smaller_than_a_patch_is_named(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    with pytest.raises(DataError, match=r"image01.*7×40 pixels is smaller than a patch of 8×8"):
        export(backbone, images([(16, 16), (40, 7)]), tmp_path / "s", [1], transform=Transform(mode="native"))


def test_no_images_or_twice_the_same(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(32, 32)])
    for ids, message in (((), "no images"), (("image00",) * 2, "same id")):
        dataset.ids = ids
        with pytest.raises(DataError, match=message):
            export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)


def test_overflow_is_an_error_not_inf(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = backbone.layers

    def huge(*args: object, **kw: object) -> dict:
        found = layers(*args, **kw)
        found[2].tokens[1, 3, 5] = 70000.0
        return found

    monkeypatch.setattr(backbone, "layers", huge)
    dataset = images([(32, 32)] * 2)
    with pytest.raises(DataError, match=r"image01.*block 2 reach 7e\+04.*float16.*bfloat16"):
        export(backbone, dataset, tmp_path / "store", [1, 2], transform=SQUARE)
    store = export(backbone, dataset, tmp_path / "store", [1, 2], dtype="bfloat16", transform=SQUARE)
    assert store.tokens(2, 1)[3, 5] == pytest.approx(70000, rel=0.01)


def test_non_finite_features_are_named(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = backbone.layers

    def broken(*args: object, **kw: object) -> dict:
        found = layers(*args, **kw)
        found[1].cls[0, 0] = float("nan")
        return found

    monkeypatch.setattr(backbone, "layers", broken)
    with pytest.raises(DataError, match=r"image00.*block 1 are not finite"):
        export(backbone, images([(32, 32)]), tmp_path / "store", [1], dtype="float32", transform=SQUARE)


def readers() -> list[str]:
    """The Python examples of the documentation that need no dinoskip: NumPy's, safetensors', HDF5's, FAISS's."""
    return documented()[1:]


def documented() -> list[str]:
    """All Python examples of the page; the first is dinoskip's own."""
    text = (Path(__file__).parents[2] / "docs" / "features.md").read_text()
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


def test_readers_in_the_documentation(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(16, 24), (24, 24)])
    codes = readers()
    for dtype, mode in (("bfloat16", "native"), ("float16", "native"), ("float16", "square")):
        out, copies = tmp_path / dtype / mode, tmp_path / "copies" / dtype / mode
        store = export(backbone, dataset, out, [1], dtype=dtype, transform=Transform(mode=mode, size=24))
        names = {"store": out, "tensors": copies / "safetensors", "table": copies / "hdf5", "block": 1, "i": 1}
        exec(documented()[0], names)
        np.testing.assert_array_equal(names.pop("image"), store.tokens(1, 1))
        for kind, code in zip(("npy", "safetensors", "hdf5"), codes[:3], strict=True):
            assert "dinoskip" not in code
            if kind != "npy":
                SAVE[kind]([store], copies / kind)
            if kind == "npy" or dtype != "bfloat16":
                exec(code, names)
                np.testing.assert_array_equal(names.pop("image"), store.tokens(1, 1))


def test_the_numpy_reader_reads_a_store_of_two_facets(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    export(backbone, images([(24, 24), (24, 24)]), tmp_path / "store", [1], facet=["key", "out"])
    names = {"store": tmp_path / "store", "block": 1, "i": 1}
    exec(readers()[0], names)
    store = FeatureStore.open(tmp_path / "store", facet="key")
    np.testing.assert_array_equal(names["image"], store.tokens(1, 1))


def test_the_numpy_reader_is_six_lines() -> None:
    lines = [line for line in readers()[0].splitlines() if line]
    assert lines[0] == "import json, numpy as np"
    assert [line for line in lines if "import" in line] == lines[:1]
    assert len(lines) == 6 + 2, "and two for bfloat16"


def test_other_sizes_are_pillows(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    """``rounded`` and ``short_crop`` by Pillow's own resize, features as the backbone's of that very picture."""
    dataset = images([(29, 44), (36, 20)])
    wanted = {
        Transform(mode="rounded", resample="lanczos"): ([(48, 32), (16, 32)], Image.Resampling.LANCZOS, None),
        Transform(mode="short_crop", size=16, resample="nearest"): ([(24, 16), (16, 28)], Image.Resampling.NEAREST, 16),
    }
    for number, (transform, (sizes, resampling, crop)) in enumerate(wanted.items()):
        out = tmp_path / str(number)
        store = export(backbone, dataset, out, [2], dtype="float32", transform=transform, batch_size=1)
        assert store.ragged == (crop is None)
        assert FeatureStore.open(out).transform == transform
        for i, (width, height) in enumerate(sizes):
            picture = Image.open(dataset.path(i)).resize((width, height), resampling)
            if crop is not None:
                left, top = round((width - crop) / 2), round((height - crop) / 2)
                picture = picture.crop((left, top, left + crop, top + crop))
            picture.save(tmp_path / "sized.png")
            exact = backbone.layers(
                by_hand(backbone, tmp_path / "sized.png", picture.height, picture.width), [2], "out", "final"
            )[2]
            assert store.grid(i) == exact.grid
            np.testing.assert_allclose(store.tokens(2, i), exact.tokens[0].numpy(), rtol=1e-4, atol=1e-5)
    assert Transform(mode="rounded", resample="lanczos").label == "rounded, lanczos"


def test_flipped_features_are_the_mean_of_both(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(32, 32)])
    flip = Transform(size=32, flip=True)
    store = export(backbone, dataset, tmp_path / "store", [1], dtype="float32", transform=flip)
    pixels = by_hand(backbone, dataset.path(0), 32, 32)
    one, other = (backbone.layers(each, [1], "out", "final")[1] for each in (pixels, pixels.flip(-1)))
    mirrored = other.tokens[0].view(4, 4, -1).flip(1).flatten(0, 1)
    np.testing.assert_allclose(store.tokens(1, 0), (one.tokens[0] + mirrored).numpy() / 2, rtol=1e-4, atol=1e-5)
    assert one.cls is not None
    assert other.cls is not None
    np.testing.assert_allclose(store.cls(1)[0], (one.cls[0] + other.cls[0]).numpy() / 2, rtol=1e-4, atol=1e-5)
    assert store.manifest["transform"] == {"mode": "square", "size": 32, "flip": True}  # no default of a later field
    for impossible in ({"mode": "native", "flip": True}, {"mode": "center_crop", "resample": "lanczos"}):
        with pytest.raises(ValueError, match=r"flip|resample"):
            Transform(**impossible)


def test_a_disk_that_is_too_small_is_refused_before_the_start(
    tmp_path: Path, images: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    command = ["features", "export", spec, "--data", str(images([(32, 32)]).root)]
    assert main([*command, "--out", str(tmp_path / "store"), "--size", "32", "--dtype", "float32"]) == 0  # 3,840 bytes
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "larger"), "--size", "64", "--dtype", "float32"]) == 6
    said = capsys.readouterr().err.splitlines()
    assert "13 kB (10 kB free)" in said[0]
    assert "(10 kB free)" in said[0]
    assert "the features need 13 kB, 10 kB are free on this disk" in said[1]
    assert len(said) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "store"]
