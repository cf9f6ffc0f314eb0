from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest

from visualize.gallery.similarity import COMPONENTS, ERROR, page_features, reduce_tokens


def tokens_of(rank: int, noise: float, count: int = 60, channels: int = 96) -> np.ndarray:
    rng = np.random.default_rng(rank)
    return (
        rng.normal(size=(count, rank)) @ rng.normal(size=(rank, channels)) + noise * rng.normal(size=(count, channels))
    ).astype(np.float32)


@pytest.mark.parametrize(("rank", "noise", "kept"), [(1, 0.0, 8), (20, 0.0, 24), (10, 0.3, 16), (96, 1.0, 48)])
def test_cosines_are_within_the_stated_error_and_no_component_is_wasted(rank, noise, kept):
    tokens = tokens_of(rank, noise)
    found = reduce_tokens([tokens])
    unit = tokens.astype(np.float64) / np.linalg.norm(tokens, axis=1, keepdims=True)
    near = found.codes[0] * found.scales.astype(np.float64)
    difference = np.abs(unit @ unit.T - near @ near.T).max()
    assert difference == pytest.approx(found.error, abs=1e-5)
    assert found.error <= ERROR
    assert found.codes[0].shape == (60, kept)
    assert found.codes[0].dtype == np.int8


def test_where_the_most_components_do_not_do_the_error_says_so():
    found = reduce_tokens([tokens_of(300, 1.0, count=300, channels=320)])
    assert found.codes[0].shape[1] == COMPONENTS[-1]
    assert found.error > ERROR


def test_cosines_of_patches_of_two_images_are_within_the_error():
    images = [tokens_of(10, 0.3), tokens_of(20, 0.2, count=40)]
    found = reduce_tokens(images)
    one, other = (tokens.astype(np.float64) / np.linalg.norm(tokens, axis=1, keepdims=True) for tokens in images)
    near = [codes * found.scales.astype(np.float64) for codes in found.codes]
    assert np.abs(one @ other.T - near[0] @ near[1].T).max() <= found.error + 1e-6


def test_page_features_are_decoded_to_the_reduced_tokens(make_scene):
    store = make_scene().models[0].store
    names = list(store.ids[:2])
    found = page_features(store, [*names, "nobody"])
    assert list(found) == names
    assert found[names[1]]["size"] == [8, 8]
    for block in store.blocks:
        reduced = reduce_tokens([np.asarray(store.tokens(block, at), np.float32) for at in (0, 1)])
        for at, name in enumerate(names):
            entry = found[name]["blocks"][str(block)]
            codes = np.frombuffer(base64.b64decode(entry["codes"]), np.int8).reshape(64, -1)
            np.testing.assert_array_equal(codes, reduced.codes[at])
            assert len(entry["scales"]) == codes.shape[1]
    broken = dataclasses.replace(store, arrays={1: np.full_like(store.arrays[1], np.nan)}, blocks=(1,))
    assert page_features(broken, store.ids[:1]) == {}
