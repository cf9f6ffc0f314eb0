"""``python -m dinoskip`` and the console script ``dinoskip``."""

import sys

try:
    from dinoskip.cli import main
except KeyboardInterrupt:  # its imports take the first third of a second, before it can say anything itself
    sys.exit(130)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
