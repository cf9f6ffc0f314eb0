from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import ConfigError
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from tests.helpers.chromium import CHROMIUM, Chromium
from tests.helpers.html import Page
from visualize.figures import loss_figure
from visualize.figures.drawing import FORMATS, written_as
from visualize.pages import clean, relative_link
from visualize.report import Preview, Report, build_report
from visualize.report.answer import NO_LABELS, NO_SCORE
from visualize.report.config import ReportConfig
from visualize.report.content import PrintedTable
from visualize.report.first_sentence import COSINE, RANK
from visualize.report.rows_page import long_table, write_long_table
from visualize.rows import StudyVariant
from visualize.tables import DataTable, TextTable, setting, shown


def printed(name):
    """A published table with nothing of ours in it."""
    head = [[("", 1), ("mIoU", 1)]]
    return PrintedTable(TextTable(name, f"Table {name}", head, [["paper", "62.3"]]), "ours,paper\n,62.3\n")


@pytest.fixture
def make_report(make_scene, tmp_path):
    def build(name="skip", text="plain"):
        figure = loss_figure({name: [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]}, tmp_path / "in/loss.svg")
        Image.new("RGB", (8, 4)).save(tmp_path / "in/sheet.png")
        models = make_scene().models
        return Report(
            text,
            [StudyVariant(name, rows=models[0].rows, settings={"depth": 12, text: text}), StudyVariant("later")],
            note=text,
            figures=[figure],
            gallery="../gallery/index.html",
            previews=[Preview(tmp_path / "in/sheet.png", text, text)],
            diagnostics=[
                DataTable.of(text, [{"block": 1, text: text, "kappa": 1.0}]),
                DataTable(text, [text], [[None]]),
            ],
            environment={text: text},
            protocol={text: {text: [1e-4, text]}},
            notices=[text],
            commands=[text, "dinoskip run configs/demo.yaml"],
            papers=[printed(name) for name in ("claims", "paper-table2", "paper-table1")],
            sheets=("gallery/sheet-1.pdf",),
        )

    return build


def test_every_reference_exists_and_none_leaves_the_page(make_report, tmp_path, for_papers):
    build_report(make_report(), tmp_path / "report")
    page = Page(tmp_path / "report/index.html")
    links = [tag[key] for _, tag in page.tags for key in ("src", "href", "srcset") if key in tag]
    local = [link for link in links if not link.startswith("#") and "gallery/" not in link]
    assert local
    assert all((tmp_path / "report" / link).is_file() for link in local)
    ids = {tag["id"] for _, tag in page.tags if "id" in tag}
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    written = {path.name for path in (tmp_path / "report/img").iterdir()}
    assert written == {link.removeprefix("img/") for link in local if link.startswith("img/")}
    assert "http" not in (tmp_path / "report/index.html").read_text().replace("http-equiv", "")


def test_a_page_links_to_the_files_of_figures_that_there_are(make_report, tmp_path):
    build_report(make_report(), tmp_path / "svg")
    with written_as(FORMATS):
        build_report(make_report(), tmp_path / "all")
    links = [
        {tag["href"] for _, tag in Page(tmp_path / name / "index.html").tags if tag.get("href", "").startswith("img/")}
        for name in ("svg", "all")
    ]
    assert links == [{"img/loss.svg"}, {"img/loss.svg", "img/loss.pdf", "img/loss.png"}]
    for name, linked in (("svg", "img/loss.svg"), ("all", "img/loss.png")):
        assert f"]({linked})" in (tmp_path / name / "report.md").read_text()


def test_the_longest_note_is_shown_whole(make_report, tmp_path):
    note = ReportConfig(note=" ".join(str(number) for number in range(300))[:1200].strip()).note
    build_report(make_report(text=note), tmp_path / "report")
    assert note in Page(tmp_path / "report/index.html").text
    assert note in (tmp_path / "report/report.md").read_text()


