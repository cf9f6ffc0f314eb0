"""Lock files as processes of this and of other machines leave them."""

from __future__ import annotations

import json

from dinoskip.io import locks

DEAD = 2**22 + 1
"""A process id that no system gives."""


def lock_of(
    host: str, pid: int = DEAD, started: str | None = "1", boot: str | None = None, space: str | None = None,
    clock: str | None = None,
) -> str:  # fmt: skip
    """Content of the lock of a process of this boot, PID and time namespace, or of others where they are given."""
    other = {"boot": boot, "pid_namespace": space, "time_namespace": clock}
    identity = {kind: other[kind] or own for kind, own in locks._namespace().items()}
    return json.dumps({"host": host, **identity, "pid": pid, "started": started, "job": "77"})
