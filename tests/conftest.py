"""Child processes come from a fork server, one a test session, that has imported what they need.

In a tree without plugins/ a test that needs a plug-in is skipped, and the reason names it: one that imports its package
or a helper that does, and one with the mark ``plugin("video")``.
"""

import gc
import multiprocessing
import os
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import tests.helpers.quick  # noqa: F401  # it sets what makes tests quicker
from dinoskip.runtime.console import log
from dinoskip.runtime.provenance import EPOCH

os.environ.setdefault(EPOCH, str(int(time.time())))  # files of a run over midnight are compared, too

multiprocessing.get_context("forkserver").set_forkserver_preload(
    [  # modules, since packages import their parts when asked for one
        "dinoskip.training.pretraining", "dinoskip.training.supervised",
        "dinoskip.features.extract", "dinoskip.models.load", "dinoskip.pipeline.study", "tests.helpers.tiny",
        "torch._dynamo", "hypothesis", "pytest", "tests.helpers.quick", "tests.helpers.frozen",
    ]
)  # fmt: skip

gc.disable()  # until all tests are collected: what is imported stays, and looking through it again took a tenth of it


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end; collections of garbage need not look at it."""
    gc.freeze()
    gc.enable()


MARKED = {"chaos", "device", "fuzz"}
"""Folders whose tests have a mark of their name."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.parent.name in MARKED:
        item.add_marker(item.path.parent.name)


AS_IMPORTED = log.handlers[:], log.level, log.propagate


@pytest.fixture(autouse=True)
def log_as_imported() -> Iterator[None]:
    """A test or a module's fixture that runs the command line in this process leaves a handler on its closed stderr."""
    log.handlers[:], log.level, log.propagate = AS_IMPORTED
    yield
    log.handlers[:], log.level, log.propagate = AS_IMPORTED


def absent(error: BaseException | None) -> str | None:
    """The package of a plug-in that could not be imported; None for any other error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("dinoskip_"):
            return str(error.name).partition(".")[0]
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule() -> Generator[None, Any, Any]:
    """Modules whose import asks for a plug-in that is not there are skipped."""
    module = yield
    read = module._getobj

    def read_or_skip() -> Any:
        try:
            return read()
        except module.CollectError as error:
            if name := absent(error):
                pytest.skip(f"needs {name}, which is not installed", allow_module_level=True)
            raise

    module._getobj = read_or_skip
    return module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tests that ask for a plug-in while they run are skipped where it is not there."""
    try:
        return (yield)
    except Exception as error:
        if name := absent(error):
            pytest.skip(f"needs {name}, which is not installed")
        raise


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that name parts of a plug-in in a study or a command are marked."""
    for mark in item.iter_markers("plugin"):
        for name in mark.args:
            if find_spec(f"dinoskip_{name}") is None:
                pytest.skip(f"needs dinoskip_{name}, which is not installed")
