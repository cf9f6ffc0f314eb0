"""A model card for the Hugging Face hub: what a network is, how it was trained, its scores, and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import huggingface_hub

from dinoskip import __version__
from dinoskip.decisions.choosing import Score
from dinoskip.errors import DataError
from dinoskip.io.files import read_json
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.provenance import utc_date
from dinoskip.settings.config import dump
from dinoskip.settings.tasks import TASKS, task
from dinoskip.settings.vit_config import VitConfig
from visualize.board import read_sources
from visualize.comparison import Scores
from visualize.tables import markdown_rows

_FEATURES = "image-feature-extraction"


@dataclass(frozen=True)
class CardSource:
    """Source of a model card: the network, its training, and scores with how their blocks were chosen."""

    name: str
    model: VitConfig
    info: Mapping[str, Any]
    weights: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[Score] = ()
    licence: str = ""


def recipe_of_run(run: Path) -> dict[str, Any]:
    """The settings and the images' hash that a training run recorded; {} where it is none."""
    path = run / "config.json"
    return dict(read_json(path)) if path.is_file() else {}


def scores_of(weights: str, places: Sequence[str]) -> list[Score]:
    """The scores of the weights with this sha256 among the rows of studies, at chosen blocks.

    Raises :class:`DataError` if no row is of these weights.
    """
    rows: dict[EvalResult, EvalResult] = {}
    records = {}
    for source in read_sources(places):
        for row in source.rows:
            if row.weights == weights:
                rows[row] = replace(row, model="model", epoch=0)
                if row in source.records:
                    records[rows[row]] = source.records[row]
    if places and not rows:
        raise DataError(
            f"{', '.join(places)}: no row is of these weights ({weights[:16]}...)",
            "evaluate the same file, such as `dinoskip eval probe weights:FILE`",
        )
    scores = Scores({"model": list(rows.values())}, records)
    chosen = [scores.chosen_last("model", key) for key in scores.benchmarks]
    return [score for score in chosen if score is not None]


def model_card(source: CardSource) -> str:
    """The card's text: YAML for the hub, then Markdown."""
    data = huggingface_hub.ModelCardData(
        license=source.licence or None,
        library_name="timm",
        pipeline_tag=_FEATURES,
        tags=[_FEATURES, "timm", "dinoskip", "vision-transformer", *["skipless"] * (source.model.skip is not True)],
        model_name=source.name,
        eval_results=[_hub_result(score) for score in source.scores] or None,
    )
    return f"---\n{data.to_yaml().strip()}\n---\n\n{_text(source)}"


def _hub_result(score: Score) -> huggingface_hub.EvalResult:
    row = score.row
    about = {
        "block": score.block.replace("b", ""), "block_chosen": score.how, "facet": row.facet, "norm": row.norm,
        "protocol": row.protocol, "resolution": row.resolution, "images": row.n, "seed": row.seed,
    }  # fmt: skip
    if score.low is not None and score.high is not None:
        about["interval_95"] = [round(score.low, 2), round(score.high, 2)]
    return huggingface_hub.EvalResult(
        task_type=task(row.task).hub if row.task in TASKS else _FEATURES,
        dataset_type=row.dataset,
        dataset_name=row.dataset,
        dataset_split=row.split,
        metric_type=row.metric,
        metric_name=f"{row.metric}, {row.task}, {row.protocol}".rstrip(", "),
        metric_value=round(score.value, 3),
        metric_args={name: value for name, value in about.items() if value not in ("", None)},
    )


def _text(source: CardSource) -> str:
    parts = (_what, _loading, _results, _training, _limits)
    return "\n".join([f"# {source.name}\n", *(line for part in parts for line in part(source)), ""])


