"""Child processes come from a fork server, one a test session, that has imported what they need."""

import multiprocessing
from collections.abc import Iterator

import pytest

from dinoskip.console import log

multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["dinoskip.training", "dinoskip.pipeline.study", "tests.helpers.tiny", "hypothesis", "pytest"]
)


@pytest.fixture(autouse=True)
def no_handler_left() -> Iterator[None]:
    """A test that runs the command line in this process leaves a handler on its captured, soon closed stderr."""
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before
