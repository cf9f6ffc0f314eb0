"""Python in README.md and on some pages runs as it stands there, with small stand-ins for what a reader would have."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import dinoskip.models
from dinoskip.data import ScenesConfig

ROOT = Path(__file__).parents[2]
SMALL = "timm:vit_tiny_patch16_224,pretrained=false,depth=3"
STAND_INS = {
    "README.md": {
        '"timm:vit_small_patch16_224.dino"': f'"{SMALL}"',
        '"skipless_vit_small_patch16_224"': '"skipless_vit_tiny_patch16_224"',
        '"run:runs/skipless"': f'"{SMALL}"',
        "[3, 6, 9, 12]": "[1, 3]",
    },
    "docs/concepts/initialisation.md": {},
}
"""What each page's examples are run with, in place of what they say: no downloads, small networks."""


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(page: str, namespace: dict[str, Any]) -> list[str]:
    """Run all examples of a page in one namespace, in the current folder; each stand-in is needed."""
    texts, unused = examples(page), set(STAND_INS[page])
    for place, text in enumerate(texts):
        for written, stand_in in STAND_INS[page].items():
            unused -= {written} if written in text else set()
            text = text.replace(written, stand_in)
        exec(compile(text, f"{page}, example {place + 1}", "exec"), namespace)
    assert texts
    assert not unused, f"{page} no longer says {unused}"
    return texts


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ScenesConfig(images=8, size=64, val_fraction=0.5).compose(tmp_path / "made").rename(tmp_path / "VOCdevkit")
    values: dict[str, Any] = {"images": torch.zeros(1, 3, 224, 224)}
    run("README.md", values)
    assert {row["metric"] for row in values["rows"]} >= {"mIoU", "CorLoc"}
    assert {row["block"] for row in values["rows"]} >= {"1", "2", "3"}
    model = values["model"]
    assert isinstance(model, timm.models.VisionTransformer)
    assert isinstance(model.blocks[0], dinoskip.models.Block)
    assert model.num_classes == 10
    assert values["layers"][3].tokens.shape == (1, 14 * 14, 192)


def test_initialisations_differ_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/concepts/initialisation.md", {})
    default, ours = (
        [float(one) for one in line.split("[")[1].strip("]\n").split(",")]
        for line in capsys.readouterr().out.splitlines()
    )
    assert min(default[1:]) > 0.99
    assert ours[2] == pytest.approx(0.42, abs=0.05)
    assert ours[9] == pytest.approx(0.96, abs=0.02)
