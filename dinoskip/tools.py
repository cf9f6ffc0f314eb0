"""What the commands do that look at data, models and machines. Imported only when one of them runs."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic_core import to_json

from dinoskip.commands import Args, pretrain_job, print_json, print_table
from dinoskip.config import Config
from dinoskip.errors import ConfigError, DataError, did_you_mean


def data_check(args: Args) -> int:
    """``dinoskip data check``; exit code 3 if there are faults."""
    from dinoskip.config import RawConfig, apply_overrides, validate
    from dinoskip.data.sets.check import check
    from dinoskip.pipeline.make import DatasetBox

    tree: dict[str, Any] = {"kind": args.kind, "root": args.folder}
    source = apply_overrides(RawConfig({"dataset": tree}), [f"dataset.{text}" for text in args.overrides])
    rows = check(validate(DatasetBox, source).dataset, sample=args.sample or None)
    if args.json:
        print_json([asdict(row) for row in rows])
        return 3 if any(row.faults for row in rows) else 0
    for row in rows:
        print("\n".join(row.lines()))
    return 3 if any(row.faults for row in rows) else 0


def data_scenes(args: Args) -> int:
    """``dinoskip data scenes``."""
    from dinoskip.config import RawConfig, apply_overrides, validate
    from dinoskip.data.sets.scenes import ScenesConfig, compose

    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not an empty folder", "name a new one")
    print(compose(validate(ScenesConfig, apply_overrides(RawConfig(), args.overrides)), out))
    return 0


def data_prepare(args: Args) -> int:
    """``dinoskip data prepare``: unpack what the user downloaded, then say what is still missing."""
    from dinoskip.data.sets.prepare import missing, prepare

    for line in prepare(args.kind, args.archives, args.out):
        print(line)
    wanted = missing(args.kind, args.out)
    for line in wanted:
        print(line)
    if not any(line.startswith("missing") for line in wanted):
        print(f"next: dinoskip data check {args.kind} {args.out}")
    return 0


def data_pack(args: Args) -> int:
    """``dinoskip data pack``."""
    from dinoskip.config import RawConfig, validate
    from dinoskip.data.pack import PackConfig, pack
    from dinoskip.data.shards import open_source

    settings = {"short_side": args.short_side, "quality": args.quality}
    config = validate(PackConfig, RawConfig(settings, {"": "command line"}))
    print(pack(open_source(args.images), args.out, config, threads=args.workers))
    return 0


def models_list(args: Args) -> int:
    """``dinoskip models list``."""
    import timm

    from dinoskip.models import list_models

    rows = [(name, "dinoskip.models.create_model, studies") for name in list_models()]
    rows += [(name, "timm.create_model") for name in timm.list_models("skipless_vit_*")]
    print_table(rows, ("model", "made by"))
    return 0


def models_show(args: Args) -> int:
    """``dinoskip models show``."""
    from dinoskip.models import load_backbone

    backbone = load_backbone(args.spec)
    count = sum(parameter.numel() for parameter in backbone.model.parameters())
    rows = [
        (name, getattr(backbone, name))
        for name in ("spec", "patch_size", "depth", "dim", "num_heads", "num_prefix_tokens")
    ]
    rows += [("parameters", f"{count:,}"), ("weights_hash", backbone.weights_hash), *sorted(backbone.info.items())]
    print_table(rows, ("field", "value"))
    return 0


def models_convert(args: Args) -> int:
    """``dinoskip models convert``."""
    from dinoskip.models import VitConfig, load_backbone, save_weights
    from dinoskip.models.export import exported_weights, load_weights, newest_checkpoint
    from dinoskip.models.vit import WIDTHS

    kind, _, rest = args.spec.partition(":")
    out = Path(args.out)
    if kind == "run":
        save_weights(out, *load_weights(exported_weights(newest_checkpoint(rest))))
    elif kind == "dino":
        model = load_backbone(args.spec).model
        size = next(size for size, width in WIDTHS.items() if width == model.embed_dim)
        patch, side = model.patch_embed.patch_size[0], model.patch_embed.img_size[0]
        config = VitConfig(name=f"vit_{size}_patch{patch}", depth=len(model.blocks), img_size=side)
        save_weights(out, model.state_dict(), config, {"converted_from": Path(rest).name})
    else:
        raise ConfigError(f"models convert: {args.spec} is neither run:DIR nor dino:FILE.pth")
    print(out)
    return 0


def analyze(args: Args) -> int:
    """``dinoskip analyze``."""
    if args.images:
        return _analyze_inside(args)
    if args.out or args.knn or args.probe:
        raise ConfigError("analyze: --out, --knn and --probe go with --images DIR")
    from dinoskip.config import RawConfig, validate
    from dinoskip.init.build import ModelConfig, SkiplessInit
    from dinoskip.pipeline.analysis import analysis, as_text
    from dinoskip.pipeline.study import AnalyzeSection

    if args.spec:
        result = analysis({}, {spec: spec for spec in args.spec}, None, args.seed)
    else:
        section = validate(AnalyzeSection, RawConfig({"model": args.model, "depth": args.depth}, {"": "command line"}))
        fresh = ModelConfig(name=section.model, depth=section.depth, skip=False, init=SkiplessInit())
        result = analysis({f"skipless {section.model}": fresh}, {}, section, args.seed)
    if args.json:
        print_json(result)
    else:
        print(as_text(result))
    return 0


def _analyze_inside(args: Args) -> int:
    """``dinoskip analyze --images``: every instrument, on photographs, float64."""
    import torch

    from dinoskip.diagnostics import bundled_photos
    from dinoskip.files import write_json
    from dinoskip.models import load_backbone
    from dinoskip.pipeline import inside

    if args.count < 1:
        raise ConfigError("analyze: --count must be at least 1")
    backbones = {spec: load_backbone(spec, dtype=torch.float64) for spec in args.spec}
    backbones = backbones or inside.fresh_backbones(args.model, args.depth, args.size, args.seed)
    if args.images == "bundled":
        inputs = dict.fromkeys(backbones, bundled_photos(min(args.count, 4), args.size))
    else:
        paths = inside.photographs(args.images, args.count)
        inputs = {name: inside.inputs_of(backbone, paths, args.size) for name, backbone in backbones.items()}
    measures = [inside.knn_measure(args.knn, args.size)] if args.knn else []
    measures += [inside.probe_measure(args.probe, args.size)] if args.probe else []
    result = inside.inside(backbones, inputs)
    if measures:
        result["quantised"] = []
        for name, backbone in backbones.items():
            known = inputs[name]
            if args.images != "bundled":
                paths = inside.photographs(args.images, inside.CALIBRATION)
                known = inside.inputs_of(backbone, paths, args.size)
            result["quantised"] += inside.quantised_scores(backbone, measures, known)
    if args.out:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "inside.json", result)
        inside.draw(result, out)
    if args.json:
        print_json(result)
    else:
        print(inside.inside_text(result))
    return 0


def _settings_of(kind: Any, key: str = "", choice: str = "") -> list[tuple[str, str, str, str]]:
    """Key, choice, default and meaning of all settings of a type, those of sections inside included.

    Where there are several types to choose from by ``name`` or ``kind``, ``choice`` is that.
    """
    found = []
    for name, field in kind.model_fields.items():
        inner, at = _sections(field.annotation), f"{key}.{name}".strip(".")
        at += ".NAME" if get_origin(field.annotation) is dict else ""
        for section in inner:
            tag = section.model_fields.get("name") or section.model_fields.get("kind") if len(inner) > 1 else None
            found += _settings_of(section, at, tag.default if tag else "")
        if not inner and not (choice and field.default == choice):
            default = "required"
            if not field.is_required():
                default = to_json(field.get_default(call_default_factory=True)).decode()
            found.append((at, choice, default, field.description or ""))
    return found


def _sections(annotation: Any) -> list[Any]:
    """The configuration types inside an annotation: none, one, or several to choose from by ``name`` or ``kind``."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]


