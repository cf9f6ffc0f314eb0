from __future__ import annotations

import dataclasses

import numpy as np

from visualize.colours import pca_colours


def test_one_basis_serves_all_images_and_absent_ones_are_none(make_scene):
    scene = make_scene()
    ids = [image.id for image in scene.images]
    store = scene.models[0].store
    colours = pca_colours([None, store], [*ids, "absent"])
    assert colours[0] == {}
    assert set(colours[1]) == set(store.blocks)
    assert colours[1][2][-1] is None
    same = dataclasses.replace(store, arrays={2: store.arrays[2][[0, 0, 0]]}, blocks=(2,))
    first, second, _ = pca_colours([same], ids)[0][2]
    np.testing.assert_array_equal(first, second)  # the same tokens have the same colours in every image
    assert first.shape == (8, 8, 3)
    assert first.dtype == np.uint8


def test_an_image_of_a_diverged_model_is_none_and_spoils_no_other(make_scene):
    store = make_scene().models[0].store
    arrays = {2: store.arrays[2].copy(), 3: np.full_like(store.arrays[3], np.nan)}
    arrays[2][1, 5] = np.inf
    colours = pca_colours([dataclasses.replace(store, arrays=arrays, blocks=(2, 3))], store.ids)[0]
    assert [picture is None for picture in colours[2]] == [False, True, False]
    assert 3 not in colours


def test_a_rotated_copy_gets_the_first_models_colours_and_leaves_them_alone(make_scene):
    store = make_scene().models[0].store
    ids = list(store.ids)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    turned = {block: array.astype(np.float32) @ -rotation for block, array in store.arrays.items()}
    copy = dataclasses.replace(store, arrays=turned)
    alone = pca_colours([store], ids)[0]
    first, second = pca_colours([store, copy], ids)
    for block in store.blocks:
        for row in range(len(ids)):
            np.testing.assert_array_equal(first[block][row], alone[block][row])
            assert np.abs(second[block][row].astype(int) - first[block][row]).max() <= 2


def test_colours_do_not_depend_on_the_order_of_images(make_scene):
    store = make_scene().models[0].store
    ids = list(store.ids)
    forward, backward = pca_colours([store], ids)[0], pca_colours([store], ids[::-1])[0]
    for block in store.blocks:
        for one, other in zip(forward[block], backward[block][::-1], strict=True):
            assert np.abs(one.astype(int) - other).max() <= 1
