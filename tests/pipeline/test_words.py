"""Words for networks: skips, initialisation, what else tells them apart; random weights carry no famous name."""

import pytest

from dinoskip.init.config import ModelConfig
from dinoskip.optim.config import AdamWConfig, SoapConfig
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.words import at_epoch, variant_words, words_of_backbone, words_of_model
from dinoskip.settings.shipped import SHIPPED

CALIBRATED = {"skip": False, "init": {"name": "calibrated"}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "with skips"),
        ({"skip": False}, "skipless, default initialisation"),
        ({"skip": False, "init": {"name": "skipless"}}, "skipless, paper's initialisation"),
        (CALIBRATED, "skipless, calibrated"),
        ({"skip": False, "init": {"name": "calibrated", "mixing_heads": 1}}, "skipless, calibrated, heads that mix"),
        ({"skip": "mlp"}, "skips around MLPs alone, default initialisation"),
        ({"skip_weight": {"end": 0, "fraction": 0.6}}, "skips fading to 0, default initialisation"),
    ],
)
def test_a_trained_network_is_called_by_skips_and_initialisation(settings: dict[str, object], words: str) -> None:
    assert words_of_model(ModelConfig.model_validate(settings)) == words


def test_random_weights_carry_no_famous_name() -> None:
    spec = "timm:vit_small_patch14_dinov2,pretrained=false"
    assert words_of_backbone(spec, "vit_small_patch14_dinov2") == "ViT-S/14 (random weights)"
    assert words_of_backbone(spec, "mine") == "mine (random weights)"
    assert words_of_backbone("timm:resnet18,pretrained=false", "resnet18") == "resnet18 (random weights)"
    assert words_of_backbone("timm:vit_small_patch14_dinov2", "vit_small_patch14_dinov2") == "vit_small_patch14_dinov2"
    assert [words_of_backbone(one.spec, one.name) for one in SHIPPED.values()] == [
        one.words for one in SHIPPED.values()
    ]


def test_no_two_networks_of_a_study_are_called_the_same() -> None:
    model, skip = ModelConfig.model_validate(CALIBRATED), ModelConfig()
    named = [
        Variant("skip-adamw", skip, AdamWConfig()),
        Variant("calibrated-adamw", model, AdamWConfig()),
        Variant("calibrated-soap", model, SoapConfig()),
        Variant("gain-soap", model, SoapConfig()),
        Variant("deep-s0", model.model_copy(update={"depth": 9}), SoapConfig(), seed=0, family="deep"),
        Variant("deep-s1", model.model_copy(update={"depth": 9}), SoapConfig(), seed=1, family="deep"),
    ]
    words = variant_words(named)
    assert len(set(words.values())) == len(words) == 7
    assert words["skip-adamw"] == "with skips, AdamW"
    assert words["deep"] == "skipless, calibrated, SOAP, 9 blocks"
    assert words["deep-s1"] == "skipless, calibrated, SOAP, 9 blocks, seed 1"
    assert words["gain-soap"].endswith("12 blocks (gain-soap)")


def test_a_moment_of_training_is_said() -> None:
    assert [at_epoch("x", epoch) for epoch in (0, 1, 3)] == [
        "x, before training",
        "x, after 1 epoch",
        "x, after 3 epochs",
    ]