def test_numbers_are_those_of_the_rows(make_report, tmp_path):
    report = make_report()
    build_report(report, tmp_path / "report")
    text = re.sub(r"\s+", " ", Page(tmp_path / "report/index.html").text)
    top = max(
        (row for row in report.variants[0].rows if row.metric == "mIoU" and row.block.isdigit()), key=lambda r: r.value
    )
    assert f"{top.value:.1f} b{top.block}" in text
    assert "not run" in text  # the second variant
    assert "62.3" in text  # the published table
    csv = (tmp_path / "report/rows.csv").read_text().splitlines()
    assert len(csv) == 1 + len(report.variants[0].rows)
    assert "| later | not run |" in (tmp_path / "report/report.md").read_text()
    assert {path.name for path in (tmp_path / "report/tables").iterdir()} == {
        f"{name}.{kind}"
        for name in ("answer", "best", "blocks-0", "blocks-1", "blocks-2", "claims", "paper-table1", "paper-table2")
        for kind in ("md", "csv", "tex")
    }


def test_random_weights_stand_in_the_tables_of_blocks(make_report, tmp_path):
    report = make_report()
    rows = [replace(row, epoch=4) for row in report.variants[0].rows]
    begun = [replace(row, epoch=0, value=row.value / 2) for row in rows]
    both = replace(report, variants=[StudyVariant("skip", rows=[*rows, *begun])])
    build_report(both, tmp_path / "report")
    text = re.sub(r"\s+", "", Page(tmp_path / "report/index.html").text)
    blocks = {int(row.block): row.value for row in begun if row.metric == "mIoU" and row.block.isdigit()}
    assert "skip,epoch0" + "".join(f"{blocks[block]:.1f}" for block in sorted(blocks)) in text


FOLD = r'<details markdown="1"><summary>[\w, ]+</summary>|</details>'


def test_hostile_text_stays_text(make_report, tmp_path, hostile):
    build_report(make_report(), tmp_path / "plain")
    build_report(make_report(name=hostile, text=hostile), tmp_path / "hostile")
    page = Page(tmp_path / "hostile/index.html")
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in Page(tmp_path / "plain/index.html").tags]
    assert not [key for _, tag in page.tags for key in tag if key.startswith("on") or key == "style"]
    assert "\u202e" not in page.text
    rows = [Page(tmp_path / name / "rows.html") for name in ("plain", "hostile")]
    assert [tag for tag, _ in rows[0].tags] == [tag for tag, _ in rows[1].tags]
    text = [line for line in (tmp_path / "hostile/report.md").read_text().splitlines()]
    text = [line for line in text if line[:4] != "    " and not re.fullmatch(FOLD, line)]  # no code, no fold of ours
    assert not re.search(r"(?<!\\)<", "\n".join(text)), "Markdown would take it for HTML"


def test_photographs_are_on_the_page_alone_and_other_pictures_in_the_markdown_alone(make_report, tmp_path):
    report = make_report()
    plain = Preview(tmp_path / "in/plain.png", "PCA [only]", "", photographs=False)
    Image.new("RGB", (5, 5)).save(plain.path)
    build_report(replace(report, previews=[*report.previews, plain]), tmp_path / "report")
    page, text = ((tmp_path / "report" / name).read_text() for name in ("index.html", "report.md"))
    assert ("preview-0.png" in page, "preview-0.png" in text) == (True, False)
    assert ("preview-1.png" in page, "preview-1.png" in text) == (False, True)
    assert "![PCA \\[only\\]](img/preview-1.png)" in text
    assert (tmp_path / "report/img/preview-1.png").read_bytes() == plain.path.read_bytes()


def test_an_empty_study_says_so(tmp_path):
    build_report(Report("empty", [StudyVariant("a")]), tmp_path / "report")
    assert NO_SCORE in Page(tmp_path / "report/index.html").text


def test_photographs_without_labels_have_their_features_values(tmp_path):
    quantities = {COSINE: {"net": {1: 0.9, 12: 0.51}}, RANK: {"net": {1: 60.0, 12: 32.6}}}
    build_report(Report("look", [StudyVariant("net")], features=quantities, labelled=False), tmp_path / "report")
    text = Page(tmp_path / "report/index.html").text
    assert NO_LABELS in text
    assert "No network has collapsed" in text


