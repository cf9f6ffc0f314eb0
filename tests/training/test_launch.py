"""The batch script of `dinoskip submit`: what it asks for, every name whole through the shell, input checked."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.settings.config import RawConfig, read_yaml, validate
from dinoskip.training.launch import ClusterConfig, folder_of, run_tool, script, submit
from tests.helpers.slurm import Slurm
from tests.helpers.study import TINY
from tests.helpers.tiny import make_images

ROOT = Path(__file__).parents[2]


def options_of(text: str) -> dict[str, str]:
    """The #SBATCH options as sbatch reads them."""
    found = {}
    for line in text.split("\n"):
        if line.startswith("#SBATCH "):
            for word in shlex.split(line.removeprefix("#SBATCH ")):
                key, _, value = word.partition("=")
                found[key] = value
    return found


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    fake = Slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(TINY)
    for name in ("photos", "my photos"):
        for label in "ab":
            make_images(tmp_path / name / label, 4)
    return tmp_path / "study.yaml"


def test_the_script_asks_for_what_the_cluster_file_says() -> None:
    cluster = validate(ClusterConfig, read_yaml(ROOT / "configs" / "cluster" / "multinode.yaml"))
    text = script(cluster, "table2", Path("runs/table2"), ["run", "a.yaml"], Path("/home/me"))
    found = options_of(text)
    assert found.items() >= {
        "--job-name": "table2", "--partition": "preemptible", "--nodes": "8", "--ntasks-per-node": "8",
        "--gpus-per-node": "8", "--cpus-per-task": "12", "--time": "12:00:00", "--signal": "USR2@300",
        "--open-mode": "append", "--requeue": "",
    }.items()  # fmt: skip
    assert {"--account", "--qos", "--mem"}.isdisjoint(found), "what is not given is not asked for"
    assert found["--output"].endswith("runs/table2.slurm/%x-%j.out")
    assert "export NCCL_DEBUG=WARN\n" in text
    assert "--max 100" in text
    assert cluster.ranks == 64


def test_without_gpus_there_is_one_process_a_node() -> None:
    cluster = ClusterConfig(gpus_per_node=0, nodes=3, sbatch=("--exclusive",))
    found = options_of(script(cluster, "x", Path("x"), ["run"], Path()))
    assert found["--ntasks-per-node"] == "1"
    assert "--gpus-per-node" not in found
    assert "--exclusive" in found
    assert cluster.ranks == 3


WORD = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=("Cs",)), max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.lists(WORD, max_size=4))
def test_any_argument_and_folder_reaches_srun_whole(words: list[str]) -> None:
    name = f"o{''.join(words)}".replace("/", "_")
    text = script(ClusterConfig(), "job", Path("/data") / name, ["run", *words], Path("/home") / name)
    (call,) = [line for line in text.split("\n") if line.startswith("srun ")]
    parts = shlex.split(call)
    assert parts[parts.index("dinoskip") + 1 :] == ["run", *words]
    assert shlex.split(text.split("\ncd ")[1].split(" || exit 2")[0]) == [f"/home/{name}"]
    assert options_of(text)["--output"] == f"/data/{name}.slurm/%x-%j.out".replace("%", "%%", name.count("%"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"partitions": "gpu"}, "partitions: unknown key (did you mean partition?)"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "partition: "),
        ({"time": "soon"}, "time: "),
        ({"nodes": 0}, "nodes: "),
        ({"setup": ["a\nb"]}, "setup.0: "),
        ({"grace": 1}, "grace: "),
    ],
)
def test_a_wrong_cluster_file_is_refused(tree: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(ClusterConfig, RawConfig(dict(tree)))
    assert message in str(caught.value)


def test_submit_writes_the_script_and_gives_it_to_sbatch(
    study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "study.yaml", "pretrain.batch_size=8", "--until", "pretrain", "--", "--hold", "-x=a b"]) == 0
    assert capsys.readouterr().out == "job 4711; script and log in runs/tiny.slurm\n"
    written = folder_of(Path("runs/tiny")) / "tiny.sh"
    assert slurm.calls("sbatch") == [["--parsable", "--hold", "-x=a b", str(written)]]
    assert "dinoskip run study.yaml pretrain.batch_size=8 --until pretrain --device cuda\n" in written.read_text()


