"""Expected results of a study, and whether its run made them: rows, cells of tables, figures, pictures of the gallery.

Expected results are read from the study's settings, actual ones from the files that its run left.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_text
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.words import variant_words
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip.settings.tasks import tasks
from visualize.gallery.layers import LAYERS
from visualize.report.papers import paper_of

TOKENS = "Condition of the tokens, ln κ"  # title of a page's table


@dataclass
class Filled:
    """Number of results of each sort, and a line for each that is missing or not a number of the run."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def need(self, sort: str, there: object, what: str) -> None:
        """Count one thing of a sort, or note that it is missing."""
        if there:
            self.counts[sort] = self.counts.get(sort, 0) + 1
        else:
            self.faults.append(f"{sort}: {what}")


class Expected:
    """A study's settings, as questions about what its run must leave."""

    def __init__(self, study: StudyBase, variants: tuple[Variant, ...]) -> None:
        self.study, self.variants = study, variants
        self.sections: Any = study
        self.recipe: Any = study.find(PretrainSection) or study.find(SuperviseSection)
        self.epochs = list(study.evaluate.epochs) or ([self.recipe.epochs] if self.recipe else [])
        self.supervised = study.find(SuperviseSection) is not None

    def measures(self) -> Iterator[tuple[str, str]]:
        """Task and key of the data set of every evaluation."""
        for task in type(self.study.evaluate).model_fields:
            for name in getattr(getattr(self.study.evaluate, task), "datasets", None) or ():
                yield task, name

    def networks(self) -> Iterator[tuple[Variant, int | None]]:
        """Every network that is evaluated: variant and epoch, None for weights that exist."""
        for variant in self.variants:
            yield from ((variant, epoch) for epoch in (self.epochs if variant.model else [None]))

    def blocks(self, rows: list[EvalResult]) -> set[str]:
        """Blocks that are evaluated of a network with these rows."""
        chosen = self.study.evaluate.blocks
        depth = max((row.depth for row in rows), default=0)
        return {str(block) for block in (range(1, depth + 1) if isinstance(chosen, str) else chosen)}


def filled(study: StudyBase, variants: tuple[Variant, ...], folder: Path) -> Filled:
    """Look at a study's folder after its run."""
    result, expected = Filled(), Expected(study, variants)
    rows = read_rows(folder / "rows.json") if (folder / "rows.json").is_file() else []
    _rows(result, expected, rows)
    _answer(result, expected, folder / "report" / "tables")
    for name in expected.sections.report.compare:
        cells = list(paper_of(name).cells(name, study, variants, folder))
        for there, what in cells:
            result.need(name, there, what)
        if not any(there for there, _ in cells):
            result.faults.append(f"{name}: no cell is filled")
    _report(result, expected, folder)
    _measures(result, expected, read_text(folder / "report" / "report.md"))
    _gallery(result, expected, folder / "report" / "gallery")
    return result


def _rows(result: Filled, expected: Expected, rows: list[EvalResult]) -> None:
    """Finite numbers of every network, task, data set and block, and of a rule that looks at no image."""
    finite = [row for row in rows if math.isfinite(row.value)]
    for task, key in expected.measures():
        names = {key, expected.study.data[key].dataset_name}
        here = [row for row in finite if row.task == task and row.dataset in names]
        result.need("baselines", [row for row in here if row.is_baseline], f"{task} on {key}")
        for variant, epoch in expected.networks():
            mine = [row for row in here if row.model == variant.name and epoch in {None, row.epoch}]
            about = f"{variant.name}, epoch {epoch}, {task} on {key}"
            asked = sorted(expected.blocks(mine) or {"1"}, key=int)
            for block in asked[-1:] if task == "detection" else asked:  # a detector is a training of its own
                result.need("blocks", block in {row.block for row in mine}, f"{about}, block {block}")
            if task == "probe" and expected.study.evaluate.multiscale:
                result.need("multiscale", [row for row in mine if "+" in row.block], about)
    for variant, epoch in expected.networks() if expected.supervised else ():
        mine = [row for row in finite if (row.task, row.model, row.epoch) == ("classify", variant.name, epoch)]
        result.need("accuracies", {"top1"} <= {row.metric for row in mine}, f"{variant.name}, epoch {epoch}")


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(read_text(path).splitlines()))


def _answer(result: Filled, expected: Expected, folder: Path) -> None:
    """The answer, with a number on both sides of every line."""
    if (folder / "claims.csv").is_file():
        result.need("claims", _read(folder / "claims.csv"), "the table of claims is empty")
    measured = list(expected.measures())
    silent = folder / "silent.csv"  # measures that separate no networks: their numbers are all the same asked for
    lines = [*_read(folder / "answer.csv"), *(_read(silent) if silent.is_file() else ())]
    for line in lines if measured or expected.supervised else ():
        both = "−" in line["networks"]
        sides = [line["first"], *([line["second"]] if both else [])]
        exact = "[0.0, 0.0]"  # of AP, which has no records of images to pair: nothing is known of two such errors
        unpaired = line["measure"].startswith("box AP,") and all(exact in side for side in sides)
        if both and not unpaired:
            sides.append(line["difference"])
        said = all(re.match(r"'?[+−-]?\d", side) for side in sides)
        result.need("answer lines", said, f"{line['networks']}, {line['measure']}: {sides}")
    if measured or expected.supervised:
        result.need("answers", result.counts.get("answer lines", 0) >= len(measured), "fewer lines than metrics")
    if len({one.seed for one in expected.variants if one.family}) > 1:
        result.need("seeds", any("±" in line["first"] for line in lines), "no std over seeds in the answer")