@pytest.mark.parametrize("address", ["https://example.org", "javascript:alert(1)", "/etc/passwd", "//host/x", "", "#x"])
def test_links_are_relative(address):
    with pytest.raises(ConfigError, match="relative paths"):
        relative_link(address)


@pytest.mark.parametrize(
    ("value", "cell", "typed"),
    [
        (1.0, "1.00", "1"),
        (18.45, "18.4", "18.45"),
        (1234.5, "1,234", "1234.5"),
        (6e-16, "6.0·10⁻¹⁶", "6e-16"),
        (math.inf, "∞", "∞"),
        (math.nan, "–", "–"),
        (3, "3", "3"),
        (None, "not run", "none"),
        (True, "yes", "yes"),
        ([1e-4, {"k": 0.07}], "0.0001, k 0.07", "0.0001, k 0.07"),
    ],
)
def test_values_read_well(value, cell, typed):
    assert (shown(value), setting(value)) == (cell, typed)


def test_clean_keeps_both_ends_of_long_names():
    assert clean("a" * 200 + "end", 30) == "a" * 19 + "…" + "a" * 7 + "end"
    assert clean("one\ntwo\u202e\x00") == "one two"


def test_baselines_are_below_the_variants(make_report, tmp_path):
    report = make_report()
    floor = [row.baseline("full image", 12.5, 10.0, 15.0) for row in report.variants[0].rows if row.metric == "CorLoc"]
    build_report(replace(report, baselines=list(dict.fromkeys(floor))), tmp_path / "report")
    page = Page(tmp_path / "report/index.html")
    best, _, blocks = page.text.rpartition("Every block")
    assert best.index("later") < best.index("baseline: full image")
    assert "[10.0, 15.0]" in best
    assert blocks.count("baseline: full image") == 1
    assert "baseline: full image" in (tmp_path / "report/report.md").read_text()
    lines = (tmp_path / "report/rows.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines].count("baseline: full image") == 1


def cut(model, value, block="1"):
    """A row of TokenCut with a degenerate graph on every image, though the features have not collapsed."""
    return EvalResult("CorLoc", value, "tokencut", block, "voc", "val", 100, model=model, low=value - 4,
                      high=value + 4, protocol="tokencut tau=0.2 eps=1e-05", degenerate=1.0, complete=1.0,
                      token_cosine=0.86)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
def test_a_failed_cut_is_said_of_one_network_and_where_nothing_separates(count, tmp_path):
    names = ["a", "b"][:count]
    rows = {name: [cut(name, 4.0)] for name in names}
    full = EvalResult("CorLoc", 29.0, "tokencut", "", "voc", "val", 100, model="baseline: full image")
    ids = tuple(map(str, range(100)))
    every = [full, *(row for own in rows.values() for row in own)]
    records = {row: ImageRecords(ids, (np.arange(100) < row.value).astype(np.uint8)) for row in every}
    studied = [StudyVariant(name, rows=rows[name]) for name in names]
    build_report(Report("r", studied, baselines=[full], records=records), tmp_path)
    text = " ".join(Page(tmp_path / "index.html").text.split())
    failed = "affinity graph degenerate at τ = 0.2"
    assert f"a, CorLoc, voc val: 1 of 1 blocks (1): {failed} (100 of 100 images)" in text
    assert f"block 1, {failed}" in text
    if count == 1:
        assert "a: CorLoc, voc val (100 images) 4.0 at block 1, not above the best baseline (full image, 29.0)" in text
        assert "a, CorLoc, voc val, b1: 4.0 is below the baseline (full image), 29.0" in text
    else:
        assert "does not show which is better" in text
        assert text.count(f"block 1, {failed}") == count


def test_the_same_report_is_the_same_bytes(make_report, tmp_path):
    for turn in "ab":
        build_report(make_report(), tmp_path / turn)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) > 20
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


