"""Commands on models: models list, show, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import SPEC, Args, command, group, print_table
from dinoskip.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    actions = group(commands, "models", "list, show and convert models")
    command(actions, "list", list_models, "list the model names")
    parser = command(actions, "show", show, "say what a backbone is: size, blocks, parameters, where it came from")
    parser.add_argument("spec", help=SPEC)
    parser = command(actions, "convert", convert, "write a run's teacher or a DINO .pth as a weights file, or for timm")
    parser.add_argument("spec", help="run:DIR, weights:FILE.safetensors or dino:FILE.pth")
    parser.add_argument("out", help="FILE.safetensors, or a folder for timm.create_model('local-dir:FOLDER')")


def list_models(args: Args) -> int:
    """``dinoskip models list``."""
    import timm

    from dinoskip.models import list_models as names  # torch

    rows = [(name, "dinoskip.models.create_model, studies") for name in names()]
    rows += [(name, "timm.create_model") for name in timm.list_models("skipless_vit_*")]
    print_table(rows, ("model", "made by"))
    return 0


def show(args: Args) -> int:
    """``dinoskip models show``."""
    from dinoskip.models import load_backbone  # torch

    backbone = load_backbone(args.spec)
    count = sum(parameter.numel() for parameter in backbone.model.parameters())
    rows = [
        (name, getattr(backbone, name))
        for name in ("spec", "patch_size", "depth", "dim", "num_heads", "num_prefix_tokens")
    ]
    rows += [("parameters", f"{count:,}"), ("weights_hash", backbone.weights_hash), *sorted(backbone.info.items())]
    print_table(rows, ("field", "value"))
    return 0


def convert(args: Args) -> int:
    """``dinoskip models convert``."""
    from dinoskip.models import VitConfig, load_backbone, save_timm_folder, save_weights  # torch
    from dinoskip.models.build import WIDTHS
    from dinoskip.models.export import exported_weights, load_weights, newest_checkpoint

    kind, _, rest = args.spec.partition(":")
    out = Path(args.out)
    write = save_weights if out.suffix == ".safetensors" else save_timm_folder
    if kind in ("run", "weights"):
        write(out, *load_weights(exported_weights(newest_checkpoint(rest)) if kind == "run" else rest))
    elif kind == "dino":
        model = load_backbone(args.spec).model
        size = next(size for size, width in WIDTHS.items() if width == model.embed_dim)
        patch, side = model.patch_embed.patch_size[0], model.patch_embed.img_size[0]
        shape = {"depth": len(model.blocks), "img_size": side, "position_resize": model.position_resize}
        config = VitConfig(name=f"vit_{size}_patch{patch}", **shape)
        write(out, model.state_dict(), config, {"converted_from": Path(rest).name})
    else:
        raise ConfigError(f"models convert: {args.spec} is none of run:DIR, weights:FILE.safetensors, dino:FILE.pth")
    print(out)
    return 0
