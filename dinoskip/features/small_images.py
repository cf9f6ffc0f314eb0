"""Images that a network cannot read in their own size: they are smaller than a patch, and may be left out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dinoskip.errors import DataError
from dinoskip.features.transform import Transform
from dinoskip.io.images import image_size
from dinoskip.runtime.console import log


def without_small(opened: Any, transform: Transform, multiple: int) -> Any:
    """Return a split without images that have a side of fewer than ``multiple`` pixels, where images keep their size.

    They are named, and counted in ``left_out``. Other transforms enlarge images: the split is returned as it is. Raises
    :class:`DataError` if nothing is left.
    """
    if transform.mode != "native":
        return opened
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(image_size, [opened.path(index) for index in range(len(opened.ids))]))
    small = [index for index, size in enumerate(sizes) if min(size) < multiple]
    if not small:
        return opened
    height, width = sizes[small[0]]
    text = f"smaller than a patch of {multiple}×{multiple}, such as {opened.path(small[0])} ({width}×{height} pixels)"
    if len(small) == len(sizes):
        raise DataError(f"{opened.path(0).parent}: all images are {text}")
    log.warning("%d images left out: %s", len(small), text)
    kept = opened.part([index for index in range(len(sizes)) if index not in set(small)])
    return replace(kept, left_out=opened.left_out + len(small))
