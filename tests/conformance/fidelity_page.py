"""Write docs/fidelity.md and docs/fidelity.csv: ``python -m tests.conformance.fidelity_page [--slow]``.

Runs tests/conformance/test_papers_*.py and collects what every ``record`` says. The page has a line a claim, the CSV
a line a comparison. Exit code 1 if any is not met; both are written all the same. ``--slow`` runs the slow checks, too;
``--lists`` runs none and writes the lists of what is made anew.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conformance.fidelity import PAPERS
from visualize.report import papers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fidelity.md"
HEAD = """# Fidelity to the papers

```sh
python -m tests.conformance.fidelity_page --slow     # checks every claim and writes this page
```

This page lists claims of four papers. Each is checked on a CPU, in float64 unless said. **{summary}** The end of
the page says [what was not checked](#not-checked), and why.

Each line has the number of the check, the claim and its place in the paper; [fidelity.csv](fidelity.csv) has every
comparison. A claim that is wrong as printed is marked so: its comparisons count the cases that violate it, and check
what holds instead. Another page lists [what the papers leave open](diagnostics.md#what-the-papers-leave-open)."""
NOT_CHECKED = """
## Not checked

- *Cutting the Skip*: tables 1 to 4 and figures 1 to 4 and 6 need trainings on ImageNet (`configs/paper`);
  [the paper's claims](results/claims.md) compares them with small networks. The premise of Proposition 2's κ(J) ≈ 1
  fails at the paper's constants, so only its parts are checked (24, 25). Equation 20's normal distribution is not
  checked; its mean and variance follow from 38.
- *Always Skip Attention*: tables 1, 2, 4 and 5, the accuracies of table 3 and figures 1 to 6 need trainings. Figures 7
  and 8 and the kernel of supplement C show trained networks; check 43 uses one untrained attention. The claim that
  attention is worse conditioned than the MLP rests on the bound of 41. Supplement B, on ConvMixer, is not checked.
- *Conditioned Initialization*: its tables and figures need trainings (`configs/paper`).
- *The Quantization Benefits*: Theorem 1's table concerns eight trained language models and has no threshold for
  "near-Gaussian". By the paper's sec. C.3 a Gaussian start is also as near as 6/d (34). The theorem's parts are
  checked (34 to 36, 44 to 46). Lemmas 2, 3 and 4 and Theorem 2 repeat Lemmas 7, 11, 8 with 10, and 6. It is not
  checked that the softmax of Lemma 14's scores has an excess kurtosis of order 1; with the lemma's variance of 1 it
  would be that of a lognormal, 111. Section 5 concerns trained language models.
"""
NOT_MADE = """
## Made and not made

`dinoskip paper` lays out every table, figure and claim of the four papers with the numbers of studies that it finds.
This part is generated from the records of `plugins/papers` ([papers](plugins/papers.md)). None of the configurations
was run at its size; [rehearsals](configurations.md) show what each fills."""
CLAIMS = {
    "1": "W^V W^O has condition number 1 and singular values c²",
    "2": "W^V and W^O are scaled orthogonal",
    "3": "heads of V and O are orthonormal and mutually orthogonal",
    "4": "V and O drawn for each head alone are not equivalent",
    "5": "W^Q and W^K are balanced and of rank dh",
    "6": "largest singular value of W^Q W^Kᵀ",
    "7": "mean diagonal logit and Frobenius norm",
    "8": "condition numbers of W^Q and W^K",
    "9": "heads draw their own noise",
    "10": "singular values of the MLP, mean square kept",
    "11": "row norms of the MLP",
    "12": "all other parameters stay, biases are 0",
    "13": "bfloat16 keeps the conditioning",
    "14": "uniform noise gives the same spectrum",
    "15": "conditioned initialisation",
    "16": "residual-free initialisation",
    "17": "readings and temperature of the residual-free initialisation",
    "18": "a skipless block is the exact composition",
    "19": "one skip of a block kept",
    "20": "fused attention with temperature",
    "21": "initialised attention is diagonally dominant",
    "22": "tokens collapse by default and not when initialised",
    "23": "query gradients are restored",
    "24": "conditioning of the attention's Jacobian",
    "25": "analytic Jacobian of attention",
    "26": "κ of peaked and diffuse softmax",
    "27": "bounds on κ of the softmax",
    "28": "bound on κ of a concatenation",
    "29": "Jacobian of attention by its weights, Theorem 3.1",
    "30": "linear attention cubes the condition number",
    "31": "Token Graying by SVD",
    "32": "Token Graying by DCT",
    "33": "kurtosis constants and estimator",
    "34": "dense mixing shrinks kurtosis",
    "35": "residual addition keeps kurtosis",
    "36": "drift of spectral and sign updates",
    "37": "quantisation noise, negentropy, CKA",
    "38": "moments of the logits of Gaussian tokens; eqs. 17 and 19 are wrong as printed",
    "39": "derivative of the softmax; Lemma 1 is wrong as printed, in eq. 21 and in its factor α",
    "40": "the worst block bounds κ of the Jacobian: where blocks have more parameters than outputs",
    "41": "bound on κ of a linear MLP; with κ(W_up) κ(W_down) as its constant it is wrong",
    "42": "bound on κ of a skip connection, Proposition 4.2: wrong as printed",
    "43": "Token Graying flattens the spectrum of attention's Jacobian",
    "44": "variance by depth, without and with normalisation",
    "45": "norm of a sign matrix; Lemma 9 is of random signs only",
    "46": "scores of orthogonal queries and keys: of two tokens",
    "trap i": "LayerNorm takes a dimension from the tokens",
    "trap ii": "the Jacobian is measured without the norm",
    "trap iii": "the key bias has no gradient",
    "trap iv": "κ needs singular values in float64",
    "trap v": "medians, not means, of κ",
}
"""What each check, by the number in its test's name, is about."""


def collect(slow: bool) -> tuple[list[dict[str, Any]], int]:
    """Lines of all checks, in the order of the tests, and pytest's exit code."""
    tests = sorted(str(path) for path in (ROOT / "tests" / "conformance").glob("test_papers_*.py"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        marks = ["-m", "not gpu"] if slow else []
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *marks, *tests]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "DINOSKIP_FIDELITY": str(path)}).returncode
        return [json.loads(line) for line in path.read_text().splitlines()], code


def number(value: Any) -> str:
    """Return a value as text, numbers with at most five significant digits."""
    return value if isinstance(value, str) else f"{float(value):.5g}"


def expected(line: dict[str, Any]) -> str:
    """A bound, or a value and its tolerance."""
    if isinstance(line["expected"], str):
        return line["expected"].replace("..", " to ")
    return number(line["expected"]) + (f" ± {line['tolerance']:.2g}" if line["tolerance"] else "")


def check_of(line: dict[str, Any]) -> str:
    """The number of a check, from its test's name: "7", "trap ii"."""
    named = re.search(r"::test_(\d+|trap_[iv]+)", line["test"])
    return named[1].lstrip("0").replace("_", " ") if named else ""


def missed(lines: list[dict[str, Any]]) -> str:
    """Return the text on a claim with failed comparisons: how many hold, and the first that does not; "" if all do."""
    first = next((line for line in lines if not line["passed"]), None)
    if first is None:
        return ""
    count = f"{sum(line['passed'] for line in lines)}/{len(lines)}"
    return f": **{count}**, {first['what']}: {number(first['got'])} ({expected(first)})"


def page(lines: list[dict[str, Any]]) -> str:
    """The page's text: a part a paper, a line a claim."""
    passed = sum(line["passed"] for line in lines)
    summary = f"{passed} of {len(lines)}" if passed < len(lines) else f"All {passed}"
    summary += " comparisons are met."
    parts = [HEAD.format(summary=summary)]
    for paper in PAPERS:
        parts.append(f"\n## {paper}\n")
        rows = [line for line in lines if line["paper"] == paper]
        for check in sorted(set(map(check_of, rows)), key=list(CLAIMS).index):
            some = [line for line in rows if check_of(line) == check]
            where = ", ".join(dict.fromkeys(line["equation"] for line in some))
            parts.append(f"- `{check}` {CLAIMS[check]} ({where}){missed(some)}")
    return "\n".join(parts) + "\n" + NOT_CHECKED + not_made()


def not_made() -> str:
    """The items of every paper's record: what makes them, what does not, and why."""
    parts = [NOT_MADE]
    for record in papers.PAPERS.values():
        made = [item for item in record.items if item.made_by]
        parts.append(f"\n### {record.title}\n")
        parts += ["| item | made by | differs in |", "|---|---|---|"]
        parts += [f"| {item.name}: {item.about} | {_makers(item.made_by)} | {item.why} |" for item in made]
        if left := [f"- **{item.name}** ({item.about}): {item.why}." for item in record.items if not item.made_by]:
            parts += ["\nNot made:\n", *left]
    return "\n".join(parts) + "\n"


def _makers(configs: tuple[str, ...]) -> str:
    """Links to configurations; a command as it is."""
    linked = [f"[{Path(one).stem}](../configs/{one})" if one.endswith(".yaml") else f"`{one}`" for one in configs]
    return ", ".join(linked)


def table(lines: list[dict[str, Any]]) -> str:
    """The CSV's text: a line a comparison."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["paper", "check", "where", "what", "expected", "got", "met"])
    for line in lines:
        where = [line["paper"], check_of(line), line["equation"]]
        writer.writerow([*where, line["what"], expected(line), number(line["got"]), "yes" if line["passed"] else "no"])
    return text.getvalue()


def main() -> int:
    """Run, write, and say how it went; with ``--lists`` only the lists of what is made are written anew."""
    if "--lists" in sys.argv[1:]:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            text[: text.index(NOT_MADE.lstrip().splitlines()[0])].rstrip() + "\n" + not_made(), encoding="utf-8"
        )
        return 0
    lines, code = collect("--slow" in sys.argv[1:])
    PAGE.write_text(page(lines), encoding="utf-8")
    PAGE.with_suffix(".csv").write_text(table(lines), encoding="utf-8")
    bad = [line for line in lines if not line["passed"]]
    print(f"{PAGE}: {len(lines) - len(bad)} of {len(lines)} comparisons met")
    return 1 if bad or code else 0


if __name__ == "__main__":
    sys.exit(main())
