"""Tables as Markdown, CSV and LaTeX: nothing in a name can leave its cell."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import pytest

from visualize.tables import TextTable, as_csv, escape_latex, latex, markdown, mean_deviation

NASTY = r"""50%_of $x$ & #1 {a}\end{tabular} ~^ <b> |"`'- [x] – “q” κ→× é 漢 \input{/etc/passwd}"""
GRID = TextTable(
    "paper-table2",
    NASTY,
    [[("", 1), ("VOC2012", 2)], [(NASTY, 1), ("300 skip", 1), ("200 skipless", 1)]],
    [[NASTY, "1.0 [0.5, 1.5]", "not run"], ["[2]", "−1.0", NASTY]],
    rules=frozenset({1}),
    notes=[NASTY],
)


def test_latex_leaves_no_command_of_a_name_active():
    shown = escape_latex(NASTY)
    words = "textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|textquotedbl|"
    words += "textasciigrave|textquotesingle|textendash|dots"
    known = rf"\\({words})\{{\}}|\\[{{}}$&#_%]|\$\\[a-z]+\$|\$-\$|-\{{\}}|\{{[\[\]]\}}"
    left = re.sub(known, "", shown)
    assert not re.search(r"[\\{}$&#_%~^<>|\"]", left), left
    assert "?" in left, "a letter that pdfLaTeX lacks"
    assert escape_latex("50.2 b9 skip-adamw ---") == "50.2 b9 skip-adamw -{}-{}-"


def test_every_latex_row_has_as_many_cells_as_columns():
    text = latex(GRID)
    assert r"\begin{tabular}{lrr}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{2}{c}{VOC2012}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in rows] == [1, 2, 2, 2]
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(tmp_path):
    packages = r"\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{booktabs}\usepackage{textcomp}"
    body = rf"\documentclass{{article}}{packages}\begin{{document}}{latex(GRID)}\end{{document}}"
    (tmp_path / "t.tex").write_text(body)
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_markdown_has_one_header_line_and_escapes_every_cell():
    lines = [line for line in markdown(GRID).splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert {len(line) for line in cells} == {3}
    assert lines[1] == "|---|---:|---:|"
    assert cells[0][1].strip() == "VOC2012, 300 skip"
    assert "<b>" not in markdown(GRID).replace("\\<", "").replace("\\>", "")


def test_csv_reads_back_and_runs_no_formula():
    table = list(csv.reader(io.StringIO(as_csv(GRID.columns, [["=1+1", 2.5, "a,b\n"], ["-", -1.5, ""]]))))
    assert table[1:] == [["'=1+1", "2.5", "a,b\n"], ["'-", "-1.5", ""]]


def test_mean_and_deviation():
    assert mean_deviation([]) == "–"
    assert mean_deviation([1.0]) == "1.0"
    assert mean_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert mean_deviation([1.0, 3.0], digits=2) == "2.00 ± 1.41"
