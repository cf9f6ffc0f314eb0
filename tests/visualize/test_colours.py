from __future__ import annotations

import dataclasses

import numpy as np

from visualize.colours import aligned, pca_views
from visualize.pca import PatchPCA
from visualize.roughness import roughness


def test_one_basis_serves_all_images_and_absent_ones_are_none(make_scene):
    scene = make_scene()
    ids = [image.id for image in scene.images]
    store = scene.models[0].store
    colours = pca_views([None, store], [*ids, "absent"]).aligned
    assert colours[0] == {}
    assert set(colours[1]) == set(store.blocks)
    assert colours[1][2][-1] is None
    same = dataclasses.replace(store, arrays={2: store.arrays[2][[0, 0, 0]]}, blocks=(2,))
    first, second, _ = pca_views([same], ids).aligned[0][2]
    np.testing.assert_array_equal(first, second)  # the same tokens have the same colours in every image
    assert first.shape == (8, 8, 3)
    assert first.dtype == np.uint8


def test_an_image_of_a_diverged_model_is_none_and_spoils_no_other(make_scene):
    store = make_scene().models[0].store
    arrays = {2: store.arrays[2].copy(), 3: np.full_like(store.arrays[3], np.nan)}
    arrays[2][1, 5] = np.inf
    colours = pca_views([dataclasses.replace(store, arrays=arrays, blocks=(2, 3))], store.ids).aligned[0]
    assert [picture is None for picture in colours[2]] == [False, True, False]
    assert 3 not in colours


def test_a_rotated_copy_gets_the_first_models_colours_and_leaves_them_alone(make_scene):
    store = make_scene().models[0].store
    ids = list(store.ids)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    turned = {block: array.astype(np.float32) @ -rotation for block, array in store.arrays.items()}
    copy = dataclasses.replace(store, arrays=turned)
    alone = pca_views([store], ids).aligned[0]
    first, second = pca_views([store, copy], ids).aligned
    for block in store.blocks:
        for row in range(len(ids)):
            np.testing.assert_array_equal(first[block][row], alone[block][row])
            assert np.abs(second[block][row].astype(int) - first[block][row]).max() <= 2


def test_colours_do_not_depend_on_the_order_of_images(make_scene):
    store = make_scene().models[0].store
    ids = list(store.ids)
    forward, backward = pca_views([store], ids).aligned[0], pca_views([store], ids[::-1]).aligned[0]
    for block in store.blocks:
        for one, other in zip(forward[block], backward[block][::-1], strict=True):
            assert np.abs(one.astype(int) - other).max() <= 1


def test_images_coloured_apart_have_the_colours_that_they_have_together(make_scene):
    """Images have the same colours alone with the bases of all images, and other ones with the bases of a part."""
    scene = make_scene()
    stores, ids = [model.store for model in scene.models], [image.id for image in scene.images]
    whole = pca_views(stores, ids)
    part = pca_views(stores, ids[1:], whole.bases)
    for name in ("aligned", "unturned", "image", "roughness"):
        for everything, some in zip(getattr(whole, name), getattr(part, name), strict=True):
            assert everything.keys() == some.keys()
            for block in some:
                for one, other in zip(everything[block][1:], some[block], strict=True):
                    np.testing.assert_array_equal(one, other)
    later = pca_views(stores, ids[1:], pca_views(stores, ids[:1]).bases)
    assert any(
        not np.array_equal(one, other) for one, other in zip(later.aligned[0][2], whole.aligned[0][2][1:], strict=True)
    )


def test_three_views_and_the_first_model_the_same_in_each(make_scene):
    scene = make_scene()
    stores, ids = [model.store for model in scene.models], [image.id for image in scene.images]
    views, alone = pca_views(stores, ids), pca_views(stores[:1], ids)
    assert set(views.unturned[0]) == {1, 2}, "at the deepest block they are the aligned ones"
    for block in stores[0].blocks:
        for row in range(len(ids)):
            np.testing.assert_array_equal(views.aligned[0][block][row], alone.aligned[0][block][row])
            np.testing.assert_array_equal(views.image[0][block][row], alone.image[0][block][row])
    second = pca_views(stores[1:], ids)
    np.testing.assert_array_equal(views.unturned[1][2][0], second.unturned[0][2][0])  # not turned: as if it were alone
    assert (views.aligned[1][2][0] != views.unturned[1][2][0]).any()