def _report(result: Filled, expected: Expected, folder: Path) -> None:
    """The page, its figures and the parts that settings ask for."""
    text = read_text(folder / "report" / "report.md")
    study, recipe = expected.sections, expected.recipe
    depths = {one.depth for one in expected.variants if one.depth}
    trained = recipe is not None
    wanted = {
        "loss": trained,
        "online": trained and bool(recipe.online_every) and bool(study.online.parts or expected.supervised),
        "inside-training": trained and bool(recipe.diagnose_every),
        "histograms-training": trained and bool(recipe.diagnose_every),
        "signal": study.analyze.enabled,
        "weights": trained and study.analyze.enabled,
        "blocks": any(expected.measures()),
        "epochs": any(expected.measures()) and len(set(expected.epochs)) > 2,  # two points are no curve
        "depth": any(expected.measures()) and len(depths) > 1,
        "roughness": shown(expected) is not None,
        "spectrum": study.analyze.enabled and study.analyze.spectrum is not None,
    }
    ending = "png" if "png" in study.report.figure_formats else "svg"
    for name, asked in wanted.items():
        if asked:
            file = f"{name}.{ending}"
            there = f"](img/{file})" in text and (folder / "report" / "img" / file).stat().st_size > 1000
            result.need("figures", there, name)
    if getattr(study, "sweep", None):
        result.need("tables", "Learning rates, chosen by short runs" in text, "rates of the sweep")
    if study.report.costs:
        result.need("tables", re.search(r"### .*[Cc]ost|### .*[Hh]ours|### .*seconds", text), "costs")
    for line in re.findall(r"^- .*no number for.*", text, flags=re.MULTILINE):
        result.faults.append(f"report: {line}")
    result.need("pages", (folder / "index.html").is_file(), "no index.html")


def printed_lines(text: str, title: str) -> list[dict[str, str]]:
    """The lines of a page's table below a heading, by column; none where there is no such table."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^#|\Z)", text.replace("\\", ""), re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\| (.*) \|$", found[1], re.MULTILINE) if found else []
    head, *body = ([cell.strip() for cell in line.split(" | ")] for line in lines) if lines else ([],)
    return [dict(zip(head, line, strict=True)) for line in body]


def _measures(result: Filled, expected: Expected, text: str) -> None:
    """Count measurements of the networks themselves: ln κ of the tokens, epochs to an accuracy, rounded networks."""
    study, trained = expected.sections, [one.name for one in expected.variants if one.model]
    named = {words: name for name, words in variant_words(expected.variants).items()}
    tokens = {named[line["variant"]]: line for line in printed_lines(text, TOKENS)}
    for name in trained:
        result.need("ln κ", all(is_number(tokens.get(name, {}).get(side)) for side in ("in", "out")), name)
    if expected.supervised and expected.recipe.online_every and len(trained) > 1:
        reached = {named[line["variant"]]: line for line in printed_lines(text, "Epochs to an accuracy")}
        for name in trained:
            result.need("epochs to an accuracy", is_number(reached.get(name, {}).get("final top-1")), name)
    if study.analyze.quantise is not None:
        rounded = {named[line["network"]]: line for line in printed_lines(text, "Rounded weights and activations")}
        for name, bits in itertools.product(trained, study.analyze.quantise.precisions):
            column = f"W32{bits}" if bits.startswith("A") else bits  # activations alone
            result.need("rounded", is_number(rounded.get(name, {}).get(column)), f"{name}, {bits}")


def is_number(text: str | None) -> bool:
    """Whether a page's cell is a number."""
    return re.match(r"[−-]?\d", text or "") is not None


def shown(expected: Expected) -> str | None:
    """Key of the data set that the gallery shows."""
    study = expected.sections
    return study.gallery.dataset or next(iter(study.evaluate.probe.datasets), None)


def _gallery(result: Filled, expected: Expected, folder: Path) -> None:
    """Every column has every picture at every block, and its files."""
    name = shown(expected)
    if name is None:
        return
    page = read_text(folder / "index.html")
    found = re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    study = expected.sections
    firsts = {one.family or one.name: one for one in expected.variants}
    columns = sum(len(study.gallery.epochs) or 1 if one.model else 1 for one in firsts.values())
    result.need("columns", len(data["models"]) == columns, f"{data['models']}, {columns} expected")
    layers = {"pca", "cut", "vector", "attention"}
    own = {record.name for record in tasks() if not isinstance(record.pictures, str)}  # on images of their own sets
    layers |= {task for task, key in expected.measures() if task in own or (key == name and task in LAYERS)}
    result.need("images", len(data["images"]) >= study.gallery.first, f"{len(data['images'])} images")
    for column, model in enumerate(data["models"]):
        every = {layer: [number for number, image in enumerate(data["images"]) if image["layer"] == layer]
                 for layer in (*own, "")}  # fmt: skip
        for layer in sorted(layers):
            for image in every.get(layer) or every[""]:
                own = data["cells"][column][image]["layers"].get(layer, {})
                whole = own.get("blocks") and own["blocks"] == data["blocks"][: len(own["blocks"])]
                file = folder / "img" / f"{layer}-m{column}-i{image:03d}.png"
                result.need("pictures", whole and file.is_file(), f"{model}, {layer}, image {image}: {own}")
