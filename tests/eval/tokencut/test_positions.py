"""Position taken out of a set's features: by the mean of every position, or as RASA and INSID3 do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import eval.tokencut.positions
from dinoskip.diagnostics.position_removal import insid3_debiased
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from eval.tokencut import TokenCut, TokenCutConfig, to_pixels, tokencut
from eval.tokencut.lost import lost
from eval.tokencut.positions import (
    collect,
    moments_of,
    open_removal,
    position_share,
    rasa_projection,
    without_positions,
)
from tests.eval.tokencut.test_evaluation import Boxes
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("tokencut")
SIZES = ((40, 56), (24, 33), (37, 50), (24, 40), (41, 80))  # in patches of 8: two of 5 x 7, two of 3 x 5, one of 6 x 10


class Pictures(Boxes):
    """Images of three grids, one of which one image alone has; the object of each is its left half."""

    def boxes(self, index: int) -> np.ndarray:
        height, width = SIZES["badce".index(self.ids[index])]
        return np.array([[0, 0, width // 2, height]], dtype=np.float32)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    pictures = Pictures(tmp_path_factory.mktemp("images"), tuple("badce"))
    rng = np.random.default_rng(0)
    for index, (height, width) in enumerate(SIZES):
        pixels = rng.integers(0, 60, (height, width, 3), dtype=np.uint8)
        pixels[:, : width // 2] += 150
        Image.fromarray(pixels).save(pictures.path(index))
    return pictures


def windows_of(dataset: Boxes) -> FeatureWindows:
    settings = ExportSettings("all", "key", "none", "float32", transform=Transform(mode="native"))
    return FeatureWindows(tiny_vit(8), dataset, settings, limit=1)


def store_of(dataset: Boxes, out: Path, mode: str = "native", size: int = 32) -> FeatureStore:
    transform = Transform.model_validate({"mode": mode, "size": size})
    return export(tiny_vit(8), dataset, out, "all", facet="key", norm="none", dtype="float32", transform=transform)


@pytest.fixture(scope="module")
def store(dataset: Boxes, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return store_of(dataset, tmp_path_factory.mktemp("stores") / "native")


def by_grid(store: FeatureStore, block: int) -> dict[tuple[int, int], list[int]]:
    grids: dict[tuple[int, int], list[int]] = {}
    for i in range(len(store)):
        grids.setdefault(store.grid(i), []).append(i)
    return grids


@pytest.mark.parametrize("rule", ["mean", "mean_kept"])
def test_every_grid_is_freed_of_its_own_means(
    dataset: Boxes, store: FeatureStore, tmp_path: Path, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = TokenCutConfig.model_validate({"positions": rule, "lost_k": 5})
    with caplog.at_level("WARNING", logger="dinoskip"):
        rows = evaluate(store, dataset, tmp_path, config, {}, multiscale=(1, 2))
    assert {row.protocol for row in rows if not row.is_baseline} == {
        f"tokencut tau=0.2 eps=1e-05, positions {rule}", f"lost k=5, positions {rule}",
    }  # fmt: skip
    found, of_lost = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("boxes", "boxes_lost"))
    shares = json.loads((tmp_path / "positions.json").read_text())
    several = json.loads((tmp_path / "boxes_multiscale.json").read_text())
    for grid, members in by_grid(store, 2).items():
        freed = {}
        for block in (1, 2):
            features = np.stack([store.tokens(block, i) for i in members])
            freed[block] = without_positions(features, keep_mean=rule == "mean_kept")
            name = f"{grid[0]}x{grid[1]}"
            if len(members) > 1:
                share = position_share(features)
                assert shares[str(block)][name] == {"images": len(members), "share": pytest.approx(share)}
            else:
                assert name not in shares[str(block)]
        for at, i in enumerate(members):
            own = tokencut(freed[2][at], grid)
            assert isinstance(own, TokenCut)
            size = store.image_size(i)
            assert found[store.ids[i]]["2"] == list(to_pixels(own.box, 8, size))
            if len(members) == 1:
                assert found[store.ids[i]]["2"] == of_lost[store.ids[i]]["2"] == several[store.ids[i]] == [-1] * 4
                continue
            assert of_lost[store.ids[i]]["2"] == list(to_pixels(lost(freed[2][at], grid, 5).box, 8, size))
            units = [freed[block][at] / np.linalg.norm(freed[block][at], axis=1, keepdims=True) for block in (1, 2)]
            together = tokencut(np.concatenate(units, axis=1), grid)
            assert isinstance(together, TokenCut)
            assert several[store.ids[i]] == list(to_pixels(together.box, 8, size))
    assert all(row.degenerate is not None and row.degenerate >= 0.2 for row in rows if not row.is_baseline)
    assert [record.args for record in caplog.records if "grid that no other" in record.getMessage()] == [(1, 5)]


@pytest.mark.parametrize("rule", ["mean", "rasa", "insid3"])
def test_windows_give_the_files_of_a_store(dataset: Boxes, store: FeatureStore, tmp_path: Path, rule: str) -> None:
    config = TokenCutConfig.model_validate({"positions": rule, "lost_k": 5})
    network = tiny_vit(8) if rule == "insid3" else None
    evaluate(store, dataset, tmp_path / "store", config, {}, multiscale=(1, 2), backbone=network)
    evaluate(windows_of(dataset), dataset, tmp_path / "windows", config, {}, multiscale=(1, 2), backbone=network)
    there = contents(tmp_path / "store")
    assert contents(tmp_path / "windows") == there
    assert not any("progress" in name or "positions_" in name for name in there)


def test_a_stopped_run_collects_once(
    dataset: Boxes, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, passes = eval.tokencut.positions._conclude, []
    monkeypatch.setattr(eval.tokencut.positions, "_conclude", lambda removal: passes.append(1) or original(removal))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    config = TokenCutConfig(positions="mean")
    with monkeypatch.context() as patched:
        patched.setattr(eval.tokencut.evaluation, "cut_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate(windows_of(dataset), dataset, tmp_path / "one", config, {})
    evaluate(windows_of(dataset), dataset, tmp_path / "one", config, {})
    assert passes == [1]
    evaluate(store, dataset, tmp_path / "two", config, {})
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_insid3_takes_out_what_the_network_sees_of_a_flat_image(store: FeatureStore) -> None:
    network = tiny_vit(8)
    removal = open_removal(store, "insid3", network)
    assert removal is not None
    collect(removal, store, network)
    for i in range(len(store)):
        grid, tokens = store.grid(i), store.tokens(2, i)
        mean, std = (torch.tensor(values)[:, None, None] for values in (network.mean, network.std))
        black = ((torch.zeros(3, 8 * grid[0], 8 * grid[1]) - mean) / std)[None]
        flat = network.layers(black, [2], "key")[2].tokens[0]
        most = min(round(tokens.shape[1] * 500 / 1024), len(tokens) - 1)
        expected = insid3_debiased(torch.from_numpy(tokens), flat, most).numpy()
        np.testing.assert_allclose(removal(2, grid, tokens), expected, atol=1e-5)
    with pytest.raises(ConfigError, match="insid3"):
        open_removal(store, "insid3", None)


def test_rasa_leaves_a_linear_probe_nothing_to_read() -> None:
    """Row and column lie in two directions; at most nine rounds of two of 48 channels are taken out."""
    grid, rng = (6, 9), np.random.default_rng(0)
    places = np.indices(grid).reshape(2, -1).T / grid
    content = rng.standard_normal((40, 54, 48))
    features = content + 5 * (places - places.mean(0)) @ rng.standard_normal((2, 48))
    projection = rasa_projection(sum(moments_of(tokens, grid) for tokens in features))
    freed = features @ projection
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-9)
    assert np.trace(projection) == pytest.approx(round(np.trace(projection)))
    assert 48 - 2 * 9 <= np.trace(projection) <= 46
    constant = rasa_projection(moments_of(np.ones((54, 48)), grid))
    np.testing.assert_array_equal(constant, np.eye(48), "nothing to read: nothing taken out")

    def read(x: np.ndarray) -> float:
        flat, target = x.reshape(-1, 48), np.tile(places - places.mean(0), (40, 1))
        left = target - flat @ np.linalg.lstsq(flat, target, rcond=None)[0]
        return 1 - float((left**2).sum() / (target**2).sum())

    assert read(features) > 0.8
    assert read(freed) < 0.02
    assert position_share(features) > 0.3 > position_share(freed)


def test_a_token_that_is_the_same_in_every_image_becomes_zero() -> None:
    """It is zero to the bit, so that it is joined to nothing and not to a remainder of rounding."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((7, 20, 6)).astype(np.float32)
    features[:, 3] = features[0, 3] / 3
    assert not without_positions(features)[:, 3].any()


def test_features_that_are_not_finite_name_image_and_block(dataset: Boxes, tmp_path: Path) -> None:
    store = store_of(dataset, tmp_path / "store")
    tokens = np.array(store.tokens(2))
    tokens[0] = np.inf
    np.save(store.path / "tokens_block2.npy", tokens)
    damaged = FeatureStore.open(store.path, verify=False)
    with pytest.raises(DataError, match="b: block 2: features must be finite"):
        evaluate(damaged, dataset, tmp_path / "out", TokenCutConfig(positions="mean"), {})
