# Frozen: rows dinoskip/networks/skip.md, commit b161ffa6, 2026-11-27.
"""Make the two networks that ship with dinoskip: training, float16 weights with their hashes, and a card each.

python -m studies.shipped_pair train --data IMAGENETTE [--output runs/pair]
python -m studies.shipped_pair score --data IMAGENETTE [--output runs/pair]
python -m studies.shipped_pair write [--output runs/pair]

Settings are those of the third study (``configs/results/evidence.yaml``), seed 0, each network at the learning rate
that the study chose for it. ``score`` evaluates the float16 weights as they ship, and cards are made of its rows.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.pages import read_csv
from dinoskip.io.files import MANIFEST, write_manifest, write_text
from dinoskip.models.export import hash_weights, load_weights, save_weights
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip.runtime.environment import describe
from dinoskip.runtime.provenance import utc_date
from dinoskip.settings.shipped import FOLDER, SHIPPED, ShippedNetwork
from dinoskip.settings.specs import declared_weights, run_weights

CONFIG, SCORES = "configs/results/evidence.yaml", "studies/shipped_pair.yaml"
SEED, EPOCHS = 0, 6
LATE = range(5, 13)  # blocks of the third study's rule
DIFFERENCES = """\
- The paper trains a ViT-S/16 by DINO on ImageNet-1k for 300 epochs at 224 pixels; this network has 12 blocks of 128
  channels with patches of 8 pixels and was trained by patch contrast, another objective, for 6 epochs of 9,469
  photographs at 64 pixels.
- Optimizer SOAP, at a learning rate that was chosen for each network after 100 steps.
- `dinoskip:skipless` has *not* the paper's initialisation but dinoskip's calibrated one, in which one head of every
  fourth block averages over all patches at the start.
"""
DATA = """\
Training images: Imagenette (fast.ai), ten classes of ImageNet at 160 pixels, without labels. ImageNet's images are for
research; the weights contain none of them.
"""


def dinoskip(*words: str) -> None:
    """Run a command of dinoskip; raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "dinoskip", *words], check=True)


def train(network: ShippedNetwork, data: Path, output: Path) -> None:
    """Train a network, or go on with it; about 25 minutes of one quiet core."""
    dinoskip(
        "run", CONFIG, f"name=pair-{network.variant}", f"data.imagenette.root={data}",
        f"optimizer.lr={network.learning_rate!r}", "pretrain.keep_epochs=[1,3,6]", "evaluate.epochs=[0,6]",
        f"output={output}", "--variant", f"{network.variant}-soap-s{SEED}", "--until", "pretrain",
    )  # fmt: skip


def ship(network: ShippedNetwork, output: Path) -> None:
    """Write the trained weights as float16 to their place in the package."""
    stages = output / f"pair-{network.variant}" / "stages"
    runs = [path for path in stages.glob(f"pretrain/{network.variant}-soap-s{SEED}/*") if (path / MANIFEST).is_file()]
    (run,) = runs
    weights = run_weights(str(run))
    state, config, info = load_weights(weights)
    about = {**info, "learning_rate": network.learning_rate, "data": "Imagenette", "objective": "patch_contrast"}
    about |= {"float32_weights": hash_weights(state), "date": utc_date()}
    save_weights(network.weights, {name: tensor.half() for name, tensor in state.items()}, config, about)


def score(data: Path, output: Path) -> None:
    """Evaluate the shipped weights on the third study's scenes and photographs."""
    dinoskip("run", SCORES, f"data.imagenette.root={data}", f"output={output}")


def rows_of(output: Path) -> list[EvalResult]:
    """All rows of :func:`score`, or where it was not run the third study's of the same settings and seed."""
    scored = output / "pair-scores" / "stages"
    if not scored.is_dir():
        return _of_the_study()
    return [
        row for path in sorted((output / "pair-scores" / "stages").glob("*/*/**/rows.json")) for row in read_rows(path)
    ]


