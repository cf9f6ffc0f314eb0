"""Row 28, side_services_down: boards that raise or are missing, no network, a file system that differs by rank."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dinoskip.data import ImageFolder
from dinoskip.errors import WeightsError
from dinoskip.io.files import read_json
from dinoskip.models import load_backbone
from dinoskip.runtime.console import read_metrics
from dinoskip.runtime.distributed import World
from dinoskip.training import pretrain
from dinoskip.training.boards import Boards
from tests.helpers.ranks import on_ranks
from tests.helpers.tiny import STEPS, make_images, tensor_hashes, tiny_job

# A package of the name and the few functions that are called; what it does is written to a file.
WANDB = """
import os, pathlib
LOG = pathlib.Path(os.environ["FAKE_WANDB_LOG"])
FAIL = os.environ.get("FAKE_WANDB_FAIL", "")

class CommError(Exception):
    pass

def note(text):
    with LOG.open("a") as stream:
        stream.write(text + chr(10))

def check(name):
    if name == FAIL:
        raise CommError(f"{name} failed, key {os.environ.get('WANDB_API_KEY')} is not valid" + chr(10) + "more lines")

class Settings:
    def __init__(self, **options):
        pass

class Run:
    def log(self, values, step):
        check("log")
        note(f"log {step} {sorted(values)}")
    def finish(self):
        check("finish")
        note("finish")

def init(**options):
    check("init")
    note(f"init {options['id']} {options['resume']} {sorted(options['config'])}")
    return Run()
"""


MLFLOW = """
import os, pathlib, types
LOG = pathlib.Path(os.environ["FAKE_MLFLOW_LOG"])
FAIL = os.environ.get("FAKE_MLFLOW_FAIL", "")

def note(name, text=""):
    if name == FAIL:
        raise RuntimeError(f"{name} failed, token {os.environ.get('MLFLOW_TRACKING_TOKEN')} is not valid")
    with LOG.open("a") as stream:
        stream.write(f"{name} {text}".strip() + chr(10))

class entities:
    Param = staticmethod(lambda key, value: (key, value))
    Metric = staticmethod(lambda key, value, timestamp, step: (key, value, step))

class MlflowClient:
    def __init__(self, tracking_uri):
        note("client", tracking_uri.partition(":")[0])
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        return name
    def create_run(self, experiment, run_name):
        note("create_run", f"{experiment} {run_name}")
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
    def update_run(self, run, status):
        note("update_run", f"{run} {status}")
    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100 and all(len(value) <= 6000 for _, value in params)
        if params:
            note("params", f"{run} {len(params)}")
        if metrics:
            steps = sorted({step for _, _, step in metrics})
            note("log_batch", f"{run} {steps} {sorted(key for key, _, _ in metrics)}")
    def set_terminated(self, run):
        note("set_terminated", run)
