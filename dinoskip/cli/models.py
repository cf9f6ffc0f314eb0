"""Commands on models: models list, show, convert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip import __version__
from dinoskip.cli.arguments import Args, command, count, group, network_argument, print_table
from dinoskip.errors import ConfigError
from dinoskip.io.files import sha256_file, write_text
from dinoskip.io.output import Output, given_file, given_folder
from dinoskip.results.rows import normalisation_of
from dinoskip.runtime.console import log, say
from dinoskip.runtime.provenance import utc_date
from dinoskip.settings.specs import run_weights, split_spec
from dinoskip.settings.vit_config import SHAPES, timm_name

if TYPE_CHECKING:
    from torch import Tensor

    from dinoskip.models import VitConfig

_PROGRAMS = (".onnx", ".pt2")
_FILES = (".safetensors", *_PROGRAMS)


def add_commands(commands: Any) -> None:
    actions = group(commands, "models", "list, show and convert models")
    command(actions, "list", list_models, "list the model names")
    parser = command(actions, "show", show, "say what a backbone is: size, blocks, parameters, where it came from")
    network_argument(parser)
    parser = command(actions, "layers", layers, "list where a network may be read, level by level, with shapes")
    network_argument(parser)
    parser.add_argument(
        "--size", type=count, default=None, metavar="S", help="side of the image (default: the network's own)"
    )
    parser = command(
        actions,
        "convert",
        convert,
        "write a backbone as a weights file, for timm and the Hugging Face hub, for transformers, or as a program",
        details="FILE.safetensors and folders hold networks that dinoskip can train; programs may hold any network.\n"
        "A program returns the features of every block for any number of images of one size. It is run once\n"
        "and compared with the network.",
    )
    network_argument(parser)
    parser.add_argument(
        "out", help="FILE.safetensors, FILE.onnx, FILE.pt2 (torch.export), or a folder: weights, config.json, README.md"
    )
    parser.add_argument(
        "--layout",
        choices=("timm", "transformers"),
        default="timm",
        help="layout of a folder: for timm.create_model('local-dir:FOLDER') and the hub, with a model card, or for "
        "transformers.AutoModel (default: timm)",
    )
    parser.add_argument(
        "--rows",
        action="append",
        default=[],
        metavar="STUDY",
        help="for a model card: a study with scores of these weights",
    )
    parser.add_argument(
        "--license",
        default="",
        metavar="ID",
        help="for a model card: the weights' licence, such as apache-2.0 (default: not stated)",
    )
    parser.add_argument(
        "--size",
        type=count,
        default=None,
        metavar="S",
        help="for a program: side of the images (default: the network's own)",
    )
    parser.add_argument(
        "--norm",
        choices=("none", "final", "layer"),
        default="none",
        help="for a program: norm of the features (default: none)",
    )


def list_models(args: Args) -> int:
    rows = [(name, "dinoskip.models.create_model, studies") for name in SHAPES]
    rows += [(timm_name(name), "timm.create_model") for name in sorted(SHAPES)]
    print_table(rows, ("model", "made by"))
    return 0


def show(args: Args) -> int:
    from dinoskip.models import load_backbone  # torch

    backbone = load_backbone(args.network)
    count = sum(parameter.numel() for parameter in backbone.model.parameters())
    rows = [
        (name, getattr(backbone, name))
        for name in ("spec", "patch_size", "depth", "dim", "num_heads", "num_prefix_tokens")
    ]
    rows.append(("image mean / std", normalisation_of(backbone.mean, backbone.std)))
    rows.append(("positions", backbone.positions))
    runs = {"python": "the file", "hub": "the repository's hubconf.py"}.get(split_spec(args.network)[0])
    rows += [("runs code", f"yes, {runs}" if runs else "no")]
    rows += [("parameters", f"{count:,}"), ("weights_hash", backbone.weights_hash), *sorted(backbone.info.items())]
    print_table(rows, ("field", "value"))
    return 0


def layers(args: Args) -> int:
    from dinoskip.models import load_backbone  # torch, as below
    from dinoskip.models.backbone import LevelBackbone
    from dinoskip.models.levels import map_layouts

    backbone = load_backbone(args.network)
    layouts = map_layouts(backbone.model, args.network, args.size or 224)
    read = {level.name for level in backbone.reader.levels} if isinstance(backbone, LevelBackbone) else set()
    rows = [
        (name, layout.kind, layout.stride, layout.width, layout.prefix or "", "yes" if name in read else "")
        for name, layout in layouts.items() if name
    ]  # fmt: skip
    print_table(rows, ("layer", "layout", "pixels a cell", "channels", "tokens before", "read unless layers= says"))
    return 0


def convert(args: Args) -> int:
    from dinoskip.models import save_timm_folder, save_weights  # torch, as below
    from dinoskip.models.transformers_layout import save_transformers_folder

    out = given_file(args.out) if Path(args.out).suffix in _FILES else given_folder(args.out)
    if args.rows and (out.suffix in _FILES or args.layout != "timm"):
        raise ConfigError("--rows: is for the model card, which a folder of --layout timm has")
    if out.suffix in _PROGRAMS:
        _save_program(args, out)
    elif out.suffix == ".safetensors":
        save_weights(out, *_weights_of(args.network))
    else:
        state, config, info = _weights_of(args.network)
        card = _card(args, out.name, state, config, info) if args.layout == "timm" else ""
        with Output(out, "models convert", listed=False).filled() as folder:
            if args.layout == "transformers":
                save_transformers_folder(folder, state, config)
            else:
                save_timm_folder(folder, state, config, info)
                write_text(folder / "README.md", card)
    say(args.out)
    return 0


def _weights_of(spec: str) -> tuple[dict[str, Tensor], VitConfig, dict[str, Any]]:
    """Tensors, model and info of a spec: of weights of ours, or of a file that fits one of our networks.

    The info says where they come from, too: file and sha256, and version and date of the conversion.
    """
    from dinoskip.models.export import load_weights  # torch, as below
    from dinoskip.models.from_file import OUR_STATISTICS, as_ours, is_ours, load_vit_file

    kind, place, options = split_spec(spec)
    if kind not in {"run", "weights", "dino", "file"}:
        raise ConfigError(f"models convert: {spec} is neither a run nor a checkpoint's path")
    if kind == "run" or is_ours(place):
        weights = run_weights(place, **options) if kind == "run" else Path(place)
        state, config, info = load_weights(weights)
        return state, config, info | _converted(weights)
    if beside := sorted({"mean", "std", "pos_embed", "layers", "image_size"} & options.keys()):
        raise ConfigError(f"models convert: {spec}: {', '.join(beside)}: is not kept in a weights file", "leave it out")
    loaded = load_vit_file(place, **options)
    source = _converted(Path(place)) | {"normalisation": OUR_STATISTICS}
    return loaded.model.state_dict(), as_ours(loaded, place), source


def _converted(weights: Path) -> dict[str, str]:
    """Entries of a header that say which file was converted, by which version, when."""
    return {
        "converted_from": weights.name, "converted_sha256": sha256_file(weights), "converted_by": __version__,
        "converted": utc_date(),
    }  # fmt: skip


def _card(args: Args, name: str, state: dict[str, Tensor], config: VitConfig, info: dict[str, Any]) -> str:
    from dinoskip.models.export import hash_weights  # torch, as below
    from dinoskip.pipeline.report.model_card import CardSource, model_card, recipe_of_run, scores_of

    kind, place, _ = split_spec(args.network)
    recipe, weights = recipe_of_run(Path(place)) if kind == "run" else {}, hash_weights(state)
    # a card is passed on: the name of the network's file or run, not where it lies on this machine
    origin = args.network if args.network.startswith("dinoskip:") else f"{kind}:{Path(place).name}"
    said = {**info, "network": origin}
    return model_card(CardSource(name, config, said, weights, recipe, scores_of(weights, args.rows), args.license))


def _save_program(args: Args, out: Path) -> None:
    from dinoskip.models import load_backbone  # torch
    from dinoskip.models.traced import save_onnx, save_program

    save = save_onnx if out.suffix == ".onnx" else save_program
    share = save(out, load_backbone(args.network), size=args.size, norm=args.norm)
    log.info("%s: its features differ from the network's by %.1g of the largest", out, share)
