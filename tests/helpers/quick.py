"""Settings that make tests quicker: imported by the test session and by its fork server, so that children have them."""

from dinoskip.runtime import environment

environment.MATMUL_SECONDS = 0.005  # of each training; it is for a figure of the report that no test compares