"""


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package on the path; returns the file of what it was asked to do."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mlflow.py").write_text(MLFLOW)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_MLFLOW_LOG", str(tmp_path / "mlflow.log"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "5ec4e7" * 6)
    yield tmp_path / "mlflow.log"
    sys.modules.pop("mlflow", None)


@pytest.mark.parametrize("fails", ["create_run", "log_batch", "set_terminated", "never"])
def test_mlflow_down_is_one_warning_and_the_same_run(
    fails: str, mlflow: Path, images: ImageFolder, plain: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("FAKE_MLFLOW_FAIL", fails)
    with caplog.at_level(logging.WARNING, "dinoskip"):
        final = pretrain(job(boards=("mlflow",)), images, tmp_path / "run", device="cpu")
    assert tensor_hashes(final) == plain
    messages = [record.getMessage() for record in caplog.records]
    did = [line.split()[0] for line in mlflow.read_text().splitlines()]
    if fails == "never":
        assert messages == []
        assert did == ["client", "create_run", "params", "update_run", *["log_batch"] * 6, "set_terminated"]
        return
    assert messages == [f"mlflow: {fails} failed, token *** is not valid; training goes on without it"]


def test_a_resumed_run_is_the_same_run_of_mlflow(mlflow: Path, tmp_path: Path) -> None:
    config = {"seed": 1, "model": {f"setting{number}": "x" * 9000 for number in range(150)}}
    for step in (0, 4):
        boards = Boards(["mlflow"], tmp_path, step, config)
        boards.write(step + 1, {"loss": 1.0, "text": "left out"})
        boards.close()
    begun, again = mlflow.read_text().split("set_terminated r1\n")[:2]
    assert begun.splitlines() == [
        "client sqlite", f"create_run dinoskip {tmp_path.name}", "params r1 100", "params r1 51",
        "update_run r1 RUNNING", "log_batch r1 [1] ['loss']",
    ]  # fmt: skip
    assert again.splitlines() == ["client sqlite", "update_run r1 RUNNING", "log_batch r1 [5] ['loss']"]


@pytest.mark.slow
def test_the_real_mlflow_in_a_database(tmp_path: Path) -> None:
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed (extra mlflow)")
    code = (
        "from pathlib import Path; from dinoskip.training.boards import Boards\n"
        "for step in (0, 1):\n"
        "    b = Boards(['mlflow'], Path('.').resolve(), step, {'seed': 1}); b.write(step + 1, {'loss': 2.0 - step})\n"
        "    b.close()\n"
        "import mlflow, json\n"
        "client = mlflow.MlflowClient(tracking_uri='sqlite:///' + str(Path('boards/mlflow/mlflow.db').resolve()))\n"
        "run = client.get_run(json.loads(Path('boards/mlflow.json').read_text())['run'])\n"
        "history = client.get_metric_history(run.info.run_id, 'loss')\n"
        "print(run.info.status, run.data.params, [(m.step, m.value) for m in history])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "training goes on without it" not in done.stderr
    assert done.stdout.splitlines()[-1] == "FINISHED {'seed': '1'} [(1, 2.0), (2, 1.0)]"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder.open(make_images(tmp_path_factory.mktemp("data") / "images"))


@pytest.fixture(scope="module")
def plain(images: ImageFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tensors of a run without boards."""
    return tensor_hashes(pretrain(job(), images, tmp_path_factory.mktemp("plain") / "run", device="cpu"))


def job(**settings: object):  # type: ignore[no-untyped-def]
    return tiny_job(epochs=1, warmup_epochs=0, **settings)


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package on the path; returns the file of what it was asked to do."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("FAKE_WANDB_LOG", str(tmp_path / "wandb.log"))
    monkeypatch.setenv("WANDB_API_KEY", "5ec4e7" * 6)
    yield tmp_path / "wandb.log"
    sys.modules.pop("wandb", None)