def _what(source: CardSource) -> Iterator[str]:
    width, patch = source.model.width, source.model.patch_size
    skips: dict[bool | str, str] = {True: "with skip connections", False: "without skip connections"}
    kind = skips.get(source.model.skip, f"with the {source.model.skip}'s skip connections alone")
    weight = source.model.skip_weight
    if weight is not None:
        change = f"{weight.end:g}" if weight.sublayers == "constant" else f"1 falling to {weight.end:g}"
        kind = f"with skip connections of weight {change} (product {weight.product(source.model.blocks):.2g})"
    yield f"`{source.model.name}` {kind}: {source.model.blocks} blocks of {width} channels, patches of {patch} pixels,"
    yield f"trained at {source.model.img_size} × {source.model.img_size}. For frozen features of images; no classifier."
    yield f"Written by dinoskip {__version__} on {utc_date()[:10]}; sha256 of the weights: `{source.weights}`."
    yield ""


def _loading(source: CardSource) -> Iterator[str]:
    size = source.model.img_size
    ours = "import dinoskip.models  # registers the architecture\n" if not source.model.computes_as_timm else ""
    yield from ("## How to load it", "", "```python")
    yield f"{ours}import timm\n"
    yield 'model = timm.create_model("local-dir:FOLDER", pretrained=True)  # or "hf-hub:USER/NAME"'
    yield "```\n"
    yield "Every block's features, normalised and resized as in our evaluation:\n\n```python"
    yield "from dinoskip.models import load_backbone\n"
    yield 'backbone = load_backbone("weights:FOLDER/model.safetensors")'
    yield f"images = backbone.transform({size})(picture)[None]"
    yield "layers = backbone.layers(images, blocks=range(1, backbone.depth + 1))"
    yield "```\n"
    yield "On the command line, with a page about any folder of photographs:\n\n```sh"
    yield "dinoskip look weights:FOLDER/model.safetensors --data PHOTOGRAPHS"
    yield "```\n"


def _results(source: CardSource) -> Iterator[str]:
    yield "## Results\n"
    if not source.scores:
        yield "None were given: `dinoskip models convert NETWORK FOLDER --rows STUDY` adds them.\n"
        return
    yield "Frozen features, one block; 95 % intervals over images.\n"
    head = ("task", "data", "metric", "value", "95 %", "block", "block is", "protocol", "images")
    lines = []
    for score in source.scores:
        shown = replace(score.row, value=score.value, low=score.low, high=score.high, deviation=None)
        where = f"{shown.dataset} {shown.split}"
        lines.append([shown.task, where, shown.metric, shown.shown, shown.interval, score.block.replace("b", ""),
                      score.how, f"{shown.protocol}, {shown.resolution}".strip(", "), str(shown.n)])  # fmt: skip
    yield from (*markdown_rows(head, lines), "")
    if kernels := sorted({score.row.kernels for score in source.scores} - {""}):
        yield f"Computed with the kernels {'; '.join(kernels)}.\n"


def _training(source: CardSource) -> Iterator[str]:
    yield "## Training\n"
    recipe = dict(source.recipe)
    images = recipe.pop("data", {})
    known = {name: source.info[name] for name in sorted(source.info)}
    known |= {"images": images.get("images"), "sha256 over the images": images.get("fingerprint")} if images else {}
    yield from (f"- {name}: `{value}`" for name, value in known.items())
    yield ""
    yield "<details><summary>Every setting</summary>\n\n```json"
    yield json.dumps({"model": dump(source.model), **recipe}, indent=1)
    yield "```\n\n</details>\n"


def _limits(source: CardSource) -> Iterator[str]:
    yield "## Limits\n"
    yield "- Features are for research; no bias or safety of any use has been measured."
    yield "- Scores hold for the block, protocol, size and split named, and for one seed unless it is said otherwise."
    if not source.licence:
        yield "- No licence of these weights is stated here."
    if any(score.how.endswith("upper estimate") for score in source.scores):
        yield "- A block chosen on the images shown makes its score an upper estimate."
    if not source.model.computes_as_timm:
        yield "- Its tensors fit an ordinary ViT, which computes something else from them: load it as said above."
