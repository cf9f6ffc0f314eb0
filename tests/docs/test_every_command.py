"""Every command of README.md and docs/ is run, small, or stands here with the reason why it is not; so do examples.

A new command that is neither fails; so does a line here that no page has any more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from tests.docs import test_python_examples
from tests.helpers.absent_parts import is_there
from tests.helpers.documented import PAGES, ROOT, Command, commands, make_place, smaller, snippets

SUITE = "runs tests or the demo for minutes to hours, in an environment that it makes"
NETWORK = "needs a network"
GPUS = "one process a GPU, eight; two on a CPU: tests/runtime/test_distributed.py, tests/training/test_launch.py"
SPREAD = "needs SLURM and submitit; tests/pipeline/test_other_engines.py has a pretended SLURM that runs jobs"
QUICK = "a minute of training; tests/pipeline/test_shipped.py runs configs/quick.yaml, small"
ARCHIVES = "needs the published archives; tests/data/sets/test_prepare.py unpacks small ones"
NOT_RUN = {
    "make demo": SUITE,
    "make test": SUITE,
    "make chaos": SUITE,
    "pytest -q -m slow tests/pipeline/test_shipped.py '|' python -m tests.pipeline.shipped_page": SUITE,
    "pytest -m slow tests/faults tests/training": SUITE,
    "python -m tests.conformance.fidelity_page --slow": SUITE,
    "pip install .": "tests/docs/test_tutorial.py installs the wheel",
    "pip install 'dinoskip[tensorboard,wandb,mlflow]'": NETWORK,
    "dinoskip run study.yaml 'pretrain.boards=[tensorboard, wandb, mlflow]'": f"{NETWORK}; test_boards.py",
    "tensorboard --logdir runs/NAME/stages/pretrain": "a server that does not end",
    "hf upload USER/NAME FOLDER": f"{NETWORK} and an account",
    "dinoskip demo --quick": QUICK,
    "dinoskip submit photos.yaml --cluster configs/cluster/h100_8gpu.yaml --nodes 2": GPUS,
    "pip install '.[slurm]'": NETWORK,
    "dinoskip submit photos.yaml --cluster configs/cluster/h100_8gpu.yaml --spread --dry-run": SPREAD,
    "dinoskip submit photos.yaml --cluster configs/cluster/h100_8gpu.yaml --spread --detach": SPREAD,
    "dinoskip run photos.yaml run.executor=engines:workers run.workers=2":
        "needs dask.distributed; tests/pipeline/test_other_engines.py runs the example where it is installed",
    "dinoskip features convert features rows --to huggingface":
        "needs pyarrow, which dev has not; tests/features/test_convert.py where it is installed",
    "dinoskip models show hub:./dinov2:dinov2_vits14,file=dinov2_vits14_pretrain.pth":
        "needs a clone of facebookresearch/dinov2; tests/models/test_from_hub.py opens a folder of the same form",
    "dinoskip models show hf:./dinov2-small":
        "needs facebook/dinov2-small; tests/models/test_from_hf.py opens the same layouts",
    "dinoskip data prepare coco20k train2014.zip annotations_trainval2014.zip coco_20k_filenames.txt --out data/coco":
        ARCHIVES,
    "dinoskip data prepare davis DAVIS-2017-trainval-480p.zip --out DAVIS": ARCHIVES,
}  # fmt: skip
"""Commands that are not run, and why."""
RUN_ELSEWHERE = {
    "docs/change_a_loss.md": "tests/docs/test_change_a_loss.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/extending.md": "tests/house/test_extending.py",
    "docs/examples.md": "tests/docs/test_examples.py",
}
"""Pages that a test of their own runs from top to bottom."""
LAUNCHERS = ("torchrun", "srun")


def reason(command: Command) -> str | None:
    """Return the reason for which a command is not run here; None if it is run."""
    if command.page in RUN_ELSEWHERE:
        return RUN_ELSEWHERE[command.page]
    return GPUS if command.text.startswith(LAUNCHERS) else NOT_RUN.get(command.text)


RUN = [command for command in commands() if reason(command) is None]


def test_every_command_is_run_or_has_a_reason() -> None:
    assert {
        command.text for command in RUN if not command.text.startswith(("dinoskip ", ".venv/bin/dinoskip "))
    } == set()
    assert not set(NOT_RUN) - {command.text for command in commands()}, "no page has these any more"
    for where in RUN_ELSEWHERE.values():
        assert is_there(where)


def test_every_example_is_run_or_has_a_reason() -> None:
    with_examples = {page.relative_to(ROOT).as_posix() for page in PAGES if snippets(page.relative_to(ROOT).as_posix())}
    elsewhere = {*RUN_ELSEWHERE, *test_python_examples.ELSEWHERE} & with_examples
    assert with_examples == {*test_python_examples.STAND_INS, *elsewhere}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_place(tmp_path)
    failed: dict[str, str] = {}
    for number, command in enumerate(RUN):
        arguments = smaller(command, RUN[:number])
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as stop:  # of the parser
            code = int(str(stop.code))
        except Exception as error:  # all are named, not the first alone
            failed[f"{command.page}: {command.text}"] = f"{arguments}: {error!r}"
            continue
        if code != 0:
            failed[f"{command.page}: {command.text}"] = f"{arguments}: {code}: {capsys.readouterr().err[-600:]}"
    assert not failed, "\n".join(f"{one}\n    {said}" for one, said in failed.items())
