"""Places of weights: specs of backbones, checkpoints of runs, headers of weights files. Nothing here imports torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dinoskip.errors import ConfigError, DataError, WeightsError, did_you_mean, first_line
from dinoskip.io.files import TensorFile, read_json, read_tensor_header, verify_manifest
from dinoskip.runtime.console import log
from dinoskip.settings.shipped import KIND as SHIPPED_KIND
from dinoskip.settings.shipped import shipped
from dinoskip.settings.vit_config import VitConfig

SPEC_KINDS = (SHIPPED_KIND, "run", "weights", "dino", "file", "timm", "tv", "hub", "hf", "python")
_CHECKPOINT_FILES = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".safetensors")
ROLES = ("teacher", "student")
_DTYPES = {"F64", "F32", "F16", "BF16"}  # of tensors in a weights file
FORMAT = 1  # of weights files: others are refused, not guessed at
METADATA_KEY = "dinoskip"
CHECKPOINTS = "checkpoints"  # folder of a run directory
_LONGEST_HEADER = 2**20  # characters


def declared_weights(path: Path) -> tuple[VitConfig, dict[str, Any], TensorFile]:
    """Return the model, the info and the whole header of a weights file, or raise :class:`WeightsError`."""
    header = read_tensor_header(path)
    text = header.metadata.get(METADATA_KEY)
    if text is None:
        raise WeightsError(f"{path}: no dinoskip header", "only files written by dinoskip say what model they are for")
    if len(text) > _LONGEST_HEADER:
        raise WeightsError(f"{path}: damaged dinoskip header: {len(text)} characters")
    try:
        declared = json.loads(text)
        if declared["format"] != FORMAT:
            raise WeightsError(f"{path}: weights format {declared['format']!r}, this version reads {FORMAT}")
        config, info = VitConfig.model_validate(declared["model"]), dict(declared["info"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WeightsError(
            f"{path}: damaged dinoskip header: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise WeightsError(f"{path}: damaged dinoskip header: {reason}") from error
    counted = {"I64"} if config.timm_name is not None else set()  # batches that BatchNorm has seen
    kinds = sorted(set(header.dtypes.values()) - _DTYPES - counted)
    if kinds:
        raise WeightsError(f"{path}: it holds tensors of type {kinds[0]}; weights are {', '.join(sorted(_DTYPES))}")
    return config, info, header


def list_checkpoints(run_dir: str | Path) -> dict[int, Path]:
    """List published ``run_dir/checkpoints/step-*`` by step, newest first, verified or not."""
    folders = (Path(run_dir) / CHECKPOINTS).glob("step-*")
    steps = {int(path.name[5:]): path for path in folders if path.name[5:].isdecimal() and path.is_dir()}
    return dict(sorted(steps.items(), reverse=True))


def verified_checkpoints(run_dir: str | Path) -> Iterator[Path]:
    """List checkpoints whose files match their manifest, newest first; damaged ones are logged and passed over."""
    for path in list_checkpoints(run_dir).values():
        problems = verify_manifest(path)
        if not problems:
            yield path
        else:
            log.warning("skipping a damaged checkpoint: %s", "; ".join(problems))


def newest_checkpoint(run_dir: str | Path) -> Path:
    """The newest checkpoint of a run that verifies; :class:`WeightsError` if none does."""
    newest = next(verified_checkpoints(run_dir), None)
    if newest is not None:
        return newest
    if not Path(run_dir).is_dir():
        raise WeightsError(f"{run_dir}: no such run directory")
    count = len(list_checkpoints(run_dir))
    raise WeightsError(f"{run_dir}: no checkpoint that verifies ({count} found in {Path(run_dir) / CHECKPOINTS})")


def exported_weights(checkpoint: Path) -> Path:
    """The weights file that a checkpoint is for: the teacher's, or the student's where there is none (supervised)."""
    teacher = checkpoint / "teacher.safetensors"
    return teacher if teacher.is_file() else checkpoint / "student.safetensors"


def _value(text: str) -> Any:
    """An option's value: true/false/null in any case, a number, else the text itself."""
    lowered = text.lower()
    try:
        return json.loads("null" if lowered == "none" else lowered)
    except ValueError:
        return text


