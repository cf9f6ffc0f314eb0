"""The presets are two public commands: 20 steps of each against a plain re-implementation, with and without skips."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dinoskip.data.loader import Batch
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.settings.config import dump
from dinoskip.training import DinoConfig, PretrainJob
from dinoskip.training.dino import DINO
from dinoskip.training.objective import Engine, Step
from dinoskip.training.teacher_student import PRESETS
from tests.helpers.dino_reference import PlainDino, Published, Values, head, vit

PUBLISHED = {
    "dino_vits16_100ep": Published(100, 512, norm_last_layer=True, teacher_temp=0.04, warmup_teacher_temp_epochs=0),
    "dino_vits16_300ep": Published(300, 1024, norm_last_layer=False, teacher_temp=0.07, warmup_teacher_temp_epochs=30),
}
IMAGES, DEPTH, STEPS, PER_EPOCH = 3, 2, 20, 4
SMALL = {"out_dim": 24, "hidden_dim": 20, "bottleneck_dim": 12}


class _Views:
    def views(self, batch: Batch) -> list[torch.Tensor]:
        return list(batch.data.values())


def _views(step: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(step)
    return [
        torch.randn(n * IMAGES, 3, side, side, generator=rng, dtype=torch.float64) for n, side in ((2, 48), (2, 32))
    ]


@pytest.mark.parametrize("skip", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("preset", PUBLISHED)
def test_twenty_steps_are_those_of_the_public_command(preset: str, skip: bool) -> None:
    init = {"name": "trunc_normal"} if skip else {"name": "skipless", "alpha": 1.8, "beta": 1.0, "c": 3.0}
    model = {"name": "vit_tiny_patch16", "depth": DEPTH, "img_size": 48, "skip": skip, "init": init, "drop_path": 0}
    job = PretrainJob.model_validate({"model": model, "pretrain": {"preset": preset, **SMALL}})
    dino = DINO(job, job.pretrain, PER_EPOCH, torch.device("cpu"))
    for network in dino.networks.values():
        network.double()
    dino.center = dino.center.double()
    optimizer = build_optimizer(dino.student, job.optimizer)
    loader: Any = _Views()
    engine = Engine(dino.student, dino.student, optimizer, loader, World(0, 1, torch.device("cpu")), seed=0)

    rule = getattr(job.model, "position_resize", "timm")

    def network(values: Values, images: torch.Tensor) -> torch.Tensor:
        parts = [
            {name.partition(".")[2]: value for name, value in values.items() if name.startswith(part)}
            for part in ("backbone", "head")
        ]
        return head(parts[1], vit(parts[0], images, DEPTH, 3, skip, rule))

    plain = PlainDino(dict(dino.student.state_dict()), network, PUBLISHED[preset])
    for number in range(STEPS):
        views = _views(number)
        step = Step(engine, number, iter([Batch(torch.arange(IMAGES), dict(zip("gl", views, strict=True)))]))
        dino.step(step)
        assert float(step.means["loss"]) == pytest.approx(plain.step(number, PER_EPOCH, views), rel=1e-5), number
    for name, value in plain.student.items():
        torch.testing.assert_close(dino.student.state_dict()[name], value, rtol=1e-5, atol=1e-7, msg=name)
        torch.testing.assert_close(dino.teacher.state_dict()[name], plain.teacher[name], rtol=1e-5, atol=1e-7, msg=name)
    torch.testing.assert_close(dino.center, plain.center, rtol=1e-5, atol=1e-7)
    moved = bool((plain.teacher["head.last_g"] != 1).any())
    assert moved == (not PUBLISHED[preset].norm_last_layer)


def test_a_preset_is_a_default_and_what_is_given_stands() -> None:
    config = DinoConfig.model_validate({"preset": "dino_vits16_300ep", "epochs": 200})
    assert (config.epochs, config.batch_size, config.norm_last_layer) == (200, 1024, False)
    assert "preset" not in dump(config)
    assert config == DinoConfig.model_validate(dump(config))
    assert dump(DinoConfig()) == dump(DinoConfig.model_validate({}))


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="preset"):
        DinoConfig.model_validate({"preset": "dino_vits8"})
    assert set(PRESETS) == set(PUBLISHED)
