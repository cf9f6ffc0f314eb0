"""Opt-in packing: a set resized to a short side and written as tar shards, with a record that pixels changed.

Which image goes where depends on the source alone, and a shard appears complete or not at all, so an interrupted
packing goes on with the next shard. ``pack.json`` says what was done; ``MANIFEST.json``, written last, ends it.
"""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import Field

from dinoskip.data.loader import BAD_SHARE
from dinoskip.data.shards import PACK_RECORD, Source, TarShards, read_index
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import MANIFEST, TEMPORARY, atomic_path, read_json, write_json, write_manifest
from dinoskip.io.images import image_from_bytes, is_plain_jpeg
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import remove
from dinoskip.runtime.console import Progress, log
from dinoskip.runtime.cores import available_cores
from dinoskip.settings.config import Config

PER_SHARD = 1000  # images: what is lost of an interrupted packing is at most one shard
SUBSAMPLING = "4:2:0"


class PackConfig(Config):
    """``short_side`` in pixels, which no image is enlarged to; ``quality`` of the JPEGs, 1 to 100."""

    short_side: int = Field(default=256, ge=32, le=4096)
    quality: int = Field(default=90, ge=1, le=100)


def pack(source: Source, out: str | Path, config: PackConfig, *, threads: int = 0) -> Path:
    """Write ``source`` packed to the folder ``out``; return it. A finished packing of the same is left as it is.

    Images whose short side is above ``short_side`` are resized to it (Pillow's bicubic with antialiasing) and stored as
    JPEG; smaller JPEGs keep their bytes, other small images are stored as JPEG of their own size. Unreadable images are
    left out and listed in the record; :class:`DataError` once they are more than 1 %. :class:`ConfigError` if ``out``
    holds something else.
    """
    out = Path(out)
    plan: dict[str, Any] = {
        "format": 1, "source": source.fingerprint(), "source_images": len(source), "short_side": config.short_side,
        "enlarged": False, "filter": "bicubic, antialiased (Pillow)", "codec": "jpeg", "quality": config.quality,
        "subsampling": SUBSAMPLING, "per_shard": PER_SHARD, "changed_before": source.record,
    }  # fmt: skip
    with directory_lock(out):
        if _begun(out, plan):
            return out
        names = _member_names(source)
        shards = range(0, len(source), PER_SHARD)
        bad: dict[str, str] = {}
        threads = threads or available_cores()
        with ThreadPoolExecutor(threads) as pool, Progress("pack", len(source), "image") as progress:
            for number, start in enumerate(shards):
                members = range(start, min(start + PER_SHARD, len(source)))
                shard = out / f"shard-{number:05}.tar"
                if not shard.exists():
                    _write_shard(shard, source, members, names, config, pool)
                bad |= _left_out(shard, source, members, names, config)
                if len(bad) > BAD_SHARE * len(source):
                    raise DataError(
                        f"{source.root}: {len(bad)} of {len(source)} images cannot be read, more than {BAD_SHARE:.0%}: "
                        f"{', '.join(sorted(bad)[:10])}"
                    )
                progress.advance(len(members))
        for cache in out.glob(".*.index.json"):  # of this place and time, so no part of the output
            remove(cache)
        write_json(out / PACK_RECORD, {**plan, "images": len(source) - len(bad), "left_out": bad})
        write_manifest(out, {"pack": plan["source"]})
    return out


def _begun(out: Path, plan: dict[str, Any]) -> bool:
    """Prepare ``out`` for this plan, or find it begun (False) or finished (True) with the same one."""
    record = out / PACK_RECORD
    if record.exists():
        before = read_json(record)
        changed = [f"{key} {before.get(key)} → {value}" for key, value in plan.items() if before.get(key) != value]
        if changed:
            raise ConfigError(f"{out}: holds another packing: {', '.join(changed)}", "name a new folder")
        return (out / MANIFEST).exists()
    if any(not name.startswith((".lock", TEMPORARY)) for name in os.listdir(out)):
        raise ConfigError(f"{out}: is not an empty folder", "name a new one")
    write_json(record, plan)
    return False


def _member_names(source: Source) -> list[str]:
    """Names of the members: the image's own with ``.jpg`` for its suffix, made different where two would be the same.

    Dots before the suffix become ``_``, as WebDataset ends its keys at the first dot.
    """
    names, taken = [], set()
    for number, name in enumerate(source.names):
        if isinstance(source, TarShards):  # without the old shard's name
            name = name.partition("/")[2]
        folder, _, last = name.rpartition("/")
        stem = os.path.splitext(last)[0].replace(".", "_")
        key = f"{folder}/{stem}".lstrip("/")
        while key in taken:
            key = f"{key}-{number}"
        taken.add(key)
        names.append(f"{key}.jpg")
    return names


def _resized(source: Source, index: int, config: PackConfig) -> bytes | None:
    """Return the JPEG of one image; None if it cannot be read."""
    try:
        content = source.encoded(index)
        pixels = image_from_bytes(content, source.where(index))
    except DataError as error:
        log.warning("left out: %s", error)
        return None
    height, width = pixels.shape[:2]
    scale = config.short_side / min(height, width)
    if scale >= 1 and is_plain_jpeg(content):
        return content
    picture = Image.fromarray(pixels)
    if scale < 1:
        size = (max(config.short_side, round(width * scale)), max(config.short_side, round(height * scale)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=config.quality, subsampling=SUBSAMPLING)
    return stream.getvalue()


def _write_shard(
    shard: Path, source: Source, members: range, names: list[str], config: PackConfig, pool: ThreadPoolExecutor
) -> None:
    labels = source.labels if isinstance(source, TarShards) and source.numbered else None
    with atomic_path(shard) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
        ahead = pool.map(lambda index: _resized(source, index, config), members)
        for index, content in zip(members, ahead, strict=True):
            if content is None:
                continue
            _add(archive, names[index], content)
            if labels is not None:
                _add(archive, names[index].removesuffix(".jpg") + ".cls", str(int(labels[index])).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member without times or owners: the same images give the same bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def _left_out(shard: Path, source: Source, members: range, names: list[str], config: PackConfig) -> dict[str, str]:
    """Images of a finished shard that are not in it, name → reason; also of a shard that an earlier run wrote."""
    present = set(read_index(shard).names)
    missing = [index for index in members if names[index] not in present]
    reasons = {}
    for index in missing:
        try:
            image_from_bytes(source.encoded(index), source.where(index))
            reasons[source.names[index]] = "could not be read when it was packed"
        except DataError as error:
            reasons[source.names[index]] = str(error)
    return reasons
