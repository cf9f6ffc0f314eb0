"""Fail points by name: ``checkpoint.before_manifest:kill@2`` kills the process at the second passage of that place.

Actions: ``kill`` (SIGKILL), ``full`` (OSError 28). They are installed over the named functions in a child process, so
that the product holds no test code.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
from typing import Any

POINTS = {
    "step.before_update": ("dinoskip.training.loop", "set_rates"),
    "checkpoint.before_head": ("dinoskip.training.checkpoint", "save_tensors"),
    "checkpoint.before_manifest": ("dinoskip.training.checkpoint", "write_manifest"),
    "checkpoint.before_publish": ("dinoskip.training.checkpoint", "publish_directory"),
    "checkpoint.before_retention": ("dinoskip.training.checkpoint", "retain"),
    "retention.before_removal": ("dinoskip.training.checkpoint.os", "replace"),
}


def install(spec: str) -> None:
    """Install one fail point in this process; an empty ``spec`` does nothing."""
    if not spec:
        return
    place, _, rest = spec.partition(":")
    action, _, passage = rest.partition("@")
    module_name, attribute = POINTS[place]
    owner: Any = importlib.import_module("os") if module_name.endswith(".os") else importlib.import_module(module_name)
    original, passages = getattr(owner, attribute), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal passages
        if attribute != "replace" or ".tmp-trash-" in str(args[1]):
            passages += 1
            if passages == int(passage or 1):
                if action == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    setattr(owner, attribute, wrapped)