def test_rows_have_a_page_of_their_own_with_what_they_share_above(make_report, tmp_path):
    report = make_report()
    build_report(report, tmp_path / "report")
    page = Page(tmp_path / "report/rows.html")
    assert [tag for tag, _ in page.tags].count("tr") == 1 + len(report.variants[0].rows)
    assert len([tag for tag, about in page.tags if tag == "td" and "data-key" in about]) == len(report.variants[0].rows)
    assert "dataset" in page.text.split("Show rows")[1]


def test_rows_that_repeat_another_with_a_note_are_left_out(make_report):
    row = make_report().variants[0].rows[0]
    repeated, other = replace(row, note="best on validation"), replace(row, value=1.5, note="best on validation")
    table = long_table({"v": [row, repeated, other]})
    assert (len(table["rows"]), table["left_out"]) == (2, 1)


def many_rows(make_report, hostile=""):
    row = make_report().variants[0].rows[0]
    rows = [
        replace(row, value=(7 * at) % 1201 / 12, n=at + 1, version=hostile if at % 2 else "1") for at in range(1201)
    ]
    return {"v": rows}


def test_many_rows_are_data_of_the_page_and_not_markup(make_report, tmp_path, hostile):
    write_long_table(hostile, many_rows(make_report, hostile), tmp_path / "rows.html")
    text = (tmp_path / "rows.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="rows">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&") & set(data)
    assert len(json.loads(data)) == 1201
    assert text.count("<td") == 0


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_chromium_pages_sorts_and_filters_many_rows(make_report, tmp_path, hostile):
    write_long_table("many", many_rows(make_report, hostile), tmp_path / "rows.html")
    with Chromium() as browser:
        page = browser.page(tmp_path / "rows.html")
        heads = page.js("[...document.querySelectorAll('th')].map(h => h.textContent)")
        column = f"[...document.querySelectorAll('tbody tr')].map(r => r.cells[{heads.index('n')}].textContent)"
        assert page.js(column) == [str(at) for at in range(1, 101)]
        page.click("#more")
        assert page.js(column) == [str(at) for at in range(101, 201)]
        page.click(f"th:nth-child({heads.index('n') + 1}) button")
        page.click(f"th:nth-child({heads.index('n') + 1}) button")
        assert page.js(column) == [str(at) for at in range(1201, 1101, -1)]
        page.js("document.getElementById('filter').value = '1201'; filter.dispatchEvent(new Event('input'))")
        assert page.js(column) == ["1201"]
        assert page.problems == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_chromium_opens_sorts_and_filters(make_report, tmp_path, hostile):
    report = make_report(name=hostile, text=hostile)
    build_report(report, tmp_path / "report")
    with Chromium() as browser:
        page = browser.page(tmp_path / "report/index.html")
        pictures = page.js("Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))")
        assert min(pictures) > 0
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        page.js("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.click("table.sortable th:nth-child(2) button")
        first = "document.querySelector('table.sortable tbody tr').cells[1].textContent"
        low, end = (
            page.js(first),
            "document.querySelector('table.sortable tbody').lastElementChild.cells[1].textContent",
        )
        assert page.js(end).strip() == "not run", "what has no number is last"
        page.click("table.sortable th:nth-child(2) button")
        assert float(page.js(first).split()[0]) > float(low.split()[0])
        assert page.js(end).strip() == "not run", "in either order"
        rows = browser.page(tmp_path / "report/rows.html")
        column = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[%d].textContent)"
        heads = rows.js("[...document.querySelectorAll('table.sortable th')].map(h => h.textContent)")
        rows.click(f"th:nth-child({heads.index('block') + 1}) button")
        blocks = rows.js(column % heads.index("block"))
        assert blocks == sorted(blocks, key=lambda text: [int(part) for part in text.split("+")])
        rows.js("document.getElementById('filter').value = 'knn 3'; filter.dispatchEvent(new Event('input'))")
        shown = rows.js("[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).length")
        assert 0 < shown < len(report.variants[0].rows)
        assert rows.js("document.getElementById('count').textContent").startswith(f"{shown} of")
        for one in (page, rows):
            assert one.problems == []
            assert all(address.startswith("file:") for address in one.requests)