def _of_the_study() -> list[EvalResult]:
    """The third study's committed rows of both variants, seed 0, at 64 pixels, under the shipped networks' names."""
    names = {f"{network.variant}-soap-s{SEED}": network.name for network in SHIPPED.values()}
    kinds = {field.name: field.type for field in fields(EvalResult)}
    numbers = {"value", "epoch", "seed", "n", "classes", "depth"}
    rows = []
    for row in read_csv(Path("docs/results/evidence/rows.csv.gz")):
        if row["model"] in names and row["dataset"] in {"scenes", "imagenette"}:
            kept: dict[str, Any] = {
                key: float(text) if key in numbers and text else text for key, text in row.items() if key in kinds
            }
            rows.append(EvalResult(**{**kept, "model": names[row["model"]]}))
    return rows


def mean_of(rows: Sequence[EvalResult], model: str, metric: str, facet: str) -> float:
    """A network's mean over the late blocks; nan where it was not scored."""
    found = [
        row.value for row in rows
        if (row.model, row.metric) == (model, metric) and row.facet == facet and not row.note
        and row.block.isdigit() and int(row.block) in LATE
    ]  # fmt: skip
    return statistics.mean(found) if found else float("nan")


def card(network: ShippedNetwork, rows: Sequence[EvalResult], output: Path) -> str:
    """The network's card: what it is, how it was trained, what it scores, licence and limits."""
    scores = [
        ("segmentation of synthetic images, linear probe (mIoU)", mean_of(rows, network.name, "mIoU", "out")),
        (
            "object discovery on synthetic images, TokenCut by keys (CorLoc)",
            mean_of(rows, network.name, "CorLoc", "key"),
        ),
        ("Imagenette, k-NN with k = 20 (accuracy)", mean_of(rows, network.name, "accuracy_k20", "out")),
    ]
    table = "\n".join(f"| {name} | {value:.1f} |" for name, value in scores)
    machine = describe()
    source = (
        f"`python -m studies.shipped_pair score --data IMAGENETTE`; dinoskip {machine['dinoskip']}, torch "
        f"{machine['torch']}, {machine['cores']} cores"
        if (output / "pair-scores" / "stages").is_dir()
        else "rows of the third study for the same settings and seed, in docs/results/evidence/rows.csv.gz, scored in\n"
        "float32 before rounding; for the float16 weights `python -m studies.shipped_pair score --data IMAGENETTE`"
    )
    return f"""# `{network.spec}`: a small ViT, {network.words.removeprefix("pretrained, ")}

12 blocks, 128 channels, 2 heads, patches of 8 pixels, 2.4 million parameters, float16.
For trying dinoskip out and for its tests and notebooks; far below networks of a usual size.

## How it was trained

Third study (`{CONFIG}`, docs/results/evidence.md), variant `{network.variant}`, seed {SEED}: patch contrast, {EPOCHS}
epochs of 295 steps of 32 images at 64 pixels, SOAP at {network.learning_rate:g} per 256 images. To make it again:
`python -m studies.shipped_pair train --data IMAGENETTE`, then `write`.
Before rounding to float16 the weights are those of the study's run, bit for bit (sha256 of its rows,
{declared_weights(network.weights)[1]["float32_weights"][:12]}).

Differences from the skipless paper (CITATION.cff):

{DIFFERENCES}
## Data and licence

{DATA}
Weights: Apache-2.0, as dinoskip.

## Scores

Mean over blocks 5 to 12, one seed, 64 pixels ({source}):

| task | score |
|---|---:|
{table}

What the study says of skips, with five seeds and baselines, is on its page. One seed of each says nothing of it.
"""


def write(output: Path) -> None:
    """Write cards of the scores, and the manifest of all files."""
    rows = rows_of(output)
    for network in SHIPPED.values():
        write_text(network.card, card(network, rows, output))
    write_manifest(FOLDER)


def main() -> int:
    """Train, ship and score, or write cards."""
    parser = argparse.ArgumentParser(prog="python -m studies.shipped_pair")
    parser.add_argument("what", choices=["train", "score", "write"])
    parser.add_argument("--data", type=Path, help="Imagenette at 160 pixels: class folders below train and val")
    parser.add_argument("--output", type=Path, default=Path("runs/pair"))
    args = parser.parse_args()
    if args.what == "write":
        write(args.output)
        return 0
    if args.data is None:
        parser.error(f"{args.what} needs --data")
    if args.what == "score":
        score(args.data.resolve(), args.output)
        return 0
    for network in SHIPPED.values():
        train(network, args.data.resolve(), args.output)
        ship(network, args.output)
    write_manifest(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
