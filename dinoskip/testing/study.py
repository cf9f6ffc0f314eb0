"""A study that uses every example, run to its last page, and where the numbers of tasks stand on the pages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from dinoskip.io.files import write_text
from dinoskip.results.rows import read_rows
from dinoskip.settings.tasks import TASKS

EXAMPLES = Path(str(files("dinoskip.testing") / "examples"))


def write_photos(folder: Path) -> Path:
    """Write six images of 64 pixels with masks of two classes and notes, in the layout of the kind ``beside``."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(6):
        mask = np.zeros((64, 64), np.uint8)
        mask[:, : 16 + 8 * number] = 1
        image = rng.integers(0, 128, (64, 64, 3), np.uint8) + 100 * mask[..., None]
        Image.fromarray(image).save(folder / f"{number}.png")
        Image.fromarray(mask).save(folder / f"{number}_mask.png")
        write_text(folder / f"{number}_note.txt", "a note" * (1 + number))
    for name, text in (("train.txt", "0 1 2 3"), ("val.txt", "4 5"), ("classes.txt", "dark\nbright\n")):
        write_text(folder / name, text)
    return folder


def write_study(folder: Path) -> Path:
    """Write the study of all examples and its photographs below ``folder``; return its file."""
    photos = write_photos(folder / "photos")
    text = (EXAMPLES / "study.yaml").read_text(encoding="utf-8")
    write_text(folder / "study.yaml", text.replace("PHOTOS", str(photos)).replace("PARTS", str(EXAMPLES / "parts.py")))
    return folder / "study.yaml"


def missing_numbers(study: Path, tasks: Sequence[str], others: Sequence[Path] = ()) -> list[str]:
    """Numbers of ``tasks`` that are not on the pages of a finished study: report, gallery, ``rows.csv``, ``others``.

    ``study`` is the folder with its ``stages``. Of each task and data set the headline of one network is looked for, as
    text with the metric's name.
    """
    pages = [study / "report" / "index.html", study / "report" / "gallery" / "index.html", *others]
    missing = []
    for name in tasks:
        rows = [row for path in sorted(study.glob(f"stages/{name}/**/rows.json")) for row in read_rows(path)]
        measured = [row for row in rows if not row.is_baseline and TASKS[name].headline.is_of(row.metric)]
        if not measured:
            missing.append(f"{name}: there is no row")
        for row in {row.dataset: row for row in measured}.values():
            label = TASKS[name].headline.said(row.metric)
            for page in pages:
                text = page.read_text(encoding="utf-8")
                if label not in text or row.shown not in text:
                    missing.append(f"{name}: {label} {row.shown} of {row.dataset} is not on {page}")
    if f",{tasks[0]}," not in (study / "rows.csv").read_text(encoding="utf-8"):
        missing.append(f"{tasks[0]}: rows.csv has none")
    return missing