def _parse(rest: str, spec: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME,key=value,...``; commas before the first ``key=`` belong to the name."""
    name, *options = re.split(r",(?=\s*\w+\s*=)", rest)
    parsed: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        # a path stays as it is written, whatever it is called
        parsed[key.strip()] = value.strip() if key.strip() in {"file", "layers"} else _value(value.strip())
    if "," in name and spec.startswith(("timm:", "tv:", "hub:", "hf:", "python:")):
        raise ConfigError(f"{spec}: option {name.split(',', 1)[1]!r} is not key=value")
    return name.strip(), parsed


def run_weights(folder: str, role: str | None = None) -> Path:
    """The weights file of a run's newest checkpoint: a role's, else the one that it is for."""
    checkpoint = newest_checkpoint(folder)
    return exported_weights(checkpoint) if role is None else checkpoint / f"{checked_role(role)}.safetensors"


def weights_file(spec: str) -> Path | None:
    """The file that a spec's weights lie in; None where there is none here, or the spec is none of ours."""
    try:
        kind, place, options = split_spec(spec)
        if kind == "run":
            return run_weights(place, options.get("role"))
    except (ConfigError, WeightsError):
        return None
    file = Path(options.get("file", place if kind in {"weights", "dino", "file"} else ""))
    return file if file.is_file() else None


def without_folders(spec: str) -> str:
    """A spec whose file or folder is named without those that it lies in, which are a machine's own."""
    kind, colon, rest = spec.partition(":")
    if kind in {"timm", "tv", "hub"} and not rest.startswith("local-dir:"):
        return spec
    place, comma, options = rest.partition(",") if colon and kind in SPEC_KINDS else spec.partition(",")
    head = f"{kind}:" if colon and kind in SPEC_KINDS else ""
    named = Path(place).name if Path(place).exists() or place.startswith(("/", ".")) else place
    return f"{head}{named}{comma}{options}"


def training_of(spec: str) -> dict[str, Any]:
    """Return the training facts in a spec's weights file: ``epoch``, ``initialisation`` and ``optimizer``, if recorded.

    Reads the header alone. Empty for backbones from elsewhere, and where there is no such file: opening it fails.
    """
    kind, place, options = split_spec(spec)
    try:
        if kind == "run":
            place = str(run_weights(place, options.get("role")))
        elif kind not in {"weights", "dino", "file"}:
            return {}
        _, info, _ = declared_weights(Path(place))
    except (ConfigError, WeightsError):
        return {}
    named = {"epoch": "epoch", "initialisation": "init", "optimizer": "optimizer"}
    return {field: info[key] for field, key in named.items() if key in info}


def authors_positions(kind: str, name: str) -> str:
    """Return the rule by which a network's authors resize its positions: "dino", "bicubic" or "timm".

    The rule holds for other image sizes. Only names of timm without registers have another rule than timm's: DINO and
    DINOv2 that of :func:`dinoskip.models.vit.dino_positions`, MAE bicubic interpolation without antialiasing. DINOv2
    with registers and OpenCLIP resize as timm does, and DINOv3's positions are rotary; for all other names timm's rule
    is assumed. A folder (``local-dir:``) has the name in its ``config.json``; one that dinoskip wrote states its rule.
    """
    model = name.rpartition("/")[2]
    if name.startswith("local-dir:") and (described := _timm_description(Path(name.removeprefix("local-dir:")))):
        settings, ours = (described.get(key) for key in ("pretrained_cfg", "dinoskip"))
        if isinstance(ours, dict) and ours.get("position_resize") in {"timm", "dino"}:
            return str(ours["position_resize"])
        model = f"{described['architecture']}.{settings.get('tag', '') if isinstance(settings, dict) else ''}"
    if kind != "timm" or re.search(r"_reg\d", model):
        return "timm"
    if re.search(r"\.mae\b", model):
        return "bicubic"
    return "dino" if re.search(r"dinov2|\.dino\b", model) else "timm"


def split_spec(spec: str) -> tuple[str, str, dict[str, Any]]:
    """Return a spec's kind, name and options; :class:`ConfigError` for one that is not understood.

    ``dinoskip:NAME`` is the weights file of a network that comes with the package.
    """
    kind, colon, rest = spec.partition(":")
    if kind not in SPEC_KINDS:
        name, options = _parse(spec, spec)
        path = Path(name)
        if path.is_dir():
            return *_kind_of_folder(path), options
        if path.is_file() or path.suffix.lower() in _CHECKPOINT_FILES:
            return "file", name, options
    if not colon or kind not in SPEC_KINDS or not rest:
        near = did_you_mean(kind, SPEC_KINDS, after=":...")
        known = (
            "dinoskip:skip, dinoskip:skipless, the path of a checkpoint, run:DIR, weights:FILE.safetensors, timm:NAME, "
            "tv:NAME, hub:REPO:NAME, hf:NAME or python:FILE.py:FUNCTION"
        )
        raise ConfigError(f"backbone {spec!r} is not understood", f"{near or ''} write {known}".lstrip())
    name, options = _parse(rest, spec)
    if kind == SHIPPED_KIND:
        return "weights", str(shipped(name).weights), options
    return kind, name, options


_PRETRAINED_FILES = ("model.safetensors", "pytorch_model.bin")  # of a folder that config.json describes


def is_timm_folder(folder: Path, file: str) -> bool:
    """Whether a folder's ``config.json`` is timm's, and describes the weights file of this name in it."""
    described = next((name for name in _PRETRAINED_FILES if (folder / name).is_file()), None)
    return file == described and bool(_timm_description(folder))


def _timm_description(folder: Path) -> dict[str, Any]:
    """Return timm's ``config.json`` in a folder; {} where there is none that can be read, or one of another program."""
    try:
        described = read_json(folder / "config.json")
    except DataError:
        return {}
    return described if isinstance(described, dict) and "architecture" in described else {}


def _kind_of_folder(folder: Path) -> tuple[str, str]:
    """Kind and name of the spec that a folder stands for: a run, or what its ``config.json`` is written for."""
    if (folder / CHECKPOINTS).is_dir():
        return "run", str(folder)
    described = folder / "config.json"
    place = str(folder.resolve())
    if described.is_file():
        return ("timm", f"local-dir:{place}") if "architecture" in read_json(described) else ("hf", place)
    files = sorted(path.name for path in folder.iterdir() if path.suffix in _CHECKPOINT_FILES)
    hint = f"give one of its files: {folder / files[0]}" if files else "give a checkpoint file or a run"
    raise ConfigError(f"backbone {folder}: neither a run nor a folder with a config.json", hint)


def checked_role(role: str) -> str:
    """``role`` itself, or :class:`ConfigError` if it is neither teacher nor student."""
    if role not in ROLES:
        raise ConfigError(f"role {role!r} is none of {', '.join(ROLES)}")
    return role
