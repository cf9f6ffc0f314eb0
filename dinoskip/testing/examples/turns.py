"""RotNet (Gidaris et al. 2018, arXiv:1803.07728): a network says by how many quarter turns an image was turned."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.models.build import from_config
from dinoskip.settings.flops import supervised_step_flops
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.objective import Objective, Step
from dinoskip.training.pretrain_config import PretrainConfig, StepCost
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job
from dinoskip.training.supervised import Classifier, ClassifierHead


class TurnsConfig(PretrainConfig):
    """Four turns of one crop of each image."""

    objective: Literal["turns"] = "turns"
    crop_size: int = Field(224, ge=16, description="side of the crop in pixels")

    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """One crop."""
        return CropConfig(num_global=1, num_local=0, global_size=self.crop_size), AugmentConfig()

    def sizes(self) -> dict[str, int]:
        """Of the crop."""
        return {"crop_size": self.crop_size}

    def build(self, job: Job, steps_per_epoch: int, device: torch.device) -> Turns:
        """The classifier."""
        return Turns(job, self, steps_per_epoch, device)

    def cost(self, model: VitConfig) -> StepCost:
        """The classifier's, four times."""
        return StepCost(flops=4 * supervised_step_flops(model, 4, self.crop_size), head=4 * 768, networks=1)


class Turns(Objective):
    """A classifier of four classes."""

    observed = "student"

    def __init__(self, job: Job, config: TurnsConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config, self.buffers = job, config, {}
        self.schedules = Schedules(config, job.optimizer, steps_per_epoch)
        backbone = job.backbone(device)
        head = ClassifierHead(backbone.embed_dim, 4, seed=job.seed).to(device)
        self.networks = {"student": Classifier(backbone, head).train()}

    def build_network(self, role: str) -> nn.Module:
        """A classifier of the same architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return Classifier(backbone, ClassifierHead(backbone.embed_dim, 4))

    def step(self, step: Step) -> None:
        """One step."""
        step.begin(self.schedules.at(step.number))
        for (images,) in step.micro_batches():  # (B, 3, S, S)
            turns = torch.arange(4, device=images.device).repeat_interleave(len(images))
            with step.autocast():
                logits = step.forward(torch.cat([images.rot90(turn, (2, 3)) for turn in range(4)]))
            step.backward(F.cross_entropy(logits.float(), turns))
        step.gradients()
        if step.finite:
            step.optimizer.step()
