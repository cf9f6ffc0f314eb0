"""The search of initialisations: what candidates do, in which order they are run, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from dinoskip.diagnostics import propagation
from dinoskip.init import skipless_, trunc_normal_
from dinoskip.io.files import write_json
from dinoskip.models import create_model
from dinoskip.models.vit import embed
from dinoskip.runtime.environment import describe
from studies.initialisations.candidates import CANDIDATES, centre_
from studies.initialisations.plan import MACHINE, MAIN, RATES, Run, all_runs, best_rate, done
from studies.initialisations.protocol import SIDE, Pixels
from studies.initialisations.table import aims, summary, trained, write_page
from tests.helpers.photographs import photographs


def network(name: str) -> VisionTransformer:
    model = create_model(
        "vit_mini_patch8", skip=name == "skip", depth=3, img_size=SIDE, embed_dim=96, num_heads=3, weight_init="skip"
    )
    trunc_normal_(model)
    CANDIDATES[name](model, photographs(SIDE).float(), 0)
    return model.eval()


@pytest.mark.slow  # a frozen script
@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_gives_a_network_that_can_learn(name: str) -> None:
    images = photographs(SIDE, held_out=True).float()
    first, again = network(name), network(name).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.state_dict().items())
    assert all(row.gradient > 1e-6 for row in propagation(first, images))


def test_scaled_candidates_compute_the_same() -> None:
    images = photographs(SIDE, held_out=True).float()
    for name in ("paper", "calibrated"):
        plain, scaled = network(name)(images), network(f"{name}, scaled")(images)
        assert float((scaled - plain).detach().norm() / plain.detach().norm()) < 1e-4


@torch.no_grad()
def test_class_tokens_look_at_patches_where_they_are_told_to() -> None:
    images = photographs(SIDE, held_out=True).float()

    def seen(name: str) -> list[float]:
        model, shares = network(name), []
        tokens = embed(model, images)
        for block in model.blocks:
            query, key, _ = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 3, 32)).permute(2, 0, 3, 1, 4)
            weights = (query[:, :, :1] @ key.mT / 32**0.5).softmax(-1)
            shares.append((1 - weights[:, 1:, 0, 0]).mean().item())  # by all heads but the first
            tokens = block(tokens)
        return shares

    plain = seen("calibrated")
    for name in ("CLS looks, rank 8", "CLS keeps a head"):
        shares = seen(name)
        print(name, shares, "without", plain)
        assert shares[1] > plain[1] + 0.2


@torch.no_grad()
def test_centring_subtracts_its_share_of_the_mean() -> None:
    model, images = network("paper"), photographs(SIDE).float()
    skipless_(model)
    centre_(model, images, 1.0, 0.0)
    block = model.blocks[0]
    output = block.attn(block.norm1(embed(model, images)))
    assert float(output[:, 1:].mean((0, 1)).abs().max()) < 1e-4
    assert (block.mlp.fc2.bias == 0).all()


def test_crops_are_cut_and_flipped() -> None:
    stored = torch.arange(64 * 64).reshape(64, 64).remainder(256).to(torch.uint8).expand(1, 3, 64, 64)
    part = Pixels(stored, torch.zeros(1, dtype=torch.long))
    rng = torch.Generator().manual_seed(0)
    crops = part.crops(torch.zeros(40, dtype=torch.long), rng)
    assert crops.shape == (40, 3, SIDE, SIDE)
    steps = (crops[:, 0, 0, 1] - crops[:, 0, 0, 0]).sign().unique()
    assert steps.tolist() == [-1.0, 1.0]


def result(accuracy: float, dense: float) -> dict[str, Any]:
    return {
        "accuracy": accuracy, "val_accuracy": accuracy, "knn": accuracy, "probe_miou": [20.0] * 11 + [dense],
        "token_cosine": [0.5] * 12, "cls_cosine": [0.5] * 12, "gradient_ratio": 3.0, "loss": [2.3], "final_loss": 2.0,
        "seconds": 120.0,
    }  # fmt: skip


def test_the_plan_begins_with_what_tells_most_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    every = list(all_runs(tmp_path))
    assert len({run.file for run in every}) == len(every) > 200
    assert {run.name for run in every[: 2 * len(MAIN)]} == set(MAIN)
    assert not done(tmp_path)
    slower = Run("paper", "adamw", RATES["adamw"][1], 0)
    for run, accuracy in ((Run("paper", "adamw", RATES["adamw"][0], 0), 20.0), (slower, 30.0)):
        write_json(tmp_path / run.file, result(accuracy, 12.0))
    assert best_rate(tmp_path, "paper", "adamw") == slower.lr
    assert Run("paper", "adamw", slower.lr, 2) in list(all_runs(tmp_path))
    assert len(done(tmp_path)) == 2


def test_the_page_says_who_meets_the_aims(tmp_path: Path) -> None:
    rate = RATES["adamw"][0]
    for name, accuracy, dense in (("skip", 30.0, 25.0), ("paper", 25.0, 12.0), ("calibrated", 26.0, 23.0)):
        for seed in (0, 1):
            write_json(tmp_path / Run(name, "adamw", rate, seed).file, result(accuracy + seed, dense))
        write_json(tmp_path / Run(name, "adamw", rate, 0).fresh_file, result(10.0, dense))
    write_json(tmp_path / Run("default", "adamw", rate, 0).file, {"failed": "not finite at step 3", "loss": [2.3]})
    results = done(tmp_path)
    rows = {row.name: row for row in trained(results)}
    assert rows["calibrated"].mean("accuracy") == 26.5
    assert rows["calibrated"].shown("probe_miou", -1) == "23.0 ± 0.0"
    assert aims(results)[2] == "| calibrated | adamw | -2.0 | +1.0 | +1.0 (2) | -2.0 (2) | 3 |"
    assert "All three aims are met by *calibrated* with adamw." in aims(results)
    slower = Run("calibrated", "adamw", RATES["adamw"][1], 0)
    better = {**results, slower: result(40.0, 30.0), replace(slower, lr=rate): result(20.0, 13.0)}
    assert aims(better)[2] == "| calibrated | adamw | +5.0 | +14.5 | -2.0 (2) | -7.0 (2) | 2 |"
    assert "All three aims are met by none." in aims(better)
    elsewhere = {run: one for run, one in better.items() if run.name != "calibrated" or run == slower}
    assert aims(elsewhere)[2] == "| calibrated | adamw | +5.0 | +14.5 | – | – | 2 |"
    write_json(tmp_path / MACHINE, describe())
    write_page(results, tmp_path, tmp_path / "page" / "initialisations.md")
    page = (tmp_path / "page" / "initialisations.md").read_text()
    assert "from 7 of" in page
    assert f"0.2 core-hours, {describe()['cores']} cores, " in page
    assert "| default | adamw | 0.001 (1) | 1 | not finite |" in page
    assert (tmp_path / "page" / "initialisations-blocks.svg").stat().st_size > 1000
    assert "What came out" not in page, "two seeds of three"
    for name, accuracy, dense in (("skip", 30.0, 25.0), ("paper", 25.0, 12.0), ("calibrated", 24.0, 23.0)):
        write_json(tmp_path / Run(name, "adamw", rate, 2).file, result(accuracy + 2, dense))
    [said, _] = summary(trained({run: one for run, one in done(tmp_path).items() if run.lr == rate}), [])
    assert (
        "the most accurate network without skips is *calibrated*, 26.3 ± 0.6 (skip 31.0 ± 1.0, paper 26.0 ± 1.0)"
        in said
    )
    assert "*calibrated* has the best dense features in the last block, 23.0 ± 0.0 (skip 25.0 ± 0.0)" in said