def test_every_variant_can_be_a_job_of_its_own(study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    for variant in ("skip-adamw", "skipless-adamw"):
        assert main(["submit", "study.yaml", "--variant", variant]) == 0
        text = (folder_of(Path("runs/tiny")) / f"tiny-{variant}.sh").read_text()
        assert f"#SBATCH --job-name=tiny-{variant}\n" in text
        assert f"dinoskip run study.yaml --variant {variant} --device cuda\n" in text
    assert len(slurm.calls("sbatch")) == 2
    assert main(["submit", "study.yaml", "--variant", "skip"]) == 2
    assert "--variant skip: is none of skip-adamw, skipless-adamw" in capsys.readouterr().err


def test_submit_of_one_pretraining_run_and_dry_run(
    study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "study.yaml", "--data", "my photos", "--out", "runs/one", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "dinoskip pretrain study.yaml --data 'my photos' --out runs/one --device cuda\n" in text
    assert slurm.calls("sbatch") == []
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("pretrain --data photos pretrain.batch_size=8 {} --out runs/one", ""),
        ("{} pretrain.batch_size=8 --data photos --out runs/one", "pretrain"),
        ("supervise study.yaml --out runs/one supervise.batch_size=8 {} --data photos", ""),
        ("eval probe timm:x --out runs/one --data photos {} --seeds 3", ""),
        ("features export timm:x --out runs/one --data photos {}", ""),
    ],
)
def test_any_command_that_computes(
    words: str, command: str, study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    command = " ".join([*command.split(), *words.format("").split()])
    words = words.format("--nodes 2")
    assert main(["submit", *words.split(), "--time", "60", "--partition", "gpu", "--", "--hold"]) == 0
    assert capsys.readouterr().out == "job 4711; script and log in runs/one.slurm\n"
    text = (folder_of(Path("runs/one")) / "one.sh").read_text()
    assert f"-P -m dinoskip {command} --device cuda\n" in text
    asked = options_of(text)
    assert (asked["--nodes"], asked["--time"], asked["--partition"]) == ("2", "60", "gpu")
    assert slurm.calls("sbatch")[0][:2] == ["--parsable", "--hold"]


def test_options_win_over_the_file_and_a_device_over_the_default(
    study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cluster.yaml").write_text("nodes: 3\ngpus_per_node: 0\npartition: slow\n")
    assert main(["submit", "study.yaml", "--cluster", "cluster.yaml", "--nodes", "1", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert (options_of(text)["--nodes"], options_of(text)["--partition"]) == ("1", "slow")
    assert "dinoskip run study.yaml --device cpu\n" in text
    assert main(["submit", "study.yaml", "--device", "cpu", "--dry-run"]) == 0
    assert "dinoskip run study.yaml --device cpu\n" in capsys.readouterr().out


def code_of(*arguments: str) -> object:
    """A command's exit code, whether it returns it or argparse leaves."""
    try:
        return main(list(arguments))
    except SystemExit as left:
        return left.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study.yaml", "pretrain.epoch=3"], "pretrain.epoch: unknown key"),
        (["study.yaml", "--data", "x"], "the following arguments are required: --out"),
        (["study.yaml", "--nodes", "3", "--gpus-per-node=8"], "4 cannot be shared by 24 processes"),
        (["run", "study.yaml", "--nodes", "none"], "command line: nodes: "),
        (["supervise", "--data", "photos", "--out", "y", "supervise.batch_size=7", "--nodes", "2"], "7 cannot be"),
        (["pretrain", "--data", "photos", "--out", "y"], "1024 are more than the 8 images of photos"),
        (["supervise", "--data", "photos", "--out", "y"], "are more than the 8 images of photos"),
        (["study.yaml", "pretrain.batch_size=64"], "64 are more than the 8 images of scenes"),
        (["study.yaml", "--detach"], "--detach: is of --spread"),
        (["pretrain", "--data", "photos", "--out", "y", "--spread"], "--spread: only a study"),
        (["pretrian", "--data", "x"], "'pretrian' is no command: did you mean pretrain?"),
        (["models", "list"], "submit: dinoskip models list has no --out here"),
        (["report", "study.yaml"], "submit: dinoskip report has no --out here"),
        (["submit", "study.yaml"], "submit: name a study or a command"),
        ([], "submit: name a study or a command"),
        (["study.yaml", "--cluster", "cluster.yaml"], "4 cannot be shared by 24 processes in 1 micro-batches each"),
        (["study.yaml", "--cluster", "none.yaml"], "none.yaml: no such configuration file"),
    ],
)
def test_what_cannot_run_is_not_submitted(
    arguments: list[str], message: str, study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cluster.yaml").write_text("nodes: 3\ngpus_per_node: 8\n")
    assert code_of("submit", *arguments) == 2
    assert message in capsys.readouterr().err
    assert slurm.calls("sbatch") == []


@pytest.mark.parametrize("what", ["pretrain", "supervise"])
def test_a_training_whose_checkpoints_the_disk_has_no_room_for_is_not_submitted(
    what: str, study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dinoskip.pipeline.preflight.shutil.disk_usage", lambda path: SimpleNamespace(free=10_000_000))
    assert code_of("submit", what, "--data", "photos", "--out", "runs/one", f"{what}.batch_size=4") == 6
    assert "runs/one" in capsys.readouterr().err
    assert slurm.calls("sbatch") == []


def test_what_needs_data_that_are_not_there_is_not_submitted(
    study: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("submit", "pretrain", "--data", "none", "--out", "runs/one") == 3
    assert "--data none: no such file or folder" in capsys.readouterr().err
    study.write_text(TINY.replace("{kind: scenes, images: 16, size: 64, val_fraction: 0.5}", "{kind: voc, root: none}"))
    assert code_of("submit", "study.yaml") == 3
    assert "none" in capsys.readouterr().err
    assert slurm.calls("sbatch") == []


def test_no_slurm_or_a_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch refused: sbatch: error: invalid partition"):
        submit("#!/bin/bash\n", "run", tmp_path / "run")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="scontrol: not found"):
        run_tool(["scontrol"])


def test_jobs_import_nothing_from_the_folder_they_run_in(tmp_path: Path) -> None:
    for name in ("timm", "numpy", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    text = script(ClusterConfig(), "one", tmp_path / "runs" / "one", ["settings", "tokencut.tau"], tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("srun"))
    command = shlex.split(line[line.index(sys.executable) :])
    assert subprocess.run(command, cwd=tmp_path, check=False, stdout=subprocess.DEVNULL).returncode == 0
