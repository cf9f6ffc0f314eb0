"""Tests of plug-ins have the fork server and the fixtures of the core's."""

from tests.conftest import log_as_imported

__all__ = ["log_as_imported"]
