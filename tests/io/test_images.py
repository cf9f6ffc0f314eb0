from __future__ import annotations

import io
import os
import pickle
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from skimage.data import astronaut

from dinoskip.data.listing import fingerprint
from dinoskip.errors import ConfigError, DataError
from dinoskip.io import images
from dinoskip.io.images import (
    image_from_bytes,
    image_size,
    read_depth,
    read_image,
    read_mask,
    stored_geometry,
    turn_upright,
)
from dinoskip.io.pixel_range import RangedPath
from dinoskip.io.resize import short_side_size

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (10, 14, 3), dtype=np.uint8)


def test_rgb_comes_back_as_it_was(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    decoded = read_image(tmp_path / "a.png")
    assert decoded.dtype == np.uint8
    assert (decoded == PIXELS).all()
    decoded[0, 0] = 0  # writable
    assert image_size(tmp_path / "a.png") == (10, 14)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    picture = Image.fromarray(np.repeat(np.repeat(PIXELS, 8, 0), 8, 1))
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "a.png", exif=exif)
    pixels = np.asarray(picture)
    flips = {1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1]}
    turned = pixels.transpose(1, 0, 2)
    flips |= {5: turned, 6: turned[:, ::-1], 7: turned[::-1, ::-1], 8: turned[::-1]}
    decoded = read_image(tmp_path / "a.png")
    assert (decoded == flips[orientation]).all()
    assert image_size(tmp_path / "a.png") == decoded.shape[:2]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    decoded = read_image(tmp_path / "deep.png")
    assert decoded.shape == (16, 16, 3)
    assert np.abs(decoded[..., 0].astype(float) - values / 257).max() <= 0.5


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
@pytest.mark.parametrize("value", [0, 255, 256, 257, 3500, 65535])
def test_the_scale_of_a_deep_image_is_that_of_its_file_whatever_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, value: int
) -> None:
    """A constant of 255 in 16 bits was taken for white, one of 256 for black, one of 3500 of 4095 for nearly black."""
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.full((4, 4), value, np.uint16)).save(path)
    if value in {0, 65535}:
        assert (read_image(path) == round(value / 257)).all()
    else:
        with pytest.raises(DataError):
            read_image(path)
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "65535")
    assert (read_image(path) == round(value / 257)).all()


def test_floats_are_in_0_to_1_and_refused_elsewhere(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert (read_image(tmp_path / "a.tif")[..., 0] == np.rint(255 * values)).all()
    for name, bad in (("b.tif", 1.5), ("c.tif", -0.1), ("d.tif", np.nan)):
        Image.fromarray(np.where(values == 1, np.float32(bad), values)).save(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name}: .*floats must have values in 0\.\.1"):
            read_image(tmp_path / name)
    Image.fromarray(np.full((4, 4), 70000, np.int32)).save(tmp_path / "e.tif")
    with pytest.raises(DataError, match=r"e.tif: .*32-bit integers has no known range"):
        read_image(tmp_path / "e.tif")


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "tif" if mode == "CMYK" else "png"
    Image.fromarray(PIXELS).convert(mode).save(tmp_path / f"a.{suffix}")
    decoded = read_image(tmp_path / f"a.{suffix}")
    assert (decoded.shape, decoded.dtype) == ((10, 14, 3), np.uint8)


def test_masks_are_indices_never_colours(tmp_path: Path) -> None:
    labels = np.array([[0, 1, 255], [20, 7, 0]], dtype=np.uint8)
    palette = Image.fromarray(labels, "P")
    palette.putpalette(RNG.integers(0, 256, 768, dtype=np.uint8).tobytes())
    palette.save(tmp_path / "p.png")
    Image.fromarray(labels).save(tmp_path / "l.png")
    for name in ("p.png", "l.png"):
        assert read_mask(tmp_path / name).dtype == np.uint8
        assert (read_mask(tmp_path / name) == labels).all()
    Image.fromarray(np.array([[3, 300]], dtype=np.uint16)).save(tmp_path / "wide.png")
    with pytest.raises(DataError, match=r"wide.png: label value 300 is outside 0..255"):
        read_mask(tmp_path / "wide.png")
    palette.convert("RGB").save(tmp_path / "rgb.png")
    with pytest.raises(DataError, match=r"rgb.png: a mask must be a palette or grey image, this one is RGB"):
        read_mask(tmp_path / "rgb.png")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "bmp"])