def settings(args: Args) -> int:
    """``dinoskip settings``."""
    from dinoskip.pipeline.study import Study

    rows = _settings_of(Study)
    if args.section:
        sections = sorted({key.partition(".")[0] for key, *_ in rows})
        rows = [row for row in rows if row[0] == args.section or row[0].startswith(f"{args.section}.")]
        if not rows:
            near = did_you_mean(args.section, sections)
            raise ConfigError(f"settings: {args.section} is none of {', '.join(sections)}", near)
    print_table(rows, ("key", "of", "default", "meaning"))
    return 0


def submit(args: Args) -> int:
    """``dinoskip submit``: check everything here, then write the script and give it to sbatch."""
    from dinoskip.config import read_yaml, validate
    from dinoskip.pipeline.study import load_study
    from dinoskip.training.launch import ClusterConfig, folder_of, script
    from dinoskip.training.launch import submit as give
    from dinoskip.training.recipe import TrainConfig

    cluster = validate(ClusterConfig, read_yaml(args.cluster)) if args.cluster else ClusterConfig()
    if bool(args.images) != bool(args.out) or (args.images and (args.until or args.variant)):
        alone = "--until and --variant are for a study"
        raise ConfigError(f"--images and --out go together, for one pretraining run; {alone}")
    settings = [args.config, *args.overrides]
    if args.images:
        recipe: TrainConfig | None = pretrain_job(args).pretrain
        output = Path(args.out)
        command = ["pretrain", *settings, "--images", args.images, "--out", args.out]
    else:
        study, variants = load_study(args.config, args.overrides)
        recipe, output = study.recipe, study.directory
        known = [variant.name for variant in variants]
        if args.variant and args.variant not in known:
            raise ConfigError(f"--variant {args.variant}: is none of {', '.join(known)}")
        chosen = {"--until": args.until, "--variant": args.variant}
        command = ["run", *settings, *(word for flag, value in chosen.items() if value for word in (flag, value))]
    slices = cluster.ranks * recipe.accumulate if recipe else 1
    if recipe and recipe.batch_size % slices:
        raise ConfigError(
            f"batch_size: {recipe.batch_size} cannot be shared by {cluster.ranks} processes"
            f" in {recipe.accumulate} micro-batches each",
            f"take a multiple of {slices}, or another number of GPUs",
        )
    command += ["--device", "cuda" if cluster.gpus_per_node else "cpu"]
    name = f"{output.name}-{args.variant}" if args.variant else output.name
    text = script(cluster, name, output, command, Path.cwd())
    if args.dry_run:
        print(text, end="")
        return 0
    print(f"job {give(text, name, output, args.sbatch)}; script and log in {folder_of(output)}")
    return 0


