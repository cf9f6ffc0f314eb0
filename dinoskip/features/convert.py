"""A feature store for other programs: a folder for Hugging Face, safetensors, one file of HDF5, or indexes of FAISS.

``datasets.load_dataset(FOLDER)`` opens the first, and so does a hub: ``data/train-00000-of-00001.parquet``, ... have a
row an image with ``image`` (its id), ``height`` and ``width`` (of the patches' grid), for each block n
``block{n}_tokens`` (h·w lists of C numbers, raster order) and, where there are class tokens, ``block{n}_cls`` (C).
Numbers are float16 or float32 as in the store; bfloat16 becomes float32.

A copy holds what is given: one facet of a store, or several. Of several the names of arrays and columns have the facet
in them, as in the store: ``tokens_mlp_block3``, ``block3_mlp_tokens``.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import faiss
import numpy as np
import torch

from dinoskip.errors import ConfigError, DataError, translate_write_errors
from dinoskip.features.store import FeatureStore, as_float, cls_name, tokens_name
from dinoskip.io.files import (
    canonical_json,
    list_files,
    publish_directory,
    read_manifest,
    save_tensors,
    verify_manifest,
    write_json,
    write_manifest,
    write_text,
)
from dinoskip.io.output import reserve
from dinoskip.runtime.console import Progress
from dinoskip.settings.specs import without_folders

SHARD_BYTES = 2**28  # larger: fewer files; smaller: less is written, and fetched by a reader, at once
KIND = "converted features"  # of a manifest's info
_ROW_GROUP = 16  # images
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
# {name}

Frozen features of {network} on {images} images, a row each: blocks {blocks}, facet {facet}, norm {norm}.
`block{{n}}_tokens` are the patches in raster order on a grid of `height` × `width`.

```python
from datasets import load_dataset

rows = load_dataset("FOLDER", split="train").with_format("numpy")
rows[0]["image"], rows[0]["{tokens}"].shape  # (height * width, channels)
```

{about}
"""


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigError(f"--to: needs the package {package}", f"pip install 'dinoskip[{extra}]'") from error


def _is_ours(out: Path) -> bool:
    """Whether a folder is one that this module wrote, without a file more or another content."""
    with suppress(DataError):
        manifest = read_manifest(out)
        return manifest.info.get("kind") == KIND and not verify_manifest(out) and list_files(out) == [*manifest.files]
    return False


@contextmanager
def _new_folder(out: Path, *, again: bool = False) -> Iterator[Path]:
    """A folder to write into, which takes the place ``out`` at the end, whole or not at all.

    :class:`ConfigError` if something is there; ``again``: unless it is such a folder, unchanged.
    """
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (again and _is_ours(out)))):
        raise ConfigError(f"{out}: is there already", "move it away, or name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        translate_write_errors(out),
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=out.parent, ignore_cleanup_errors=True) as scratch,
    ):
        folder = Path(scratch) / out.name
        folder.mkdir()
        yield folder
        write_manifest(folder, {"kind": KIND})
        publish_directory(folder, out)


def facets_of(path: str | Path, facet: str | None = None) -> list[FeatureStore]:
    """Open a store once for each facet that it holds, or for the one that is named."""
    first = FeatureStore.open(path, facet=facet)
    others = first.facets[1:] if facet is None else ()
    return [first, *(FeatureStore.open(path, facet=other) for other in others)]


def _description(stores: Sequence[FeatureStore]) -> dict[str, Any]:
    """Return the copy's description; ``facet``, ``norm`` and ``dim`` are lists for several facets, as in a store."""
    about = {name: value for name, value in stores[0].manifest.items() if name != "facets"}
    if known := stores[0].provenance:
        about["provenance"] = known
    if len(stores) > 1:
        about |= {name: [store.manifest[name] for store in stores] for name in ("facet", "norm", "dim")}
    return about


def save_dataset(stores: Sequence[FeatureStore], out: Path) -> None:
    """Write a data set folder of Hugging Face, whole or not at all.

    Raises :class:`ConfigError` without pyarrow and for a folder that exists and is none of these.
    """
    pyarrow, parquet = _package("pyarrow", "datasets"), _package("pyarrow.parquet", "datasets")
    images = len(stores[0].ids)
    shards = max(1, math.ceil(sum(map(_bytes, stores)) / SHARD_BYTES))
    schema = _schema(pyarrow, stores)
    ends = np.linspace(0, images, min(shards, images) + 1).round().astype(int)
    with _new_folder(out, again=True) as folder, Progress("data set", images, "images") as progress:
        (folder / "data").mkdir()
        for number, (start, end) in enumerate(pairwise(ends)):
            path = folder / "data" / f"train-{number:05d}-of-{len(ends) - 1:05d}.parquet"
            with parquet.ParquetWriter(path, schema) as writer:
                for first in range(start, end, _ROW_GROUP):
                    rows = [_row(stores, index) for index in range(first, min(first + _ROW_GROUP, end))]
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                    progress.advance(len(rows))
        write_text(folder / "README.md", _card(stores, out.name))


