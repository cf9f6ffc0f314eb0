"""Fail points by name: ``checkpoint.before_manifest:kill@2`` kills the process at the second passage of that place.

Actions: ``kill`` (SIGKILL), ``full`` (OSError 28), ``hang`` (sleep for an hour), ``nan`` (non-finite gradients at this
and every later passage). They are installed over the named functions in a child process, so that the product holds
no test code.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import time
from typing import Any

POINTS = {
    "step.before_update": ("dinoskip.training.objective", "set_rates"),
    "step.gradients": ("dinoskip.training.objective", "gradients_of"),
    "checkpoint.before_save": ("dinoskip.training.checkpoint", "save"),
    "checkpoint.before_head": ("dinoskip.training.checkpoint", "save_tensors"),
    "checkpoint.before_manifest": ("dinoskip.training.checkpoint", "write_manifest"),
    "checkpoint.before_publish": ("dinoskip.training.checkpoint", "publish_directory"),
    "checkpoint.before_retention": ("dinoskip.training.checkpoint", "retain"),
    "retention.before_removal": ("os", "replace"),
    "worker.before_read": ("dinoskip.data.folders:ImageFolder", "read"),
}


def _act(action: str, result: Any) -> Any:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "hang":
        time.sleep(3600)
    if action == "nan":
        result[0].fill_(float("nan"))
        return result
    raise OSError(errno.ENOSPC, "No space left on device")


def install(spec: str) -> None:
    """Install one fail point in this process; an empty ``spec`` does nothing."""
    if not spec:
        return
    place, _, rest = spec.partition(":")
    action, _, passage = rest.partition("@")
    module, attribute = POINTS[place]
    owner: Any = importlib.import_module(module.partition(":")[0])
    if ":" in module:
        owner = getattr(owner, module.partition(":")[2])
    original, passages, first, main = getattr(owner, attribute), 0, int(passage or 1), os.getpid()

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal passages
        counts = attribute != "replace" or ".tmp-trash-" in str(args[1])
        if counts and (os.getpid() != main or not place.startswith("worker.")):
            passages += 1
            if action == "nan" and passages >= first:
                return _act(action, original(*args, **kwargs))
            if passages == first:
                _act(action, None)
        return original(*args, **kwargs)

    setattr(owner, attribute, wrapped)
