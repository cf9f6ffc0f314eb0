from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch

from dinoskip.errors import WeightsError
from dinoskip.io.files import load_tensors, save_tensors, write_manifest
from dinoskip.models import GrayingConfig, VitConfig, build_from_weights, create_model, load_weights, save_weights
from dinoskip.models.build import from_config
from dinoskip.models.export import check_network, hash_weights, model_shapes, strip_prefixes
from dinoskip.settings.specs import newest_checkpoint

CONFIG = VitConfig(name="vit_tiny_patch8", skip=False, depth=2, img_size=16)
INFO = {"epoch": 3, "role": "teacher", "seed": 0}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return create_model("vit_tiny_patch8", skip=False, depth=2, img_size=16).eval()


@pytest.fixture
def file(tmp_path: Path, model: torch.nn.Module) -> Path:
    path = tmp_path / "weights.safetensors"
    save_weights(path, model.state_dict(), CONFIG, INFO)
    return path


def rewritten(path: Path, state: dict[str, torch.Tensor], header: object | None = None) -> Path:
    header = {"format": 1, "model": CONFIG.model_dump(), "info": {}} if header is None else header
    save_tensors(path, state, {"dinoskip": header if isinstance(header, str) else json.dumps(header)})
    return path


def test_round_trip(file: Path, model: torch.nn.Module) -> None:
    state, config, info = load_weights(file)
    assert config == CONFIG
    assert info == INFO
    assert state.keys() == model.state_dict().keys()
    rebuilt, info = build_from_weights(file)
    images = torch.randn(1, 3, 16, 24)
    assert torch.equal(rebuilt(images), model(images))
    assert not rebuilt.training
    assert info["role"] == "teacher"


def test_half_precision_comes_back_as_such(tmp_path: Path, model: torch.nn.Module) -> None:
    half = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    save_weights(tmp_path / "w.safetensors", half, CONFIG, {})
    rebuilt, _ = build_from_weights(tmp_path / "w.safetensors")
    assert rebuilt.pos_embed.dtype == torch.bfloat16


def test_names_are_written_without_wrappers(tmp_path: Path, model: torch.nn.Module) -> None:
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in model.state_dict().items()}
    save_weights(tmp_path / "w.safetensors", wrapped, CONFIG, {})
    assert load_tensors(tmp_path / "w.safetensors").keys() == model.state_dict().keys()


def test_prefixes_go_at_the_start_only() -> None:
    one = torch.zeros(1)
    assert strip_prefixes({"module.backbone.blocks.module.w": one}, "x").keys() == {"blocks.module.w"}
    with pytest.raises(WeightsError, match="x: two tensors are both called a"):
        strip_prefixes({"module.a": one, "a": one}, "x")


def test_weights_that_do_not_fit_are_counted_and_listed(tmp_path: Path, model: torch.nn.Module) -> None:
    state = dict(model.state_dict())
    state["blocks.9.attn.qkv.weight"] = state.pop("blocks.1.attn.qkv.weight")
    state["cls_token"] = torch.zeros(1, 1, 5)
    with pytest.raises(WeightsError) as caught:
        build_from_weights(rewritten(tmp_path / "w.safetensors", state))
    text = str(caught.value)
    assert "28 of 30 do" in text
    assert "1 missing (blocks.1.attn.qkv.weight)" in text
    assert "1 not in the model (blocks.9.attn.qkv.weight)" in text
    assert "1 of another shape (cls_token (1, 1, 5) for (1, 1, 192))" in text
    assert "\n" not in text


def test_non_finite_weights_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["norm.weight"][3] = torch.nan
    with pytest.raises(WeightsError, match=r"not finite: 1 tensors \(norm.weight\)"):
        build_from_weights(rewritten(tmp_path / "w.safetensors", state))


def test_weights_that_are_all_zero_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"w\.safetensors: every weight is 0"):
        build_from_weights(rewritten(tmp_path / "w.safetensors", state))


