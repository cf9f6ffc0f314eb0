"""The command look: what any backbones are worth on any folder of photographs, block by block, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import (
    BLOCKS,
    SPEC,
    Args,
    accept_option,
    blocks_of,
    command,
    computing_options,
    count,
    data_option,
    is_setting,
    json_option,
)
from dinoskip.cli.rows import conclude
from dinoskip.cli.settings import keys_of
from dinoskip.data.sets import folder_kinds
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.look.study import MEASURES, labels_of, safe_name, study_tree
from dinoskip.pipeline.study import Study, build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.settings.config import RawConfig, apply_overrides
from dinoskip.settings.shipped import PAIR


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "look",
        look,
        "show what networks see in your photographs, block by block",
        details="The page shows PCA, TokenCut, attention and similarity of every block. If the folder has masks, boxes "
        "or classes\n(VOC, ADE20K, COCO, images/ and masks/, train/CLASS and val/CLASS), probes, CorLoc and k-NN say "
        "which block is\nbest. Run it again with other backbones: finished results are not computed again.",
    )
    parser.add_argument(
        "network", nargs="*", metavar="NETWORK",
        help=f"{SPEC} (default: the two that ship with dinoskip, {' '.join(PAIR)}); a=b changes a setting",
    )  # fmt: skip
    data_option(parser, "a folder of photographs, with labels or without")
    parser.add_argument(
        "--kind",
        choices=folder_kinds(),
        metavar="KIND",
        help=f"its layout, if not recognised: {', '.join(folder_kinds())}",
    )
    parser.add_argument("--out", default="", metavar="DIR", help="where the page goes (default: runs/look-FOLDER)")
    parser.add_argument(
        "--images",
        type=count,
        default=200,
        metavar="N",
        help="score on at most N of a split, show at most N without labels (default: 200; 0: all)",
    )
    parser.add_argument("--blocks", default="all", help=BLOCKS)
    parser.add_argument(
        "--skip-broken",
        action="store_true",
        help="leave out images that are broken, have broken labels or are smaller than a patch; rows say how many",
    )
    json_option(parser, "the rows")
    accept_option(parser)
    computing_options(parser)
    parser.settings = _keys


def _keys() -> list[str]:
    """The settings of what a look does."""
    places = (*(f"evaluate.{name}" for name in MEASURES), "gallery")
    return [key for key in keys_of(Study) if key.rpartition(".")[0] in places]


def look(args: Args) -> int:
    from dinoskip.runtime.distributed import is_main  # torch, as below

    settings = [text for text in args.network if is_setting(text)]
    networks = [text for text in args.network if not is_setting(text)] or list(PAIR)
    root = Path(args.data)
    out = Path(args.out or f"runs/look-{safe_name(root.resolve().name)}")
    labels, blocks = labels_of(root, args.kind), blocks_of(args.blocks)
    tree = study_tree(networks, labels, out, images=args.images, blocks=blocks, skip_broken=args.skip_broken)
    study, variants = study_of(
        apply_overrides(RawConfig(tree, {"": "command line", "data": "--data"}), settings), open_backbones=True
    )
    nodes = only(build_nodes(study, variants), {*MEASURES, "gallery"}, gathering="report")
    runner = study_runner(study, variants, nodes, device=args.device, workers=args.workers, accept=args.accept)
    runner.run({node.id for node in runner.planner.nodes})
    if is_main():
        conclude(runner, ("report",), as_json=args.json)
    return 0
