"""The page of each paper from the folders of studies, finished or not; nothing but those folders is read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError
from dinoskip.io.files import MAX_JSON, find_below, hash_of, read_manifest, read_regular, read_text
from dinoskip.io.output import Output
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.rehearsal.filled import TOKENS, is_number, printed_lines
from dinoskip.pipeline.report.page import SHEET, loss_of, measured, optimizers_of, strip_of
from dinoskip.pipeline.report.places import label_of
from dinoskip.pipeline.report.results_folder import STUDY
from dinoskip.pipeline.report.settings import ReportSettings, described
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.report import settings_of
from dinoskip.pipeline.study import load_study
from dinoskip.results.rows import EvalResult
from dinoskip.settings.config import read_yaml
from dinoskip_papers.items import CUTTING_THE_SKIP
from dinoskip_papers.other_page import FoundStudy, build_other, write_index
from dinoskip_papers.page import PaperPage, build_paper
from dinoskip_papers.records import RECORDS
from visualize import figures
from visualize.figures.activations import softmax_figure
from visualize.figures.training import LOSS_READING
from visualize.report import Preview, Report
from visualize.report.papers import PaperItem, StudyNumbers
from visualize.rows import StudyVariant, principal


@dataclass(frozen=True)
class Source:
    """A study: its folder, what its report reads, what that says, and by how much it could be read (``read_from``)."""

    folder: Path
    task: Task
    report: Report
    read_from: str

    @property
    def training(self) -> tuple[Path, str]:
        """Folder of stages and hash of recipe and seed: where equal, networks of one name are the same networks."""
        card = self.task.settings.card
        recipe = {part: card.get(part) for part in ("seed", "pretrain", "supervise")}
        return self.folder.parent / self.task.runtime["stages"], hash_of(recipe)

    @property
    def numbers(self) -> StudyNumbers:
        """The numbers for tables whose lines go by label; ln κ is as the study's page prints it."""
        settings: ReportSettings = self.task.settings
        labels = {settings.words_of(variant.name): label_of(variant) for variant in settings.variants}
        page = self.folder / "report" / "report.md"
        lines = printed_lines(read_text(page), TOKENS) if page.is_file() else []
        tokens = {
            line["variant"]: {side: float(line[side]) for side in ("in", "out") if is_number(line.get(side))}
            for line in lines
        }
        return StudyNumbers(self.report, labels, tokens)

    @property
    def as_found(self) -> FoundStudy:
        """The contents for the pages of those papers whose tables go by label."""
        return FoundStudy(self.folder, self.title, self.numbers, tuple(self.report.compare), self.note)

    @property
    def cautions(self) -> list[str]:
        """The note of its page, what else its networks differ in, and what was skipped or noticed."""
        return [*self.as_found.cautions, *self.report.notices]

    @property
    def note(self) -> str:
        """The note of its report, such as that it is a rehearsal."""
        return str(self.task.settings.section.note)

    @property
    def title(self) -> str:
        """The name that its settings give it, whatever its folder is called."""
        return str(read_yaml(self.folder / "report" / STUDY).tree.get("name", self.folder.name))

    @property
    def said(self) -> str:
        """The number of networks that have results, the number of results, and the place they were read from."""
        networks = sum(bool(variant.rows) for variant in self.report.variants)
        rows = sum(len(variant.rows) for variant in self.report.variants)
        note = f"; {self.note}" if self.note else ""
        return f"{self.report.title}: {networks} networks, {rows} numbers, {self.read_from}{note}"


