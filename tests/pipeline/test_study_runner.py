"""One place that puts a study's runner together."""

import re
from pathlib import Path

from dinoskip.config import RawConfig
from dinoskip.pipeline.study import STAGES, study_of
from dinoskip.pipeline.study_runner import study_runner

PACKAGE = Path(__file__).parents[2] / "dinoskip"


def test_has_the_studys_folder_and_rules(tmp_path: Path) -> None:
    tree = {"name": "s", "output": str(tmp_path), "storage": {"limit": "3GB"}, "evaluate": {"features": "window"}}
    study, variants = study_of(RawConfig({**tree, "variants": {"model": [{"backbone": "timm:vit_tiny_patch16_224"}]}}))
    runner = study_runner(study, variants, [], device="cpu", workers=2)
    assert (runner.study, runner.stages, runner.device, runner.workers) == (tmp_path / "s", STAGES, "cpu", 2)
    assert runner.stores.rules == study.storage_rules
    assert (runner.stores.rules.limit, runner.stores.rules.at_once) == (3e9, True)


def test_no_other_place_does() -> None:
    places = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"\bRunner\(", path.read_text())]
    assert places == ["study_runner.py"]
