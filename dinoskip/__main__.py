"""``python -m dinoskip`` is the console script ``dinoskip``."""

import sys

from dinoskip.cli import main

if __name__ == "__main__":
    sys.exit(main())
