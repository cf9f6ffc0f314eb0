"""Child processes come from a fork server, one a test session, that has imported what they need."""

import multiprocessing
from collections.abc import Iterator

import pytest

from dinoskip.runtime.console import log

multiprocessing.get_context("forkserver").set_forkserver_preload(
    [  # modules, since packages import their parts when asked for one
        "dinoskip.training.pretraining", "dinoskip.training.supervised",
        "dinoskip.features.extract", "dinoskip.models.load", "dinoskip.pipeline.study", "tests.helpers.tiny",
        "torch._dynamo", "hypothesis", "pytest",
    ]
)  # fmt: skip


AS_IMPORTED = log.handlers[:], log.level, log.propagate


@pytest.fixture(autouse=True)
def log_as_imported() -> Iterator[None]:
    """A test or a module's fixture that runs the command line in this process leaves a handler on its closed stderr."""
    log.handlers[:], log.level, log.propagate = AS_IMPORTED
    yield
    log.handlers[:], log.level, log.propagate = AS_IMPORTED