@pytest.mark.filterwarnings("error")
def test_any_damage_is_one_data_error_with_the_name(tmp_path: Path, suffix: str) -> None:
    """Cut short or with bytes changed, a file decodes or is refused by name; no other exception gets out."""
    buffer = io.BytesIO()
    Image.fromarray(np.repeat(np.repeat(PIXELS, 4, 0), 4, 1)).save(
        buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix)
    )
    whole = buffer.getvalue()
    path = tmp_path / f"damaged.{suffix}"
    dice = random.Random(suffix)
    cut = [whole[: len(whole) * part // 20] for part in range(19)]
    changed = []
    for _ in range(40):
        broken = bytearray(whole)
        for _ in range(6):
            broken[dice.randrange(min(len(broken), 200))] = dice.randrange(256)
        changed.append(bytes(broken))
    messages = []
    for content in cut + changed:
        path.write_bytes(content)
        for reader in (read_image, read_mask, image_size):
            try:
                reader(path)
            except DataError as error:
                messages.append(str(error))
    assert len(messages) > 40
    assert all(path.name in message and "\n" not in message for message in messages)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError):
        read_image(path)


def test_missing_and_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"none.png: no such image"):
        read_image(tmp_path / "none.png")
    with pytest.raises(DataError, match=r"none.png: no such image"):
        image_size(tmp_path / "none.png")
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", "0.0001")
    for reader in (read_image, read_mask, image_size):
        with pytest.raises(DataError, match=r"a.png: 14×10 pixels is more than 100 allowed"):
            reader(tmp_path / "a.png")


JPEGS: dict[str, dict] = {
    "baseline": {"quality": 85}, "progressive": {"progressive": True}, "full colour": {"subsampling": 0},
    "restarts": {"restart_marker_rows": 1}, "grey": {},
}  # fmt: skip


def jpeg(kind: str) -> bytes:
    picture = Image.fromarray(astronaut()[60:180, 130:291])
    stream = io.BytesIO()
    (picture.convert("L") if kind == "grey" else picture).save(stream, "JPEG", **JPEGS[kind])
    return stream.getvalue()


def pillows(content: bytes) -> np.ndarray | None:
    try:
        return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
    except Exception:  # any of many
        return None


@pytest.mark.parametrize("kind", JPEGS)
def test_ordinary_jpegs_take_the_short_way_to_pillows_pixels_also_when_damaged(kind: str) -> None:
    whole = jpeg(kind)
    assert images.is_plain_jpeg(whole)
    short = images._plain(whole)
    assert short is not None
    assert np.array_equal(short, pillows(whole))
    dice = random.Random(kind)
    for number in range(120):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            content[dice.randrange(2, 700 if number % 2 else len(content) - 2)] = dice.randrange(256)
        short = images._plain(bytes(content))
        if short is not None:
            assert np.array_equal(short, pillows(bytes(content)))
    for length in range(0, len(whole) - 1, 97):
        assert not images.is_plain_jpeg(whole[:length])


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_a_turned_jpeg_is_left_to_pillow(orientation: int, endian: str) -> None:
    exif = Image.Exif()
    exif.endian = endian
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG", exif=exif.tobytes())
    assert images.is_plain_jpeg(stream.getvalue()) == (orientation == 1)


def test_unusual_jpegs_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("CMYK", "YCbCr"):
        stream = io.BytesIO()
        Image.fromarray(PIXELS).convert(mode).save(stream, "JPEG")
        assert images.is_plain_jpeg(stream.getvalue()) == (mode == "YCbCr")
    assert not images.is_plain_jpeg(stream.getvalue() + b"more")
    assert not images.is_plain_jpeg(b"")
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG", keep_rgb=True)
    assert not images.is_plain_jpeg(stream.getvalue())
    monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", "0.0001")
    assert not images.is_plain_jpeg(jpeg("baseline"))


def test_real_jpegs_decode_to_pillows_pixels() -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data"
    if not root.is_dir():
        pytest.skip("../shared/data is absent")
    files = sorted(path for path in root.glob("*_mini/**/*") if path.suffix.lower() in {".jpg", ".jpeg"})[::30]
    assert len(files) > 20
    plain = 0
    for path in files:
        plain += images.is_plain_jpeg(path.read_bytes())
        with Image.open(path) as opened:
            assert (read_image(path) == np.array(ImageOps.exif_transpose(opened).convert("RGB"))).all(), path
    assert plain > 0.9 * len(files)


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")  # opening it would wait for a writer
    (tmp_path / "b.jpg").mkdir()
    (tmp_path / "c.jpg").symlink_to("/dev/zero")  # it has no end
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        for reader in (read_image, read_mask, image_size):
            with pytest.raises(DataError, match=f"{name}: is not a regular file"):
                reader(tmp_path / name)