def test_blocks_whose_components_are_turned_or_change_places_have_the_same_colours(make_scene):
    """Features of a block times an orthogonal matrix are the same figure; colours along blocks say so."""
    store = make_scene().models[0].store
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(16, 16)))[0]
    deepest = store.arrays[3].astype(np.float32)
    same = dataclasses.replace(store, arrays={1: deepest @ -rotation, 2: deepest @ rotation, 3: deepest})
    views = pca_views([same], list(store.ids))
    for block in (1, 2):
        for row in range(3):
            there = views.aligned[0][3][row].astype(int)
            assert np.abs(views.aligned[0][block][row].astype(int) - there).max() <= 2
    assert list(views.aligned[0]) == [1, 2, 3]


def test_an_images_own_basis_does_not_know_the_others(make_scene):
    stores = [model.store for model in make_scene().models]
    ids = list(stores[0].ids)
    together, backward, alone = pca_views(stores, ids), pca_views(stores, ids[::-1]), pca_views(stores, ids[:1])
    for number in range(2):
        for block in stores[0].blocks:
            np.testing.assert_array_equal(together.image[number][block][0], alone.image[number][block][0])
            np.testing.assert_array_equal(together.image[number][block][0], backward.image[number][block][-1])


def test_a_turned_copy_has_the_first_models_colours_in_its_own_basis_of_each_image_too(make_scene):
    store = make_scene().models[0].store
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    turned = {block: array.astype(np.float32) @ -rotation for block, array in store.arrays.items()}
    views = pca_views([store, dataclasses.replace(store, arrays=turned)], list(store.ids))
    for row in range(3):
        assert np.abs(views.image[1][2][row].astype(int) - views.image[0][2][row]).max() <= 2


def test_roughness_is_that_of_the_pictures_before_they_are_coloured(make_scene):
    stores = [model.store for model in make_scene().models]
    ids = list(stores[0].ids)
    views, alone = pca_views(stores, [*ids, "absent"]), pca_views(stores[1:], ids)
    scores = []
    for store in stores:
        tokens = store.arrays[2].astype(np.float32)
        scores.append(dict(zip(ids, PatchPCA(3).fit(tokens).transform(tokens).reshape(3, 8, 8, 3), strict=True)))
    turned = aligned(scores[1], scores[0])
    for name, found in (("turned", turned), ("not", scores[1])):
        expected = [roughness(found[one]) for one in ids]
        np.testing.assert_allclose(views.roughness[1][2], [*expected, np.nan], rtol=1e-6, err_msg=name)
    assert views.roughness[1][2][:3] == alone.roughness[0][2]
    assert all(set(own) == {1, 2, 3} for own in views.roughness)


def test_collapsed_features_have_no_roughness_and_noise_has_one(make_scene):
    store = make_scene().models[0].store
    rng = np.random.default_rng(0)
    one = rng.normal(size=(1, 1, 16)).astype(np.float16)
    few = np.concatenate([np.broadcast_to(one, (2, 64, 16)), rng.normal(size=(1, 64, 16)).astype(np.float16)])
    arrays = {1: np.broadcast_to(one, (3, 64, 16)), 2: few, 3: rng.normal(size=(3, 64, 16)).astype(np.float16)}
    found = pca_views([dataclasses.replace(store, arrays=arrays)], list(store.ids)).roughness[0]
    assert np.isnan(found[1]).all()
    assert np.isnan(found[2]).tolist() == [True, True, False]
    np.testing.assert_allclose(found[3], 1, atol=0.2)