def _tensors(stores: Sequence[FeatureStore], block: int) -> dict[str, torch.Tensor]:
    """The arrays of a block as stored, in memory; of ragged ones the first row of each image, ``offsets``."""
    tensors: dict[str, torch.Tensor] = {}
    for store in stores:
        kind, facet = getattr(torch, store.dtype), store.facet if len(stores) > 1 else ""
        if store.manifest["tokens"]:
            tensors[tokens_name(block, facet)] = torch.from_numpy(np.array(store.tokens(block))).view(kind)
        if (cls := store.cls(block)) is not None:
            tensors[cls_name(block, facet)] = torch.from_numpy(cls).to(kind)
        if store.offsets is not None:
            tensors["offsets"] = torch.from_numpy(store.offsets)  # the same of every facet
    return tensors


def _whole(store: FeatureStore, out: Path) -> None:
    """:class:`ConfigError` for levels, which share no offsets."""
    if len(store.of_equal_grids()) > 1:
        raise ConfigError(f"{store.path}: its levels have grids of their own", "read the .npy files")


def save_safetensors(stores: Sequence[FeatureStore], out: Path) -> None:
    """Write a file a block, ``block{b}.safetensors``, with the description as its metadata ``manifest``.

    It takes the memory of one block.
    """
    _whole(stores[0], out)
    about = {"manifest": canonical_json(_description(stores))}
    with _new_folder(out) as folder:
        for block in stores[0].blocks:
            save_tensors(folder / f"block{block}.safetensors", _tensors(stores, block), about)


def save_hdf5(stores: Sequence[FeatureStore], out: Path) -> None:
    """Write ``features.h5``: all arrays, bfloat16 as uint16 bits, and the description as attributes and tables.

    It takes the memory of one block. Raises :class:`ConfigError` without h5py.
    """
    h5py = _package("h5py", "hdf5")
    _whole(stores[0], out)
    with _new_folder(out) as folder:
        # Where a write fails, HDF5 fails again when it closes the file, and ends the process (SIGSEGV).
        reserve(folder / "features.h5", _most_bytes(stores[0]))
        _write_hdf5(h5py, stores, folder / "features.h5")


def _write_hdf5(h5py: Any, stores: Sequence[FeatureStore], path: Path) -> None:
    with h5py.File(path, "w") as opened:
        for key, value in _description(stores).items():
            if key == "ids":
                opened.create_dataset(key, data=value, dtype=h5py.string_dtype())
            elif key in {"grids", "image_sizes"}:  # a row an image: too long for attributes
                opened.create_dataset(key, data=np.array(value, np.int64))
            else:
                opened.attrs[key] = canonical_json(value) if isinstance(value, dict) else value
        for block in stores[0].blocks:
            for name, tensor in _tensors(stores, block).items():
                if name not in opened:
                    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
                    opened.create_dataset(name, data=bits.numpy())


def save_faiss(stores: Sequence[FeatureStore], out: Path) -> None:
    """Write an index of FAISS a block, of patches and of class tokens, and ``rows.json``, which image a row is of.

    ``tokens_block{b}.faiss`` and ``cls_block{b}.faiss`` are exact (``IndexFlatIP``) over unit vectors, so that inner
    products are cosines; a zero vector stays one. ``rows.json`` has the description and, of the patches, ``offsets``:
    image i has rows ``offsets[i]`` to ``offsets[i + 1]``, in raster order; of class tokens row i is image i. It takes
    the memory of one block in float32.
    """
    _whole(stores[0], out)
    first = stores[0]
    counts = [math.prod(first.grid(index)) for index in range(len(first))]
    about = {**_description(stores), "offsets": np.concatenate([[0], np.cumsum(counts)]).tolist()}
    with _new_folder(out) as folder, Progress("indexes", len(first.blocks), "blocks") as progress:
        for block in first.blocks:
            for store in stores:
                facet = store.facet if len(stores) > 1 else ""
                arrays = {cls_name(block, facet): store.cls(block)}
                if store.manifest["tokens"]:
                    arrays[tokens_name(block, facet)] = as_float(store.tokens(block)).reshape(-1, store.dim)
                for name, rows in arrays.items():
                    if rows is not None:
                        _write_index(rows, folder / f"{name}.faiss")
            progress.advance()
        write_json(folder / "rows.json", about)


