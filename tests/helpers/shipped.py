"""The configurations that ship, rehearsed: :mod:`dinoskip.pipeline.rehearsal` at work on each of them."""

from __future__ import annotations

from pathlib import Path

from dinoskip.pipeline.rehearsal.shrink import write_rehearsal

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
CLUSTERS = "cluster"  # this folder's files are places of a cluster, not studies
NOT_RUN = {"paper/base.yaml"}
"""What others extend and their own first lines say is not run itself."""
SHIPPED = sorted(
    name
    for path in CONFIGS.rglob("*.yaml")
    if (name := path.relative_to(CONFIGS).as_posix()).partition("/")[0] != CLUSTERS and name not in NOT_RUN
)


def write_shrunk(name: str, below: Path, *, whole: bool = False) -> Path:
    """Write a shipped configuration, shrunk, with its data and weights, below a folder that several share.

    ``whole``: networks keep their depth, as studies must that share networks with one that compares depths.
    """
    return write_rehearsal(CONFIGS / name, below, name=name.replace("/", "-"), whole=whole)
