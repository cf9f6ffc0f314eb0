"""Lock files as processes of this and of other machines leave them."""

from __future__ import annotations

import json

from dinoskip import locks

DEAD = 2**22 + 1
"""A process id that no system gives."""


def lock_of(
    host: str, pid: int = DEAD, started: str | None = "1", boot: str | None = None, space: str | None = None
) -> str:
    """Content of the lock of a process of this boot and PID namespace, or of others where they are given."""
    own_boot, own_space = locks._namespace()
    identity = {"boot": boot or own_boot, "pid_namespace": space or own_space}
    return json.dumps({"host": host, **identity, "pid": pid, "started": started, "job": "77"})
