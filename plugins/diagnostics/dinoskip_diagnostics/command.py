"""The command analyze: networks looked at from inside."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dinoskip.cli.arguments import Args, command, count, data_option, json_option, print_json
from dinoskip.errors import ConfigError
from dinoskip.init.config import ModelConfig, SkiplessInit
from dinoskip.io.files import write_json
from dinoskip.io.output import Output, given_folder
from dinoskip.runtime.console import say
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.vit_config import SkipWeight
from dinoskip_diagnostics.config import PRECISIONS, AnalyzeSection


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = command(commands, "analyze", analyze, "show conditioning and signal propagation of networks")
    parser.add_argument(
        "network", nargs="*", metavar="NETWORK", help="weights:FILE, run:DIR or any backbone; without it, fresh ViT-S"
    )
    data_option(parser, "use photographs of this folder; `bundled` uses scikit-image's", required=False)
    parser.add_argument("--count", type=count, default=4, metavar="N", help="number of images (default: 4)")
    parser.add_argument("--size", type=count, default=224, help="side of the images' centre crop (default: 224)")
    parser.add_argument("--knn", metavar="DIR", help="measure k-NN on DIR/train and DIR/val, also quantised")
    parser.add_argument(
        "--probe", metavar="KIND:DIR", help="fit a quick linear probe, also quantised, e.g. voc:VOCdevkit"
    )
    parser.add_argument(
        "--precisions",
        metavar="LIST",
        help="precisions of --knn and --probe, e.g. W16A8,A6 (default: six, W8A12 to W4A4)",
    )
    parser.add_argument("--out", metavar="DIR", help="write inside.json and figures (SVG, PDF) there")
    parser.add_argument(
        "--dial", metavar="LIST", help="compare three untrained networks at these skip weights, e.g. 1,0.7,0.5,0"
    )
    parser.add_argument("--model", default="vit_small_patch16", help="the untrained model (default: vit_small_patch16)")
    parser.add_argument("--depth", type=count, default=12, help="its blocks (default: 12)")
    parser.add_argument("--seed", type=count, default=0, help="(default: 0)")
    parser.add_argument(
        "--jacobian", action="store_true",
        help="also κ of the network's Jacobian by each block's weights (needs --data; at ViT-S minutes a network)",
    )  # fmt: skip
    json_option(parser)


add_commands.after = "cuts"  # type: ignore[attr-defined]  # where help lists it


def analyze(args: Args) -> int:
    """Print what is asked for of networks."""
    if args.dial:
        return _along_the_dial(args)
    if args.data:
        return _on_photographs(args)
    if args.out or args.knn or args.probe or args.jacobian:
        raise ConfigError("analyze: --out, --knn, --probe and --jacobian go with --data DIR")
    from dinoskip_diagnostics.tables import analysis, as_text  # torch

    if args.network:
        result = analysis({}, {spec: spec for spec in args.network}, None, args.seed)
    else:
        section = validate(AnalyzeSection, RawConfig({"model": args.model, "depth": args.depth}, {"": "command line"}))
        fresh = ModelConfig(name=section.model, depth=section.depth, skip=False, init=SkiplessInit())
        result = analysis({f"skipless {section.model}": fresh}, {}, section, args.seed)
    if args.json:
        print_json(result.plain())
    else:
        say(*as_text(result).split("\n"))
    return 0


def _along_the_dial(args: Args) -> int:
    """``dinoskip analyze --dial``: signal propagation at every weight of the skips, constant and falling with depth."""
    from dinoskip.diagnostics import bundled_photos, dial_table  # and all below: heavy
    from dinoskip_diagnostics.tables import signal_text

    if args.network or args.data or args.out:
        raise ConfigError("analyze: --dial compares untrained networks: use only --model, --depth, --size and --seed")
    try:
        values = [float(text) for text in args.dial.split(",")]
    except ValueError:
        raise ConfigError(f"analyze: --dial {args.dial}: is no list of numbers", "write e.g. 1,0.7,0.5,0") from None
    trees: list[dict[str, Any]] = [{"end": value} for value in values]
    trees += [{"end": value, "sublayers": "linear"} for value in values if value != 1]
    weights = [validate(SkipWeight, RawConfig(tree, {"": "--dial"})) for tree in trees]
    section = validate(AnalyzeSection, RawConfig({"model": args.model, "depth": args.depth}, {"": "command line"}))
    photos = bundled_photos(min(args.count, 4), args.size)
    rows = dial_table(photos, weights, section.depth, name=section.model, seed=args.seed)
    products = [weight.product(section.depth) for weight in weights] * (len(rows) // len(weights))
    if args.json:
        print_json({"dial": [{**asdict(row), "product": product} for row, product in zip(rows, products, strict=True)]})
    else:
        title = "signal propagation at initialisation, by initialisation and skip weight"
        say(*signal_text(rows, title, products).split("\n"))
    return 0


def _on_photographs(args: Args) -> int:
    """``dinoskip analyze --data``: every instrument, on photographs, float64."""
    import torch  # and all below: heavy

    from dinoskip.diagnostics import bundled_photos
    from dinoskip.models import load_backbone
    from dinoskip_diagnostics import depth, inspection

    read = [args.data] if args.data != "bundled" else []
    output = Output(given_folder(args.out or ".", read if args.out else ()), "analyze")
    output.refuse_foreign(["inside.json"] if args.out else [])
    if args.count < 1:
        raise ConfigError("analyze: --count must be at least 1")
    backbones = {spec: load_backbone(spec, dtype=torch.float64) for spec in args.network}
    inspection.refuse_without_attention(backbones)
    backbones = backbones or inspection.fresh_backbones(args.model, args.depth, args.size, args.seed)
    if args.data == "bundled":
        inputs = dict.fromkeys(backbones, bundled_photos(min(args.count, 4), args.size))
    else:
        paths = inspection.photographs(args.data, args.count)
        inputs = {name: inspection.inputs_of(backbone, paths, args.size) for name, backbone in backbones.items()}
    measures = [inspection.knn_measure(args.knn, args.size)] if args.knn else []
    measures += [inspection.probe_measure(args.probe, args.size)] if args.probe else []
    precisions = _precisions(args.precisions)
    result = inspection.inside(backbones, inputs)
    scores: list[inspection.QuantisedScore] = []
    for name, backbone in backbones.items() if measures else ():
        known = inputs[name]
        if args.data != "bundled":
            paths = inspection.photographs(args.data, inspection.CALIBRATION)
            known = inspection.inputs_of(backbone, paths, args.size)
        scores += inspection.quantised_scores(backbone, measures, known, precisions)
    report = asdict(result) | ({"quantised": [asdict(score) for score in scores]} if measures else {})
    depths = depth.through_the_depth(backbones, inputs) if args.jacobian else {}
    report |= {"jacobian": depths} if depths else {}
    if args.out:
        with output.filled() as folder:
            write_json(folder / "inside.json", report)
            inspection.draw(result, folder)
            depth.draw(depths, folder)
    if args.json:
        print_json(report)
    else:
        say(*inspection.inside_text(result, scores).split("\n"), *depth.depth_text(depths))
    return 0


def _precisions(given: str | None) -> tuple[str, ...]:
    """The labels of a comma-separated list."""
    from dinoskip.diagnostics.quantization import bits_of  # torch

    labels = tuple(given.split(",")) if given else PRECISIONS
    try:
        for label in labels:
            bits_of(label)
    except ValueError as error:
        raise ConfigError(f"analyze: --precisions: {error}") from None
    return labels