def write_papers(
    names: Sequence[str], folders: Sequence[Path], out: Path
) -> tuple[dict[str, dict[str, tuple[int, int]]], list[Source]]:
    """Write a page of each paper, by its name, into ``out/NAME``, and ``out/index.html``, which lists them.

    Returns of each paper every table's filled cells and all, and the studies in ``folders`` as they were read. Raises
    :class:`ConfigError` for a folder without a report, for studies that share their stages and whose networks of one
    name differ, and if ``out`` is the folder of a study.
    """
    if any((out / name).exists() for name in ("report", "stages")):
        raise ConfigError(f"{out}: is the folder of a study", "choose another for the page with --out")
    output = Output(out, "paper")
    output.refuse_foreign(("index.html", *RECORDS))
    sources = [source_of(folder, out) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, output.filled() as folder:
        filled = {name: _write(name, sources, folder / name, Path(scratch)) for name in names}
        write_index(filled, {str(source.folder): source.said for source in sources}, folder)
    return filled, sources


def _write(name: str, sources: Sequence[Source], out: Path, scratch: Path) -> dict[str, tuple[int, int]]:
    """One paper's page."""
    out.mkdir(parents=True)
    if name != "cutting_the_skip":
        return build_other(RECORDS[name], [source.as_found for source in sources], out)
    groups: dict[tuple[Path, str], list[Source]] = {}
    for source in sources:
        groups.setdefault(source.training, []).append(source)
    reports = [_together(group) for group in groups.values()]
    page = PaperPage(
        reports,
        _figures(sources, reports, scratch),
        pictures_of(sources),
        {str(source.folder): source.said for source in sources},
        list(dict.fromkeys(line for source in sources if _is_of(source, CUTTING_THE_SKIP) for line in source.cautions)),
    )
    return build_paper(page, out)


def _is_of(source: Source, items: Sequence[PaperItem]) -> bool:
    """Whether a study makes one of a paper's items, or is put beside one of its tables."""
    found = source.as_found
    return any(found.made(item) or (item.table and item.table in found.compare) for item in items)


def find_studies(below: Path) -> list[Path]:
    """Folders of studies with a page, finished or not, anywhere below a folder."""
    return [path.parents[1] for path in find_below(below, STUDY) if path.parent.name == "report"]


def source_of(folder: Path, out: Path) -> Source:
    """A study as it was when its page was written; neither its data nor its networks are needed.

    What its stages left is read where it is still there; else ``rows.json`` alone, without records of images.
    """
    if not (folder / "report" / STUDY).is_file():
        raise ConfigError(f"{folder}: holds no report/{STUDY}", "`dinoskip report CONFIG` makes one of what is there")
    study, variants = load_study(folder / "report" / STUDY, [f"name={folder.name}", f"output={folder.parent}"])
    inputs, missing = _outputs(study.directory, folder)
    if not inputs or missing:
        inputs["rows.json"] = folder
    read_from = "from rows.json alone" if set(inputs) == {"rows.json"} else "from its stages"
    read_from += f" and rows.json ({missing} outputs are there no more)" if missing and len(inputs) > 1 else ""
    task = Task(settings_of(study, variants), {"stages": study.directory.name}, inputs, out, "cpu", 0)
    return Source(folder, task, measured(task), read_from)


def _outputs(directory: Path, folder: Path) -> tuple[dict[str, Path], int]:
    """Outputs of the stages that the folder's page was made from, by role, and how many of them are there no more."""
    page = read_regular(folder / "report" / STUDY, MAX_JSON)
    published = {path: read_manifest(path) for path in Artifacts(directory).published()}
    made = [
        manifest
        for path, manifest in published.items()
        if manifest.info["node"] == "report" and read_regular(path / STUDY, MAX_JSON) == page
    ]
    if not made:
        return {}, 0
    by_hash = {manifest.hash: path for path, manifest in published.items()}
    asked = max(made, key=lambda manifest: len(manifest.info["record"]["inputs"])).info["record"]["inputs"]
    found = {role: by_hash[output] for role, output in asked.items() if output in by_hash}
    return found, len(asked) - len(found)


def _together(group: Sequence[Source]) -> Report:
    """Studies with the same networks as one: a variant has the rows of all."""
    settings: dict[str, Any] = {}
    variants: dict[str, StudyVariant] = {}
    for source in group:
        for variant in source.report.variants:
            wanted = described(source.task.settings.variant(variant.name))
            if settings.setdefault(variant.name, wanted) != wanted:
                others = ", ".join(str(other.folder) for other in group if other is not source)
                raise ConfigError(
                    f"{source.folder}: its {variant.name} is another network than that of {others}", "leave one out"
                )
            known = variants.setdefault(variant.name, variant)
            variants[variant.name] = replace(known, rows=_once([*known.rows, *variant.rows]))
    reports = [source.report for source in group]
    pictured = next((report for report in reports if report.roughness), reports[0])
    return replace(
        reports[0],
        title=", ".join(source.folder.name for source in group),
        variants=list(variants.values()),
        baselines=_once([row for report in reports for row in report.baselines]),
        records={row: records for report in reports for row, records in report.records.items()},
        confounds=list(dict.fromkeys(line for report in reports for line in report.confounds)),
        notices=list(dict.fromkeys(line for report in reports for line in report.notices)),
        compare=list(dict.fromkeys(name for report in reports for name in report.compare)),
        datasets={ours: paper for report in reports for ours, paper in report.datasets.items()},
        roughness=pictured.roughness,
        block=pictured.block,
    )


def _once(rows: Sequence[EvalResult]) -> list[EvalResult]:
    """Rows without repetitions, in order; by what they print, since a NaN differs from itself."""
    return list({repr(row): row for row in rows}.values())


def _figures(sources: Sequence[Source], reports: Sequence[Report], scratch: Path) -> dict[str, figures.Figure]:
    """Figure 5, and figures 1 and 2 where a study has them; figure 1 is its page's where its stages are gone."""
    losses = (
        loss_of(source.task, source.report.variants, scratch / "loss") or loss_on_page(source.folder)
        for source in sources
        if "paper.table1" in source.report.compare
    )
    drawn = {
        "figure 1": next((figure for figure in losses if figure), None),
        "figure 2": next((figure for report in reports if (figure := _epochs(report, scratch))), None),
        "figure 5": softmax_figure(scratch / "softmax"),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def loss_on_page(folder: Path) -> figures.Figure | None:
    """The training loss as a study's page shows it; None if the page has none."""
    files = {ending: folder / "report" / "img" / f"loss{ending}" for ending in (".svg", "-dark.svg", ".pdf", ".png")}
    light, dark, pdf, png = (path if path.is_file() else None for path in files.values())
    if light is None or dark is None:
        return None
    words = ("Training loss, by optimizer", "Training loss against step, from the study's page.", LOSS_READING)
    return figures.Figure(light, dark, pdf, png, *words)


def _epochs(report: Report, scratch: Path) -> figures.Figure | None:
    """Segmentation against epoch, of the deepest networks that stand in the paper's tables."""
    named = [variant for variant in report.variants if variant.role]
    deepest = [variant for variant in named if variant.depth == max(other.depth for other in named)]
    kept = principal({variant.name: [row for row in variant.rows if row.task == "probe"] for variant in deepest})
    return figures.epochs_figure(kept, scratch / "epochs", optimizers_of(deepest))


def pictures_of(sources: Sequence[Source]) -> dict[str, Preview]:
    """Figures 4 and 6 from the gallery of the first study that table 2 is made by; that of its page has the same."""
    for source in sources:
        gallery = source.task.inputs.get("gallery", source.folder / "report" / "gallery")
        sheets = [path for path in find_below(gallery, "sheet-block*.png") if not path.stem.endswith("-plain")]
        if sheets and (gallery / "strip.png").is_file() and "paper.table2" in source.report.compare:
            chosen = gallery / f"sheet-block{source.report.block}.png"
            sheet = Preview(chosen if chosen in sheets else sheets[0], SHEET, SHEET)
            return {"figure 4": strip_of(gallery), "figure 6": sheet}
    return {}
