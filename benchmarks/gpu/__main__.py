"""The command: run parts, or write the page's section."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import page
from benchmarks.gpu.driver import PARTS, Plan, run
from benchmarks.gpu.lines import append
from dinoskip.runtime.environment import visible_gpu

SECONDS = 530.0  # of ten minutes that a command may take, with some for files


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or ""))
    made.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all); or page [FILE ...]")
    made.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the results (default: runs/gpu)")
    made.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together (default: %(default).0f)")
    made.add_argument("--tiny", action="store_true", help="sizes for a CPU: whether the kit works")
    made.add_argument("--child", choices=list(PARTS), help=argparse.SUPPRESS)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; 2 for what cannot be run."""
    made = parser()
    args = made.parse_args(argv)
    if args.child:
        return run_part(args.child, args.out, args.seconds, tiny=args.tiny)
    if args.parts[:1] == ["page"]:
        page.write([Path(name) for name in args.parts[1:]] or page.committed())
        return 0
    if unknown := [name for name in args.parts if name not in PARTS]:
        made.error(f"{unknown[0]}: is no part: {', '.join(PARTS)}")
    if not args.tiny and visible_gpu() is None:
        made.error("no GPU is visible here: --tiny runs the same parts small on a CPU")
    asked = [name for name in PARTS if name in args.parts or not args.parts]
    print("\n".join(run(Plan(asked, args.out, args.seconds, args.tiny))))
    return 0


def run_part(name: str, out: Path, seconds: float, *, tiny: bool) -> int:
    """Run one part in this process."""
    began = time.time()
    import torch  # not by the command, whose seconds are the parts'

    from benchmarks.gpu.kit import Kit

    if not tiny and not torch.cuda.is_available():
        append(out, {"part": name, "name": "GPU", "failed": "torch cannot use it: dinoskip doctor says why"})
        return 1
    if tiny:
        torch.set_num_threads(1)
        # whether the kit works does not depend on the compiler, which takes minutes on a CPU
        import dinoskip.training.compilation as compilation

        compilation.BACKEND = "aot_eager"
    device = torch.device("cpu" if tiny else "cuda")
    module = importlib.import_module(f"benchmarks.gpu.{PARTS[name].module}")
    module.run(Kit(name, out, seconds, began, tiny, device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