def requeue(args: Args) -> int:
    """``dinoskip requeue``, which the script of a job calls; exit code 0 if there is nothing to be done by hand."""
    from dinoskip.training import launch

    if args.begin:
        launch.begin(Path(args.output))
        return 0
    again, why = launch.finish(Path(args.output), args.code, args.max)
    print(f"job {launch.job_id()}: {why}", file=sys.stderr)
    return 0 if again else int(args.code)


def verify(args: Args) -> int:
    """``dinoskip verify``; exit code 3 if anything differs."""
    from dinoskip.files import MANIFEST, verify_manifest

    folder = Path(args.folder)
    found = sorted(folder.rglob(MANIFEST)) if folder.is_dir() else []
    if not found:
        raise DataError(f"{folder}: holds no finished output (no {MANIFEST})")
    problems = [problem for manifest in found for problem in verify_manifest(manifest.parent)]
    for problem in problems:
        print(problem)
    print(f"{len(found)} outputs checked, {len(problems)} problems", file=sys.stderr)
    return 3 if problems else 0


def doctor(args: Args) -> int:
    """``dinoskip doctor``."""
    from dinoskip.environment import describe

    free = shutil.disk_usage(".").free / 2**30
    print_table([*describe().items(), ("free disk here", f"{free:.1f} GiB")], ("what", "found"))
    return 0
