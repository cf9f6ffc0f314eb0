"""`dinoskip` as a program whose checkpoints take ``SLOW_SAVE`` seconds to write, for torchrun to start."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dinoskip import cli
from dinoskip.training import checkpoint


def main() -> int:
    """Run the command line with slow checkpoints."""
    write = checkpoint.write_manifest

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(float(os.environ["SLOW_SAVE"]))
        return write(*args, **kwargs)

    checkpoint.write_manifest = slow
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
