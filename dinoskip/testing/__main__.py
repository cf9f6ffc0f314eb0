"""``python -m dinoskip.testing``: a line for every plug-in, and exit code 1 if one does not hold."""

from __future__ import annotations

import argparse
import sys

from dinoskip.errors import DinoskipError
from dinoskip.plugins import found, use_files
from dinoskip.runtime.console import say
from dinoskip.testing.parts import problems_of


def main() -> int:
    """Check every plug-in."""
    parser = argparse.ArgumentParser(prog="python -m dinoskip.testing", description="Check the parts of plug-ins.")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a file with parts of your own")
    try:
        use_files(parser.parse_args().plugin)
        every = {(group, name): problems_of(group, name) for group, name in found()}
    except DinoskipError as error:
        say(f"error: {error}", error=True)
        return error.exit_code
    for (group, name), problems in every.items():
        say(f"{group} {name}: {'; '.join(problems) or 'ok'}")
    if not every:
        say("no plug-in is installed, and none is named with --plugin")
    return int(any(every.values()))


if __name__ == "__main__":
    sys.exit(main())
