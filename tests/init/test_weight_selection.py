from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, weight_selection_
from dinoskip.init.config import WeightSelectionInit
from dinoskip.init.weight_selection import select_uniformly
from dinoskip.models import create_model, save_weights


def vit(size: str = "tiny", depth: int = 2, **options: Any) -> Any:
    return create_model(f"vit_{size}_patch16", depth=depth, img_size=32, **options)


@pytest.fixture(scope="module")
def teacher() -> Any:
    return vit("small", 3, num_classes=5)


def test_every_second_entry_of_the_first_blocks(teacher: Any) -> None:
    student = vit(num_classes=5)
    head = student.head.weight.clone()
    assert weight_selection_(student, teacher) is student
    theirs = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        if not name.startswith("head."):
            halves = [
                slice(None, None, have // want) for have, want in zip(theirs[name].shape, tensor.shape, strict=True)
            ]
            assert torch.equal(tensor, theirs[name][tuple(halves)]), name
    assert torch.equal(student.head.weight, head)


def test_a_teacher_of_the_same_size_is_copied() -> None:
    teacher, student = vit(), vit(skip=False)
    weight_selection_(student, teacher)
    assert all(torch.equal(tensor, teacher.state_dict()[name]) for name, tensor in student.state_dict().items())


@given(small=st.integers(1, 60), extra=st.integers(0, 80))
def test_the_rule(small: int, extra: int) -> None:
    """Ordered, without repetition, first entry always, last too unless the sizes divide."""
    large = small + extra
    picked = select_uniformly(torch.arange(large), (small,)).tolist()
    assert picked[0] == 0
    assert sorted(set(picked)) == picked
    assert len(picked) == small
    if large % small:
        assert picked[-1] == (large - 1 if small > 1 else 0)
        assert all(abs(index - i * (large - 1) / (small - 1)) <= 0.5 for i, index in enumerate(picked))
    else:
        assert picked == list(range(0, large, large // small))


@given(small=st.integers(1, 60), extra=st.integers(0, 80))
def test_query_key_and_value_rows_stay_apart(small: int, extra: int) -> None:
    large = small + extra
    part = torch.arange(3).repeat_interleave(large)
    assert torch.equal(select_uniformly(part, (3 * small,)), torch.arange(3).repeat_interleave(small))


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"size": "base"}, r"patch_embed.*larger than the teacher|cls_token \(1, 1, 768\) is larger"),
        ({"depth": 4}, "the student's 4 blocks are more than the teacher's"),
        ({"init_values": 0.1}, "only the student has blocks.0.ls1.gamma"),
        ({"reg_tokens": 2}, "only the student has reg_token"),
        ({"class_token": False, "global_pool": "avg"}, "only the"),
    ],
)
def test_what_does_not_fit(teacher: Any, student: dict[str, Any], message: str) -> None:
    made = vit(**student)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        weight_selection_(made, teacher)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())


def test_other_patches_positions_and_models(teacher: Any) -> None:
    with pytest.raises(ConfigError, match="patch size and image size must be the same"):
        weight_selection_(create_model("vit_tiny_patch8", depth=1, img_size=16), teacher)
    with pytest.raises(ConfigError, match=r"pos_embed is .* \(patch size and image size"):
        weight_selection_(create_model("vit_tiny_patch16", depth=1, img_size=64), teacher)
    with pytest.raises(ConfigError, match="the teacher is a Linear"):
        weight_selection_(vit(), torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="the student is a Linear"):
        weight_selection_(torch.nn.Linear(2, 2), teacher)


def test_from_a_weights_file(tmp_path: Any, teacher: Any) -> None:
    config = ModelConfig(name="vit_small_patch16", depth=3, img_size=32)
    large = build_model(config, 3)
    save_weights(tmp_path / "large.safetensors", large.state_dict(), config, {})
    init = WeightSelectionInit(teacher=f"weights:{tmp_path / 'large.safetensors'}")
    small = build_model(ModelConfig(name="vit_tiny_patch16", depth=2, img_size=32, skip=False, init=init), 0)
    weight = small.blocks[1].attn.qkv.weight
    assert torch.equal(weight, large.blocks[1].attn.qkv.weight[::2, ::2])


def test_a_network_with_skips_takes_nothing_from_one_without() -> None:
    with pytest.raises(ConfigError, match="the teacher has no skip connections"):
        weight_selection_(vit(), vit(skip=False))
    weight_selection_(vit(skip="mlp"), vit(skip=False))
