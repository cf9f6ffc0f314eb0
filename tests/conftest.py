"""Child processes come from a fork server, one a test session, that has imported what they need."""

import multiprocessing

multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["dinoskip.training", "dinoskip.commands", "tests.helpers.tiny", "hypothesis", "pytest"]
)
