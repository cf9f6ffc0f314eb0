"""Conditioning of networks' Jacobians through the depth (``dinoskip analyze --jacobian``): rows and their table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from dinoskip.diagnostics.network_jacobian import network_jacobian
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip.runtime.console import log, table
from visualize.figures import jacobian_figure

_COLUMNS = ("block", "largest", "largest_error", "smallest", "kappa", "kappa_seen", "kappa_mlp", "kappa_mlp_seen")


def through_the_depth(backbones: Mapping[str, Backbone], images: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Each network's ``rows`` (:class:`dinoskip.diagnostics.network_jacobian.DepthRow`), ``kappa``, ``kappa_seen``.

    At the first of ``images`` (B, 3, H, W); a number that is not known is None. A network whose Jacobian is not
    measured is left out with a warning.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, backbone in backbones.items():
        try:
            measured = network_jacobian(backbone, images[name][:1])
        except ConfigError as error:
            log.warning("left out: %s", error)
            continue
        rows = [{key: _known(value) for key, value in asdict(row).items()} for row in measured.rows]
        found[name] = {"rows": rows, "kappa": _known(measured.kappa), "kappa_seen": _known(measured.kappa_seen)}
    return found


def depth_text(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of a table a network, without columns that no row has; κ of rows that are not exact are lower bounds."""
    lines: list[str] = []
    for name, network in found.items():
        exact = all(row["exact"] for row in network["rows"])
        bounds = "" if exact else " (κ is a lower bound, smallest an upper one)"
        columns = [key for key in _COLUMNS if any(row[key] is not None for row in network["rows"])]
        cells = [[_short(row[key]) for key in columns] for row in network["rows"]]
        title = f"{name}: Jacobian of the last block's output by each block's weights{bounds}"
        lines += ["", title, *table(cells, columns, right=True).split("\n")]
        if exact:
            lines.append(f"of all blocks: kappa {_short(network['kappa'])}, seen {_short(network['kappa_seen'])}")
    return lines


def draw(found: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Write the figure ``jacobian`` (SVG, PDF, PNG) into ``out``, where something was measured."""
    jacobian_figure(found, out / "jacobian")


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