def _write_index(rows: np.ndarray, path: Path) -> None:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows / np.where(norms == 0, 1, norms), dtype=np.float32))
    reserve(path, rows.nbytes + 2**10)  # where a write fails, FAISS leaves half a file without a word of the disk
    faiss.write_index(index, str(path))


def _most_bytes(store: FeatureStore) -> int:
    """Return an upper bound on the bytes of a store's arrays and description in one HDF5 file."""
    held = sum((store.path / name).stat().st_size for name in list_files(store.path))
    return held + 128 * len(store.ids) + 2**20  # sizes and a string's places for each image, headers


def _bytes(store: FeatureStore) -> int:
    return sum(int(store.tokens(block).nbytes) for block in store.blocks)


def _numbers(store: FeatureStore) -> np.dtype[Any]:
    return np.dtype(np.float16 if store.dtype == "float16" else np.float32)


def _column(stores: Sequence[FeatureStore], store: FeatureStore, block: int, what: str) -> str:
    return f"block{block}_{store.facet}_{what}" if len(stores) > 1 else f"block{block}_{what}"


def _schema(pyarrow: Any, stores: Sequence[FeatureStore]) -> Any:
    fields = [("image", pyarrow.string()), ("height", pyarrow.int32()), ("width", pyarrow.int32())]
    for store in stores:
        vector = pyarrow.list_(pyarrow.from_numpy_dtype(_numbers(store)))
        for block in store.blocks:
            fields.append((_column(stores, store, block, "tokens"), pyarrow.list_(vector)))
            if store.cls(block, slice(0, 1)) is not None:
                fields.append((_column(stores, store, block, "cls"), vector))
    return pyarrow.schema(fields)


def _row(stores: Sequence[FeatureStore], index: int) -> dict[str, Any]:
    height, width = stores[0].grid(index)
    row: dict[str, Any] = {"image": stores[0].ids[index], "height": height, "width": width}
    for store in stores:
        for block in store.blocks:
            tokens = store.tokens(block, index).astype(_numbers(store))
            row[_column(stores, store, block, "tokens")] = list(tokens)
            if (cls := store.cls(block, slice(index, index + 1))) is not None:
                row[_column(stores, store, block, "cls")] = cls[0].astype(_numbers(store))
    return row


def _card(stores: Sequence[FeatureStore], name: str) -> str:
    first = stores[0]
    facets, norms = (", ".join(dict.fromkeys(store.manifest[key] for store in stores)) for key in ("facet", "norm"))
    about = _about(first)
    return _CARD.format(
        name=name, images=len(first.ids), blocks=", ".join(map(str, first.blocks)), facet=facets, norm=norms,
        network=f"`{about['network']}`" if "network" in about else "a network that the store does not name",
        tokens=_column(stores, first, first.blocks[0], "tokens"),
        about="\n".join(f"- {label}: `{value}`" for label, value in about.items()),
    )  # fmt: skip


def _about(store: FeatureStore) -> dict[str, str]:
    """Return a card's entries on the origin of the features, without folders of the machine that made them."""
    known, manifest = store.provenance, store.manifest
    network, images = (known.get(name, {}) for name in ("network", "images"))
    listed: dict[str, Any] = {
        "network": without_folders(str(network["spec"])) if "spec" in network else None,
        "sha256 of its file": network.get("file_sha256"),
        "sha256 of its tensors": manifest["weights_hash"],
        "precision": network.get("precision"),
        "images": " ".join(str(images[name]) for name in ("kind", "split") if name in images) or None,
        "sha256 over the images": images.get("fingerprint"),
        "size": store.transform.label,
        "mean / std": store.normalisation,
        "positions": store.positions,
        "dinoskip": known.get("version"),
        "kernels": known.get("kernels"),
        "date": known.get("date"),
    }
    return {label: str(value) for label, value in listed.items() if value}


SAVE: Mapping[str, Callable[[Sequence[FeatureStore], Path], None]] = MappingProxyType(
    {"huggingface": save_dataset, "safetensors": save_safetensors, "hdf5": save_hdf5, "faiss": save_faiss}
)
"""Writers of the formats of ``dinoskip features convert --to``."""
