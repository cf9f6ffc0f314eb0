"""The verdicts on the paper's claims when its own published numbers are the study.

``python -m benchmarks.paper_claims`` prints a table, of which docs/report.md has a part; with ``--all`` every
comparison.
"""

from __future__ import annotations

import argparse

from visualize.comparison import Scores
from visualize.paper.as_study import HALF_WIDTHS, paper_as_study
from visualize.paper.claims import claims, claims_grid
from visualize.tables import markdown, markdown_rows


def verdict_table() -> list[str]:
    """The lines of the table, as Markdown: of each claim its verdict, and how many comparisons say so."""
    study = paper_as_study()
    lines = []
    for claim in claims(study, Scores({variant.name: variant.rows for variant in study.variants})):
        signs = [one.sign for one in claim.comparisons]
        words = ((1, "for"), (-1, "against"), (0, "undecided"))
        counts = ", ".join(f"{signs.count(sign)} {word}" for sign, word in words if sign in signs)
        lines.append([claim.text, f"{claim.verdict}: {counts}" if counts else claim.verdict])
    return markdown_rows(["claim", "verdict: comparisons"], lines, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every comparison")
    args = parser.parse_args()
    if args.all:
        study = paper_as_study()
        scores = Scores({variant.name: variant.rows for variant in study.variants})
        print(markdown(claims_grid(claims(study, scores))))
        return
    print("half a 95 % interval, in percent points, assumed:", HALF_WIDTHS)
    print("\n".join(verdict_table()))


if __name__ == "__main__":
    main()