@pytest.mark.parametrize("fails", ["init", "log", "finish", "never"])
def test_wandb_down_is_one_warning_and_the_same_run(
    fails: str, wandb: Path, images: ImageFolder, plain: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("FAKE_WANDB_FAIL", fails)
    with caplog.at_level(logging.WARNING, "dinoskip"):
        final = pretrain(job(boards=("wandb",)), images, tmp_path / "run", device="cpu")
    assert tensor_hashes(final) == plain
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 6
    assert read_json(tmp_path / "run" / "status.json")["state"] == "done"
    messages = [record.getMessage() for record in caplog.records]
    did = wandb.read_text().splitlines() if wandb.exists() else []
    if fails == "never":
        assert messages == []
        assert [line.split()[0] for line in did] == ["init", *["log"] * 6, "finish"]
        assert [line.split()[1] for line in did[1:7]] == ["1", "2", "3", "4", "5", "6"]
        return
    assert messages == [f"wandb: {fails} failed, key *** is not valid; training goes on without it"]
    assert len(did) == {"init": 0, "log": 1, "finish": 7}[fails]


def test_a_resumed_run_is_the_same_run_of_wandb_and_no_key_is_written(wandb: Path, tmp_path: Path) -> None:
    for step in (0, 4):
        boards = Boards(["wandb"], tmp_path, step, {"seed": 1})
        boards.write(step + 1, {"loss": 1.0, "text": "left out"})
        boards.close()
    lines = wandb.read_text().splitlines()
    assert lines[0] == lines[3]
    assert lines[0].split()[2] == "allow"
    assert lines[1] == "log 1 ['loss']"
    written = [path.read_bytes() for path in (tmp_path / "boards").rglob("*") if path.is_file()]
    assert written
    assert not any(os.environ["WANDB_API_KEY"].encode() in content for content in written)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_one_warning(
    name: str, images: ImageFolder, plain: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for module in [m for m in sys.modules if m.split(".")[0] == name or m.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # what import finds for a package that is not there
    with caplog.at_level(logging.WARNING, "dinoskip"):
        final = pretrain(job(boards=(name,)), images, tmp_path / "run", device="cpu")
    assert tensor_hashes(final) == plain
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name}: its package cannot be imported")
    assert message.endswith(f"pip install 'dinoskip[{name}]'; training goes on without it")
    assert "\n" not in message


def test_a_folder_that_tensorboard_cannot_write_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "boards").write_text("in the way")
    with caplog.at_level(logging.WARNING, "dinoskip"):
        boards = Boards(["tensorboard"], tmp_path, 0, {})
        boards.write(1, {"loss": 1.0})
        boards.close()
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_the_real_wandb_offline(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed (extra wandb)")
    code = (
        "from pathlib import Path; from dinoskip.training.boards import Boards; "
        "from dinoskip.runtime.console import configure; "
        "configure(); b = Boards(['wandb'], Path('.').resolve(), 0, {'seed': 1}); b.write(1, {'loss': 2.0}); b.close()"
    )
    environment = os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "training goes on without it" not in done.stderr
    assert list((tmp_path / "boards" / "wandb").glob("offline-run-*/*.wandb"))


# --- no network ----------------------------------------------------------------------------------------


def test_an_unreachable_hub_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client of the hub, told to stay offline, with an empty cache."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="pretrained weights cannot be loaded") as caught:
        load_backbone("timm:vit_tiny_patch16_224")
    assert str(caught.value).startswith("timm:vit_tiny_patch16_224: ")
    assert "needs network" in str(caught.value)
    assert "\n" not in str(caught.value)


# --- a file system that shows one rank what it hides from another ---------------------------------------


def _blind(world: World, home: str, images: str, port: int) -> None:
    """Resume in ``run``, which lies in rank 0's working directory and is not there in rank 1's."""
    place = Path(home) / str(world.rank)
    os.chdir(place)
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(world.rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    stream = (place / "log").open("w")
    handler = logging.StreamHandler(stream)
    logging.getLogger("dinoskip").addHandler(handler)
    pretrain(tiny_job(skip=False), ImageFolder.open(images), "run", device="cpu")
    stream.close()
    logging.getLogger("dinoskip").removeHandler(handler)


def test_a_rank_that_sees_no_checkpoint_goes_on_with_the_others(images: ImageFolder, tmp_path: Path) -> None:
    first = tmp_path / "0" / "run"
    pretrain(tiny_job(skip=False), images, first, device="cpu")
    whole = read_metrics(first / "metrics.jsonl")
    shutil.rmtree(first / "checkpoints" / f"step-{STEPS:08d}")  # back to step 8
    (tmp_path / "1").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    on_ranks(2, tmp_path, _blind, str(tmp_path), str(images.root), port)
    rows = read_metrics(first / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in whole], abs=1e-3)
    assert (first / "checkpoints" / f"step-{STEPS:08d}").is_dir()
    warnings = [line for line in (tmp_path / "0" / "log").read_text().splitlines() if "sent from rank 0" in line]
    assert len(warnings) == 1
    assert "not readable on rank 1" in warnings[0]
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["log"], "rank 1 writes nothing"
    assert (tmp_path / "1" / "log").read_text().count("sent from") == 0