def test_a_small_file_of_very_many_pixels_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (13_000, 13_000)).save(path)
    assert path.stat().st_size < 30_000
    tracemalloc.start()
    for reader in (read_image, read_mask, image_size):
        with pytest.raises(DataError, match=r"bomb.png: 13000×13000 pixels is more than 64,000,000 allowed"):
            reader(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", "170")
    assert image_size(path) == (13_000, 13_000)
    for text in ("0", "-1", "nan", "179", "many"):
        monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", text)
        with pytest.raises(ConfigError, match="is not a number of million pixels up to 178"):
            image_size(path)


def test_stored_pixels_are_had_by_asking(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(tmp_path / "a.png", exif=exif)
    assert (read_image(tmp_path / "a.png", upright=False) == PIXELS).all()
    assert image_size(tmp_path / "a.png", upright=False) == (10, 14)
    assert image_size(tmp_path / "a.png") == read_image(tmp_path / "a.png").shape[:2] == (14, 10)


def test_no_reader_that_runs_another_program_is_asked(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "EPS")
    (tmp_path / "a.jpg").write_bytes(stream.getvalue())
    with pytest.raises(DataError, match=r"a.jpg: not a readable image"):
        read_image(tmp_path / "a.jpg")
    for kind in ("GIF", "JPEG2000", "PNG"):  # content decides, not the name
        Image.fromarray(PIXELS).save(tmp_path / "b.jpg", kind)
        assert read_image(tmp_path / "b.jpg").shape == PIXELS.shape


@pytest.mark.parametrize("orientation", [0, *range(1, 9), 99])
def test_stored_pixels_are_turned_as_pillow_turns_the_image(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(PIXELS).save(tmp_path / "a.png", exif=exif)
    size, said = stored_geometry(tmp_path / "a.png")
    assert (size, said) == ((10, 14), orientation if 1 <= orientation <= 8 else 1)
    turned = turn_upright(PIXELS, said)
    assert (turned == read_image(tmp_path / "a.png")).all()
    assert turned.flags.c_contiguous  # torch takes no negative strides


@pytest.mark.parametrize("read", [read_image, read_mask, read_depth])
def test_a_png_whose_pixels_are_damaged_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """Pillow decodes it without a word."""
    path = tmp_path / "a.png"
    Image.fromarray(np.full((10, 20), 2000, np.uint16) if read is read_depth else np.ones((10, 20), np.uint8)).save(
        path
    )
    content = path.read_bytes()
    read(path)
    at = content.index(b"IDAT")
    for place in range(at, at + 22):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DataError, match=r"a\.png"):
            read(path)
    longer = content[: at - 4] + b"\x01" + content[at - 3 : at + 8] + content[at + 6 :]  # than the file
    path.write_bytes(longer)
    with pytest.raises(DataError, match=r"a\.png.*cut short"):
        read(path)


def test_sizes_are_torchvisions_for_every_image_up_to_500_pixels() -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    sizes = [(height, width) for height in range(1, 501) for width in range(1, height + 1)]
    wrong = [size for size in sizes if short_side_size(*size, 256) != tuple(_compute_resized_output_size(size, [256]))]
    assert not wrong
    assert short_side_size(300, 40, 256) == short_side_size(40, 300, 256)[::-1]


def deep(values: np.ndarray, suffix: str) -> bytes:
    """A file of 16 bits: grey (H, W), colours (H, W, 3) as red, green and blue, or with a fourth channel."""
    import cv2

    order = values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[2]]]
    return cv2.imencode(suffix, order.astype(np.uint16))[1].tobytes()


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("shape", [(12, 16), (12, 16, 3), (12, 16, 4)])
@pytest.mark.parametrize("bits", [10, 12, 14])
def test_fewer_bits_in_sixteen_are_refused_or_read_in_the_stated_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, shape: tuple[int, ...], bits: int
) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, shape)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(deep(values, suffix))
    with pytest.raises(DataError, match=rf"a{suffix}: .*DINOSKIP_PIXEL_RANGE"):
        read_image(path)
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", str((1 << bits) - 1))
    expected = values[..., None].repeat(3, 2) if values.ndim == 2 else values[..., :3]
    assert np.abs(read_image(path) - expected * 255 / ((1 << bits) - 1)).max() <= 0.5
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "65535")  # pictures that are as dark as that
    assert np.abs(read_image(path) - expected / 257).max() <= 1