def test_integers_in_the_place_of_weights_are_refused(model: torch.nn.Module) -> None:
    expected = model.state_dict()
    check_network(expected, {name: tensor.half() for name, tensor in expected.items()}, "w.pth")
    cast = {name: tensor if "norm" in name else (100 * tensor).to(torch.int8) for name, tensor in expected.items()}
    with pytest.raises(WeightsError, match=r"w\.pth: integers .*qkv"):
        check_network(expected, cast, "w.pth")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{", "damaged dinoskip header"),
        ({"format": 2, "model": {}, "info": {}}, "weights format 2"),
        ({"format": 1, "info": {}}, "damaged dinoskip header"),
        ({"format": 1, "model": {"name": "vit_huge"}, "info": {}}, "damaged dinoskip header"),
        ([], "damaged dinoskip header"),
        ("[" * 100_000, "damaged dinoskip header: nested too deeply"),
        ('{"format": 1' + " " * 2**20 + "}", "damaged dinoskip header: 1048589 characters"),
        ({"format": 1, "model": CONFIG.model_dump() | {"depth": 1_000_000}, "info": {}}, "less than or equal to 1000"),
        (
            {"format": 1, "model": CONFIG.model_dump() | {"img_size": 3_200_000}, "info": {}},
            "equal to 16384",
        ),
        ({"format": 1, "model": CONFIG.model_dump() | {"depth": 1000}, "info": {}}, "30 of 12006 do; 11976 missing"),
        ({"format": 1, "model": CONFIG.model_dump() | {"img_size": 16384}, "info": {}}, r"pos_embed \(1, 5, 192\) for"),
    ],
)
def test_damaged_headers(tmp_path: Path, model: torch.nn.Module, header: object, message: str) -> None:
    path = rewritten(tmp_path / "w.safetensors", dict(model.state_dict()), header)
    with pytest.raises(WeightsError, match=message):
        load_weights(path)


def test_the_shapes_of_a_model_are_told_without_building_it() -> None:
    gray = VitConfig(depth=1, graying=GrayingConfig())
    for config in (CONFIG, VitConfig(name="vit_mini_patch16", img_size=48), gray):
        state = from_config(config).state_dict()
        assert model_shapes(config) == {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_a_file_that_its_manifest_does_not_know_so_is_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    """A flipped bit of a checkpoint's weights, opened by their own path."""
    path = checkpoint(tmp_path, 4, model) / "teacher.safetensors"
    build_from_weights(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"teacher.safetensors: content differs from its recorded sha256"):
        build_from_weights(path)
    (path.parent / "MANIFEST.json").unlink()
    build_from_weights(path)  # nothing says that it is damaged


def test_integer_tensors_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    state = {name: tensor.to(torch.int32) for name, tensor in model.state_dict().items()}
    with pytest.raises(WeightsError, match="it holds tensors of type I32"):
        build_from_weights(rewritten(tmp_path / "w.safetensors", state))


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(WeightsError, match="not a regular file"):
            load_weights(path)
    with pytest.raises(WeightsError, match=r"a folder, not a file$"):
        load_weights(tmp_path)
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(WeightsError, match=r"a folder, not a file \(name the file in it: .*/weights.safetensors\)"):
        load_weights(tmp_path)


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    save_tensors(tmp_path / "plain.safetensors", {"a": torch.zeros(1)})
    with pytest.raises(WeightsError, match="no dinoskip header"):
        load_weights(tmp_path / "plain.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load_weights(tmp_path / "broken.safetensors")
    with pytest.raises(WeightsError, match="no such file"):
        load_weights(tmp_path / "absent.safetensors")


def test_hash_sees_names_shapes_and_bytes() -> None:
    base = {"a": torch.arange(6.0), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": torch.arange(6.0)}
    assert hash_weights(base) == hash_weights(same)
    others = [
        {"c": base["a"], "b": base["b"]},
        {"a": base["a"].reshape(2, 3), "b": base["b"]},
        {"a": base["a"], "b": base["b"] + 1e-7},
    ]
    assert len({hash_weights(state) for state in [base, *others]}) == 4


def checkpoint(run: Path, step: int, model: torch.nn.Module) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    save_weights(folder / "teacher.safetensors", model.state_dict(), CONFIG, {"step": step})
    write_manifest(folder)
    return folder


def test_newest_checkpoint_that_verifies(
    tmp_path: Path, model: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (9, 10, 200, 1000):
        checkpoint(tmp_path, step, model)
    folders = tmp_path / "checkpoints"
    assert newest_checkpoint(tmp_path).name == "step-00001000"
    damaged = folders / "step-00001000" / "teacher.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (folders / "step-00000200" / "MANIFEST.json").unlink()
    (folders / ".tmp-step-00002000").mkdir()
    with caplog.at_level(logging.WARNING, "dinoskip"):
        assert newest_checkpoint(tmp_path).name == "step-00000010"
    assert caplog.text.count("skipping a damaged checkpoint") == 2


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such run directory"):
        newest_checkpoint(tmp_path / "absent")
    with pytest.raises(WeightsError, match=r"no checkpoint that verifies \(0 found"):
        newest_checkpoint(tmp_path)
