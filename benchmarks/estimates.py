"""Times that a study took over those that its console said: ``python -m benchmarks.estimates CONFIG [KEY=VALUE ...]``.

Of a study that has run, in the order of its plan: the seconds of each stage, and those expected after the stages of its
kind before it (dinoskip/pipeline/progress.py). The first of a kind has no estimate. "with an estimate" are the seconds
of those that have one; a ratio of 1 is exact, at 2 they took twice as long as was said.
"""

from __future__ import annotations

import argparse

from dinoskip.pipeline.progress import rates, work_of
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.runtime.console import table
from dinoskip.runtime.environment import machine

HEADER = ("stage", "count", "first of a kind", "seconds", "with an estimate", "estimated", "real / estimated", "range")


def ratios(config: str, overrides: list[str]) -> list[tuple[object, ...]]:
    """A row (:data:`HEADER`) for each stage of a study that has run, and for all; times are in seconds."""
    study, variants = load_study(config, overrides)
    runner = study_runner(study, variants, build_nodes(study, variants))
    runner.plan()
    seconds, works = runner.seconds(), runner.works()
    stages: dict[str, list[tuple[float, float | None]]] = {}
    past: dict[str, float] = {}
    for node in runner.planner.nodes:
        if node.id in seconds:
            kind, work = work_of(works, node.id)
            known = rates(past, works).get(kind)
            past[node.id] = seconds[node.id]
            stages.setdefault(node.stage, []).append((seconds[node.id], None if known is None else known * work))
    return [_row(stage, of_stage) for stage, of_stage in stages.items()] + [
        _row("all", [pair for of_stage in stages.values() for pair in of_stage])
    ]


def _row(stage: str, pairs: list[tuple[float, float | None]]) -> tuple[object, ...]:
    told = [(real, said) for real, said in pairs if said]
    each = [real / said for real, said in told]
    real, said = sum(real for real, _ in told), sum(said for _, said in told)
    shown = (
        (f"{real:.1f}", f"{said:.1f}", f"{real / said:.2f}", f"{min(each):.2f} to {max(each):.2f}")
        if told
        else ("",) * 4
    )
    return stage, len(pairs), len(pairs) - len(told), f"{sum(real for real, _ in pairs):.1f}", *shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    print(machine())
    print(table(ratios(arguments.config, arguments.overrides), HEADER, right=True))


if __name__ == "__main__":
    main()
