"""A feature store as a data set folder of Hugging Face: ``datasets.load_dataset(FOLDER)`` opens it, and so does a hub.

``data/train-00000-of-00001.parquet``, ...: a row an image with ``image`` (its id), ``height`` and ``width`` (of the
patches' grid), for each block n ``block{n}_tokens`` (h·w lists of C numbers, raster order) and, where there are class
tokens, ``block{n}_cls`` (C). Numbers are float16 or float32 as in the store; bfloat16 becomes float32.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.console import Progress
from dinoskip.errors import ConfigError
from dinoskip.features.store import FeatureStore
from dinoskip.files import publish_directory, translate_write_errors, write_manifest, write_text

SHARD_BYTES = 2**28
_ROW_GROUP = 16  # images
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
# {name}

Frozen features of {images} images, a row each: blocks {blocks}, facet {facet}, norm {norm}, sha256 of the weights
`{weights}`. `block{{n}}_tokens` are the patches in raster order on a grid of `height` × `width`.

```python
from datasets import load_dataset

rows = load_dataset("FOLDER", split="train").with_format("numpy")
rows[0]["image"], rows[0]["block{first}_tokens"].shape  # (height * width, channels)
```
"""


def _arrow() -> tuple[Any, Any]:
    try:  # an extra
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("--to huggingface: needs the package pyarrow", "pip install 'dinoskip[datasets]'") from error


def save_dataset(store: FeatureStore, out: Path) -> int:
    """Write the folder, whole or not at all, and return its number of Parquet files.

    Raises :class:`ConfigError` without pyarrow and for a folder that exists and is none of these.
    """
    pyarrow, parquet = _arrow()
    if out.exists() and not (out / "data").is_dir():
        raise ConfigError(f"{out}: is there and is no data set folder", "name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    shards = max(1, math.ceil(_bytes(store) / SHARD_BYTES))
    ends = np.linspace(0, len(store.ids), min(shards, len(store.ids)) + 1).round().astype(int)
    with (
        translate_write_errors(out),
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=out.parent, ignore_cleanup_errors=True) as scratch,
    ):
        made = Path(scratch) / out.name
        (made / "data").mkdir(parents=True)
        with Progress("data set", len(store.ids), "images") as progress:
            for number, (start, end) in enumerate(pairwise(ends)):
                path = made / "data" / f"train-{number:05d}-of-{len(ends) - 1:05d}.parquet"
                with parquet.ParquetWriter(path, _schema(pyarrow, store)) as writer:
                    for first in range(start, end, _ROW_GROUP):
                        rows = [_row(store, index) for index in range(first, min(first + _ROW_GROUP, end))]
                        writer.write_table(pyarrow.Table.from_pylist(rows, schema=_schema(pyarrow, store)))
                        for _ in rows:
                            progress.advance()
        write_text(made / "README.md", _card(store, out.name))
        write_manifest(made)
        publish_directory(made, out)
    return len(ends) - 1


def _bytes(store: FeatureStore) -> int:
    return sum(int(store.tokens(block).nbytes) for block in store.blocks)


def _numbers(store: FeatureStore) -> np.dtype[Any]:
    return np.dtype(np.float16 if store.dtype == "float16" else np.float32)


def _schema(pyarrow: Any, store: FeatureStore) -> Any:
    vector = pyarrow.list_(pyarrow.from_numpy_dtype(_numbers(store)))
    fields = [("image", pyarrow.string()), ("height", pyarrow.int32()), ("width", pyarrow.int32())]
    for block in store.blocks:
        fields.append((f"block{block}_tokens", pyarrow.list_(vector)))
        fields += [(f"block{block}_cls", vector)] if store.cls(block, slice(0, 1)) is not None else []
    return pyarrow.schema(fields)


def _row(store: FeatureStore, index: int) -> dict[str, Any]:
    height, width = store.grid(index)
    row: dict[str, Any] = {"image": store.ids[index], "height": height, "width": width}
    for block in store.blocks:
        row[f"block{block}_tokens"] = list(store.tokens(block, index).astype(_numbers(store)))
        cls = store.cls(block, slice(index, index + 1))
        if cls is not None:
            row[f"block{block}_cls"] = cls[0].astype(_numbers(store))
    return row


def _card(store: FeatureStore, name: str) -> str:
    about = store.manifest
    return _CARD.format(
        name=name, images=len(store.ids), blocks=", ".join(map(str, store.blocks)), facet=about["facet"],
        norm=about["norm"], weights=about["weights_hash"], first=store.blocks[0],
    )  # fmt: skip