@pytest.mark.parametrize("hot", [65535, 50000])
def test_single_pixels_of_a_sensor_hide_no_range_and_stars_are_no_such_pixels(tmp_path: Path, hot: int) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (64, 64))
    values[3, 5] = values[40, 7] = hot
    (tmp_path / "a.png").write_bytes(deep(values, ".png"))
    with pytest.raises(DataError):
        read_image(tmp_path / "a.png")
    rows, columns = np.mgrid[:64, :64]
    star = 65535 * np.exp(-((rows - 30) ** 2 + (columns - 30) ** 2) / 2)
    (tmp_path / "stars.png").write_bytes(deep(np.maximum(values.clip(max=4095), star), ".png"))
    assert read_image(tmp_path / "stars.png").max() == 255


def test_zero_is_white_where_a_tiff_says_so(tmp_path: Path) -> None:
    """Pillow heeds it up to 8 bits: pictures of 16 came out inverted."""
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(values).save(tmp_path / "a.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "a.tif") as stored:
        assert stored.tag_v2[262] == 0
    assert np.abs(read_image(tmp_path / "a.tif")[..., 0] - (255 - values / 257)).max() <= 0.5


def test_a_stated_range_is_part_of_what_a_folder_is_known_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(deep(np.arange(192).reshape(12, 16), ".png"))
    without = fingerprint(tmp_path, ["a.png"])
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "4095")
    assert fingerprint(tmp_path, ["a.png"]) != without
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "")
    assert fingerprint(tmp_path, ["a.png"]) == without


def test_a_path_states_the_range_of_what_lies_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (12, 16))
    (tmp_path / "a.png").write_bytes(deep(values, ".png"))
    path = pickle.loads(pickle.dumps(RangedPath.of(tmp_path, 4095))) / "a.png"
    assert (path, hash(path), path.name) == (tmp_path / "a.png", hash(tmp_path / "a.png"), "a.png")
    assert np.abs(read_image(path) - values[..., None] * 255 / 4095).max() <= 0.5
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "65535")
    assert read_image(path).max() > 250, "what is stated of the set is nearer than the variable"
    assert read_image(tmp_path / "a.png").max() < 20
    assert type(RangedPath.of(tmp_path, None)) is type(tmp_path)


@pytest.mark.parametrize("text", ["12", "1e4", "65536", "-1", "\u0664\u0660\u0669\u0665"])
def test_a_range_is_a_whole_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "a.png").write_bytes(deep(np.arange(192).reshape(12, 16), ".png"))
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", text)
    with pytest.raises(ConfigError, match="DINOSKIP_PIXEL_RANGE"):
        read_image(tmp_path / "a.png")


def test_a_stated_range_leaves_pictures_of_eight_bits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "PNG")
    monkeypatch.setenv("DINOSKIP_PIXEL_RANGE", "4095")
    assert (image_from_bytes(stream.getvalue(), "a.png") == PIXELS).all()


@pytest.mark.parametrize("kind", [np.uint16, np.uint8, np.float32])
def test_pages_of_one_channel_are_bands(tmp_path: Path, kind: type) -> None:
    white = np.iinfo(kind).max if kind != np.float32 else 1  # no range of fewer bits than the file's
    pages = [Image.fromarray(np.full((6, 8), number, kind)) for number in (0, white)]
    pages[0].save(tmp_path / "bands.tif", save_all=True, append_images=pages[1:] * 12)
    with pytest.raises(DataError, match=r"bands\.tif: .*13 pages"):
        read_image(tmp_path / "bands.tif")
    pages[0].save(tmp_path / "one.tif")
    read_image(tmp_path / "one.tif")
    smaller = pages[1].resize((4, 3))
    pages[0].save(tmp_path / "preview.tif", save_all=True, append_images=[smaller])
    read_image(tmp_path / "preview.tif")


def tiff_of_samples(bands: int, bits: int) -> bytes:
    """A TIFF of 4 × 4 pixels with many samples each, as cameras of many bands write it."""
    entries = [(256, 4), (257, 4), (258, -1), (259, 1), (262, 1), (273, -2), (277, bands), (278, 4), (279, 2 * bands)]
    after = 8 + 2 + 12 * len(entries) + 4
    at = {-1: after, -2: after + 2 * bands}
    content = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    for tag, value in entries:
        long = tag in {273, 279}
        content += struct.pack("<HHII", tag, 4 if long else 3, bands if tag == 258 else 1, at.get(value, value))
    return content + bytes(4) + struct.pack(f"<{bands}H", *[bits] * bands) + bytes(16 * bands * bits // 8)


@pytest.mark.parametrize(("bands", "bits"), [(13, 16), (5, 8), (7, 16)])
def test_bands_of_a_tiff_are_named(bands: int, bits: int) -> None:
    with pytest.raises(DataError, match=rf"a\.tif: .*{bands} bands of {bits} bits"):
        image_from_bytes(tiff_of_samples(bands, bits), "a.tif")
