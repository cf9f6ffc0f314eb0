"""Windows hold what an export of all images holds, to the bit, and no more than their limit at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dinoskip.errors import DataError
from dinoskip.features import ExportSettings, FeatureWindows, Transform, export
from dinoskip.models import Backbone

RAGGED = [(40, 56), (24, 24), (40, 56), (33, 64), (24, 24), (40, 56), (24, 24)]


@pytest.mark.parametrize("mode", ["native", "square"])
@pytest.mark.parametrize("limit", [1, 60_000, 10**9])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_windows_have_the_bits_of_the_store(
    backbone: Backbone, images: Callable, tmp_path: object, mode: str, limit: int, dtype: str
) -> None:
    dataset = images(RAGGED)
    options = {"transform": Transform.model_validate({"mode": mode, "size": 32}), "batch_size": 2, "dtype": dtype}
    store = export(backbone, dataset, dataset.root.parent / "store", "all", "key", "none", cls=False, **options)
    windows = FeatureWindows(backbone, dataset, ExportSettings("all", "key", "none", cls=False, **options), limit=limit)
    assert (windows.ids, windows.key, windows.weights_hash) == (store.ids, store.key, store.weights_hash)
    seen, held = [], []
    for part in windows.parts():
        for local, name in enumerate(part.ids):
            i = store.ids.index(name)
            assert part.grid(local) == store.grid(i) == windows.grid(i)
            assert part.image_size(local) == store.image_size(i)
            for block in store.blocks:
                np.testing.assert_array_equal(part.tokens(block, local), store.tokens(block, i))
        seen += part.ids
        held.append(sum(part.tokens(block).nbytes for block in part.blocks))
    assert sorted(seen) == sorted(store.ids)
    assert mode == "native" or tuple(seen) == store.ids
    if limit == 10**9:
        assert len(held) == 1
    elif limit == 60_000 and dtype != "float32":
        assert 1 < len(held) < 4
        assert max(held) <= limit
    elif limit == 1:
        assert len(held) == len(windows.plan.batches)


def test_class_tokens_too(backbone: Backbone, images: Callable) -> None:
    dataset = images([(40, 56)] * 5)
    options = {"transform": Transform(mode="center_crop", size=32), "batch_size": 2, "tokens": False}
    store = export(backbone, dataset, dataset.root.parent / "store", [2], **options)
    parts = [part.cls(2) for part in FeatureWindows(backbone, dataset, ExportSettings([2], **options), limit=1).parts()]
    assert [len(part) for part in parts if part is not None] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate([part for part in parts if part is not None]), store.cls(2))


def test_what_is_done_is_not_computed_again(
    backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = images(RAGGED)
    settings = ExportSettings("all", transform=Transform(mode="native"), batch_size=2, cls=False)
    windows = FeatureWindows(backbone, dataset, settings, limit=1)
    done = np.zeros(len(RAGGED), dtype=bool)
    done[[0, 2, 5, 3]] = True  # all of one size, and the only one of another
    calls: list[int] = []
    original = backbone.layers
    monkeypatch.setattr(backbone, "layers", lambda *args, **kw: calls.append(len(args[0])) or original(*args, **kw))
    names = [name for part in windows.parts(done) for name in part.ids]
    assert sorted(names) == ["image01", "image04", "image06"]
    assert calls == [2, 1]
    assert list(windows.parts(np.ones(len(RAGGED), dtype=bool))) == []


def test_a_part_is_gone_when_the_next_is_there(backbone: Backbone, images: Callable) -> None:
    settings = ExportSettings([1], transform=Transform(size=32), batch_size=1)
    windows = FeatureWindows(backbone, images([(32, 32)] * 3), settings, limit=1)
    parts = windows.parts()
    first = next(parts)
    assert first.tokens(1).shape[0] == 1
    next(parts)
    with pytest.raises(DataError, match="missing from this feature store"):
        first.tokens(1)
