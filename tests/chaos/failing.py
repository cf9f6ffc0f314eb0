"""``python -m tests.chaos.failing SPEC WORDS...``: ``dinoskip WORDS`` with a fail point, ``PLACE:ACTION@N``."""

from __future__ import annotations

import sys

from dinoskip.cli import main
from tests.helpers.failpoints import install

if __name__ == "__main__":
    install(sys.argv.pop(1))
    main()
